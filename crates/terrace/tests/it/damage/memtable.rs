//! A damaged record costs itself, and not the memtable that it is in.

use terrace::{EngineKind, SlmOptions};
use terrace_pmem::Granularity;

use super::image::{Image, options};

const KEYS: usize = 300;

fn key(i: usize) -> String {
    format!("key{i:06}")
}

/// Where `what` lies in the pool.
fn place_of(pool: &[u8], what: &str) -> usize {
    pool.windows(what.len()).position(|bytes| bytes == what.as_bytes()).unwrap()
}

#[test]
fn a_repair_keeps_all_of_a_memtable_but_what_is_damaged() {
    let mut options = options(EngineKind::Slm);
    options.slm = SlmOptions { memtable_bytes: 64 << 10, ..options.slm };
    let bed = Image::empty(options, Granularity::CacheLine).bed();
    let db = bed.open().unwrap();
    for i in 0..KEYS {
        db.put(key(i).as_bytes(), &[i as u8; 20]).unwrap();
    }
    // As a kill leaves it.
    let mut image = bed.image();
    let pool = image.pool.as_mut().unwrap();
    for i in [100, 200] {
        let at = place_of(pool, &key(i));
        pool[at] ^= 1;
    }
    let bed = image.bed();
    let report = bed.repair().unwrap();
    assert!(report.lost.iter().any(|lost| lost.contains("writes of one memtable at 2 places")), "{report:?}");
    assert_eq!(report.keys, KEYS as u64 - 2, "{report:?}");
    let db = bed.open().unwrap();
    for i in 0..KEYS {
        let found = db.get(key(i).as_bytes()).unwrap();
        let expected = (i != 100 && i != 200).then_some([i as u8; 20]);
        assert_eq!(found.as_deref(), expected.as_ref().map(|value| &value[..]), "{i}");
    }
    assert!(db.check().unwrap().is_clean());
}
