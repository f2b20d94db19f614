//! Whole files that are damaged: cut, missing, another's, of another version.

use std::collections::BTreeSet;
use std::path::Path;

use terrace::{EngineKind, Error, ErrorKind};
use terrace_base::checksum::{crc32c, crc32c_append};
use terrace_base::rng::Rng;
use terrace_index::kinds;
use terrace_pmem::Granularity;
use terrace_table::{Kind, Table};

use super::image::{Bed, Image};
use super::judge::Judge;
use super::sample::{Sample, samples, samples_in_memory, samples_with_tables};
use super::spaces::all_of;
use super::{Docket, number};

/// What a file is, by its name.
pub fn kind_of(path: &Path) -> &'static str {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap();
    match path.extension().and_then(|e| e.to_str()) {
        Some("sst") => "table",
        Some("new") => "hidden table",
        Some("ingest") => "note",
        Some("log") => "log",
        _ if name.starts_with("MANIFEST-") => "manifest",
        _ if name == "CURRENT" => "CURRENT",
        _ if name == "SLOTS" => "slots",
        _ if name == "RANGES" => "mark",
        _ => panic!("what is {name}?"),
    }
}

/// Judges `image`, in which the file at `path` (or the pool) is not what it was.
fn hear(docket: &mut Docket, sample: &Sample, path: Option<&Path>, place: &str, image: &Image) {
    let what = path.map_or("pool", kind_of);
    // A file that was not closed and ends early may always have ended there. Of a log that was closed the manifest
    // knows the end.
    let may_lose_the_newest = what == "manifest" || what == "log" && !sample.closed;
    let may_doubt = what == "note";
    let judge = Judge { sample, image, may_lose_the_newest, check_is_enough: false, may_doubt };
    docket.hear(what, &format!("{}, {place}", path.unwrap_or(Path::new("pool")).display()), &judge);
}

/// Must catch a file or pool that ends early and is taken for a whole one.
#[test]
fn files_that_end_early_are_told_or_harmless() {
    let mut rng = Rng::new(number("TERRACE_DAMAGE_SEED", 1));
    let mut docket = Docket::default();
    for sample in samples() {
        for (path, bytes) in &sample.image.files {
            for _ in 0..4 * number("TERRACE_DAMAGE", 1) {
                let len = rng.below(bytes.len() as u64) as usize;
                let mut image = sample.image.clone();
                image.files.get_mut(path).unwrap().truncate(len);
                hear(&mut docket, &sample, Some(path), &format!("cut to {len}"), &image);
            }
        }
        for _ in 0..8 * number("TERRACE_DAMAGE", 1) {
            let mut image = sample.image.clone();
            let Some(pool) = image.pool.as_mut() else { continue };
            let len = rng.below(pool.len() as u64) as usize;
            pool.truncate(len.max(1));
            hear(&mut docket, &sample, None, &format!("cut to {len}"), &image);
        }
    }
    docket.close();
}

/// Bytes of the superblock's two copies.
const SUPERBLOCKS: [usize; 2] = [0x22, 0x1022];

/// Must catch a pool that is refused, or repaired, for one bad copy of its superblock: the other copy serves.
#[test]
fn one_damaged_superblock_is_as_good_as_none() {
    let mut docket = Docket::default();
    for sample in samples().into_iter().filter(|sample| sample.image.pool.is_some()) {
        for at in SUPERBLOCKS {
            let mut image = sample.image.clone();
            image.pool.as_mut().unwrap()[at] ^= 4;
            hear(&mut docket, &sample, None, &format!("byte {at:#x}"), &image);
        }
    }
    docket.close();
}

/// A repair that only looks changes nothing, and says what one that repairs then says.
fn look(image: &Image, what: &str) {
    let bed = image.bed();
    let seen = bed.look().unwrap_or_else(|e| panic!("{what}: {e}"));
    let after = bed.image();
    assert!(after.files == image.files && after.pool == image.pool, "{what}: something was changed");
    let done = bed.repair().unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!((seen.lost, seen.set_aside, seen.keys), (done.lost, done.set_aside, done.keys), "{what}");
    let unfinished = |path: &std::path::PathBuf| path.extension().is_some_and(|e| e == "repair");
    assert!(!bed.pools().iter().any(unfinished), "{what}: {:?}", bed.pools());
}

/// Must catch a missing file that goes unnoticed, and a repair that, only looking, changes something or says other
/// things than one that repairs.
#[test]
fn missing_files_are_told_and_made_good() {
    let mut docket = Docket::default();
    for sample in samples() {
        for path in sample.image.files.keys() {
            let mut image = sample.image.clone();
            image.files.remove(path);
            hear(&mut docket, &sample, Some(path), "gone", &image);
            look(&image, &format!("{}, {} gone", sample.name, path.display()));
        }
        let image = Image { pool: None, ..sample.image.clone() };
        hear(&mut docket, &sample, None, "gone", &image);
    }
    docket.close();
}

