//! Tables of which the figures are known and nothing is read before it is asked for.

use std::sync::Arc;

use terrace_base::{ErrorKind, Result};
use terrace_disk::{Access, Fs};
use terrace_table::*;

use crate::memfs::MemFs;
use crate::util::*;

const ORIGIN: u64 = 9;

fn items() -> Vec<Item> {
    sorted((0..200u64).map(|i| Item::put(format!("key{:04}", i / 2).as_bytes(), i, &[i as u8; 20])).collect())
}

fn made(fs: &MemFs) -> Built {
    let options =
        TableOptions { block_bytes: 200, origin: ORIGIN, filter_bits_per_key: 10, ..TableOptions::default() };
    build(fs, 1, &options, &items())
}

fn lazy(fs: &MemFs, meta: &TableMeta, origin: u64) -> (Arc<Table>, Arc<BlockCache>) {
    let cache = Arc::new(BlockCache::new(1 << 20));
    let file = fs.open(path(), Access::Random).unwrap();
    (Table::lazy(file, meta.clone(), origin, cache.clone()), cache)
}

/// What can be asked of a table first.
type Ask = (&'static str, fn(&Arc<Table>, &Built) -> Result<String>);

fn asks() -> Vec<Ask> {
    vec![
        ("get", |t, _| t.get(b"key0007", 99).map(|e| format!("{e:?}"))),
        ("absent", |t, _| t.get(b"zz", 99).map(|e| format!("{e:?}"))),
        ("may_contain", |t, _| t.may_contain(b"zz").map(|e| format!("{e:?}"))),
        ("get_at", |t, b| t.get_at(position_of(b, 9), &items()[9].key, 999).map(|e| format!("{e:?}"))),
        ("get_many", |t, b| {
            let keys = [items()[9].key.clone(), items()[150].key.clone()];
            let asked = [(position_of(b, 9), &keys[0][..]), (position_of(b, 150), &keys[1][..])];
            get_many(t, &asked, 999).map(|e| format!("{e:?}"))
        }),
        ("both ways", |t, _| both_ways(&mut t.cursor(true, 4096)).map(|both| format!("{both:?}"))),
        ("seek", |t, _| {
            let mut cursor = t.cursor(false, 0);
            cursor.seek(b"key0050", 999)?;
            Ok(format!("{:?}", item_at(&cursor)))
        }),
        ("seek back", |t, _| {
            let mut cursor = t.cursor(false, 0);
            cursor.seek_back(b"key0050", 0)?;
            Ok(format!("{:?}", item_at(&cursor)))
        }),
        ("anchors", |t, _| t.anchors().map(|a| format!("{a:?}"))),
        ("sample", |t, _| t.sample(9).map(|keys| format!("{keys:?}"))),
        ("verify", |t, _| t.verify().map(|()| String::new())),
        ("dump", |t, _| {
            let mut out = Vec::new();
            t.dump(&mut out).map(|()| String::from_utf8(out).unwrap())
        }),
    ]
}

#[test]
fn whatever_is_asked_first_is_answered_as_by_an_open_table() {
    let fs = MemFs::default();
    let built = made(&fs);
    let eager = open(&fs, 1, 1 << 20).unwrap();
    for (what, ask) in asks() {
        let (table, cache) = lazy(&fs, &built.meta, ORIGIN);
        let before = cache.table_bytes();
        fs.take_reads();
        assert_eq!((table.meta(), table.number()), (&built.meta, 1));
        let mut cursor = table.cursor(true, 0);
        cursor.next().unwrap();
        assert!(!cursor.valid() && before > 0 && fs.take_reads() == (0, 0), "{what}");
        assert_eq!(ask(&table, &built).unwrap(), ask(&eager, &built).unwrap(), "{what}");
        assert!(cache.table_bytes() == table.memory_bytes() as u64 && cache.table_bytes() > before, "{what}");
        drop((cursor, table));
        assert_eq!(cache.table_bytes(), 0, "{what}");
    }
}

#[test]
fn another_table_is_told_whatever_is_asked_first() {
    let fs = MemFs::default();
    let built = made(&fs);
    let other = |change: &dyn Fn(&mut TableMeta)| {
        let mut meta = built.meta.clone();
        change(&mut meta);
        meta
    };
    let cases = [
        (other(&|m| m.number = 2), ORIGIN, "expected table 2, found table 1"),
        (
            built.meta.clone(),
            8,
            "expected a table of this database (try `repair`), found another database's table",
        ),
        (other(&|m| m.entries += 1), ORIGIN, "expected the table that the manifest names (try `repair`)"),
        (other(&|m| m.largest.push(0)), ORIGIN, "expected the table that the manifest names (try `repair`)"),
    ];
    for (meta, origin, said) in cases {
        for (what, ask) in asks() {
            let (table, _) = lazy(&fs, &meta, origin);
            // A position says itself which table it is of.
            if meta.number == 2 && what.starts_with("get_") {
                continue;
            }
            for _ in 0..2 {
                let told = ask(&table, &built).unwrap_err();
                assert!(
                    told.kind() == ErrorKind::Corruption && told.to_string().contains(said),
                    "{what}: {told}"
                );
            }
        }
    }
}

#[test]
fn what_cannot_be_read_now_is_read_by_whoever_asks_next() {
    let fs = MemFs::default();
    let built = made(&fs);
    let whole = fs.bytes(path());
    let (table, _) = lazy(&fs, &built.meta, ORIGIN);
    fs.change(path(), |bytes| *bytes.last_mut().unwrap() ^= 1);
    table.load().unwrap_err();
    table.get(b"key0007", 99).unwrap_err();
    fs.change(path(), |bytes| *bytes = whole.clone());
    table.load().unwrap();
    assert!(table.get(b"key0007", 99).unwrap().is_some());
}

#[test]
fn every_flipped_bit_is_noticed_when_it_is_read() {
    let fs = MemFs::default();
    let built = made(&fs);
    let (whole, items) = (fs.bytes(path()), items());
    for bit in (0..whole.len() * 8).step_by(3) {
        fs.change(path(), |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
        let (table, _) = lazy(&fs, &built.meta, ORIGIN);
        for (i, item) in items.iter().enumerate().step_by(17) {
            if let Ok(found) = table.get(&item.key, item.seq) {
                assert_entry(found.as_ref(), Some(&items[i]));
            }
        }
        let told = table.verify().unwrap_err();
        assert!(matches!(told.kind(), ErrorKind::Corruption | ErrorKind::InvalidFormat), "{bit}: {told}");
        fs.change(path(), |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
    }
}
