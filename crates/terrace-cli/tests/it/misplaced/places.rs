//! Places of pools: behind links and parts `..`, on other file systems, under the names of other files.

use std::path::{Path, PathBuf};

use super::records::note;
use super::{KEYS, count, emulated, flush, make, names, run, spoil_superblocks};
use crate::engines;
use crate::support::Bed;

/// A pool behind a link is repaired where it lies; one that leads nowhere, to a medium that is not there perhaps, is
/// none that is gone.
#[test]
fn a_pool_behind_a_link_stays_where_it_is() {
    for (i, engine) in engines::names().enumerate() {
        let bed = Bed::new();
        let home = bed.path("medium");
        std::fs::create_dir(&home).unwrap();
        make(&bed, &bed.db, engine, "emulated:dram");
        let (link, pool) = (bed.db.join("pool"), home.join("p"));
        std::fs::rename(&link, &pool).unwrap();
        let target = if i % 2 == 0 { pool.clone() } else { PathBuf::from("../medium/p") };
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert_eq!(count(&bed.db), KEYS as usize);
        let away = bed.path("away");
        std::fs::rename(&home, &away).unwrap();
        bed.run::<&str>("check", &[]).fails(1, &["leads nowhere"]);
        bed.run::<&str>("repair", &[]).fails(2, &["leads nowhere", "remove the link"]);
        std::fs::rename(&away, &home).unwrap();
        assert_eq!(count(&bed.db), KEYS as usize);
        let was = spoil_superblocks(&pool);
        assert!(bed.run::<&str>("repair", &[]).code <= 1, "{engine}");
        assert_eq!(std::fs::read_link(&link).unwrap(), target, "{engine}");
        assert!(std::fs::read(home.join("p.lost")).unwrap() == was, "{engine}");
        assert!(
            pool.exists() && names(&home, "").len() == 2 && run(&bed.db, "check", &[]).code == 0,
            "{engine}"
        );
    }
}

/// A pool is not made in the place of a table or of the manifest, whatever leads there.
#[test]
fn no_pool_is_made_under_the_name_of_another_file() {
    let bed = Bed::new();
    make(&bed, &bed.db, "slm", "auto");
    flush(&bed.db);
    let mut files: Vec<PathBuf> =
        ["MANIFEST", "CURRENT", ".sst"].iter().flat_map(|part| names(&bed.db, part)).collect();
    files.extend(["000099.log", "lost", "repair", "REPAIR"].map(|name| bed.db.join(name)));
    let link = bed.path("link");
    std::os::unix::fs::symlink(&files[0], &link).unwrap();
    let around =
        |file: &PathBuf| bed.db.join("..").join(bed.db.file_name().unwrap()).join(file.file_name().unwrap());
    let ways = files.iter().flat_map(|file| [file.clone(), around(file)]).chain([link]);
    for file in ways.collect::<Vec<_>>() {
        let before = std::fs::read(&file).ok();
        for command in [&["put", "a", "b"][..], &["repair"], &["check"]] {
            let args = [&command[1..], &["--pool", file.to_str().unwrap()]].concat();
            let outcome = bed.run(command[0], &args);
            assert!(
                outcome.code != 0 && outcome.err.contains("another file of the database"),
                "{command:?} {outcome:?}"
            );
            assert_eq!(std::fs::read(&file).ok(), before, "{command:?} {}", file.display());
        }
    }
    assert_eq!(count(&bed.db), KEYS as usize);
}

/// A pool's place may lead to another file without being named.
#[test]
fn a_pool_that_is_a_link_to_another_file_of_the_database_is_refused() {
    for (engine, medium) in [("slm", "auto"), ("turbo", "emulated:dram")] {
        let bed = Bed::new();
        make(&bed, &bed.db, engine, medium);
        let (pool, aside) = (bed.db.join("pool"), bed.path("aside"));
        for file in names(&bed.db, "MANIFEST").into_iter().chain([bed.db.join("CURRENT")]) {
            let before = std::fs::read(&file).unwrap();
            std::fs::rename(&pool, &aside).unwrap();
            std::os::unix::fs::symlink(&file, &pool).unwrap();
            for command in [&["put", "a", "b"][..], &["repair"]] {
                let outcome = bed.run(command[0], &command[1..]);
                assert!(
                    engine == "lsm" || outcome.err.contains("another file of the database"),
                    "{outcome:?}"
                );
                assert_eq!(std::fs::read(&file).ok().as_ref(), Some(&before), "{engine} {command:?}");
            }
            std::fs::rename(&aside, &pool).unwrap();
        }
        assert_eq!(count(&bed.db), KEYS as usize, "{engine}");
    }
}

