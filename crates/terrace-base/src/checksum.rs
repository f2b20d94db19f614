//! Checksums: CRC-32C guards stored bytes, XXH3 spreads keys.
//!
//! Built with `--cfg terrace_no_checksums` all CRCs are one constant, and nothing is guarded: for fuzzing what lies
//! behind the checks.

/// CRC-32C of `data`.
pub fn crc32c(data: &[u8]) -> u32 {
    if cfg!(terrace_no_checksums) {
        return 1;
    }
    crc32c::crc32c(data)
}

/// CRC-32C of `data` appended to what `crc` already covers.
pub fn crc32c_append(crc: u32, data: &[u8]) -> u32 {
    if cfg!(terrace_no_checksums) {
        return 1;
    }
    crc32c::crc32c_append(crc, data)
}

/// A 16-bit checksum of an 8-byte-or-shorter word, for words that carry their own check.
///
/// The two halves of the CRC are folded, and zero is avoided so that an all-zero word is never valid.
pub fn crc16(data: &[u8]) -> u16 {
    let crc = crc32c(data);
    match (crc ^ (crc >> 16)) as u16 {
        0 => 1,
        folded => folded,
    }
}

/// Bits of value in a word of [`seal48`].
const SEALED_BITS: u32 = 48;

/// A word of a value below 2^48 and a check over it and `seed`: where the word lies, or what it belongs to. Never 0,
/// so that a word that was never written is not one.
///
/// ```
/// use terrace_base::checksum::{seal48, unseal48};
/// let word = seal48(4096, 7);
/// assert_eq!(unseal48(4096, word), Some(7));
/// assert_eq!((unseal48(4104, word), unseal48(4096, word ^ 1), unseal48(4096, 0)), (None, None, None));
/// ```
pub fn seal48(seed: u64, value: u64) -> u64 {
    debug_assert!(value >> SEALED_BITS == 0);
    let mut both = [0; 16];
    both[..8].copy_from_slice(&seed.to_le_bytes());
    both[8..].copy_from_slice(&value.to_le_bytes());
    value | u64::from(crc16(&both)) << SEALED_BITS
}

/// The value of a word, if it is one that [`seal48`] makes with `seed`.
pub fn unseal48(seed: u64, word: u64) -> Option<u64> {
    let value = word & ((1 << SEALED_BITS) - 1);
    (seal48(seed, value) == word).then_some(value)
}

/// XXH3 of `data`, 64 bits.
pub fn hash64(data: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(data)
}

/// A digest of `data`, never 0, by which a whole block is told from every other.
pub fn digest64(data: &[u8]) -> u64 {
    if cfg!(terrace_no_checksums) { 1 } else { hash64(data).max(1) }
}

#[cfg(all(test, not(terrace_no_checksums)))]
mod tests {
    use super::*;

    #[test]
    fn known_vectors() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c_append(crc32c(b"1234"), b"56789"), crc32c(b"123456789"));
        assert_eq!(hash64(b""), 0x2D06_8005_38D3_94C2);
    }

    #[test]
    fn crc16_is_never_zero() {
        for i in 0..100_000u64 {
            assert_ne!(crc16(&i.to_le_bytes()), 0);
        }
    }
}
