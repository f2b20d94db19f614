use bytes::Bytes;

use crate::block::{Block, BlockCursor, Held, Lookup};
use crate::filter::Filter;
use crate::frame::Malformed;

/// Reads the block payload `data` in every way there is. Lookups and walks return whatever sound lengths lead to: only
/// the checksum protects the order of entries.
pub fn block(data: &[u8]) {
    let Ok(block) = Block::new(Bytes::copy_from_slice(data), 0, 0) else { return };
    for key in [&b""[..], b"a", b"common/011", &data[..data.len().min(9)]] {
        if let Ok(Lookup::Found(found)) = block.find(key, 500) {
            assert!(found.seq <= 500, "a version too new");
            let value = found.value.clone();
            assert_eq!(block.entry_of(found).value, block.bytes(value));
        }
        let _ = block.view().value_at_or_after(None, key, 500);
        let _ = block.view().at_or_after(key, 500);
    }
    let mut cursor = BlockCursor::default();
    cursor.set(Some(Held::Own(block)));
    let most = data.len();
    walk(&mut cursor, BlockCursor::first, BlockCursor::next, most);
    walk(&mut cursor, BlockCursor::last, BlockCursor::prev, most);
    let _ = cursor.seek(b"common/011", 7);
    let _ = cursor.seek_back(b"common/011", 7);
}

type Step = fn(&mut BlockCursor) -> Result<(), Malformed>;

fn walk(cursor: &mut BlockCursor, start: Step, step: Step, most: usize) {
    let mut entries = 0;
    let mut outcome = start(cursor);
    while outcome.is_ok() && cursor.valid() {
        assert!(cursor.value().end <= most, "a value past the end");
        entries += 1;
        assert!(entries <= most, "more entries than bytes");
        outcome = step(cursor);
    }
}

/// Asks the filter payload `data` for keys.
pub fn filter(data: &[u8]) {
    let Ok(filter) = Filter::new(Bytes::copy_from_slice(data)) else { return };
    let _ = filter.may_contain(b"") | filter.may_contain(data);
    assert_eq!(filter.memory_bytes(), data.len());
}
