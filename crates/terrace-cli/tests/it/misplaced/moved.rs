//! Pools of directories that are moved or copied, places that a repair is told of, and what else lies where a pool may.

use std::path::{Path, PathBuf};

use super::records::note;
use super::{KEYS, count, emulated, make, names, run};
use crate::engines;
use crate::support::Bed;

fn copy(from: &Path, to: &Path) {
    assert!(std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

/// A pool in the directory goes with it, and a copy has its own.
#[test]
fn a_directory_keeps_its_pool_wherever_it_lies() {
    for engine in engines::names() {
        let bed = Bed::new();
        std::fs::create_dir_all(bed.db.join("sub")).unwrap();
        make(&bed, &bed.db, engine, &emulated(&bed.db.join("sub/p")));
        let (moved, copied) = (bed.path("moved"), bed.path("copied"));
        copy(&bed.db, &copied);
        std::fs::rename(&bed.db, &moved).unwrap();
        for dir in [&moved, &copied] {
            assert_eq!(count(dir), KEYS as usize, "{engine}");
            run(dir, "check", &[]).text();
        }
        run(&copied, "put", &["only here", "v"]).text();
        assert_eq!((count(&copied), count(&moved)), (KEYS as usize + 1, KEYS as usize), "{engine}");
        assert!(!bed.db.exists(), "{engine}");
    }
}

/// A repair that is told of another place than the recorded one records that, whether there was anything to be done or
/// not.
#[test]
fn a_repair_records_the_place_that_it_is_told_of() {
    for engine in engines::names() {
        let bed = Bed::new();
        let [one, other] = ["one", "other"].map(|name| bed.path(name));
        [&one, &other].into_iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
        make(&bed, &bed.db, engine, &emulated(&one.join("p")));
        std::fs::rename(one.join("p"), other.join("p")).unwrap();
        let repaired = run(&bed.db, "repair", &["--pool", &emulated(&other.join("p"))]).text();
        assert!(repaired.contains("recorded that the pool lies in"), "{engine} {repaired}");
        assert_eq!(count(&bed.db), KEYS as usize, "{engine}");
        run(&bed.db, "check", &[]).text();
        assert!(run(&bed.db, "repair", &[]).text().contains("everything is sound"), "{engine}");
        assert!(names(&one, "").is_empty(), "{engine}");
    }
}

/// Another database's pool in the recorded place stays, and this one goes on with a pool elsewhere.
#[test]
fn a_place_that_another_database_has_taken_can_be_left() {
    for engine in ["slm", "turbo"] {
        let bed = Bed::new();
        let (other, place, next) = (bed.path("other"), bed.path("p"), bed.path("next"));
        make(&bed, &bed.db, engine, &emulated(&place));
        std::fs::remove_file(&place).unwrap();
        make(&bed, &other, engine, &emulated(&place));
        bed.run::<&str>("repair", &[]).fails(2, &["another database's pool", "a place for a new one"]);
        assert!(bed.run("repair", &["--pool", &emulated(&next)]).code <= 1, "{engine}");
        run(&bed.db, "put", &["k", "v"]).text();
        run(&bed.db, "check", &[]).text();
        assert_eq!(count(&other), KEYS as usize, "{engine}");
    }
}

/// A database whose manifest is gone is not begun anew over its pool, however the pool is named.
#[test]
fn a_lost_manifest_costs_no_pool() {
    for engine in engines::names() {
        for named in [false, true] {
            let bed = Bed::new();
            let pool = bed.db.join("pool");
            let medium = if named { emulated(&pool) } else { "emulated:dram".into() };
            make(&bed, &bed.db, engine, &medium);
            for file in [names(&bed.db, "MANIFEST"), names(&bed.db, "CURRENT")].concat() {
                std::fs::remove_file(file).unwrap();
            }
            let before = std::fs::read(&pool).unwrap();
            let put = bed.run("put", &["k", "v", "--engine", engine, "--pool", &medium]);
            assert!(put.code > 0 && put.err.contains("repair"), "{engine} {put:?}");
            assert!(std::fs::read(&pool).unwrap() == before, "{engine}");
            assert!(bed.run("repair", &["--engine", engine, "--pool", &medium]).code <= 1, "{engine}");
            assert_eq!(count(&bed.db), KEYS as usize, "{engine}");
        }
    }
}

/// What lies under the pool's name and is no leftover of a creation stays: a user's file, another database's pool.
#[test]
fn what_is_called_pool_is_not_taken_for_a_leftover() {
    let bed = Bed::new();
    make(&bed, &bed.path("other"), "turbo", "emulated:dram");
    let others = std::fs::read(bed.path("other/pool")).unwrap();
    for (i, bytes) in [b"remember the milk".to_vec(), others].iter().enumerate() {
        for engine in engines::names() {
            let dir = bed.path(&format!("{engine}-{i}"));
            std::fs::create_dir(&dir).unwrap();
            std::fs::write(dir.join("pool"), bytes).unwrap();
            let put = run(&dir, "put", &["k", "v", "--engine", engine]);
            assert!(std::fs::read(dir.join("pool")).unwrap() == *bytes, "{engine} {put:?}");
            assert!(put.code > 0, "{engine} {put:?}");
        }
        let dir = bed.path(&format!("later-{i}"));
        make(&bed, &dir, "lsm", "auto");
        std::fs::write(dir.join("pool"), bytes).unwrap();
        run(&dir, "put", &["key/00000", "v"]).text();
        assert_eq!(count(&dir), KEYS as usize);
        assert!(std::fs::read(dir.join("pool")).unwrap() == *bytes);
    }
}

/// A note that is older than what lies in its pool's place claims none of that.
#[test]
fn a_note_claims_no_pool_that_another_database_has_made_since() {
    let bed = Bed::new();
    let (place, other) = (bed.path("p"), bed.path("other"));
    let new = bed.path("p.repair");
    make(&bed, &bed.db, "slm", &emulated(&place));
    make(&bed, &other, "turbo", &emulated(&new));
    for args in [&["--dry-run"][..], &[]] {
        let _ = std::fs::create_dir(bed.db.join("repair"));
        std::fs::write(bed.db.join("repair/NOTE"), note(&bed.db, &new)).unwrap();
        bed.run("repair", args);
        assert_eq!((count(&other), count(&bed.db)), (KEYS as usize, KEYS as usize), "{args:?}");
    }
    // One whose medium is gone for good says what to do.
    let gone = bed.path("gone/p.repair");
    let _ = std::fs::create_dir(bed.db.join("repair"));
    std::fs::write(bed.db.join("repair/NOTE"), note(&bed.db, &gone)).unwrap();
    bed.run::<&str>("repair", &[]).fails(2, &["cut short", "gone for good, remove"]);
    std::fs::remove_dir_all(bed.db.join("repair")).unwrap();
    assert_eq!(bed.run::<&str>("repair", &[]).code, 0);
}

/// No new pool is made where the repair itself tidies up.
#[test]
fn no_pool_lies_in_the_folder_of_a_repair() {
    for engine in engines::names() {
        let bed = Bed::new();
        let place = bed.path("p");
        make(&bed, &bed.db, engine, &emulated(&place));
        let away: PathBuf = bed.path("away");
        std::fs::rename(&place, &away).unwrap();
        let inside = emulated(&bed.db.join("repair/p"));
        bed.run("repair", &["--pool", &inside]).fails(2, &["where a repair keeps its files"]);
        std::fs::rename(&away, &place).unwrap();
        assert_eq!(count(&bed.db), KEYS as usize, "{engine}");
    }
}

/// A pool with something in it is no leftover because its roots are gone: a creation gives it another name at most.
#[test]
fn a_full_pool_without_roots_is_kept_by_a_creation() {
    for engine in ["turbo", "sptree", "split"] {
        let bed = Bed::new();
        let (place, other) = (bed.path("p"), bed.path("other"));
        make(&bed, &other, engine, &emulated(&place));
        let mut bytes = std::fs::read(&place).unwrap();
        bytes[3 * 4096..4 * 4096].fill(0);
        std::fs::write(&place, &bytes).unwrap();
        bed.run("put", &["k", "v", "--engine", engine, "--pool", &emulated(&place)]);
        let kept = [place.clone(), bed.path("p.lost")];
        assert!(kept.iter().any(|path| std::fs::read(path).is_ok_and(|found| found == bytes)), "{engine}");
    }
}

/// A repair uses no copy of the pool while the pool itself is there.
#[test]
fn a_repair_uses_no_copy_beside_the_pool_itself() {
    for engine in engines::names() {
        let bed = Bed::new();
        let (place, copied) = (bed.path("p"), bed.path("copy"));
        make(&bed, &bed.db, engine, &emulated(&place));
        copy(&place, &copied);
        let repaired = bed.run("repair", &["--pool", &emulated(&copied)]);
        repaired.fails(2, &["there is a pool in", "the database's lies in", "move it away"]);
        assert_eq!(count(&bed.db), KEYS as usize, "{engine}");
    }
}

/// No pool has the name of a database's file: where a database lies, that would take it for its own.
#[test]
fn no_pool_is_called_like_a_databases_file() {
    let bed = Bed::new();
    for name in ["CURRENT.tmp", "MANIFEST-000009", "000001.sst", "000009.log", "REPAIR.tmp", "lost"] {
        let put = bed.run("put", &["k", "v", "--engine", "turbo", "--pool", &emulated(&bed.path(name))]);
        put.fails(2, &["the name of a database's file"]);
        assert!(!bed.path(name).exists(), "{name}");
    }
}
