//! What comes before an entry's key: bytes that it shares with the key before, bytes of its own, the value's length with
//! the kind, and the number. Searches do little else than decode it.

use crate::entry::Kind;

/// The head of an entry, as it lies there: nothing is checked.
pub(super) struct Head {
    pub shared: u64,
    pub unshared: u64,
    /// Length of the value, and kind.
    pub tag: u64,
    pub seq: u64,
    /// Where it ends.
    pub end: usize,
}

impl Head {
    /// The head at `begin`, if it is as short as most are: decoded from one word, without a branch for each byte. It may
    /// end behind the entries.
    #[inline(always)]
    pub fn short(payload: &[u8], begin: usize) -> Option<Head> {
        let word = u64::from_le_bytes(*payload.get(begin..)?.first_chunk()?);
        let rest = word >> 16;
        // The bytes with which tag and number end.
        let ends = !rest & 0x8080_8080_8080;
        let later = ends & ends.wrapping_sub(1);
        if word & 0x8080 != 0 || later == 0 {
            return None;
        }
        let up_to = |last: u64| rest & (last ^ last.wrapping_sub(1));
        let (tag_bits, bits) = (ends.trailing_zeros() + 1, later.trailing_zeros() + 1);
        let (tag, seq) = (packed(up_to(ends)), packed(up_to(later) >> tag_bits));
        let end = begin + 2 + bits as usize / 8;
        Some(Head { shared: word & 0x7f, unshared: word >> 8 & 0x7f, tag, seq, end })
    }

    /// The head at `begin`, however long its fields are.
    #[inline(never)]
    pub fn long(entries: &[u8], begin: usize) -> Option<Head> {
        let mut at = begin;
        let (shared, unshared) = (varint(entries, &mut at)?, varint(entries, &mut at)?);
        let (tag, seq) = (varint(entries, &mut at)?, varint(entries, &mut at)?);
        Some(Head { shared, unshared, tag, seq, end: at })
    }
}

/// The kind in a tag.
pub(super) fn kind_of(tag: u64) -> u8 {
    (tag & ((1 << Kind::BITS) - 1)) as u8
}

/// The value of the bytes of a varint, at most five.
#[inline(always)]
fn packed(bytes: u64) -> u64 {
    let group = |i: u32| (bytes & 0x7f << (8 * i)) >> i;
    group(0) | group(1) | group(2) | group(3) | group(4)
}

/// A varint at `*at`, as `Reader::varint` reads it.
#[inline(always)]
pub(super) fn varint(data: &[u8], at: &mut usize) -> Option<u64> {
    let first = *data.get(*at)?;
    *at += 1;
    if first < 0x80 {
        return Some(u64::from(first));
    }
    let mut value = u64::from(first & 0x7f);
    for shift in (7..64).step_by(7) {
        let byte = *data.get(*at)?;
        *at += 1;
        if shift == 63 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use terrace_base::codec::put_varint;

    use super::*;

    #[test]
    fn varints_read_as_the_codec_writes_them() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1u64 << shift) - 1] {
                let mut out = vec![0xff];
                put_varint(&mut out, value);
                let mut at = 1;
                assert_eq!((varint(&out, &mut at), at), (Some(value), out.len()));
                assert_eq!(varint(&out[..out.len() - 1], &mut 1), None);
            }
        }
        assert_eq!(varint(&[0xff; 11], &mut 0), None);
        assert_eq!(varint(&[255, 255, 255, 255, 255, 255, 255, 255, 255, 2], &mut 0), None);
    }
}