/// Must catch another database's file, or another of the same one, that is read as if it were the one of that name.
#[test]
fn foreign_files_are_told() {
    let mut docket = Docket::default();
    // Databases that were made in the same way, so that names and lengths agree.
    let others = samples();
    for (sample, other) in samples().iter().zip(&others) {
        let text = b"This is a letter to nobody in particular. ".repeat(100);
        for (path, own) in &sample.image.files {
            let theirs = other.image.files.get(path).filter(|bytes| *bytes != own);
            let neighbour = sample.image.files.iter().find(|(p, b)| kind_of(p) == kind_of(path) && *b != own);
            let strangers = [Some(&Vec::new()), Some(&text), theirs, neighbour.map(|(_, bytes)| bytes)];
            for (i, stranger) in strangers.into_iter().enumerate().filter_map(|(i, s)| Some((i, s?))) {
                let mut image = sample.image.clone();
                image.files.insert(path.clone(), stranger.clone());
                hear(&mut docket, sample, Some(path), &format!("stranger {i}"), &image);
            }
        }
        for pool in [Some(text.repeat(20)), other.image.pool.clone()].into_iter().flatten() {
            let image = Image { pool: Some(pool), ..sample.image.clone() };
            hear(&mut docket, sample, None, "a stranger", &image);
        }
    }
    docket.close();
}

/// A header in a pool with a version in it: where that is, and what sets its checksum right.
type Header = (usize, Box<dyn Fn(&mut [u8])>);

/// The checksum of `checked` bytes at `at`, of what says where it is `before` them and of what does `behind` them, lies
/// at `crc_at`.
fn header(
    version_at: usize,
    at: usize,
    checked: usize,
    [before, behind]: [Option<u64>; 2],
    crc_at: usize,
) -> Header {
    let seal = move |pool: &mut [u8]| {
        let place = |place: Option<u64>| place.map_or(Vec::new(), |place| place.to_le_bytes().to_vec());
        let bytes = [&place(before), &pool[at..at + checked], &place(behind)].concat();
        pool[crc_at..crc_at + 4].copy_from_slice(&crc32c(&bytes).to_le_bytes());
    };
    (version_at, Box::new(seal))
}

fn superblocks() -> Vec<Header> {
    [0, 4096].map(|at| header(at + 8, at, 124, [None, None], at + 124)).into()
}

fn headers(sample: &Sample) -> Vec<Vec<Header>> {
    let pool = sample.image.bed().open_pool();
    let records = pool.slots(kinds::VERSION_HEADER).next().unwrap().0 as usize;
    let index = match sample.image.options.engine {
        EngineKind::Turbo => {
            let at = pool.root("turbo.index").unwrap().unwrap() as usize;
            header(at + 6, at, 36, [Some(pool.place(at as u64)), None], at + 36)
        }
        _ => {
            let at = pool.root("sptree.index").unwrap().unwrap() as usize;
            header(at + 7, at, 16, [None, Some(pool.place(at as u64))], at + 16)
        }
    };
    let version = header(records + 8, records, 12, [None, Some(pool.place(records as u64))], records + 12);
    vec![superblocks(), vec![index], vec![version]]
}

/// Where a pool keeps its roots.
const ROOTS: std::ops::Range<usize> = 0x3000..0x4000;

/// Must catch a damaged root of a pool that costs what other roots lead to.
#[test]
fn a_damaged_root_costs_what_it_led_to_at_most() {
    let mut docket = Docket::default();
    for sample in samples_with_tables().iter().filter(|sample| !sample.closed) {
        let Some(pool) = &sample.image.pool else { continue };
        for at in ROOTS.step_by(4).filter(|at| pool[*at..at + 4] != [0; 4]) {
            let mut image = sample.image.clone();
            image.pool.as_mut().unwrap()[at] ^= 4;
            let [may_lose_the_newest, check_is_enough, may_doubt] = [false; 3];
            let judge = Judge { sample, image: &image, may_lose_the_newest, check_is_enough, may_doubt };
            docket.hear("root", &format!("byte {at:#x}"), &judge);
        }
    }
    docket.close();
}

fn assert_refused(bed: &Bed) {
    // The other version is known by its number, or what it wrote by its not being what this one closed the pool with.
    let refused = bed.open().map(drop).unwrap_err().kind();
    assert!(matches!(refused, ErrorKind::InvalidFormat | ErrorKind::Corruption), "{refused:?}");
    assert_eq!(bed.repair().map(drop).unwrap_err().kind(), ErrorKind::InvalidFormat);
}

