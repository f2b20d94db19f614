//! What lies where a repair or a new pool is to lie, and files that are gone or of another kind: nobody's data goes for
//! it.

mod moved;
mod places;
mod records;

use std::path::{Path, PathBuf};

use terrace::{Db, EngineKind, Options};

use crate::engines;
use crate::support::{self, Bed, Run};

pub use records::{identity, record};

use records::{note, sealed};

/// Keys of a small database.
const KEYS: u32 = 300;

/// Makes a database with its pool in `pool`, with the command itself.
fn make(bed: &Bed, dir: &Path, engine: &str, pool: &str) {
    let lines: String = (0..KEYS).map(|i| format!("key/{i:05}\t{i}\n")).collect();
    let file = bed.file("records.tsv", lines);
    run(dir, "import", &[file.to_str().unwrap(), "--engine", engine, "--pool", pool]).text();
}

fn run(dir: &Path, command: &str, args: &[&str]) -> Run {
    support::run(&[&[command, dir.to_str().unwrap()], args].concat())
}

/// Keys that the command exports.
fn count(dir: &Path) -> usize {
    run(dir, "export", &["-"]).out.iter().filter(|byte| **byte == b'\n').count()
}

fn emulated(path: &Path) -> String {
    format!("emulated:dram@{}", path.display())
}

/// Has everything in tables.
fn flush(dir: &Path) {
    flush_of("slm", dir);
}

fn flush_of(engine: &str, dir: &Path) {
    let engine = EngineKind::parse(engine).unwrap();
    let db = Db::open(dir, Options { engine, ..Options::default() }).unwrap();
    db.flush().unwrap();
    db.close().unwrap();
}

fn names(dir: &Path, part: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = all.filter(|path| path.to_string_lossy().contains(part)).collect();
    found.sort();
    found
}

fn spoil(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.len() / 2;
    let at = (at..bytes.len()).find(|at| bytes[*at] != 0).unwrap_or(0);
    bytes[at..].iter_mut().take(200).for_each(|byte| *byte ^= 0x5a);
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn what_lies_beside_a_pool_is_not_a_repairs_to_remove() {
    for engine in engines::names() {
        let bed = Bed::new();
        let (one, other) = (bed.path("one"), bed.path("other"));
        let (pool, beside) = (bed.path("p"), bed.path("p.repair"));
        make(&bed, &one, engine, &emulated(&pool));
        make(&bed, &other, engine, &emulated(&beside));
        for args in [&["--dry-run"][..], &[]] {
            run(&one, "repair", args).text();
            assert_eq!(count(&other), KEYS as usize, "{engine}");
        }
        // Where it has to make a pool there, it says what is in the way.
        spoil_superblocks(&pool);
        run(&one, "repair", &[]).fails(2, &["p.repair", "move it away"]);
        assert_eq!(count(&other), KEYS as usize, "{engine}");
        std::fs::rename(&beside, bed.path("away")).unwrap();
        run(&one, "repair", &[]);
        assert!(run(&one, "check", &[]).code == 0 && !beside.exists(), "{engine}");
    }
}

#[test]
fn files_in_a_folder_called_repair_are_not_a_repairs_to_remove() {
    for is_link in [false, true] {
        let bed = Bed::new();
        make(&bed, &bed.db, "lsm", "auto");
        let papers = bed.path("papers");
        std::fs::create_dir(&papers).unwrap();
        std::fs::write(papers.join("thesis"), b"years").unwrap();
        let folder = bed.db.join("repair");
        match is_link {
            true => std::os::unix::fs::symlink(&papers, &folder).unwrap(),
            false => std::fs::rename(&papers, &folder).unwrap(),
        }
        bed.run::<&str>("repair", &[]).fails(2, &["no repair has made", "move them away"]);
        assert_eq!(std::fs::read(folder.join("thesis")).unwrap(), b"years");
    }
}

/// What is in a pool after both its superblocks are of no use any more.
fn spoil_superblocks(pool: &Path) -> Vec<u8> {
    let mut bytes = std::fs::read(pool).unwrap();
    bytes[0] ^= 0x40;
    bytes[4096] ^= 0x40;
    std::fs::write(pool, &bytes).unwrap();
    bytes
}

/// A user's folder may have a file of the note's name.
#[test]
fn a_note_of_somebody_else_makes_no_folder_a_repairs() {
    let long = vec![b'x'; 100_000];
    for note in [&b"remember the milk"[..], b"", b"TERRNOT", &long] {
        let bed = Bed::new();
        make(&bed, &bed.db, "slm", "auto");
        let folder = bed.db.join("repair");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("NOTE"), note).unwrap();
        std::fs::write(folder.join("thesis"), b"years").unwrap();
        for args in [&["--dry-run"][..], &[]] {
            bed.run("repair", args).fails(2, &["no repair has made", "move them away"]);
        }
        assert_eq!(std::fs::read(folder.join("NOTE")).unwrap(), note);
        assert_eq!(std::fs::read(folder.join("thesis")).unwrap(), b"years");
    }
}

