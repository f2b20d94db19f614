//! Key objects: keys that lie in the pool by themselves. Fences and prefixes of FAST&FAIR, and keys of an SPTree that
//! are too long for its leaves.
//!
//! ```text
//! 0   u32  CRC-32C of the object's place, the key's length and the key
//! 4   u16  bytes of the key
//! 6   u16  zero
//! 8   key
//! ```
//!
//! An object never changes. Its checksum is right at one place of one pool only, so an object that was written
//! elsewhere is detected.

use terrace_base::checksum::crc32c_placed;
use terrace_base::{Error, Result};
use terrace_pmem::{POff, Pool, pm_layout};

/// The fixed part of a key object, immutable.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct KeyHead {
    /// [`crc32c_placed`] of the object's place and its key.
    pub crc: u32,
    /// Bytes of the key.
    pub klen: u16,
    /// Zero.
    pub reserved: u16,
}

/// Bytes of a key object before its key.
pub(crate) const KEY_HEAD_BYTES: u64 = 8;

// SAFETY: no field changes while it is shared.
pm_layout! {
    unsafe KeyHead: 8 { crc @ 0, klen @ 4, reserved @ 6 }
}

/// `key`, if the object at `off`, with the checksum `crc`, was written there.
#[inline]
pub(crate) fn proven<'p>(pool: &Pool, off: u64, crc: u32, key: &'p [u8]) -> Result<&'p [u8]> {
    if crc != crc32c_placed(pool.place(off), key) {
        return Err(misplaced(pool, off));
    }
    Ok(key)
}

#[cold]
fn misplaced(pool: &Pool, off: u64) -> Error {
    pool.corruption(off, "a key with its checksum", "other bytes")
}

/// The key of the object at `off`.
///
/// # Safety
///
/// The object is not freed as long as the key is borrowed.
pub(crate) unsafe fn key_at(pool: &Pool, off: u64) -> Result<&[u8]> {
    let head = pool.get::<KeyHead>(POff::new(off))?;
    // SAFETY: a key object never changes, and is not freed: the caller's promise.
    let key = unsafe { pool.bytes(off + KEY_HEAD_BYTES, u64::from(head.klen)) }?;
    proven(pool, off, head.crc, key)
}

/// The head of a key object, or of a record, at a place of the pool.
pub(crate) fn encode_key_head(place: u64, key: &[u8]) -> [u8; KEY_HEAD_BYTES as usize] {
    let mut out = [0; KEY_HEAD_BYTES as usize];
    out[..4].copy_from_slice(&crc32c_placed(place, key).to_le_bytes());
    out[4..6].copy_from_slice(&(key.len() as u16).to_le_bytes());
    out
}

/// The bytes of a key object at a place of the pool.
pub(crate) fn encode_key(place: u64, key: &[u8]) -> Vec<u8> {
    [&encode_key_head(place, key)[..], key].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_key_object() {
        assert_eq!(encode_key(0x100, b"key"), [55, 23, 217, 229, 3, 0, 0, 0, b'k', b'e', b'y']);
        assert_ne!(crc32c_placed(0x100, b"key"), crc32c_placed(0x110, b"key"), "bound to the place");
    }
}
