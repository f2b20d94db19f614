//! A bucket's first word, which publishes every change, and the tags that it covers.

use super::layout::{SLOTS, USABLE_SLOTS};

/// The binding of a bucket to its place: bits, the upper sixteen, that are exclusively or'd into its checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place(u64);

impl Place {
    /// Nowhere.
    pub const NONE: Place = Place(0);

    /// Its share in the checks of slots, in the upper four bits: other bits than those in the state's check, since some
    /// readers check only these two.
    #[inline(always)]
    pub fn of_slots(self) -> u64 {
        self.0 << 8
    }
}

/// The places of a table's buckets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    /// The address at which the place with the number 0 would be.
    origin: u64,
}

impl Places {
    /// Those of the table with this seed in the pool whose offset 0 is at `base`.
    pub fn new(seed: u64, base: u64) -> Places {
        Places { origin: base.wrapping_sub(seed) }
    }

    /// The place of the bucket at `address`.
    #[inline(always)]
    pub fn of(self, address: u64) -> Place {
        Place(address.wrapping_sub(self.origin).wrapping_mul(PLACE_SPREAD) | 1 << CHECK_SHIFT)
    }
}

/// The golden ratio for numbers of buckets: only distant multiples of it come near a whole number, so that no two
/// buckets within 4 MiB have the same place.
const PLACE_SPREAD: u64 = 0x009E_3779_B97F_4A7D;

const SLOT_MASK: u64 = (1 << SLOTS) - 1;
const DELETED_SHIFT: u32 = 14;
const SEQUENCE_SHIFT: u32 = 28;
const CHECK_SHIFT: u32 = 48;
const STATE_CHECK_SHIFT: u32 = 56;
const STATE_MASK: u64 = (1 << CHECK_SHIFT) - 1;
/// Where the kinds begin beside the last tags.
pub(super) const KINDS_SHIFT: u32 = 48;
/// The tags beside the kinds.
pub(super) const TAGS_MASK: u64 = (1 << KINDS_SHIFT) - 1;

/// A bucket's first word: everything that a write publishes, in one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Meta(pub u64);

impl Meta {
    /// The meta of a bucket that has `valid` slots and no history; unsealed.
    pub fn of_valid(valid: u32) -> Meta {
        Meta(u64::from(valid))
    }

    /// Slots that are not empty.
    #[inline(always)]
    pub fn valid(self) -> u32 {
        (self.0 & SLOT_MASK) as u32
    }

    /// Slots whose key was deleted: not empty, but free to be written over.
    #[inline(always)]
    pub fn deleted(self) -> u32 {
        (self.0 >> DELETED_SHIFT & SLOT_MASK) as u32
    }

    /// Slots that hold pairs.
    #[inline(always)]
    pub fn live(self) -> u32 {
        ((self.0 & !(self.0 >> DELETED_SHIFT)) & SLOT_MASK) as u32
    }

    /// Whether searches end here: two slots are empty, or more.
    #[inline(always)]
    pub fn ends_path(self) -> bool {
        (self.valid().count_ones() as usize) < USABLE_SLOTS
    }

    /// The first empty slot; none only in a damaged bucket.
    #[inline(always)]
    pub fn first_empty(self) -> Option<usize> {
        let first = self.valid().trailing_ones() as usize;
        (first < SLOTS).then_some(first)
    }

    /// The first slot of a deleted key.
    #[inline(always)]
    pub fn first_deleted(self) -> Option<usize> {
        let deleted = self.deleted();
        (deleted != 0).then(|| deleted.trailing_zeros() as usize)
    }

    /// The next state with these bits, unsealed.
    #[inline(always)]
    pub fn next(self, valid: u32, deleted: u32) -> Meta {
        let sequence = self.0.wrapping_add(1 << SEQUENCE_SHIFT) & STATE_MASK & !0 << SEQUENCE_SHIFT;
        Meta(u64::from(valid) | u64::from(deleted) << DELETED_SHIFT | sequence)
    }

