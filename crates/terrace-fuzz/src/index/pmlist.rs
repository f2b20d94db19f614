//! Lists that are built in one go, and the buffers that they lead to.

use std::cmp::Reverse;
use std::sync::OnceLock;

use terrace_base::Kind;
use terrace_index::pmlist::{About, Lists, PmList, Style, salvage_buffer};

use crate::memory::{image, new_pool, open_pool, typed};
use crate::patch::patched;

const ROOT: &str = "list";
const ROOM: u64 = 1 << 20;

/// A pool with a list that leads into two buffers.
fn sound_list() -> Vec<u8> {
    let pool = new_pool();
    let lists = Lists::new(&pool, ROOM);
    let build = |from: Option<&PmList>, keys: std::ops::Range<u64>| {
        let mut builder = lists.builder(Style::default());
        if let Some(list) = from {
            let mut cursor = list.cursor();
            cursor.seek_first().unwrap();
            while cursor.valid() {
                let (key, seq, kind, vlen) = (cursor.key(), cursor.seq(), cursor.kind(), cursor.value_len());
                assert!(builder.point(key, seq, kind, vlen, cursor.offset()).unwrap());
                cursor.next().unwrap();
            }
        }
        for i in keys {
            let (key, value) = (format!("key/{i:04}"), vec![i as u8; i as usize % 40]);
            let kind = if i % 5 == 0 { Kind::Delete } else { Kind::Put };
            builder.add(key.as_bytes(), 1 + i, kind, &value).unwrap();
        }
        let list =
            builder.finish(About { inputs: vec![3, 4], ..About::default() }, &[7; 32]).unwrap().unwrap();
        list.name();
        list
    };
    let first = build(None, 0..30);
    let second = build(Some(&first), 30..60);
    pool.set_root(ROOT, second.head()).unwrap();
    image(&pool)
}

fn sound() -> &'static [u8] {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    IMAGE.get_or_init(sound_list)
}

/// An opened list answers, or fails with an error about the bytes it read. A verified list gives the same entries
/// forward and backward, and lookups find them.
pub fn pmlist(data: &[u8]) {
    let Some(pool) = typed(open_pool(&patched(sound(), data))) else { return };
    let lists = Lists::new(&pool, ROOM);
    lists.keep_all(true);
    for buffer in lists.buffers() {
        typed(salvage_buffer(&pool, buffer, &mut |_, _, _, _| Ok(())));
    }
    let Some(Some(head)) = typed(pool.root(ROOT)) else { return };
    let Some(list) = typed(lists.open(head)) else { return };
    list.name();
    typed(list.filter());
    typed(list.anchors(7));
    for key in [&b"key/0003"[..], b"", b"key/", b"z"] {
        typed(list.get(key, u64::MAX));
        typed(list.cursor().seek_back(key, 0));
    }
    if typed(list.verify()).is_none() {
        return;
    }
    let (mut forward, mut backward, mut cursor) = (Vec::new(), Vec::new(), list.cursor());
    cursor.seek_first().unwrap();
    while cursor.valid() {
        cursor.value().unwrap();
        forward.push((cursor.key().to_vec(), Reverse(cursor.seq())));
        cursor.next().unwrap();
    }
    cursor.seek_last().unwrap();
    while cursor.valid() {
        backward.push((cursor.key().to_vec(), Reverse(cursor.seq())));
        cursor.prev().unwrap();
    }
    backward.reverse();
    assert!(forward == backward && forward.is_sorted() && forward.len() as u64 == list.figures().entries);
    for (key, seq) in &forward {
        assert_eq!(list.get(key, seq.0).unwrap().expect("what the walk has found").seq, seq.0);
    }
}
