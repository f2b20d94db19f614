use std::path::Path;
use std::sync::Arc;

use terrace_disk::{Access, Fs};
use terrace_table::*;

use crate::memfs::MemFs;

#[test]
fn what_was_added_is_found_by_position_by_key_and_by_cursor() {
    let fs = MemFs::default();
    let path = Path::new("1.sst");
    for block_bytes in [1, 200, 4096] {
        let options = TableOptions { block_bytes, filter_bits_per_key: 10, ..Default::default() };
        let mut b = TableBuilder::new(fs.create(path).unwrap(), 1, options).unwrap();
        for i in 0..1000u64 {
            for seq in [2, 1] {
                b.add(format!("key{i:05}").as_bytes(), seq, Kind::Put, &(i * seq).to_le_bytes()).unwrap();
            }
        }
        let built = b.finish().unwrap();
        let cache = Arc::new(BlockCache::new(1 << 20));
        let t = Table::open(&fs, path, 1, cache, Access::Random).unwrap();
        assert_eq!(t.meta(), &built.meta);
        for span in &built.blocks {
            let i = span.first_entry / 2;
            let key = format!("key{i:05}");
            fs.take_reads();
            let e = t.get_at(span.position, key.as_bytes(), 1).unwrap().unwrap();
            assert_eq!((e.seq, &e.value[..]), (1, &i.to_le_bytes()[..]));
            assert!(fs.take_reads().0 <= 3);
        }
        assert_eq!(fs.bytes(path).len() as u64, built.file_bytes);
        let mut c = t.cursor(true, 0);
        c.seek_first().unwrap();
        for i in 0..1000u64 {
            let key = format!("key{i:05}");
            let e = t.get(key.as_bytes(), 100).unwrap().unwrap();
            assert_eq!((e.seq, &e.value[..]), (2, &(i * 2).to_le_bytes()[..]));
            for seq in [2, 1] {
                assert_eq!((c.key(), c.seq()), (key.as_bytes(), seq));
                c.next().unwrap();
            }
        }
        assert!(!c.valid());
    }
}
