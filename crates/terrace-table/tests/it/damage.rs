//! Damaged, cut and foreign files: the right answer or a typed error, never anything else.

use std::sync::Arc;

use terrace_base::checksum::crc32c;
use terrace_base::{ErrorKind, Result};
use terrace_disk::Access;
use terrace_table::*;

use crate::memfs::MemFs;
use crate::util::*;

/// The database that the tables are of.
const ORIGIN: u64 = 7;

fn items() -> Vec<Item> {
    let mut items: Vec<Item> = (0..24u8)
        .map(|i| Item::put(format!("key{i:03}").as_bytes(), 9, &[b'x'; 30][..usize::from(i)]))
        .collect();
    items.extend((0..6).map(|seq| Item::put(b"versions", seq, &[seq as u8; 20])));
    items.push(Item { key: b"key003".to_vec(), seq: 12, kind: Kind::Delete, value: Vec::new() });
    sorted(items)
}

pub fn options(compression: Compression) -> TableOptions {
    TableOptions {
        block_bytes: 160,
        restart_interval: 3,
        compression,
        filter_bits_per_key: 10,
        origin: ORIGIN,
    }
}

/// Every way to ask a table, compared with `items`; errors must be of damage.
fn ask(fs: &MemFs, built: &Built, items: &[Item]) -> Result<()> {
    let table = open(fs, 1, 1 << 20)?;
    let mut first_error = Ok(());
    let mut note = |result: Result<()>| {
        if let Err(e) = result {
            assert!(matches!(e.kind(), ErrorKind::Corruption | ErrorKind::InvalidFormat), "{e}");
            first_error = Err(e);
        }
    };
    for (i, item) in items.iter().enumerate() {
        let same = |found: Option<Entry>| assert_entry(found.as_ref(), Some(item));
        note(table.get(&item.key, item.seq).map(same));
        note(table.get_at(position_of(built, i), &item.key, item.seq).map(same));
    }
    note(table.get(b"absent", 9).map(|found| assert_eq!(found, None)));
    let cold = Table::open(fs, path(), 1, Arc::new(BlockCache::new(0)), Access::Random)?;
    note(both_ways(&mut cold.cursor(false, 300)).map(|(forward, back)| {
        assert_eq!(forward, items);
        assert_eq!(back, items);
    }));
    note(cold.verify());
    note(cold.dump(&mut Vec::new()));
    first_error
}

/// Salvages table 1, and checks that what comes back was there.
fn salvaged(fs: &MemFs, items: &[Item]) -> Result<Salvaged> {
    let mut rest = items.iter();
    salvage(fs, path(), 1, ORIGIN, &mut |key, seq, kind, value| {
        let item = Item { key: key.to_vec(), seq, kind, value: value.to_vec() };
        assert!(rest.any(|i| *i == item), "{item:?} was never there, or not in this order");
        Ok(())
    })
}

#[test]
fn every_flipped_bit_is_noticed_and_costs_at_most_a_block() {
    for compression in [Compression::None, Compression::Lz4] {
        let items = items();
        let fs = MemFs::default();
        let built = build(&fs, 1, &options(compression), &items);
        let healthy = fs.bytes(path());
        ask(&fs, &built, &items).unwrap();
        assert!(built.blocks.len() > 4);
        for bit in 0..healthy.len() * 8 {
            let mut data = healthy.clone();
            data[bit / 8] ^= 1 << (bit % 8);
            fs.set(path(), data);
            // `ask` ends with a verification, which must notice whatever the others had no use for.
            let e = ask(&fs, &built, &items).expect_err("a flipped bit goes unnoticed");
            assert_eq!(e.kind(), ErrorKind::Corruption, "bit {bit}: {e}");
            let report = salvaged(&fs, &items).unwrap();
            assert!(report.blocks as usize + 1 >= built.blocks.len(), "bit {bit}: {report:?}");
            assert!(report.lost.len() <= 1);
            let gone = items.len() as u64 - report.entries;
            assert_eq!(gone > 0, !report.lost.is_empty(), "bit {bit}: {report:?}");
        }
    }
}

#[test]
fn every_truncation_is_noticed() {
    let items = items();
    let fs = MemFs::default();
    let built = build(&fs, 1, &options(Compression::None), &items);
    let healthy = fs.bytes(path());
    let data_end = built.blocks.last().unwrap().position.offset() as usize;
    for len in 0..healthy.len() {
        fs.set(path(), healthy[..len].to_vec());
        assert_eq!(open(&fs, 1, 0).unwrap_err().kind(), ErrorKind::Corruption, "{len}");
        let report = salvaged(&fs, &items).unwrap();
        let whole =
            built.blocks.iter().skip(1).filter(|b| b.position.offset() as usize <= len).count() as u64;
        assert!(report.blocks >= whole, "{len}: {report:?}");
        assert_eq!(
            report.lost.is_empty(),
            len > data_end && report.entries == items.len() as u64 && report.lost.is_empty()
        );
    }
    let mut longer = healthy.clone();
    longer.push(0);
    fs.set(path(), longer);
    assert_eq!(open(&fs, 1, 0).unwrap_err().kind(), ErrorKind::Corruption);
    assert_eq!(salvaged(&fs, &items).unwrap().entries, items.len() as u64);
}

