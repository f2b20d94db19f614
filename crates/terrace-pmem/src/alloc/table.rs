//! The extent table: one checked word and one digest for each unit of the pool, in segments at computed places. The
//! words of a segment come first, then the digests.
//!
//! The first segment follows the header and covers `first_units` units, a power of two. Each further segment
//! begins at the first unit not yet covered and doubles what is covered, itself included:
//!
//! ```text
//! units  0 .. S        segment 0, right after the header
//!        S .. 2S       segment 1, at unit S
//!        2S .. 4S      segment 2, at unit 2S
//! ```
//!
//! So a small pool that may become large has a small table, and no directory has to be kept.

use crate::layout::{HEADER_BYTES, Superblock};
use crate::offset::POff;
use crate::word::{self, Tag};

/// The contents of an extent's units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Shape {
    /// Raw memory of an owner.
    Extent = 2,
    /// Slots of one class.
    Slab = 3,
    /// One slot larger than every class.
    Large = 4,
}

/// The meaning of a table word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Free, or not the first unit of an extent.
    Free,
    /// The first of `units` units in use.
    Head { shape: Shape, kind: u8, units: u64 },
}

const FREE: u64 = 1;
const KIND_SHIFT: u32 = 4;
const UNITS_SHIFT: u32 = 12;
const UNITS_MAX: u64 = word::VALUE_MAX >> UNITS_SHIFT;

/// Bytes of the table that a unit takes: its word and its digest.
const ENTRY_BYTES: u64 = 16;

impl Unit {
    /// The word for this unit at pool offset `at`.
    pub(crate) fn encode(self, at: u64) -> u64 {
        let value = match self {
            Unit::Free => FREE,
            Unit::Head { shape, kind, units } => {
                debug_assert!(units <= UNITS_MAX);
                shape as u64 | u64::from(kind) << KIND_SHIFT | units << UNITS_SHIFT
            }
        };
        word::seal(Tag::Table, at, value)
    }

    /// The meaning of the word at pool offset `at`; `None` for one that was not written there.
    pub(crate) fn decode(at: u64, stored: u64) -> Option<Unit> {
        let value = word::unseal(Tag::Table, at, stored)?;
        let (kind, units) = ((value >> KIND_SHIFT) as u8, value >> UNITS_SHIFT);
        let shape = match value & 0xf {
            FREE => return (value == FREE).then_some(Unit::Free),
            2 => Shape::Extent,
            3 => Shape::Slab,
            4 => Shape::Large,
            _ => return None,
        };
        (units > 0).then_some(Unit::Head { shape, kind, units })
    }
}

/// Where the table's words are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Table {
    extent_bytes: u64,
    first_units: u64,
}

/// One segment of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    /// First unit covered.
    pub first: u64,
    /// Units covered.
    pub covers: u64,
    /// Unit of the extent that holds the segment (for segment 0, the header's).
    pub unit: u64,
    /// Units of that extent.
    pub units: u64,
    /// Offset of the first word in the pool.
    pub at: u64,
}

impl Table {
    pub(crate) fn new(superblock: &Superblock) -> Self {
        Table { extent_bytes: superblock.extent_bytes, first_units: superblock.first_units }
    }

    /// The units that the first segment of a pool of `units` should cover: eight times as many, since no extent can lie
    /// across segments, but not more than `max_units`, and at least as many as one extent of table covers.
    pub(crate) fn first_units(units: u64, max_units: u64, extent_bytes: u64) -> u64 {
        let wanted = units.saturating_mul(8).min(max_units).max(units);
        wanted.next_power_of_two().max(extent_bytes / ENTRY_BYTES)
    }

    /// First unit after the header and the first segment.
    pub(crate) fn first_extent(&self) -> u64 {
        self.header_units() + self.units_for(self.first_units)
    }

    /// The segments that cover at least the first `units` units.
    pub(crate) fn segments(&self, units: u64) -> impl Iterator<Item = Segment> + use<> {
        let table = *self;
        let later = (0..u64::BITS)
            .map_while(move |doubling| table.first_units.checked_shl(doubling))
            .take_while(move |&first| first < units)
            .map(move |first| table.segment_at(first));
        std::iter::once(table.first_segment()).chain(later)
    }

