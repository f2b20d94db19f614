//! What the trees' words say. `docs/formats/lab.md` tells it.

use crate::versions::RecordRef;

/// The root of the value tree.
pub(super) const VALUES_ROOT: &str = "lab.values";

/// The roots that a pool of this engine has beside those of logs.
pub(super) const ROOTS: [&str; 1] = [VALUES_ROOT];

/// The word that says "below"; no record's word has this bit.
const BELOW: u64 = 1 << 63;

/// Where the newest flushed version of a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In a record.
    Here(RecordRef),
    /// On the levels.
    Below,
}

impl Place {
    /// What `bits` say, if they are a word.
    pub fn decode(bits: u64) -> Option<Place> {
        match bits {
            BELOW => Some(Place::Below),
            bits => RecordRef::decode(bits).map(Place::Here),
        }
    }

    /// The word.
    pub fn bits(self) -> u64 {
        match self {
            Place::Here(word) => word.bits(),
            Place::Below => BELOW,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lead_back_to_places() {
        let word = RecordRef::new(0x1240, true, false);
        assert_eq!(Place::decode(word.bits()), Some(Place::Here(word)));
        assert_eq!(Place::decode(1 << 63), Some(Place::Below));
        for place in [Place::Here(word), Place::Below] {
            assert_eq!(Place::decode(place.bits()), Some(place));
        }
        for wrong in [0, 1 << 62, 1 << 63 | 0x40, 0x40 | 1 << 52] {
            assert_eq!(Place::decode(wrong), None, "{wrong:#x}");
        }
    }
}
