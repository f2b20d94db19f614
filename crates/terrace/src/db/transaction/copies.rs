//! Copies of keys and values, side by side in chunks: a small one needs no allocation of its own.
//!
//! A copy keeps the chunk that it lies in. The first copies lie alone: a chunk counts those that lie in it, which costs
//! a transaction of one key more than it saves.

use bytes::{Bytes, BytesMut};

/// A chunk's bytes: what the copy of a small value keeps at most.
const CHUNK_BYTES: usize = 4 << 10;

/// Copies that lie alone: the key and the value that a transaction of one key reads, and those that it writes.
const FIRST: u8 = 4;

/// A longer copy lies alone.
const SMALL_BYTES: usize = 1 << 10;

#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Room behind the last small copy.
    room: BytesMut,
    /// Copies made, up to [`FIRST`].
    made: u8,
}

impl Copies {
    /// A copy of `bytes`.
    pub fn of(&mut self, bytes: &[u8]) -> Bytes {
        if self.made < FIRST || bytes.is_empty() || bytes.len() > SMALL_BYTES {
            self.made = FIRST.min(self.made + 1);
            return Bytes::copy_from_slice(bytes);
        }
        if self.room.capacity() < bytes.len() {
            self.room = BytesMut::with_capacity(CHUNK_BYTES);
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
        assert!((0..FIRST).all(|_| copies.of(b"one of few").is_unique()));
        let (first, second) = (copies.of(b"first"), copies.of(b"second"));
        assert_eq!(first.as_ptr_range().end, second.as_ptr());
        assert!(copies.of(&[0; SMALL_BYTES + 1]).is_unique(), "a long one lies alone");
    }
}
