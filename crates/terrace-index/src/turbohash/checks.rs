//! The checks of a bucket's slots, and beside them the filter of the paths that lead past it.

use super::layout::SLOTS;
use super::meta::{Place, SPREAD};

/// Four bits over a slot and the place of its bucket. Every single flipped bit is noticed, and so is a record taken for
/// a pair of words.
#[inline(always)]
pub(super) fn slot_check(key: u64, value: u64, is_record: bool, place: Place) -> u64 {
    let check = ((key ^ value.rotate_left(31)).wrapping_mul(SPREAD) ^ place.of_slots()) >> 60;
    if is_record { check ^ 0xf } else { check }
}

/// The checks with that of slot `slot` set.
#[inline(always)]
pub(super) fn with_check(checks: u64, slot: usize, check: u64) -> u64 {
    checks & !(0xf << (slot * 4)) | check << (slot * 4)
}

/// The checks of all slots that were made for [`Place::NONE`], made for a place.
pub(super) fn bound(checks: u64, place: Place) -> u64 {
    let each = place.of_slots() >> 60;
    (0..SLOTS).fold(checks, |checks, slot| checks ^ each << (slot * 4))
}

/// Where the path filter begins beside the checks.
const FILTER_SHIFT: u32 = 56;
/// Bits of the path filter; above them are three bits of check.
const FILTER_BITS: u64 = 5;

/// Path filters with their checks: for each set of bits, the exclusive or of the codes of its bits. No code is 0, so
/// that every single flipped bit is noticed.
const FILTERS: [u8; 1 << FILTER_BITS] = {
    const CHECK_OF_BIT: [u8; FILTER_BITS as usize] = [3, 5, 6, 7, 1];
    let mut filters = [0; 1 << FILTER_BITS];
    let mut set = 0;
    while set < filters.len() {
        let (mut check, mut bit) = (0, 0);
        while bit < FILTER_BITS as usize {
            check ^= CHECK_OF_BIT[bit] * (set >> bit & 1) as u8;
            bit += 1;
        }
        filters[set] = set as u8 | check << FILTER_BITS;
        set += 1;
    }
    filters
};

/// The bit that stands for the keys of a tag in path filters.
#[inline(always)]
fn path_bit(tag: u8) -> u64 {
    (u64::from(tag) * FILTER_BITS) >> 8
}

/// Whether a key of this tag may be in a bucket behind the one with these checks. For every key, the filters of the
/// buckets between its home and its own say so.
#[inline(always)]
pub(super) fn leads_on(checks: u64, tag: u8) -> bool {
    checks >> (FILTER_SHIFT as u64 + path_bit(tag)) & 1 == 1
}

/// The checks with a filter that also leads on for keys of this tag.
#[inline(always)]
pub(super) fn led_on(checks: u64, tag: u8) -> u64 {
    let set = (checks >> FILTER_SHIFT | 1 << path_bit(tag)) & ((1 << FILTER_BITS) - 1);
    checks & ((1 << FILTER_SHIFT) - 1) | u64::from(FILTERS[set as usize]) << FILTER_SHIFT
}

/// Whether the path filter beside the checks has its own.
#[inline(always)]
pub(super) fn is_filter_sound(checks: u64) -> bool {
    let filter = checks >> FILTER_SHIFT;
    u64::from(FILTERS[(filter & ((1 << FILTER_BITS) - 1)) as usize]) == filter
}

#[cfg(test)]
mod tests {
    use super::super::meta::Places;
    use super::*;

    #[test]
    fn every_flipped_bit_of_a_slot_is_noticed() {
        assert_eq!(slot_check(1, 2, false, Place::NONE), 1);
        let place = Places::new(1, 0).of(0x30000);
        let checks = [false, true].map(|is_record| slot_check(3, 4, is_record, Place::NONE));
        let bound = bound(checks[0] | checks[1] << 52 | 0x51 << 56, place);
        assert_eq!(bound & 0xf, slot_check(3, 4, false, place));
        assert_eq!(bound >> 52, slot_check(3, 4, true, place) | 0x510);
        for i in 0..500u64 {
            let (key, value) = (i.wrapping_mul(0x0123_4567_89AB_CDEF), i.wrapping_mul(0xFEDC_BA98_7654_3211));
            let check = slot_check(key, value, false, place);
            assert_ne!(slot_check(key, value, true, place), check);
            for bit in 0..64 {
                assert_ne!(slot_check(key ^ 1 << bit, value, false, place), check);
                assert_ne!(slot_check(key, value ^ 1 << bit, false, place), check);
            }
        }
    }

    #[test]
    fn filters_lead_on_and_flipped_bits_are_noticed() {
        let mut checks = 0x0055_AAAA_5555_AAAA;
        assert!(is_filter_sound(checks) && (0..=255).all(|tag| !leads_on(checks, tag)));
        let mut ends = 256;
        for tag in [0, 255, 128, 60, 200] {
            checks = led_on(checks, tag);
            let still = (0..=255).filter(|&tag| !leads_on(checks, tag)).count();
            assert!(leads_on(checks, tag) && is_filter_sound(checks) && (50..53).contains(&(ends - still)));
            ends = still;
            for bit in 56..64 {
                assert!(!is_filter_sound(checks ^ 1 << bit));
            }
        }
        assert_eq!((ends, checks & ((1 << 56) - 1)), (0, 0x0055_AAAA_5555_AAAA));
        assert_eq!(led_on(led_on(0, 255), 0), 0x51 << 56);
    }
}
