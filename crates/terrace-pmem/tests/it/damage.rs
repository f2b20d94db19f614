//! Flipped bits and cut files: a clear error or the right answer, never a panic, never another answer.

use std::fs;
use std::ops::Range;
use std::path::Path;

use terrace_base::{Error, ErrorKind};
use terrace_pmem::{Granularity, Kind, MediaRequest, Opened, Pool, PoolOptions};

use crate::support::{memory_dir, options};

/// As if a file were cache-line media, so that damage is looked for and not a torn file.
fn forced() -> PoolOptions {
    let media = MediaRequest::Force(Granularity::CacheLine);
    PoolOptions { size: 64 << 10, max_size: 1 << 20, media, ..options() }
}

/// What a pool answers to everything that can be asked of it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answers {
    roots: Vec<(String, u64)>,
    missing: Option<u64>,
    extents: Vec<(u64, u64)>,
    slots: Vec<(u64, u64)>,
    problems: usize,
}

fn answers(pool: &Pool) -> Result<Answers, Error> {
    let mut marks = pool.marks();
    let extents: Vec<_> = pool.extents(Kind(1)).iter().map(|e| (e.offset, e.bytes)).collect();
    let slots: Vec<_> = pool.slots(Kind(2)).collect();
    extents.iter().for_each(|&(o, _)| marks.extent(o).unwrap());
    slots.iter().for_each(|&(o, _)| marks.slot(o).unwrap());
    Ok(Answers {
        roots: pool.roots()?,
        missing: pool.root("missing")?,
        extents,
        slots,
        problems: pool.check(&marks).len(),
    })
}

fn sample(path: &Path) -> (Vec<u8>, Answers) {
    let pool = Pool::create(path, &forced()).unwrap();
    for bytes in [5000, 100] {
        let extent = pool.reserve_extent(Kind(1), bytes).unwrap();
        pool.activate(&extent);
        pool.set_root(&format!("extent {bytes}"), extent.offset).unwrap();
    }
    for bytes in [20, 20, 400, 5000] {
        pool.activate(&pool.reserve(Kind(2), bytes).unwrap());
    }
    pool.drain();
    let right = answers(&pool).unwrap();
    assert_eq!((right.extents.len(), right.slots.len(), right.problems), (2, 4, 0));
    pool.close().unwrap();
    drop(pool);
    (fs::read(path).unwrap(), right)
}

/// Flips every bit of a range in turn; how many flips were answered rightly all the same.
fn flip(what: &str, range: Range<usize>, step: usize) -> usize {
    let dir = memory_dir();
    let path = dir.path().join("pool");
    let (healthy, right) = sample(&path);
    let mut unharmed = 0;
    for bit in (range.start * 8..range.end * 8).step_by(step) {
        let mut bytes = healthy.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &bytes).unwrap();
        let found = Pool::open(&path, &forced()).and_then(|pool| Ok((pool.opened(), answers(&pool)?)));
        match found {
            Ok((opened, found)) => {
                assert_eq!(found, right, "{what}: bit {bit}");
                assert!(matches!(opened, Opened::Clean | Opened::SameBoot), "{what}: bit {bit}: {opened:?}");
                unharmed += 1;
            }
            Err(e) => assert!(
                matches!(e.kind(), ErrorKind::Corruption | ErrorKind::InvalidFormat),
                "{what}: bit {bit}: {e}"
            ),
        }
    }
    unharmed
}

#[test]
fn a_damaged_superblock_copy_is_mended_from_the_other() {
    assert_eq!(flip("first copy", 0..128, 1), 1024);
    assert_eq!(flip("second copy", 4096..4224, 3), 342);
    let dir = memory_dir();
    let path = dir.path().join("pool");
    let (mut bytes, _) = sample(&path);
    bytes[3] ^= 1;
    bytes[4096 + 40] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let error = Pool::open(&path, &forced()).unwrap_err();
    assert!(matches!(&error, Error::Corruption { file, .. } if *file == path), "{error}");
    bytes[4096 + 40] ^= 1;
    fs::write(&path, &bytes).unwrap();
    drop(Pool::open(&path, &forced()).unwrap());
    assert_eq!(fs::read(&path).unwrap()[..128], bytes[4096..4224]);
}

#[test]
fn a_damaged_state_slot_is_no_clean_pool() {
    assert_eq!(flip("state", 8192..8256, 1) + flip("state", 8448..8512, 1), 1024);
    let dir = memory_dir();
    let path = dir.path().join("pool");
    let (mut bytes, _) = sample(&path);
    for at in [8192, 8448] {
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        match Pool::open(&path, &forced()) {
            Ok(pool) => assert_ne!((at, pool.opened()), (8192, Opened::Clean)),
            Err(e) => assert_eq!((at, e.kind()), (8448, ErrorKind::Corruption)),
        }
    }
}

#[test]
fn damaged_words_are_corruption() {
    assert_eq!(flip("size word", 8704..8712, 1), 0);
    // Two roots of 32 bytes, and the unused entries behind them: a word in those claims to be a root.
    assert_eq!(flip("roots", 12288..12352, 1), 0);
    assert_eq!(flip("free root", 12352 + 24..12384, 1), 0);
    // Units 0 to 15 of the table.
    assert_eq!(flip("table", 16384..16384 + 16 * 8, 1), 0);
}

#[test]
fn a_damaged_slab_head_is_corruption() {
    let dir = memory_dir();
    let (_, right) = sample(&dir.path().join("pool"));
    let slab = (right.slots[0].0 / 4096 * 4096) as usize;
    // Head and two bitmap words.
    assert_eq!(flip("slab", slab..slab + 80, 1), 0);
}

#[test]
fn flips_anywhere_in_the_header_never_mislead() {
    flip("anywhere", 0..20480, 37);
}

#[test]
fn a_cut_file_is_corruption() {
    let dir = memory_dir();
    let path = dir.path().join("pool");
    let (bytes, _) = sample(&path);
    for len in [0, 1, 100, 4096, 16383, 16384, 20480, 60 << 10, bytes.len() - 1] {
        fs::write(&path, &bytes[..len]).unwrap();
        let kind = Pool::open(&path, &forced()).unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::Corruption | ErrorKind::InvalidFormat), "{len}: {kind:?}");
        assert_eq!(fs::read(&path).unwrap(), bytes[..len], "opening changed a file it could not open");
    }
}

#[test]
fn another_version_is_refused_by_number() {
    let dir = memory_dir();
    let path = dir.path().join("pool");
    let (mut bytes, _) = sample(&path);
    for at in [0, 4096] {
        bytes[at + 8] = 3;
        let crc = terrace_base::checksum::crc32c(&bytes[at..at + 124]);
        bytes[at + 124..at + 128].copy_from_slice(&crc.to_le_bytes());
    }
    fs::write(&path, &bytes).unwrap();
    let message = Pool::open(&path, &forced()).unwrap_err().to_string();
    assert!(message.contains("version 3") && message.contains("version 2"), "{message}");
    // Nor does a sound superblock make nonsense sensible.
    for at in [0, 4096] {
        bytes[at + 8] = 2;
        bytes[at + 32..at + 40].copy_from_slice(&12345u64.to_le_bytes());
        let crc = terrace_base::checksum::crc32c(&bytes[at..at + 124]);
        bytes[at + 124..at + 128].copy_from_slice(&crc.to_le_bytes());
    }
    fs::write(&path, &bytes).unwrap();
    assert_eq!(Pool::open(&path, &forced()).unwrap_err().kind(), ErrorKind::Corruption);
}
