//! The memtable's list.

use std::sync::OnceLock;

use terrace_index::{Record, SkipList};
use terrace_pmem::Kind;

use super::{ROOT, key};
use crate::memory::{image, new_pool, open_pool, typed};
use crate::patched;

const LIST_KIND: Kind = Kind(9);

fn sound_list() -> &'static [u8] {
    static SOUND: OnceLock<Vec<u8>> = OnceLock::new();
    SOUND.get_or_init(|| {
        let pool = new_pool();
        let list = SkipList::create(&pool, LIST_KIND, 4000).unwrap();
        pool.drain();
        pool.set_root(ROOT, list.head_offset()).unwrap();
        for i in 0..20u64 {
            let (one, other) = (key(i), key(i + 500));
            let record = |key, seq| Record {
                key,
                seq,
                kind: 1,
                value: b"a value of some length",
                batch_first: 2 * i + 1,
                batch_len: 2,
            };
            let mut records = [record(&one, 2 * i + 1), record(&other, 2 * i + 2)];
            records.sort_by(|a, b| a.key.cmp(b.key));
            list.put_group(&records).unwrap();
        }
        image(&pool)
    })
}

/// An attached list gives the same entries forward and backward, lookups find them, and it takes writes.
pub fn skiplist(data: &[u8]) {
    let Some(pool) = typed(open_pool(&patched(sound_list(), data))) else { return };
    let Some(Some(head)) = typed(pool.root(ROOT)) else { return };
    let Some(list) = typed(SkipList::open(&pool, LIST_KIND, head)) else { return };
    let most = pool.size() as usize / 16;
    let mut forward = Vec::new();
    let mut cursor = list.cursor();
    cursor.seek_first().unwrap();
    while cursor.valid() {
        cursor.verify().unwrap();
        assert_eq!(cursor.value().unwrap().len() as u64, cursor.value_len());
        forward.push((cursor.key().to_vec(), cursor.seq()));
        assert!(forward.len() <= most, "a list without end");
        cursor.next().unwrap();
    }
    assert_eq!(forward.len() as u64, list.entries());
    let mut backward = Vec::new();
    cursor.seek_last().unwrap();
    while cursor.valid() {
        backward.push((cursor.key().to_vec(), cursor.seq()));
        cursor.prev().unwrap();
    }
    backward.reverse();
    assert_eq!(forward, backward);
    for (key, seq) in &forward {
        assert_eq!(list.get(key, *seq).unwrap().expect("what the walk has found").seq(), *seq);
    }
    assert!(list.check().unwrap().is_empty(), "{:?}", list.check());
    typed(list.mark(&mut pool.marks()));
    let seq = list.max_seq().saturating_add(1);
    let record = Record { key: b"key/0500+", seq, kind: 1, value: b"v", batch_first: seq, batch_len: 1 };
    if seq < u64::MAX >> 8 && list.put_group(&[record]).is_ok() {
        assert_eq!(list.get(b"key/0500+", seq).unwrap().expect("what was put").seq(), seq);
    }
}
