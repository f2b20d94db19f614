//! Entries of index and root blocks: a separator key and the handle of a block.
//!
//! A separator is at or after the last entry of its block and before the first entry of the next, and
//! as short as that allows. Its value is `varint(offset / 16) varint(length)`.

use terrace_base::codec::{Reader, put_varint};

use crate::entry::shared_prefix;
use crate::footer::HEAD_BYTES;
use crate::frame::{HEADER_BYTES, Handle, Malformed};
use crate::position::BLOCK_ALIGN;

/// A separator between the last entry of a block and the first of the next: with `Some(len)` the first
/// `len` bytes of the next key, not all of it, at sequence number 0; with `None` the last entry.
pub(crate) fn separator(last: &[u8], next: &[u8]) -> Option<usize> {
    // The shared prefix and one more byte of `next` come after `last`, and not after `next`, being its prefix.
    let len = shared_prefix(last, next) + 1;
    (len < next.len()).then_some(len)
}

pub(crate) fn encode_handle(handle: Handle, out: &mut Vec<u8>) {
    put_varint(out, handle.offset / BLOCK_ALIGN);
    put_varint(out, handle.len);
}

/// The handle stored as `value`, of a block that ends by `limit`.
pub(crate) fn decode_handle(value: &[u8], limit: u64) -> Result<Handle, Malformed> {
    let mut r = Reader::new(value);
    let parts = r.varint().zip(r.varint()).filter(|_| r.is_empty());
    let handle = parts.and_then(|(at, len)| Some(Handle { offset: at.checked_mul(BLOCK_ALIGN)?, len }));
    handle
        .filter(|h| h.offset >= HEAD_BYTES as u64 && h.len >= HEADER_BYTES as u64)
        .filter(|h| h.offset <= limit && h.len <= limit - h.offset)
        .ok_or_else(|| Malformed::new("the handle of a block within the file", format!("{value:02x?}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::order;

    #[test]
    fn separators_separate() {
        let keys: [&[u8]; 7] = [b"", b"\0", b"a", b"ab", b"abc", b"b", b"ba"];
        let entries: Vec<_> = keys.iter().flat_map(|k| [(*k, u64::MAX), (*k, 9), (*k, 0)]).collect();
        for (i, &last) in entries.iter().enumerate() {
            for &next in &entries[i + 1..] {
                let between = separator(last.0, next.0).map_or(last, |len| (&next.0[..len], 0));
                assert!(order(last, between).is_le(), "{last:?} {next:?}");
                assert!(order(between, next).is_lt(), "{last:?} {next:?}");
            }
        }
    }

    #[test]
    fn handles_outside_the_file_are_refused() {
        let mut out = Vec::new();
        encode_handle(Handle { offset: 160, len: 40 }, &mut out);
        assert_eq!(out, [10, 40]);
        assert_eq!(decode_handle(&out, 200).unwrap(), Handle { offset: 160, len: 40 });
        for (value, limit) in
            [(&out[..], 199), (&[10], 200), (&[0, 40], 200), (&[1, 1], 200), (&[1, 40, 0], 200)]
        {
            assert!(decode_handle(value, limit).is_err());
        }
        let mut huge = Vec::new();
        put_varint(&mut huge, u64::MAX);
        put_varint(&mut huge, u64::MAX);
        assert!(decode_handle(&huge, 200).is_err());
    }
}
