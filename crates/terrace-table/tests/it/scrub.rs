//! Comparing a table with its checksums, whatever was read of it before.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use terrace_base::{Error, ErrorKind, Result};
use terrace_disk::{Access, Fault, Fs, Maps, RealFs, SimFs};
use terrace_table::*;

use crate::damage::options;
use crate::memfs::MemFs;
use crate::util::*;

const ORIGIN: u64 = 7;

/// Pieces that end everywhere, also within headers, and one that is the whole table.
const PIECES: [usize; 4] = [1, 41, 257, 1 << 20];

fn items() -> Vec<Item> {
    let value = |i: u64| vec![i as u8; [0, 1, 30, 90, 400][i as usize % 5]];
    sorted((0..40).map(|i| Item::put(format!("key{i:03}").as_bytes(), 9, &value(i))).collect())
}

/// A pass over all of `table` in pieces of `most` bytes: what was told, and the bytes that were read.
fn scrub(table: &Table, most: usize) -> Result<(Vec<Error>, u64)> {
    let (mut place, mut told, mut bytes) = (ScrubPlace::default(), Vec::new(), 0);
    while !place.is_done() {
        bytes += table.scrub(&mut place, most, &mut |error| told.push(error))?;
    }
    Ok((told, bytes))
}

#[test]
fn a_sound_table_is_read_once_and_nothing_is_told() {
    for compression in [Compression::None, Compression::Lz4] {
        let fs = MemFs::default();
        let built = build(&fs, 1, &options(compression), &items());
        for most in PIECES {
            let cache = Arc::new(BlockCache::new(1 << 20));
            let file = fs.open(path(), Access::Random).unwrap();
            let table = Table::lazy(file, built.meta.clone(), ORIGIN, cache.clone());
            let (told, bytes) = scrub(&table, most).unwrap();
            assert!(told.is_empty(), "pieces of {most}: {told:?}");
            assert_eq!(bytes, built.meta.file_bytes, "pieces of {most}");
            assert_eq!(cache.usage(), 0, "no block is kept");
        }
    }
}

#[test]
fn every_flipped_bit_is_told_once() {
    for compression in [Compression::None, Compression::Lz4] {
        let fs = MemFs::default();
        let built = build(&fs, 1, &options(compression), &items());
        let table = open(&fs, 1, 1 << 20).unwrap();
        // Everything was read and verified, and is in memory.
        both_ways(&mut table.cursor(true, 0)).unwrap();
        for bit in 0..built.meta.file_bytes as usize * 8 {
            let flip = |data: &mut Vec<u8>| data[bit / 8] ^= 1 << (bit % 8);
            fs.change(path(), flip);
            let (told, _) = scrub(&table, PIECES[bit % PIECES.len()]).unwrap();
            assert_eq!(told.len(), 1, "bit {bit}: {told:?}");
            assert_eq!(told[0].kind(), ErrorKind::Corruption, "bit {bit}: {}", told[0]);
            fs.change(path(), flip);
        }
        assert!(scrub(&table, 100).unwrap().0.is_empty());
    }
}

#[test]
fn what_lies_behind_a_wiped_stretch_is_compared() {
    let fs = MemFs::default();
    let built = build(&fs, 1, &options(Compression::None), &items());
    let at = |block: usize| built.blocks[block].position.offset() as usize;
    let table = open(&fs, 1, 0).unwrap();
    fs.change(path(), |data| {
        data[at(2) + 3..at(5) + 9].fill(0x5a);
        data[at(8) + 30] ^= 1;
    });
    for most in PIECES {
        let (told, _) = scrub(&table, most).unwrap();
        let places: Vec<u64> = told
            .iter()
            .map(|error| match error {
                Error::Corruption { offset, .. } => *offset,
                other => panic!("{other}"),
            })
            .collect();
        assert_eq!(places, [at(2) as u64, at(8) as u64], "pieces of {most}: {told:?}");
    }
}

#[test]
fn a_file_that_is_cut_short_or_another_table_is_told() {
    let fs = MemFs::default();
    let built = build(&fs, 1, &options(Compression::None), &items());
    let healthy = fs.bytes(path());
    let lazy = |origin| {
        let file = fs.open(path(), Access::Random).unwrap();
        Table::lazy(file, built.meta.clone(), origin, Arc::new(BlockCache::new(0)))
    };
    for len in [0, 10, 100, healthy.len() - 1] {
        fs.set(path(), healthy[..len].to_vec());
        assert!(!scrub(&lazy(ORIGIN), 300).unwrap().0.is_empty(), "{len} bytes");
    }
    fs.set(path(), healthy);
    assert!(scrub(&lazy(ORIGIN), 300).unwrap().0.is_empty());
    assert!(!scrub(&lazy(ORIGIN + 1), 300).unwrap().0.is_empty());
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_and_the_place_stays() {
    let fs = SimFs::new();
    fs.create_dir_all(path().parent().unwrap()).unwrap();
    let built = build(&fs, 1, &options(Compression::None), &items());
    let file = fs.open(path(), Access::Random).unwrap();
    let table = Table::lazy(file, built.meta.clone(), ORIGIN, Arc::new(BlockCache::new(0)));
    let (mut place, mut bytes, mut failed) = (ScrubPlace::default(), 0, 0);
    while !place.is_done() {
        fs.inject(Some(Fault { after: 0, only_changes: false, sticky: false }));
        let refused = table.scrub(&mut place, 300, &mut |error| panic!("{error}"));
        failed += u64::from(refused.is_err_and(|error| error.kind() == ErrorKind::Io));
        fs.inject(None);
        bytes += table.scrub(&mut place, 300, &mut |error| panic!("{error}")).unwrap();
    }
    assert!(failed > 3 && bytes == built.meta.file_bytes, "{failed} failures, {bytes} bytes");
}

/// Must catch a mapping that goes on to be believed since its blocks were verified once.
#[test]
fn a_damaged_table_is_no_longer_read_through_its_mapping() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("000001.sst");
    let items = items();
    let mut builder =
        TableBuilder::new(RealFs.create(&path).unwrap(), 1, options(Compression::None)).unwrap();
    for item in &items {
        builder.add(&item.key, item.seq, item.kind, &item.value).unwrap();
    }
    let built = builder.finish().unwrap();
    let (maps, cache) = (Maps::new(1 << 30), Arc::new(BlockCache::new(0)));
    maps.want(true);
    let file = RealFs.open(&path, Access::Random).unwrap();
    let table = Table::mapped(file, built.meta.clone(), ORIGIN, cache, &maps);
    for item in &items {
        assert_entry(table.get(&item.key, 9).unwrap().as_ref(), Some(item));
    }
    assert!(scrub(&table, 300).unwrap().0.is_empty());
    let hit = items.iter().position(|item| item.value.len() == 400).unwrap();
    let at = built.blocks.iter().rfind(|span| span.first_entry <= hit as u64).unwrap().position.offset();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0xee], at + 200).unwrap();
    file.sync_all().unwrap();
    let (told, _) = scrub(&table, 300).unwrap();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(table.get(&items[hit].key, 9).unwrap_err().kind(), ErrorKind::Corruption);
    assert_entry(table.get(&items[0].key, 9).unwrap().as_ref(), Some(&items[0]));
}