/// Must catch what another version has written that is read as this one's, or that a repair changes.
#[test]
fn other_versions_are_refused() {
    for sample in samples_in_memory().into_iter().filter(|sample| sample.closed) {
        for headers in headers(&sample) {
            for newer in [true, false] {
                let mut image = sample.image.clone();
                let pool = image.pool.as_mut().unwrap();
                for (at, seal) in &headers {
                    pool[*at] = if newer { pool[*at] + 1 } else { pool[*at] - 1 };
                    seal(pool);
                }
                let bed = image.bed();
                assert_refused(&bed);
                let mut image = bed.image();
                let pool = image.pool.as_mut().unwrap();
                for (at, seal) in &headers {
                    pool[*at] = sample.image.pool.as_ref().unwrap()[*at];
                    seal(pool);
                }
                let found = all_of(&image.bed().open().unwrap()).unwrap();
                assert!(found == sample.right, "{}", sample.name);
            }
        }
    }
}

/// Makes another version's of a file: of a table, whose ends say it, or of a log. The footer and the header have
/// checksums.
fn age(path: &Path, file: &mut [u8]) {
    file[8] += 1;
    if kind_of(path) == "table" {
        let foot = file.len() - 64;
        file[foot + 40] += 1;
        let crc = crc32c(&file[foot..foot + 52]);
        file[foot + 52..foot + 56].copy_from_slice(&crc.to_le_bytes());
    } else {
        let checked = [&file[..12], &file[16..64]].concat();
        file[12..16].copy_from_slice(&crc32c(&checked).to_le_bytes());
    }
}

/// Whether the database needs a file: neither a table that was being written, which has no end yet to say its version,
/// nor one of an ingest that has not taken place.
fn is_needed(sample: &Sample, path: &Path) -> bool {
    let is_whole = || Table::identify(sample.image.bed().fs(), path).is_ok();
    let note = sample.image.files.keys().find(|path| kind_of(path) == "note");
    kind_of(path) != "table" || is_whole() && note.is_none_or(|note| path.file_stem() < note.file_stem())
}

/// Must catch a table, log or manifest of another version that is taken for damaged, and set aside.
#[test]
fn other_versions_of_files_are_refused() {
    let mut seen = BTreeSet::new();
    for sample in samples() {
        for (path, bytes) in sample.image.files.iter().filter(|(path, _)| is_needed(&sample, path)) {
            if !["log", "manifest", "table"].contains(&kind_of(path)) {
                continue;
            }
            let mut image = sample.image.clone();
            age(path, image.files.get_mut(path).unwrap());
            let bed = image.bed();
            let repaired = bed.repair().map(drop).unwrap_err();
            assert_eq!(repaired.kind(), ErrorKind::InvalidFormat, "{}, {}", sample.name, path.display());
            let mut image = bed.image();
            assert!(sample.image.files.keys().all(|path| image.files.contains_key(path)), "{}", sample.name);
            image.files.insert(path.clone(), bytes.clone());
            let found = all_of(&image.bed().open().unwrap()).unwrap();
            assert!(found == sample.right, "{}, {}", sample.name, path.display());
            seen.insert(kind_of(path));
        }
    }
    assert_eq!(Vec::from_iter(seen), ["log", "manifest", "table"]);
}

/// Gives the first entry of the table's first block a kind that is kept for a later version, and seals the block again.
/// Not if the block is compressed, or if the file ends before the block does.
fn reserve(file: &mut [u8]) -> bool {
    const BLOCK: usize = 16;
    const PAYLOAD: usize = BLOCK + 24;
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    if file.len() < PAYLOAD || file[BLOCK + 3] != 0 || file.len() < PAYLOAD + word(BLOCK + 8) {
        return false;
    }
    let stored = word(BLOCK + 8);
    // An entry begins with the lengths of its key: nothing shared, and a varint.
    let tag = PAYLOAD + 2 + file[PAYLOAD + 1..].iter().position(|byte| byte & 0x80 == 0).unwrap();
    file[tag] |= 1 << (Kind::BITS - 1);
    let payload = crc32c(&file[PAYLOAD..PAYLOAD + stored]);
    file[BLOCK + 16..BLOCK + 20].copy_from_slice(&payload.to_le_bytes());
    let origin = &file[file.len() - 20..file.len() - 12];
    let header = [&file[BLOCK..BLOCK + 20], &(BLOCK as u64).to_le_bytes(), origin].concat();
    file[BLOCK + 20..BLOCK + 24].copy_from_slice(&crc32c(&header).to_le_bytes());
    true
}