    /// The word with its checks over the state, the tags of live slots and the place.
    #[inline(always)]
    pub fn seal(self, tags: (u64, u64), place: Place) -> Meta {
        let state = self.0 & STATE_MASK;
        let checks = tags_check(tags) << CHECK_SHIFT | state_check(state) << STATE_CHECK_SHIFT;
        Meta(state | (checks ^ place.0) & !STATE_MASK)
    }

    /// Whether the state's check is right, at this place.
    #[inline(always)]
    pub fn is_state_sound(self, place: Place) -> bool {
        state_check(self.0) == (self.0 ^ place.0) >> STATE_CHECK_SHIFT
    }

    /// Whether the tags' check is right, at this place.
    #[inline(always)]
    pub fn are_tags_sound(self, tags: (u64, u64), place: Place) -> bool {
        tags_check(tags) == (self.0 ^ place.0) >> CHECK_SHIFT & 0xff
    }
}

/// Eight bits over a bucket's state.
#[inline(always)]
fn state_check(state: u64) -> u64 {
    ((state << 16).wrapping_mul(SPREAD) >> 56) ^ 0x5A
}

/// Eight bits over the tags of live slots: 0 if none is live. The lowest bit of a place is 1, so that zeros are not a
/// valid bucket.
#[inline(always)]
fn tags_check((tags, more_tags): (u64, u64)) -> u64 {
    (tags ^ more_tags.rotate_left(29)).wrapping_mul(SPREAD) >> 56
}

/// No four neighbouring bits of it are alike, so that whichever bit of the other factor is flipped, the upper four
/// bits of the product change, and its upper eight.
pub(super) const SPREAD: u64 = 0x4E5A_3A26_D18A_669B;

/// The tags, in two words, with those of other slots than `live` zeroed, and the kinds.
#[inline(always)]
pub(super) fn of_live(tags: u64, tags_kinds: u64, live: u32) -> (u64, u64) {
    (tags & spread(u64::from(live)), tags_kinds & spread(u64::from(live) >> 8))
}