/// A power cut may leave anything in a note that was being written. Nothing lies beside it then.
#[test]
fn what_a_note_was_to_be_is_removed_if_it_lies_alone() {
    let long = vec![b'x'; 100_000];
    for (begun, code) in [(&b"remember the milk"[..], 0), (b"", 0), (&[0; 50], 0), (&long, 2)] {
        let bed = Bed::new();
        make(&bed, &bed.db, "slm", "auto");
        let folder = bed.db.join("repair");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("NOTE.new"), begun).unwrap();
        let repaired = run(&bed.db, "repair", &[]);
        assert_eq!((repaired.code, folder.exists()), (code, code != 0), "{repaired:?}");
        assert!(code == 0 || std::fs::read(folder.join("NOTE.new")).unwrap() == begun);
        assert_eq!(count(&bed.db), KEYS as usize);
    }
}

/// A note that came with a copy of the directory, or that another version wrote, says nothing of pools.
#[test]
fn a_note_of_another_place_costs_no_pool() {
    let bed = Bed::new();
    let (one, other) = (bed.path("one"), bed.path("other"));
    let beside = bed.path("p.repair");
    make(&bed, &one, "turbo", "emulated:dram");
    make(&bed, &other, "turbo", &emulated(&beside));
    let folder = one.join("repair");
    let outcomes = [
        (note(&other, &beside), 0),
        (note(&one, &other.join("CURRENT")), 2),
        (b"TERRNOTE\x01\0\0\0".repeat(3), 2),
        (sealed(b"TERRNOTE", 1, &note(&one, &beside)[16..]), 3),
        (sealed(b"TERRNOTE", 4, &note(&one, &beside)[16..]), 3),
    ];
    for (note, code) in outcomes {
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("NOTE"), note).unwrap();
        std::fs::write(folder.join("000009.sst"), b"of a repair").unwrap();
        let repaired = run(&one, "repair", &[]);
        assert_eq!((repaired.code, folder.exists()), (code, code != 0), "{repaired:?}");
        assert!(count(&other) == KEYS as usize && count(&one) == KEYS as usize);
        let _ = std::fs::remove_dir_all(&folder);
    }
    // That of the repair that was cut short here goes.
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("NOTE"), note(&one, &beside)).unwrap();
    let mut names_nobody = std::fs::read(one.join("pool")).unwrap();
    // The pools' roots.
    names_nobody[8192..16 << 10].fill(0);
    std::fs::write(&beside, names_nobody).unwrap();
    run(&one, "repair", &[]).text();
    assert!(!beside.exists() && !folder.exists());
}

#[test]
fn a_repair_goes_on_without_a_pool_only_if_there_is_none() {
    for engine in engines::names() {
        let bed = Bed::new();
        let pool = bed.path("p");
        make(&bed, &bed.db, engine, &emulated(&pool));
        // A mistyped path.
        let wrong = emulated(&bed.path("q"));
        bed.run("repair", &["--pool", &wrong]).fails(2, &["no pool in", "lies in"]);
        assert_eq!(count(&bed.db), KEYS as usize, "{engine}");
        // A manifest that tells nothing of where the pool lies.
        names(&bed.db, "MANIFEST").iter().for_each(|path| std::fs::write(path, b"TERRALOG").unwrap());
        bed.run("repair", &["--engine", engine]).fails(2, &["--pool"]);
        bed.run("repair", &["--pool", &emulated(&pool)]).text();
        assert_eq!(count(&bed.db), KEYS as usize, "{engine}");
    }
}

/// One missing file, and the next write made a new database over the old one.
#[test]
fn a_database_without_its_pointer_is_damaged_and_not_gone() {
    let emulated = engines::names().map(|engine| (engine, engines::EMULATED));
    let in_files = engines::with_pools().filter(|(_, pool)| *pool == "auto");
    for (engine, pool) in emulated.chain(in_files) {
        for gone in [&["CURRENT"][..], &["CURRENT", "MANIFEST"]] {
            let bed = Bed::new();
            make(&bed, &bed.db, engine, pool);
            for path in gone.iter().flat_map(|part| names(&bed.db, part)) {
                std::fs::remove_file(path).unwrap();
            }
            let flags = ["--engine", engine, "--pool", pool];
            for other in engines::names() {
                let other = ["--engine", other, "--pool", pool];
                bed.run("put", &[&["a", "b"], &other[..]].concat()).fails(3, &["repair"]);
            }
            bed.run("check", &flags).fails(1, &["repair"]);
            let repaired = bed.run("repair", &flags);
            assert_eq!(count(&bed.db), KEYS as usize, "{engine} {pool} {gone:?} {repaired:?}");
            // The manifest is there where the pointer alone is not, and what is not there is not set aside.
            let said = String::from_utf8_lossy(&repaired.out);
            let doubts = said.contains("the manifest knew");
            assert!(doubts == (gone.len() > 1) && !said.contains("set aside"), "{said}");
            assert!(doubts || said.contains("nothing is lost"), "{said}");
        }
    }
}