    /// The segment after `covered` units, which is where one ends.
    pub(crate) fn segment_at(&self, covered: u64) -> Segment {
        let (unit, units) = (covered, self.units_for(covered));
        Segment { first: covered, covers: covered, unit, units, at: unit * self.extent_bytes }
    }

    pub(crate) fn first_segment(&self) -> Segment {
        let at = self.header_units() * self.extent_bytes;
        Segment { first: 0, covers: self.first_units, unit: 0, units: self.first_extent(), at }
    }

    /// Units covered by the segments of a pool of `units`.
    pub(crate) fn covered(&self, units: u64) -> u64 {
        self.first_units.max(units.next_power_of_two())
    }

    /// Where the word of `unit` is.
    #[inline]
    pub(crate) fn word(&self, unit: u64) -> POff<u64> {
        let at = if unit < self.first_units {
            self.header_units() * self.extent_bytes + unit * 8
        } else {
            let first = 1 << unit.ilog2();
            first * self.extent_bytes + (unit - first) * 8
        };
        POff::new(at)
    }

    /// Where the digest of `unit` is.
    #[inline]
    pub(crate) fn digest(&self, unit: u64) -> POff<u64> {
        let covers = if unit < self.first_units { self.first_units } else { 1 << unit.ilog2() };
        POff::new(self.word(unit).get() + covers * 8)
    }

    /// The bytes of a new segment: all units are free except the segment's own, and there are no digests.
    pub(crate) fn format(&self, segment: &Segment) -> Vec<u8> {
        let own = Unit::Head { shape: Shape::Extent, kind: 0, units: segment.units };
        let words = (0..segment.covers).flat_map(|i| {
            let unit = if segment.first + i == segment.unit { own } else { Unit::Free };
            unit.encode(segment.at + i * 8).to_le_bytes()
        });
        let mut bytes: Vec<u8> = words.collect();
        bytes.resize((segment.covers * ENTRY_BYTES) as usize, 0);
        bytes
    }

    fn header_units(&self) -> u64 {
        HEADER_BYTES.div_ceil(self.extent_bytes)
    }

    fn units_for(&self, covers: u64) -> u64 {
        (covers * ENTRY_BYTES).div_ceil(self.extent_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(extent_bytes: u64, first_units: u64) -> Table {
        Table { extent_bytes, first_units }
    }

    #[test]
    fn golden_words() {
        assert_eq!(Unit::Free.encode(65536) & word::VALUE_MAX, 1);
        let head = Unit::Head { shape: Shape::Slab, kind: 5, units: 3 };
        assert_eq!(head.encode(65544) & word::VALUE_MAX, 0x3053);
        assert_eq!(Unit::decode(65544, head.encode(65544)), Some(head));
        assert_eq!(Unit::decode(65552, head.encode(65544)), None);
        assert_eq!(Unit::decode(65536, 0), None);
    }

    #[test]
    fn every_unit_has_its_own_word_inside_its_segment() {
        let t = table(4096, 512);
        let segments: Vec<_> = t.segments(5000).collect();
        assert_eq!(segments.iter().map(|s| s.covers).collect::<Vec<_>>(), [512, 512, 1024, 2048, 4096]);
        assert_eq!(t.covered(5000), 8192);
        for unit in 0..8192 {
            let s = segments.iter().rev().find(|s| s.first <= unit).unwrap();
            assert_eq!(t.word(unit).get(), s.at + (unit - s.first) * 8);
            assert_eq!(t.digest(unit).get(), t.word(unit).get() + s.covers * 8);
            assert!(t.digest(unit).get() + 8 <= s.at + s.units * 4096);
        }
    }

    #[test]
    fn a_pool_within_the_first_segment_has_one() {
        let t = table(65536, Table::first_units(4096, 1 << 20, 65536));
        assert_eq!(t.first_units, 32768);
        assert_eq!(t.segments(32768).count(), 1);
        assert_eq!(t.segments(32769).count(), 2);
        assert_eq!(t.first_extent(), 9);
        assert_eq!(t.segments(65536).last().unwrap().at, 32768 * 65536);
        assert_eq!(t.word(40_000).get(), 32768 * 65536 + 7232 * 8);
        assert_eq!(Table::first_units(4096, 5000, 65536), 8192);
        assert_eq!(Table::first_units(16, 16, 4096), 256);
    }
}
