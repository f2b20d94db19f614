//! Checksums: CRC-32C guards stored bytes, XXH3 spreads keys.
//!
//! Built with `--cfg terrace_no_checksums` all CRCs are one constant, and nothing is guarded: for fuzzing what lies
//! behind the checks.

/// CRC-32C of `data`.
#[inline]
pub fn crc32c(data: &[u8]) -> u32 {
    crc32c_append(0, data)
}

/// CRC-32C of `data` appended to what `crc` already covers.
#[inline]
pub fn crc32c_append(crc: u32, data: &[u8]) -> u32 {
    if cfg!(terrace_no_checksums) {
        return 1;
    }
    #[cfg(target_arch = "x86_64")]
    if data.len() <= short::MOST_BYTES && is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the feature that the function is compiled for.
        return unsafe { short::append(crc, data) };
    }
    crc32c::crc32c_append(crc, data)
}

/// What [`crc32c_append`] makes of `crc` with some data of `len` bytes, of which it is known that they turn `before`
/// into `after`: the data are not needed.
pub fn crc32c_turned(crc: u32, (before, after): (u32, u32), len: u64) -> u32 {
    if cfg!(terrace_no_checksums) {
        return 1;
    }
    // A difference of two checksums goes through any data as it goes through zeros: as a polynomial it is multiplied
    // by x, eight times for each byte. The crate has `crc32c_combine` for that, which squares matrices: it takes ten
    // times as long as reading 4 KiB, which is what most items have.
    let powers = POWERS.iter().cycle().enumerate().skip(3).take(64);
    let factors = powers.filter(|(bit, _)| len >> (bit - 3) & 1 == 1).map(|(_, power)| *power);
    after ^ factors.fold(crc ^ before, multiplied)
}

/// The polynomial of CRC-32C, its highest power in the lowest bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The powers of x by powers of two. With the 31st they begin again.
const POWERS: [u32; 31] = {
    let mut powers = [1 << 30; 31];
    let mut at = 1;
    while at < powers.len() {
        powers[at] = multiplied(powers[at - 1], powers[at - 1]);
        at += 1;
    }
    powers
};

/// The product of two polynomials, modulo that of the checksum.
const fn multiplied(one: u32, mut other: u32) -> u32 {
    let (mut product, mut bit) = (0, 32);
    while bit > 0 {
        bit -= 1;
        if one >> bit & 1 == 1 {
            product ^= other;
        }
        other = other >> 1 ^ if other & 1 == 1 { POLYNOMIAL } else { 0 };
    }
    product
}

/// CRC-32C of `words`, one after the other, little-endian.
#[inline]
pub fn crc32c_words<const N: usize>(words: [u64; N]) -> u32 {
    if cfg!(terrace_no_checksums) {
        return 1;
    }
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the feature that the function is compiled for.
        return unsafe { short::of_words(words) };
    }
    words.iter().fold(0, |crc, word| crc32c::crc32c_append(crc, &word.to_le_bytes()))
}

/// CRC-32C of `place`, of the length of `data` in two bytes, and of `data`, one after the other: of a key and of where
/// it lies.
#[inline]
pub fn crc32c_placed(place: u64, data: &[u8]) -> u32 {
    if cfg!(terrace_no_checksums) {
        return 1;
    }
    #[cfg(target_arch = "x86_64")]
    if data.len() <= short::MOST_BYTES && is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the feature that the function is compiled for.
        return unsafe { short::placed(place, data) };
    }
    let crc = crc32c::crc32c_append(crc32c::crc32c(&place.to_le_bytes()), &(data.len() as u16).to_le_bytes());
    crc32c::crc32c_append(crc, data)
}

