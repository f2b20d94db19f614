//! Copies of keys and values, side by side in chunks: a small one needs no allocation of its own.
//!
//! A copy keeps the chunk that it lies in.

use bytes::{Bytes, BytesMut};

/// A chunk's bytes: what the copy of a small value keeps at most.
const CHUNK_BYTES: usize = 4 << 10;

/// Bytes of the first chunk: a transaction of one key needs no more.
const FIRST_BYTES: usize = 512;

/// A longer copy lies alone.
const SMALL_BYTES: usize = 1 << 10;

#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Room behind the last small copy.
    room: BytesMut,
    has_begun: bool,
}

impl Copies {
    /// A copy of `bytes`.
    pub fn of(&mut self, bytes: &[u8]) -> Bytes {
        if bytes.is_empty() || bytes.len() > SMALL_BYTES {
            return Bytes::copy_from_slice(bytes);
        }
        if self.room.capacity() < bytes.len() {
            let first = if self.has_begun { CHUNK_BYTES } else { FIRST_BYTES };
            self.room = BytesMut::with_capacity(first.max(bytes.len()));
            self.has_begun = true;
        }
        self.room.extend_from_slice(bytes);
        self.room.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_stay_as_they_were_made() {
        let mut copies = Copies::default();
        let source: Vec<Vec<u8>> = (0..2000_u32).map(|i| vec![i as u8; i as usize * 7 % 1200]).collect();
        let made: Vec<Bytes> = source.iter().map(|bytes| copies.of(bytes)).collect();
        drop(copies);
        assert!(made.iter().zip(&source).all(|(copy, bytes)| copy == bytes));
    }

    #[test]
    fn small_copies_share_chunks() {
        let mut copies = Copies::default();
        let (first, second) = (copies.of(b"first"), copies.of(b"second"));
        assert_eq!(first.as_ptr_range().end, second.as_ptr());
        assert!(copies.of(&[0; SMALL_BYTES + 1]).is_unique(), "a long one lies alone");
    }
}