/// That `lost` cannot take anything is found before the last step.
#[test]
fn a_place_that_cannot_keep_what_is_damaged_is_found_in_time() {
    for what in ["a file", "a link that leads nowhere"] {
        let bed = Bed::new();
        make(&bed, &bed.db, "slm", "auto");
        let lost = bed.db.join("lost");
        match what {
            "a file" => std::fs::write(&lost, b"mine").unwrap(),
            _ => std::os::unix::fs::symlink("nowhere", &lost).unwrap(),
        }
        assert!(bed.run::<&str>("repair", &[]).text().contains(&format!("{KEYS} keys are")), "{what}");
        flush(&bed.db);
        spoil(&names(&bed.db, ".sst")[0]);
        bed.run::<&str>("repair", &[]).fails(2, &["lost", "move it away"]);
        assert!(!bed.db.join("REPAIR").exists(), "{what}");
        std::fs::remove_file(&lost).unwrap();
        bed.run::<&str>("repair", &[]);
        bed.run::<&str>("check", &[]).text();
    }
}

/// Nor could files of a folder on another file system get their names in the last step.
#[test]
fn a_folder_repair_on_another_file_system_is_found_in_time() {
    use std::os::unix::fs::MetadataExt;
    let bed = Bed::new();
    let Ok(elsewhere) = tempfile::tempdir_in("/dev/shm") else { return };
    let device = |path: &Path| path.metadata().unwrap().dev();
    if device(elsewhere.path()) == device(bed.root.path()) {
        return;
    }
    make(&bed, &bed.db, "slm", "auto");
    flush(&bed.db);
    spoil(&names(&bed.db, ".sst")[0]);
    let folder = bed.db.join("repair");
    std::os::unix::fs::symlink(elsewhere.path(), &folder).unwrap();
    bed.run::<&str>("repair", &[]).fails(2, &["repair does not lie on the file system", "move it away"]);
    assert!(names(elsewhere.path(), "").is_empty() && names(&bed.db, "REPAIR").is_empty());
    std::fs::remove_file(folder).unwrap();
    bed.run::<&str>("repair", &[]);
    bed.run::<&str>("check", &[]).text();
}

/// Nobody waits for a writer of a pipe.
#[test]
fn a_pipe_in_the_place_of_a_file_is_an_error_at_once() {
    let bed = Bed::new();
    make(&bed, &bed.db, "slm", "auto");
    flush(&bed.db);
    let parts = ["CURRENT", "MANIFEST", ".sst", ".log", "pool", "LOCK"];
    for file in parts.iter().flat_map(|part| names(&bed.db, part)) {
        let aside = bed.path("aside");
        std::fs::rename(&file, &aside).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&file).status().unwrap();
        assert!(made.success());
        for command in ["check", "repair"] {
            ends_soon(&bed.db, command);
        }
        std::fs::remove_file(&file).unwrap();
        std::fs::rename(&aside, &file).unwrap();
    }
    assert_eq!(count(&bed.db), KEYS as usize);
}

/// `timeout` kills what waits.
fn ends_soon(dir: &Path, command: &str) {
    let mut run = std::process::Command::new("timeout");
    run.args(["-s", "KILL", "60", env!("CARGO_BIN_EXE_terrace"), command]).arg(dir);
    let ended = run.output().unwrap();
    assert!(matches!(ended.status.code(), Some(0..=3)), "{command}: {ended:?}");
}

/// Without its manifest nothing tells an emulated pool from one that lies on the wrong medium: a repair changes
/// nothing, and says how to name it.
#[test]
fn an_emulated_pool_whose_manifest_is_gone_is_asked_for_by_its_name() {
    // Where there are tables, these say whose the pool is, and not what it is.
    let cases = engines::names().flat_map(|engine| [(engine, true), (engine, false)]);
    for (engine, is_flushed) in cases {
        let bed = Bed::new();
        make(&bed, &bed.db, engine, "emulated:dram");
        if is_flushed {
            flush_of(engine, &bed.db);
        }
        for manifest in names(&bed.db, "MANIFEST") {
            std::fs::write(manifest, [0x5a; 40]).unwrap();
        }
        let pool = std::fs::read(bed.db.join("pool")).unwrap();
        bed.run::<&str>("repair", &[]).fails(2, &["emulated:dram@"]);
        assert!(std::fs::read(bed.db.join("pool")).unwrap() == pool, "{engine}");
        let name = emulated(&bed.db.join("pool"));
        assert_eq!(bed.run("repair", &["--pool", &name]).code, 0, "{engine}");
        assert_eq!(count(&bed.db), KEYS as usize, "{engine}");
    }
}