/// Checksums of a few bytes: of the heads of records, and of keys. `crc32c` begins with single bytes up to the first
/// eight that are aligned, and looks for more to do at a time than there is here.
#[cfg(target_arch = "x86_64")]
mod short {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32, _mm_crc32_u64};

    /// With more data `crc32c` is as fast.
    pub(super) const MOST_BYTES: usize = 64;

    #[target_feature(enable = "sse4.2")]
    pub(super) fn append(crc: u32, data: &[u8]) -> u32 {
        !add(!crc, data)
    }

    #[target_feature(enable = "sse4.2")]
    pub(super) fn of_words<const N: usize>(words: [u64; N]) -> u32 {
        !(words.iter().fold(u64::from(u32::MAX), |crc, word| _mm_crc32_u64(crc, *word)) as u32)
    }

    #[target_feature(enable = "sse4.2")]
    pub(super) fn placed(place: u64, data: &[u8]) -> u32 {
        let crc = _mm_crc32_u64(u64::from(u32::MAX), place) as u32;
        !add(_mm_crc32_u16(crc, data.len() as u16), data)
    }

    /// Eight bytes at a time, wherever they lie, and the rest in halves.
    #[inline]
    #[target_feature(enable = "sse4.2")]
    fn add(crc: u32, data: &[u8]) -> u32 {
        let (words, mut rest) = data.as_chunks::<8>();
        let add_word = |crc, word: &[u8; 8]| _mm_crc32_u64(crc, u64::from_le_bytes(*word));
        let mut crc = words.iter().fold(u64::from(crc), add_word) as u32;
        if let Some((four, after)) = rest.split_first_chunk() {
            (crc, rest) = (_mm_crc32_u32(crc, u32::from_le_bytes(*four)), after);
        }
        if let Some((two, after)) = rest.split_first_chunk() {
            (crc, rest) = (_mm_crc32_u16(crc, u16::from_le_bytes(*two)), after);
        }
        rest.first().map_or(crc, |byte| _mm_crc32_u8(crc, *byte))
    }
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

/// A digest of `data`, never 0, which tells a whole block from every other.
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

    /// For data of any length and alignment, and with any checksum before it.
    #[test]
    fn short_data_has_the_checksums_of_long_data() {
        let data: Vec<u8> = (0..200u8).map(|i| i.wrapping_mul(37) ^ 0x5a).collect();
        for from in 0..9 {
            for to in from..data.len() {
                let (before, now) = (crc32c::crc32c(&data[..from]), &data[from..to]);
                assert_eq!(crc32c_append(before, now), crc32c::crc32c(&data[..to]), "{from}..{to}");
                assert_eq!(crc32c(now), crc32c::crc32c(now), "{from}..{to}");
                let placed = [&7u64.to_le_bytes()[..], &(now.len() as u16).to_le_bytes(), now].concat();
                assert_eq!(crc32c_placed(7, now), crc32c::crc32c(&placed), "{from}..{to}");
            }
        }
    }

    /// For data of any length, also where it takes more powers of x than there are.
    #[test]
    fn a_checksum_is_turned_as_the_data_would_turn_it() {
        let data: Vec<u8> = (0..5000u32).map(|i| ((i * i) >> 3) as u8).collect();
        for len in (0..300).chain([512, 4095, 5000]) {
            let (before, crc) = (crc32c(b"before"), crc32c(b"another"));
            let after = crc32c_append(before, &data[..len]);
            let turned = crc32c_turned(crc, (before, after), len as u64);
            assert_eq!(turned, crc32c_append(crc, &data[..len]), "{len}");
        }
        let long = (1 << 40) + (1 << 29) + 77;
        let zeros = |crc, len| crc32c_turned(crc, (0, 0), len);
        assert_eq!(zeros(5, long), zeros(zeros(5, 1 << 40), long - (1 << 40)));
    }

    #[test]
    fn words_have_the_checksum_of_their_bytes() {
        let words = [1, u64::MAX, 0x0102_0304_0506_0708];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(crc32c_words(words), crc32c(&bytes));
        assert_eq!(crc32c_words([]), crc32c(&[]));
    }

    #[test]
    fn crc16_is_never_zero() {
        for i in 0..100_000u64 {
            assert_ne!(crc16(&i.to_le_bytes()), 0);
        }
    }
}
