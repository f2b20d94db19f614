//! The entries of tables: versions of keys, and their order.

use std::cmp::Ordering;

use bytes::Bytes;
pub use terrace_base::Kind;

/// The longest key in bytes.
pub const MAX_KEY_BYTES: usize = 65_535;
/// The longest value in bytes.
pub const MAX_VALUE_BYTES: usize = 1 << 30;

/// One version of a key, as a lookup returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The version's sequence number.
    pub seq: u64,
    /// Whether it sets or deletes.
    pub kind: Kind,
    /// The value, sharing the block it was read from; usually empty for a tombstone.
    pub value: Bytes,
}

impl Entry {
    /// The value, unless it is a tombstone.
    pub fn into_value(self) -> Option<Bytes> {
        (self.kind == Kind::Put).then_some(self.value)
    }
}

/// The order of entries: key ascending, then sequence number descending.
pub(crate) fn order(a: (&[u8], u64), b: (&[u8], u64)) -> Ordering {
    a.0.cmp(b.0).then(b.1.cmp(&a.1))
}

/// How many leading bytes `a` and `b` share.
pub(crate) fn shared_prefix(a: &[u8], b: &[u8]) -> usize {
    let mut at = 0;
    if a.len().min(b.len()) >= 64 {
        // Whole lines first, for keys that differ late.
        let lines = a.as_chunks::<64>().0.iter().zip(b.as_chunks::<64>().0);
        at = 64 * lines.take_while(|(x, y)| x == y).count();
    }
    for (x, y) in a[at..].as_chunks::<8>().0.iter().zip(b[at..].as_chunks::<8>().0) {
        let differing = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if differing != 0 {
            return at + differing.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    at + a[at..].iter().zip(&b[at..]).take_while(|(x, y)| x == y).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_version_first() {
        assert_eq!(order((b"a", 2), (b"a", 1)), Ordering::Less);
        assert_eq!(order((b"a", 1), (b"b", 9)), Ordering::Less);
        assert_eq!(order((b"", 1), (b"\0", 1)), Ordering::Less);
        assert_eq!(order((b"\xff", 1), (b"\x7f", 1)), Ordering::Greater);
    }

    #[test]
    fn shared_prefixes_of_every_length() {
        let a: Vec<u8> = (0..200).collect();
        for len in 0..=200 {
            let mut b = a.clone();
            if len < 200 {
                b[len] ^= 1;
            }
            assert_eq!(shared_prefix(&a, &b), len);
            assert_eq!(shared_prefix(&a, &a[..len]), len);
        }
    }
}
