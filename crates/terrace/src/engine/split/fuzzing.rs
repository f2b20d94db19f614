//! Decoders of the contents of a file of slots, for the fuzzer.

use std::path::Path;

use super::item::{self, Head};
use super::stamp::Stamp;
use crate::engine::pm::Item;

const ORIGIN: u64 = 0x1122_3344_5566_7788;

const SECTOR_BYTES: usize = 512;

/// Examines every sector of `data`: encoding what was decoded gives the same bytes.
pub(crate) fn decode_slots(data: &[u8]) {
    for front in (0..data.len()).step_by(SECTOR_BYTES).map(|at| &data[at..]) {
        stamp(front);
        item(front);
    }
}

fn stamp(front: &[u8]) {
    let Some((origin, stamp)) = Stamp::with_origin(front) else { return };
    assert_eq!(Stamp::decode(origin, front), Some(stamp));
    assert_eq!(Stamp::decode(!origin, front), None, "another database's");
    // No database has other sizes, and the creator of the file checks that.
    let bytes = stamp.sector_bytes as usize;
    if bytes.is_power_of_two() && (SECTOR_BYTES..=1 << 16).contains(&bytes) {
        let again = stamp.encode(origin);
        assert!(Stamp::with_origin(&again) == Some((origin, stamp)) && front.starts_with(&again[..32]));
    }
}

fn item(front: &[u8]) {
    let decoded = item::decode(ORIGIN, front);
    let Some(head) = Head::of(ORIGIN, front) else {
        return assert_eq!(decoded, None, "an item without a head");
    };
    let Some(read) = decoded.filter(|read| !read.is_later) else { return };
    assert_eq!(read, head);
    let lies = &front[..head.bytes()];
    let mut whole = lies.to_vec();
    head.unmask(&mut whole);
    let (key, value) = (&whole[head.key_from()..head.value_from()], &whole[head.value_from()..]);
    let again = item::encode(ORIGIN, &Item { key, value, number: head.number }, SECTOR_BYTES as u32);
    assert!(again.chunks(SECTOR_BYTES).skip(1).all(|sector| Head::of(ORIGIN, sector).is_none()));
    // Nobody else masks what needs no mask, or with another than the first that fits.
    let is_plain = !head.is_masked && again[..8] == lies[..8];
    assert!(!is_plain || again.starts_with(lies), "it is encoded to something else");
    let loaded = item::load(ORIGIN, key, again.clone(), Path::new("slots"), 0);
    assert!(loaded.is_ok_and(|loaded| loaded.value == value && loaded.number == head.number));
    let other = [key, b"x"].concat();
    assert!(item::load(ORIGIN, &other, again, Path::new("slots"), 0).is_err(), "another key's");
}

/// A file with a stamp and items: a small one, one without a value, one of several sectors whose value
/// contains another item, and one more stamp.
pub(crate) fn sound_slots() -> Vec<u8> {
    let stamp = |number| Stamp { number, sector_bytes: SECTOR_BYTES as u32 }.encode(ORIGIN);
    let item = |key: &[u8], value: &[u8], number| {
        item::encode(ORIGIN, &Item { key, value, number }, SECTOR_BYTES as u32)
    };
    let small = item(b"key", b"value", 0x0102_0304);
    let inner = [&[7; SECTOR_BYTES - 32 - 5][..], &small].concat();
    let (without, around) = (item(b"", b"", 5), item(b"outer", &inner, 6));
    [&stamp(4)[..], &small, &without, &around, &stamp(9)].concat()
}