/// The note of a repair names the new pool by a path that leads there from everywhere.
#[test]
fn a_repair_removes_no_pool_that_a_relative_path_leads_to() {
    let bed = Bed::new();
    let (ours, others) = (bed.path("med"), bed.path("x/med"));
    [&ours, &others, &bed.path("x/y")].into_iter().for_each(|dir| std::fs::create_dir_all(dir).unwrap());
    let around = bed.db.join("../med/hp");
    make(&bed, &bed.db, "turbo", &emulated(&around));
    let other = bed.path("other");
    make(&bed, &other, "turbo", &emulated(&others.join("hp.repair")));
    let repaired = std::process::Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(["repair".as_ref(), bed.db.as_os_str()])
        .current_dir(bed.path("x/y"))
        .output()
        .unwrap();
    assert!(repaired.status.success(), "{repaired:?}");
    assert_eq!((count(&other), count(&bed.db)), (KEYS as usize, KEYS as usize));
    assert!(!ours.join("hp.repair").exists() && !bed.db.join("repair").exists());
}

/// A new database takes nobody's pool, nor another file, whichever way leads there: through its own directory, by links
/// or parts `..`, or by lying where the pool lies.
#[test]
fn a_creation_replaces_nothing_that_is_not_its_own() {
    for engine in ["slm", "turbo"] {
        let bed = Bed::new();
        let (other, medium, notes) = (bed.path("other"), bed.path("med"), bed.path("med/notes.txt"));
        [&medium, &bed.path("db/x")].into_iter().for_each(|dir| std::fs::create_dir_all(dir).unwrap());
        std::os::unix::fs::symlink("../med", bed.db.join("medium")).unwrap();
        std::fs::write(&notes, "remember the milk").unwrap();
        make(&bed, &other, engine, &emulated(&medium.join("p")));
        let is_refused = |dir: &Path, pool: PathBuf| {
            let made = run(dir, "put", &["k", "v", "--engine", engine, "--pool", &emulated(&pool)]);
            assert!(made.code > 0, "{engine} {} {made:?}", pool.display());
            assert_eq!(count(&other), KEYS as usize, "{engine} {}", pool.display());
            assert_eq!(std::fs::read(&notes).unwrap(), b"remember the milk", "{engine} {}", pool.display());
        };
        for file in ["p", "notes.txt"] {
            for way in ["medium", "x/../medium", "../med", "../db/medium", "x/../../med"] {
                is_refused(&bed.db, bed.db.join(way).join(file));
            }
            is_refused(&medium, medium.join(file));
            is_refused(&bed.path("db/../med"), bed.path("other/../med").join(file));
        }
        is_refused(&bed.db, bed.db.join("repair/p"));
        std::fs::write(bed.db.join("x/notes.txt"), "remember the milk").unwrap();
        is_refused(&bed.db, bed.db.join("x/notes.txt"));
        assert_eq!(std::fs::read(bed.db.join("x/notes.txt")).unwrap(), b"remember the milk");
    }
}

/// What a database records of its pool's place finds it again, or the place is refused.
#[test]
fn a_place_that_is_no_text_is_not_recorded_as_another() {
    use std::os::unix::ffi::OsStrExt;
    let bed = Bed::new();
    let folder = bed.root.path().join(std::ffi::OsStr::from_bytes(b"n\xff"));
    std::fs::create_dir_all(folder.join("m")).unwrap();
    std::os::unix::fs::symlink(folder.join("m"), bed.path("link")).unwrap();
    make(&bed, &bed.db, "turbo", &emulated(&bed.path("link/../p")));
    assert_eq!(count(&bed.db), KEYS as usize);
    assert!(folder.join("p").exists());
    let refused = bed.path("refused");
    let pool = [b"emulated:dram@", folder.join("q").as_os_str().as_bytes()].concat();
    let args = [b"k".as_slice(), b"v", b"--engine", b"turbo", b"--pool", &pool];
    let made = Bed { db: refused.clone(), ..Bed::new() }.run("put", &args.map(std::ffi::OsStr::from_bytes));
    assert!(made.code > 0 && !refused.exists() && !folder.join("q").exists(), "{made:?}");
}

