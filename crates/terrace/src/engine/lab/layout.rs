//! The words of the trees. `docs/formats/lab.md` describes them.

use terrace_base::checksum::hash64;
use terrace_table::Position;

use crate::versions::RecordRef;

/// The root of the value tree.
pub(super) const VALUES_ROOT: &str = "lab.values";

/// The root of the tree of hints.
pub(super) const HINTS_ROOT: &str = "lab.hints";

/// The root with the last write of which a flush has begun. There is none before the first one.
pub(super) const FLUSHED_ROOT: &str = "lab.flushed";

/// The root with the highest table for which keys have left the value tree. There is none before the first
/// has left.
pub(super) const LEFT_ROOT: &str = "lab.left";

/// The roots that a new pool of this engine has beside those of logs.
pub(super) const ROOTS: [&str; 2] = [VALUES_ROOT, HINTS_ROOT];

/// The word that says "below"; no record's word has this bit.
const BELOW: u64 = 1 << 63;

/// Where the newest flushed version of a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueLocation {
    /// In a record.
    Here(RecordRef),
    /// On the levels.
    Below,
}

impl ValueLocation {
    /// Decodes a word; `None` if the bits are none.
    pub fn decode(bits: u64) -> Option<ValueLocation> {
        match bits {
            BELOW => Some(ValueLocation::Below),
            bits => RecordRef::decode(bits).map(ValueLocation::Here),
        }
    }

    /// The word.
    pub fn bits(self) -> u64 {
        match self {
            ValueLocation::Here(word) => word.bits(),
            ValueLocation::Below => BELOW,
        }
    }
}

/// From this number of entries in a block on, a hint does not give the number.
pub(super) const MANY_ENTRIES: u64 = 16;

/// Bits of a hint's word that check it against the key and the other bits.
const CHECK_BITS: u32 = 5;

/// Where on the levels a copy of a key lies.
///
/// ```text
///   63..38 number of the run   37..10 offset of the block / 16
///   9..6   entries of the block, 0 for many   5  whether the copy is stale   4..0 check
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hint {
    pub run: u64,
    /// The offset of its block.
    pub block: u64,
    /// Entries of the block; 0 if there are many.
    pub entries: u64,
    pub is_stale: bool,
}

impl Hint {
    /// The hint of a copy that is not stale, in a block with this many entries.
    pub fn new(block: Position, entries: u64) -> Hint {
        let entries = if entries < MANY_ENTRIES { entries } else { 0 };
        Hint { run: block.number(), block: block.offset(), entries, is_stale: false }
    }

    /// Encodes it as a word of `key`.
    pub fn bits(self, key: &[u8]) -> u64 {
        let stale = u64::from(self.is_stale) << 5;
        let rest = self.run << 38 | (self.block / 16) << 10 | self.entries << 6 | stale;
        rest | check(key, rest)
    }

    /// Decodes the word `bits` of `key`; `None` if it is none.
    pub fn decode(bits: u64, key: &[u8]) -> Option<Hint> {
        let rest = bits >> CHECK_BITS << CHECK_BITS;
        let hint = Hint {
            run: bits >> 38,
            block: (bits >> 10 & 0xfff_ffff) * 16,
            entries: bits >> 6 & 15,
            is_stale: bits >> 5 & 1 == 1,
        };
        (rest | check(key, rest) == bits && hint.block > 0).then_some(hint)
    }
}

fn check(key: &[u8], rest: u64) -> u64 {
    hash64(&(hash64(key) ^ rest).to_le_bytes()) >> (64 - CHECK_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_bound_to_their_keys() {
        for (run, offset, entries) in [(1, 16, 1), (7, 4096, 15), ((1 << 26) - 1, (1 << 32) - 16, 16)] {
            let mut hint = Hint::new(Position::new(run, offset, 1).unwrap(), entries);
            assert_eq!((hint.run, hint.block, hint.entries), (run, offset, entries % 16));
            for is_stale in [false, true] {
                hint.is_stale = is_stale;
                assert_eq!(Hint::decode(hint.bits(b"key"), b"key"), Some(hint));
            }
        }
        let word = Hint::new(Position::new(7, 4096, 1).unwrap(), 3).bits(b"key");
        let other = (0..64u8).filter(|key| Hint::decode(word, &[*key]).is_some()).count();
        let flipped = (0..64).filter(|bit| Hint::decode(word ^ 1 << bit, b"key").is_some()).count();
        assert!(other < 8 && flipped < 8, "{other} other keys, {flipped} other words");
        assert_eq!(Hint::decode(0, b"key"), None);
    }

    /// Every later version must be able to read what is in pools.
    #[test]
    fn golden_hint() {
        let hint = Hint { run: 7, block: 4096, entries: 3, is_stale: true };
        assert_eq!(hint.bits(b"key"), 0x0000_01c0_0004_00fa);
    }

    #[test]
    fn words_lead_back_to_places() {
        let word = RecordRef::new(0x1240, true, false);
        assert_eq!(ValueLocation::decode(word.bits()), Some(ValueLocation::Here(word)));
        assert_eq!(ValueLocation::decode(1 << 63), Some(ValueLocation::Below));
        for place in [ValueLocation::Here(word), ValueLocation::Below] {
            assert_eq!(ValueLocation::decode(place.bits()), Some(place));
        }
        for wrong in [0, 1 << 62, 1 << 63 | 0x40, 0x40 | 1 << 52] {
            assert_eq!(ValueLocation::decode(wrong), None, "{wrong:#x}");
        }
    }
}
