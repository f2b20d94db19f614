//! The place of a version on the SSD, as a word of an index. `docs/formats/split.md` describes the bits.

use terrace_disk::Slot;
use terrace_table::Position;

use crate::engine::pm::Place;

/// A word with this bit names a block of a table. The rest is its position, whose upper bits are clear.
const IN_RUN: u64 = 0b01 << 62;

/// A word with this bit names slots of the file of slots, whose 60 bits are the lower ones.
const IN_SLOT: u64 = 0b10 << 62;

const TAGS: u64 = 0b11 << 62;

/// A place on the SSD.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OnSsd {
    /// In this block of a table, which has no other version of the key.
    Run(Position),
    Slot(Slot),
}

impl OnSsd {
    pub fn slot(self) -> Option<Slot> {
        match self {
            OnSsd::Slot(slot) => Some(slot),
            OnSsd::Run(_) => None,
        }
    }

    pub fn run(self) -> Option<Position> {
        match self {
            OnSsd::Run(position) => Some(position),
            OnSsd::Slot(_) => None,
        }
    }
}

impl Place for OnSsd {
    fn from_bits(bits: u64) -> Option<OnSsd> {
        match bits & TAGS {
            IN_RUN => Position::from_word(bits & !TAGS).map(OnSsd::Run),
            IN_SLOT => Slot::from_bits(bits & !TAGS).map(OnSsd::Slot),
            _ => None,
        }
    }

    fn bits(self) -> u64 {
        match self {
            OnSsd::Run(position) => position.word() | IN_RUN,
            OnSsd::Slot(slot) => slot.to_bits() | IN_SLOT,
        }
    }

    fn table(self) -> Option<u64> {
        self.run().map(Position::number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::pm::VersionRef;
    use crate::versions::RecordRef;

    #[test]
    fn golden_words() {
        let run = OnSsd::Run(Position::new(7, 4096, 4000).unwrap());
        let slot = OnSsd::Slot(Slot::from_bits(9 << 22 | 300).unwrap());
        assert_eq!((run.bits(), slot.bits()), (0x4000_0070_0001_0008, 0x8000_0000_0240_012c));
        for place in [run, slot] {
            assert_eq!(OnSsd::from_bits(place.bits()), Some(place));
            assert_eq!(VersionRef::<OnSsd>::decode(place.bits()), Some(VersionRef::Place(place)));
        }
        let record = RecordRef::new(0x40, true, true);
        assert_eq!(VersionRef::<OnSsd>::decode(record.bits()), Some(VersionRef::Record(record)));
        for wrong in [0, 3 << 62, 1 << 62, 2 << 62, 2 << 62 | 1 << 61 | 1, 1 << 60 | 0x40] {
            assert_eq!(VersionRef::<OnSsd>::decode(wrong), None, "{wrong:#x}");
        }
    }
}
