//! Records of repairs that lie where they do not belong.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_base::checksum::{crc32c, crc32c_append};
use terrace_disk::RealFs;

use super::{KEYS, count, make, names};
use crate::engines;
use crate::support::Bed;

/// The record of a repair is carried out only where its files are: one that somebody has copied, or whose folder
/// `repair` somebody has removed, would put nothing in the place of what it removes.
#[test]
fn a_record_without_its_files_changes_nothing() {
    for engine in engines::names() {
        let bed = Bed::new();
        make(&bed, &bed.db, engine, "emulated:dram");
        let there = names(&bed.db, "");
        carries_nothing_out(&bed, &record(identity(&bed.db), &there), &there);
    }
}

/// Nor is one of another database, though all its files were copied with it; and whoever looks at what it would do, or
/// opens to read, is told, too.
#[test]
fn a_record_of_another_database_changes_nothing() {
    for engine in engines::names() {
        let bed = Bed::new();
        let other = bed.path("other");
        make(&bed, &bed.db, engine, "emulated:dram");
        make(&bed, &other, engine, "emulated:dram");
        let there = names(&bed.db, "");
        // That of the other one, whose manifest lies in its place, and one without any file that calls itself ours.
        let folder = bed.db.join("repair");
        std::fs::create_dir(&folder).unwrap();
        std::fs::copy(&names(&other, "MANIFEST")[0], folder.join("MANIFEST-000009")).unwrap();
        for database in [identity(&other), identity(&bed.db), [7; 16]] {
            carries_nothing_out(&bed, &record(database, &there), &there);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

/// A record that is no record is told by all, and at once.
#[test]
fn what_is_no_record_is_told_by_whoever_comes_by_it() {
    let bed = Bed::new();
    make(&bed, &bed.db, "slm", "auto");
    let there = names(&bed.db, "");
    let sound = record(identity(&bed.db), &there);
    let mut flipped = sound.clone();
    flipped[8] ^= 0x80;
    for bytes in [&b""[..], b"TERREPAR", &[0; 5000], &[&sound[..], &[1]].concat(), &flipped] {
        carries_nothing_out(&bed, bytes, &there);
    }
    for version in [1, 4] {
        let other = sealed(b"TERREPAR", version, &sound[16..]);
        std::fs::write(bed.db.join("REPAIR"), other).unwrap();
        for command in [&["put", "a", "b"][..], &["repair"], &["repair", "--dry-run"], &["get", "a"]] {
            bed.run(command[0], &command[1..]).fails(3, &["REPAIR", &format!("version {version}")]);
        }
    }
    std::fs::File::create(bed.db.join("REPAIR")).unwrap().set_len(1 << 40).unwrap();
    bed.run::<&str>("repair", &[]).fails(3, &["REPAIR", "more bytes"]);
}

fn carries_nothing_out(bed: &Bed, record: &[u8], there: &[PathBuf]) {
    std::fs::write(bed.db.join("REPAIR"), record).unwrap();
    for command in
        [&["put", "a", "b"][..], &["repair"], &["repair", "--dry-run"], &["get", "a"], &["export", "-"]]
    {
        bed.run(command[0], &command[1..]).fails(3, &["REPAIR"]);
    }
    bed.run::<&str>("check", &[]).fails(1, &["REPAIR"]);
    std::fs::remove_file(bed.db.join("REPAIR")).unwrap();
    assert!(there.iter().all(|path| path.exists()));
    assert_eq!(count(&bed.db), KEYS as usize);
}

/// The identity of a database.
pub fn identity(dir: &Path) -> [u8; 16] {
    terrace::manifest::Manifest::open(Arc::new(RealFs), dir).unwrap().state().identity.uuid
}

/// A record of `database` by which manifest 9 comes and every file of `there` goes (`docs/formats/repair.md`).
pub fn record(database: [u8; 16], there: &[PathBuf]) -> Vec<u8> {
    let name = |path: &Path| path.file_name().unwrap().as_encoded_bytes().to_vec();
    let bytes = |text: &[u8]| [&[text.len() as u8], text].concat();
    let mut body = database.to_vec();
    body.extend([9, 1]);
    body.extend(bytes(b"repair/MANIFEST-000009"));
    body.extend(bytes(b"MANIFEST-000009"));
    body.push(there.len() as u8);
    body.extend(there.iter().flat_map(|path| bytes(&name(path))));
    body.extend([0, 0]);
    sealed(b"TERREPAR", 3, &body)
}

/// The note of a repair of `dir`, with its new pool (`docs/formats/repair.md`).
pub(super) fn note(dir: &Path, pool: &Path) -> Vec<u8> {
    sealed(b"TERRNOTE", 3, &[path_bytes(dir), path_bytes(pool)].concat())
}

fn path_bytes(path: &Path) -> Vec<u8> {
    [&[path.as_os_str().len() as u8], path.as_os_str().as_encoded_bytes()].concat()
}

pub(super) fn sealed(magic: &[u8; 8], version: u32, body: &[u8]) -> Vec<u8> {
    let front = [magic, &version.to_le_bytes()[..]].concat();
    // The first two versions covered their bodies alone.
    let crc = if version <= 2 { crc32c(body) } else { crc32c_append(crc32c(&front), body) };
    [&front[..], &crc.to_le_bytes(), body].concat()
}