#[test]
fn wiped_stretches_are_named_by_their_neighbours() {
    let items: Vec<Item> = (0..200u32).map(|i| Item::put(&i.to_be_bytes(), 1, &[3; 50])).collect();
    for index_sound in [true, false] {
        let fs = MemFs::default();
        let built =
            build(&fs, 1, &TableOptions { block_bytes: 500, origin: ORIGIN, ..Default::default() }, &items);
        let mut data = fs.bytes(path());
        let (from, to) =
            (built.blocks[3].position.offset() as usize, built.blocks[6].position.offset() as usize);
        data[from + 5..to - 5].fill(0);
        if !index_sound {
            let footer = data.len() - 10;
            data[footer] ^= 1;
        }
        fs.set(path(), data);
        let report = salvaged(&fs, &items).unwrap();
        let key = |i: u64| Some((i as u32).to_be_bytes().to_vec());
        let lost = LostRange {
            offset: from as u64,
            len: (to - from) as u64,
            after: key(built.blocks[3].first_entry - 1),
            before: key(built.blocks[6].first_entry),
        };
        assert_eq!((report.index_sound, report.number, report.lost), (index_sound, Some(1), vec![lost]));
        assert_eq!(report.blocks as usize, built.blocks.len() - 3);
    }
}

#[test]
fn blocks_within_a_value_are_not_taken_for_blocks() {
    let fs = MemFs::default();
    let inner = [Item::put(b"inner", 5, b"not this")];
    build(&fs, 1, &TableOptions { origin: ORIGIN, ..Default::default() }, &inner);
    let smuggled = fs.bytes(path());
    let items = [Item::put(b"a", 1, b"1"), Item::put(b"b", 1, &smuggled), Item::put(b"c", 1, b"3")];
    let built = build(&fs, 1, &TableOptions { block_bytes: 1, origin: ORIGIN, ..Default::default() }, &items);
    let mut data = fs.bytes(path());
    data[built.blocks[1].position.offset() as usize + 3] ^= 1;
    let footer = data.len() - 1;
    data[footer] ^= 1;
    fs.set(path(), data);
    let report = salvaged(&fs, &items).unwrap();
    assert_eq!((report.blocks, report.lost.len()), (2, 1));
}

/// The bytes of a table like that of `items`, but for every value, with another number or of another database.
fn bytes_of(number: u64, origin: u64, items: &[Item]) -> Vec<u8> {
    let fs = MemFs::default();
    build(&fs, number, &TableOptions { origin, ..options(Compression::None) }, items);
    fs.bytes(path())
}

#[test]
fn blocks_of_another_table_are_told() {
    let items = items();
    let mut others = items.clone();
    others.iter_mut().for_each(|item| item.value.iter_mut().for_each(|byte| *byte ^= 0x55));
    let fs = MemFs::default();
    let built = build(&fs, 1, &options(Compression::None), &items);
    let sound = fs.bytes(path());
    for (number, origin) in [(2, ORIGIN), (1, ORIGIN + 1)] {
        let other = bytes_of(number, origin, &others);
        assert_eq!(crate::crafted::blocks(&other), crate::crafted::blocks(&sound));
        for (i, (at, stored)) in crate::crafted::blocks(&sound).into_iter().enumerate() {
            let block = at..at + 24 + stored;
            let mut mixed = sound.clone();
            mixed[block.clone()].copy_from_slice(&other[block]);
            fs.set(path(), mixed.clone());
            let e = ask(&fs, &built, &items).expect_err("a block of another table goes unnoticed");
            assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
            let lost = usize::from(i < built.blocks.len());
            let report = salvaged(&fs, &items).unwrap();
            assert_eq!((report.lost.len(), report.blocks as usize), (lost, built.blocks.len() - lost));

            // Neither is it where only the caller can say which table this is.
            let foot = mixed.len() - 1;
            mixed[foot] ^= 1;
            fs.set(path(), mixed);
            let report = salvaged(&fs, &items).unwrap();
            assert_eq!((report.number, report.origin), (Some(1), None));
            assert!(report.blocks as usize + lost == built.blocks.len(), "{report:?}");
            assert!(report.lost.len() >= lost, "{report:?}");
        }
    }
}

#[test]
fn a_table_without_a_footer_gives_nothing_to_another_database() {
    let (fs, items) = (MemFs::default(), items());
    for (number, origin, says) in [(1, ORIGIN + 1, None), (2, ORIGIN, Some(2))] {
        let mut data = bytes_of(number, origin, &items);
        let foot = data.len() - 1;
        data[foot] ^= 1;
        fs.set(path(), data);
        let report = salvaged(&fs, &items).unwrap();
        assert_eq!((report.number, report.blocks, report.lost.len()), (says, 0, 1));
    }
}

#[test]
fn foreign_and_misplaced_files_are_told() {
    let fs = MemFs::default();
    for data in [vec![7; 1000], b"SQLite format 3\0".repeat(10), b"x".to_vec()] {
        fs.set(path(), data);
        assert_eq!(open(&fs, 1, 0).unwrap_err().kind(), ErrorKind::InvalidFormat);
        assert_eq!(salvaged(&fs, &[]).unwrap_err().kind(), ErrorKind::InvalidFormat);
    }
    build(&fs, 2, &TableOptions::default(), &items());
    let e = open(&fs, 1, 0).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption);
    assert!(e.to_string().contains("table 2") && e.to_string().contains("000001.sst"), "{e}");
    fs.remove_all();
    assert_eq!(open(&fs, 1, 0).unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn a_later_version_is_refused_by_its_number() {
    let fs = MemFs::default();
    build(&fs, 1, &TableOptions::default(), &items());
    let mut data = fs.bytes(path());
    let foot = data.len() - 64;
    data[8] = 9;
    data[foot + 40] = 9;
    fs.set(path(), data.clone());
    assert_eq!(
        open(&fs, 1, 0).unwrap_err().kind(),
        ErrorKind::Corruption,
        "the footer's checksum is another"
    );
    let crc = crc32c(&data[foot..foot + 52]);
    data[foot + 52..foot + 56].copy_from_slice(&crc.to_le_bytes());
    fs.set(path(), data);
    let e = open(&fs, 1, 0).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidFormat);
    assert!(e.to_string().contains("version 9"), "{e}");
}
