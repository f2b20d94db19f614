//! SSTables, and the blocks and filters in them.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use terrace_base::Result;
use terrace_disk::{Access, Fs};
use terrace_table::{BlockCache, Cursor, Kind, Table, TableBuilder, TableOptions, salvage};

use crate::memory::{dir, files, typed};
use crate::patched;

const NUMBER: u64 = 7;

fn path() -> PathBuf {
    dir().join("000007.sst")
}

fn sound() -> &'static [u8] {
    static SOUND: OnceLock<Vec<u8>> = OnceLock::new();
    SOUND.get_or_init(|| {
        let fs = files(&[]);
        let options = TableOptions { block_bytes: 200, ..TableOptions::default() };
        let mut builder = TableBuilder::new(fs.create(&path()).unwrap(), NUMBER, options).unwrap();
        for i in 0..60u64 {
            let key = format!("common/{:03}", i / 2);
            let kind = match i % 7 {
                3 => Kind::Delete,
                5 => Kind::Operand,
                _ => Kind::Put,
            };
            let value = vec![i as u8; if i % 10 == 0 { 300 } else { 12 }];
            let value = if kind != Kind::Delete { &value[..] } else { &[] };
            builder.add(key.as_bytes(), 1000 - i, kind, value).unwrap();
        }
        builder.finish().unwrap();
        fs.read(&path()).unwrap()
    })
}

type Entries = Vec<(Vec<u8>, u64, Kind, Vec<u8>)>;

fn walk(cursor: &mut dyn Cursor, step: fn(&mut dyn Cursor) -> Result<()>, most: usize) -> Result<Entries> {
    let mut entries = Vec::new();
    while cursor.valid() {
        entries.push((cursor.key().to_vec(), cursor.seq(), cursor.kind(), cursor.value()?.to_vec()));
        assert!(entries.len() <= most, "more entries than bytes");
        step(cursor)?;
    }
    Ok(entries)
}

/// A whole table. A table that verifies gives the same entries forward and backward, and every lookup finds the walk's
/// entry.
pub fn table(data: &[u8]) {
    let image = patched(sound(), data);
    let fs = files(&[(path(), &image)]);
    let salvaged = salvage(&fs, &path(), NUMBER, 0, &mut |_, _, _, _| Ok(()));
    typed(salvaged.map(drop));
    let cache = Arc::new(BlockCache::new(1 << 20));
    let Some(table) = typed(Table::open(&fs, &path(), NUMBER, cache, Access::Random)) else { return };
    let verified = typed(table.verify()).is_some();
    let mut cursor = table.cursor(true, 0);
    let forward = typed(cursor.seek_first().and_then(|()| walk(&mut cursor, |c| c.next(), image.len())));
    let mut cursor = table.cursor(true, 0);
    let backward = typed(cursor.seek_last().and_then(|()| walk(&mut cursor, |c| c.prev(), image.len())));
    for key in [&b""[..], b"common/", b"common/011", b"zz"] {
        typed(table.get(key, u64::MAX));
        typed(table.may_contain(key));
        let mut cursor = table.cursor(true, 0);
        typed(cursor.seek(key, 500));
        typed(cursor.seek_back(key, 500));
    }
    typed(table.dump(&mut Vec::new()).map(drop));
    if !verified {
        return;
    }
    let (forward, mut backward) = (forward.expect("verified"), backward.expect("verified"));
    backward.reverse();
    assert_eq!(forward, backward);
    assert_eq!(forward.len() as u64, table.meta().entries);
    assert!(forward.is_sorted_by(|a, b| (&a.0, b.1) < (&b.0, a.1)), "out of order");
    for (key, seq, kind, value) in &forward {
        let found = table.get(key, *seq).unwrap().expect("what the walk has found");
        assert_eq!((found.seq, found.kind, &found.value[..]), (*seq, *kind, &value[..]));
    }
}

/// A block's payload.
pub fn block(data: &[u8]) {
    terrace_table::fuzzing::block(data);
}

/// A filter's payload.
pub fn filter(data: &[u8]) {
    terrace_table::fuzzing::filter(data);
}