/// The note of a repair that was cut short keeps its claim while the pool's medium is away, and gives none to a copy of
/// the directory by a link.
#[test]
fn a_note_counts_where_its_pool_is() {
    let bed = Bed::new();
    let (medium, away, copy) = (bed.path("med"), bed.path("away"), bed.path("copy"));
    std::fs::create_dir_all(&medium).unwrap();
    std::fs::create_dir_all(&bed.db).unwrap();
    std::os::unix::fs::symlink("../med", bed.db.join("medium")).unwrap();
    let new = medium.join("p.repair");
    make(&bed, &bed.db, "slm", &emulated(&medium.join("p")));
    let spelt = bed.path("db/../db");
    for (dir, pool) in [(&bed.db, &new), (&bed.db, &"medium/p.repair".into()), (&spelt, &new)] {
        let note = note(dir, pool.as_path());
        std::fs::create_dir(bed.db.join("repair")).unwrap();
        std::fs::write(bed.db.join("repair/NOTE"), note).unwrap();
        std::fs::write(&new, "of a repair").unwrap();
        assert!(
            std::process::Command::new("cp").arg("-a").args([&bed.db, &copy]).status().unwrap().success()
        );
        run(&copy, "repair", &[]);
        assert!(new.exists(), "{}", pool.display());
        std::fs::rename(&medium, &away).unwrap();
        assert!(run(&bed.db, "repair", &[]).code > 1, "{}", pool.display());
        std::fs::rename(&away, &medium).unwrap();
        let repaired = run(&bed.db, "repair", &[]);
        assert!(repaired.code == 0 && !new.exists(), "{} {repaired:?}", pool.display());
        assert_eq!(count(&bed.db), KEYS as usize);
        std::fs::remove_dir_all(&copy).unwrap();
    }
}

/// A repair that is told of a place in a folder which is not there leaves nothing that keeps others from their work.
#[test]
fn a_repair_told_of_a_place_that_cannot_be_leaves_nothing() {
    for engine in ["slm", "lsm"] {
        let bed = Bed::new();
        make(&bed, &bed.db, engine, "auto");
        for _ in 0..2 {
            for place in [bed.db.join("../typo/pool"), bed.path("typo/pool"), bed.db.join("typo/pool")] {
                bed.run("repair", &["--pool", place.to_str().unwrap()]);
                assert!(!bed.db.join("repair").exists(), "{engine} {}", place.display());
            }
        }
        bed.run::<&str>("repair", &[]).text();
        assert_eq!(count(&bed.db), KEYS as usize, "{engine}");
    }
}

/// A pool that is of no use is kept beside its place, on its own file system: a folder of the directory, or one that is
/// reached from there, may lie on another.
#[test]
fn a_pool_is_kept_on_its_own_file_system() {
    let Ok(elsewhere) = tempfile::tempdir_in("/dev/shm") else { return };
    for (i, around) in ["medium/p", "../medium/p", "../x/../medium/p"].into_iter().enumerate() {
        let bed = Bed::new();
        let medium = elsewhere.path().join(i.to_string());
        [&medium, &bed.db, &bed.path("x")].into_iter().for_each(|dir| std::fs::create_dir_all(dir).unwrap());
        let place = bed.db.join(around);
        std::os::unix::fs::symlink(&medium, place.parent().unwrap()).unwrap();
        make(&bed, &bed.db.join("../db/../db"), "slm", &emulated(&place));
        assert_eq!(count(&bed.db), KEYS as usize, "{around}");
        let was = spoil_superblocks(&medium.join("p"));
        assert!(bed.run::<&str>("repair", &[]).code <= 1, "{around}");
        assert!(std::fs::read(medium.join("p.lost")).unwrap() == was, "{around}");
        assert_eq!((names(&medium, "").len(), run(&bed.db, "check", &[]).code), (2, 0), "{around}");
        let ends = |name: &str| names(&bed.db, name).is_empty();
        assert!(ends("REPAIR") && ends("repair") && !bed.db.join("lost/p").exists(), "{around}");
    }
}