/// Must catch a record that only a later version knows and that a repair gives up as damaged.
#[test]
fn records_of_a_later_version_are_refused_by_name() {
    let mut tried = 0;
    for sample in samples() {
        for (path, bytes) in sample.image.files.iter().filter(|(path, _)| kind_of(path) == "table") {
            let mut image = sample.image.clone();
            if !reserve(image.files.get_mut(path).unwrap()) {
                continue;
            }
            let bed = image.bed();
            // Opening, or the check, names it; neither calls it a problem unless nobody needs it.
            let checked = bed.open().and_then(|db| db.check());
            let repaired = match bed.repair() {
                Err(error) => error,
                // The table is left of a job that was cut off: nobody needs it.
                Ok(report) => {
                    assert!(report.lost.is_empty() && report.set_aside.is_empty(), "{report:?}");
                    let found = all_of(&bed.open().unwrap()).unwrap();
                    assert!(found == sample.right, "{}, {}", sample.name, path.display());
                    continue;
                }
            };
            assert!(repaired.is_of_another_version(), "{}: {repaired}", sample.name);
            assert!(
                checked.as_ref().is_err_and(Error::is_of_another_version),
                "{}: {checked:?}",
                sample.name
            );
            assert!(repaired.to_string().contains("an expiry or a keyspace"), "{}: {repaired}", sample.name);
            let mut image = bed.image();
            image.files.insert(path.clone(), bytes.clone());
            let found = all_of(&image.bed().open().unwrap()).unwrap();
            assert!(found == sample.right, "{}, {}", sample.name, path.display());
            tried += 1;
        }
    }
    assert!(tried > 4, "{tried}");
}

/// Must catch a pool of another version that is made anew from logs, or written to.
#[test]
fn other_versions_of_pools_are_refused() {
    // On a medium that forgets a power cut's writes a pool that cannot be read is made anew from logs.
    let whole = |sample: &Sample| sample.image.granularity == Granularity::CacheLine;
    for sample in samples_with_tables().into_iter().filter(whole) {
        let mut image = sample.image.clone();
        let pool = image.pool.as_mut().unwrap();
        for (at, seal) in superblocks() {
            pool[at] += 1;
            seal(pool);
        }
        let bed = image.bed();
        assert_refused(&bed);
        assert!(bed.image().pool == image.pool, "{}", sample.name);
    }
}

/// Must catch a repair that gives up a sound log in the pool because a later version wrote it.
#[test]
fn logs_in_pools_of_another_version_are_refused() {
    let killed = |sample: &Sample| sample.image.granularity == Granularity::CacheLine && !sample.closed;
    let mut tried = 0;
    for sample in samples_with_tables().into_iter().filter(killed) {
        let logs = sample.image.bed().open_pool().extents(kinds::LSM_LOG);
        let mut image = sample.image.clone();
        let pool = image.pool.as_mut().unwrap();
        for at in logs.iter().map(|extent| extent.offset as usize) {
            pool[at + 8] += 1;
            let check = crc32c_append(crc32c(&pool[at..at + 12]), &pool[at + 16..at + 56]);
            pool[at + 12..at + 16].copy_from_slice(&check.to_le_bytes());
        }
        if logs.is_empty() {
            continue;
        }
        assert_refused(&image.bed());
        tried += 1;
    }
    assert!(tried > 3, "{tried}");
}

/// Must catch a repair that forgets the logs of write buffers where the pool does not open, be it told of buffers or
/// not.
#[test]
fn a_repair_reads_the_logs_of_write_buffers() {
    let is_buffered = |sample: &Sample| sample.image.options.sptree.buffered && !sample.closed;
    for sample in samples_in_memory().into_iter().filter(is_buffered) {
        let pool = sample.image.bed().open_pool();
        let slabs: BTreeSet<u64> = pool.slots(kinds::VERSION).map(|(at, _)| at / 4096 * 4096).collect();
        for (told, slab) in
            [true, false].into_iter().flat_map(|told| slabs.iter().map(move |slab| (told, slab)))
        {
            let mut image = sample.image.clone();
            image.options.sptree.buffered = told;
            image.pool.as_mut().unwrap()[*slab as usize] ^= 0x10;
            let bed = image.bed();
            assert_eq!(bed.open().map(drop).unwrap_err().kind(), ErrorKind::Corruption);
            let report = bed.repair().unwrap();
            assert_eq!(report.lost, Vec::<String>::new(), "{:?}", report.actions);
            let found = all_of(&bed.open().unwrap()).unwrap();
            assert!(found == sample.right, "{}: {:?}", sample.name, report.actions);
        }
    }
}