/// A byte of ones for each of the low eight bits that is set.
#[inline(always)]
fn spread(bits: u64) -> u64 {
    let alone = (bits & 0xff).wrapping_mul(0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
    // A byte with its bit set carries into its top bit.
    ((alone + 0x7f7f_7f7f_7f7f_7f7f) >> 7 & 0x0101_0101_0101_0101).wrapping_mul(0xff)
}

/// The two tag words with slot `slot` set to `tag`, a record's or not.
#[inline(always)]
pub(super) fn with_tag(tags: u64, tags_kinds: u64, slot: usize, tag: u8, is_record: bool) -> (u64, u64) {
    let kind = 1 << (KINDS_SHIFT as usize + slot);
    let kinds = tags_kinds & !kind | if is_record { kind } else { 0 };
    let shift = slot % 8 * 8;
    let set = |word: u64| word & !(0xff << shift) | u64::from(tag) << shift;
    if slot < 8 { (set(tags), kinds) } else { (tags, set(kinds)) }
}

#[cfg(test)]
mod tests {
    use super::super::layout::BUCKET_BYTES;
    use super::*;

    /// The place of the bucket at offset 0x30000 of a pool, with seed 0x0102_0304_0506_0708.
    fn place() -> Place {
        Places::new(0x0102_0304_0506_0708, 0x7000_0000).of(0x7003_0000)
    }

    #[test]
    fn golden_words() {
        let (tags, kinds) = with_tag(0, 0, 0, 0xAB, false);
        let (tags, kinds) = with_tag(tags, kinds, 9, 0xCD, true);
        assert_eq!((tags, kinds), (0xAB, 0x0200_0000_0000_CD00));
        assert_eq!(
            Meta::of_valid(0b10_0000_0001).seal(of_live(tags, kinds, 0x201), place()).0,
            18438581299384943105
        );
        assert_eq!(Meta::of_valid(0).seal((0, 0), place()).0, 0x7833 << CHECK_SHIFT);
        assert_eq!(place().0 >> CHECK_SHIFT, 0x2233);
    }

    #[test]
    fn the_bits_of_live_slots_alone_count() {
        for live in 0..1u32 << SLOTS {
            let (tags, kinds) = of_live(u64::MAX, u64::MAX, live);
            for slot in 0..SLOTS {
                let byte = if slot < 8 { tags >> (slot * 8) } else { kinds >> (slot % 8 * 8) } & 0xff;
                let wanted = if live >> slot & 1 == 1 { 0xff } else { 0 };
                assert_eq!(byte, wanted);
            }
            assert_eq!(kinds >> KINDS_SHIFT, 0);
        }
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed() {
        for i in 0..500u64 {
            let (key, value) = (i.wrapping_mul(0x0123_4567_89AB_CDEF), i.wrapping_mul(0xFEDC_BA98_7654_3211));
            let place = Places::new(key, 0).of(i * BUCKET_BYTES);
            let meta = Meta(key & STATE_MASK).seal((value, key), place);
            assert!(meta.is_state_sound(place) && meta.are_tags_sound((value, key), place));
            for bit in 0..64 {
                let flipped = Meta(meta.0 ^ 1 << bit);
                assert!(!flipped.is_state_sound(place) || !flipped.are_tags_sound((value, key), place));
                assert!(!meta.are_tags_sound((value ^ 1 << bit, key), place));
                assert!(!meta.are_tags_sound((value, key ^ 1 << bit), place));
            }
        }
    }

    /// The bits in which places differ are those of the product: so far from 0 and from all ones, wherever the one is
    /// from which the other is so far away, that they do.
    #[test]
    fn no_bucket_is_one_anywhere_near() {
        for distance in 1..=(4 << 20) / BUCKET_BYTES {
            let apart = (distance * BUCKET_BYTES).wrapping_mul(PLACE_SPREAD);
            assert!((1 << 49..=u64::MAX - (1 << 49)).contains(&apart), "{distance} buckets");
        }
    }

    #[test]
    fn a_bucket_is_one_at_its_own_place_alone() {
        let meta = Meta::of_valid(0b101);
        let at = |table: u64, bucket: u64| Places::new(table, 0).of(bucket * BUCKET_BYTES);
        let sound = |meta: Meta, place| meta.is_state_sound(place) && meta.are_tags_sound((7, 9), place);
        let mut strayed = 0;
        for table in 0..200u64 {
            let seed = table.wrapping_mul(0x0123_4567_89AB_CDEF);
            let sealed = meta.seal((7, 9), at(seed, 3));
            assert!(sound(sealed, at(seed, 3)));
            (1..50).for_each(|bucket| assert!(bucket == 3 || !sound(sealed, at(seed, bucket))));
            // Distant places, and those of other tables.
            for i in 1..500u64 {
                strayed += u64::from(sound(sealed, at(seed, 3 + (i << 16))));
                strayed += u64::from(sound(sealed, at(seed ^ i.wrapping_mul(0xFEDC_BA98_7654_3211), 3)));
            }
        }
        assert!(strayed < 20, "{strayed} of 200,000, of which one in 32,768 was to be expected");
    }

    #[test]
    fn zeros_are_no_bucket() {
        for bucket in 0..100_000 {
            let place = Places::new(1, 0).of(bucket * BUCKET_BYTES);
            assert!(!Meta(0).is_state_sound(place) || !Meta(0).are_tags_sound((0, 0), place));
        }
    }

    #[test]
    fn states_follow_one_another() {
        let meta = Meta::of_valid(0b111).seal((1, 2), place()).next(0b1111, 0b10);
        assert_eq!((meta.valid(), meta.deleted(), meta.live()), (0b1111, 0b10, 0b1101));
        assert_eq!((meta.first_empty(), meta.first_deleted()), (Some(4), Some(1)));
        assert!(meta.ends_path());
        assert!(!Meta::of_valid(0x1FFF).ends_path());
        let last = Meta(STATE_MASK).next(1, 0);
        assert_eq!(last, Meta(1));
    }
}
