//! Records of pairs: a key and its value that do not fit into the slot of a hash table.
//!
//! ```text
//! 0   u32  CRC-32C of the record's place and of everything after it, up to the value's end
//! 4   u32  bytes of the value
//! 8   u16  bytes of the key
//! 10  u16  zero
//! 12  key, then value
//! ```
//!
//! A record never changes: an update makes another. It is activated and durable before a slot names it, and freed
//! after no slot names it durably and every reader who may see it has left (`limbo`).

use terrace_base::checksum::{crc32c, crc32c_append};
use terrace_base::{Error, Result};
use terrace_pmem::{Kind, Pool, Slot};

/// Bytes of a record before its key.
pub(crate) const HEAD_BYTES: usize = 12;

/// Values of at least this many bytes are copied past the caches.
const STREAM_BYTES: usize = 512;

/// A record that is written and flushed, but not drained and not named. Dropping it gives it back.
pub struct NewPair<'p> {
    pool: &'p Pool,
    slot: Option<Slot>,
    bytes: u64,
}

impl<'p> NewPair<'p> {
    /// Writes a record of kind `kind`. Key and value are admissible (`hashed::admit_pair`).
    pub fn write(pool: &'p Pool, kind: Kind, key: &[u8], value: &[u8]) -> Result<Self> {
        let bytes = record_bytes(key.len(), value.len());
        let slot = pool.reserve(kind, bytes)?;
        let (at, before_value) = (slot.offset, (HEAD_BYTES + key.len()) as u64);
        pool.write(at, &head(pool.place(at), key, value));
        pool.write(at + HEAD_BYTES as u64, key);
        if value.len() < STREAM_BYTES {
            pool.write(at + before_value, value);
            pool.flush(at, bytes);
        } else {
            pool.flush(at, before_value);
            pool.copy_flush(at + before_value, value);
        }
        pool.activate(&slot);
        Ok(NewPair { pool, slot: Some(slot), bytes })
    }

    /// Its offset.
    pub fn offset(&self) -> u64 {
        self.slot.map_or(0, |slot| slot.offset)
    }

    /// Bytes of the record.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keeps the record, since it is named now or about to be.
    pub fn keep(mut self) {
        self.slot = None;
    }
}

impl Drop for NewPair<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.pool.cancel(slot);
        }
    }
}

/// A record's key and value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair<'p> {
    /// The key.
    pub key: &'p [u8],
    /// The value.
    pub value: &'p [u8],
}

impl<'p> Pair<'p> {
    /// The record at `at`, an offset that is not trusted; charged as a read.
    ///
    /// # Safety
    ///
    /// If a record was at `at` when the offset was loaded from a slot, it is not freed for `'p`: the caller has been
    /// present in the table's limbo since before that load. A damaged offset may lead anywhere, where bytes may change:
    /// they are accepted as a record only with its checksum.
    pub unsafe fn read(pool: &'p Pool, at: u64) -> Result<Self> {
        // SAFETY: published records are immutable, and this one is not freed (the caller's promise).
        let head = unsafe { pool.bytes(at, HEAD_BYTES as u64)? };
        let (crc, value_len, key_len) = lengths(head);
        let len = record_bytes(key_len, value_len);
        pool.charge_read(at, len);
        // SAFETY: as above.
        let all = unsafe { pool.bytes(at, len)? };
        if crc_at(pool.place(at), &all[4..]) != crc {
            return Err(damaged(pool, at));
        }
        let (key, value) = all[HEAD_BYTES..].split_at(key_len);
        Ok(Pair { key, value })
    }

    /// Where the record is in its pool.
    pub fn at(&self, pool: &Pool) -> u64 {
        let key_at = self.key.as_ptr().addr() - pool.media().base().addr();
        (key_at - HEAD_BYTES) as u64
    }

    /// The value as a word.
    pub fn word(&self) -> Result<u64> {
        word_of(self.value)
    }

    /// Bytes of the record.
    pub fn bytes(&self) -> u64 {
        record_bytes(self.key.len(), self.value.len())
    }
}

/// A value as a word, if it has 8 bytes.
pub fn word_of(value: &[u8]) -> Result<u64> {
    match value.try_into() {
        Ok(bytes) => Ok(u64::from_le_bytes(bytes)),
        Err(_) => Err(Error::invalid(format!("the key has a value of {} bytes, not a word", value.len()))),
    }
}

/// Bytes of a record.
pub fn record_bytes(key_len: usize, value_len: usize) -> u64 {
    (HEAD_BYTES + key_len + value_len) as u64
}

/// The CRC of a place and of the record there.
fn crc_at(place: u64, bytes: &[u8]) -> u32 {
    crc32c_append(crc32c(&place.to_le_bytes()), bytes)
}

fn head(place: u64, key: &[u8], value: &[u8]) -> [u8; HEAD_BYTES] {
    let mut out = [0; HEAD_BYTES];
    out[4..8].copy_from_slice(&(value.len() as u32).to_le_bytes());
    out[8..10].copy_from_slice(&(key.len() as u16).to_le_bytes());
    let crc = crc32c_append(crc32c_append(crc_at(place, &out[4..]), key), value);
    out[..4].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Checksum, bytes of the value, bytes of the key.
fn lengths(head: &[u8]) -> (u32, usize, usize) {
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    (word(0), word(4) as usize, usize::from(u16::from_le_bytes([head[8], head[9]])))
}

#[cold]
fn damaged(pool: &Pool, at: u64) -> Error {
    pool.corruption(at, "a pair with its checksum", "another checksum")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let head = head(0x1234_0000, b"key", b"value!");
        let hex: String = head.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "ec1c73400600000003000000");
        assert_eq!((lengths(&head).1, lengths(&head).2), (6, 3));
    }
}
