//! Where the keys of each keyspace lie among all keys that an engine has.
//!
//! | keys | where they lie |
//! |---|---|
//! | of the default keyspace, as long as it is the only one | as they are |
//! | of the default keyspace, from then on | as they are; those that begin with byte 255 behind another byte 255 |
//! | of keyspace `n` | behind byte 255 and the number `n` |
//! | of the catalogue | as those of keyspace 0 |
//!
//! 1. A keyspace has its keys in their order, and together; those of the default one lie on both sides of the others.
//! 2. No place belongs to two keyspaces: no encoded number begins with byte 255, and none is the beginning of another.

use std::borrow::Cow;
use std::ops::Bound;

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_table::MAX_KEY_BYTES;

/// The byte behind which keyspaces lie.
pub(crate) const ESCAPE: u8 = 0xff;

/// The first key of the default keyspace that lies behind the others.
const BEHIND: [u8; 2] = [ESCAPE, ESCAPE];

/// Numbers below this one take one byte; in others it stands for a length of one.
const FIRST_LENGTH: u8 = 0xf0;

/// Most bytes before a key.
const MOST_BYTES: usize = 6;

/// A range of places, owned.
pub(crate) type Places = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// What lies before every key of a keyspace with a number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prefix {
    bytes: [u8; MOST_BYTES],
    len: u8,
}

impl std::fmt::Debug for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Prefix({:02x?})", self.as_slice())
    }
}

impl Prefix {
    pub const fn of(number: u32) -> Prefix {
        let mut bytes = [0; MOST_BYTES];
        bytes[0] = ESCAPE;
        if number < FIRST_LENGTH as u32 {
            bytes[1] = number as u8;
            return Prefix { bytes, len: 2 };
        }
        let digits = number.to_be_bytes();
        let zeros = number.leading_zeros() as usize / 8;
        let length = digits.len() - zeros;
        bytes[1] = FIRST_LENGTH + length as u8 - 1;
        let mut at = 0;
        while at < length {
            bytes[2 + at] = digits[zeros + at];
            at += 1;
        }
        Prefix { bytes, len: 2 + length as u8 }
    }

    /// What lies before every key that begins with byte 255, if the default keyspace is the only one.
    pub const fn escape() -> Prefix {
        Prefix { bytes: [ESCAPE, 0, 0, 0, 0, 0], len: 1 }
    }

    /// With bytes behind it that mean nothing.
    pub const fn as_array(&self) -> &[u8; MOST_BYTES] {
        &self.bytes
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }

    /// The smallest place behind all that begin with it.
    pub fn end(&self) -> Vec<u8> {
        after_prefix(self.as_slice()).expect("a number does not begin with byte 255")
    }

    /// The keyspace to which a place that begins with byte 255 belongs; `None` if it is nobody's.
    pub fn number_at(place: &[u8]) -> Option<u32> {
        let (first, rest) = (*place.get(1).filter(|_| is_high(place))?, &place[2..]);
        if first < FIRST_LENGTH {
            return Some(first.into());
        }
        let digits = rest.get(..usize::from(first - FIRST_LENGTH) + 1)?;
        let number = digits.iter().try_fold(0u32, |number, digit| {
            number.checked_mul(256).map(|number| number + u32::from(*digit))
        })?;
        (Prefix::of(number).as_slice() == &place[..digits.len() + 2]).then_some(number)
    }
}

/// Where the keys of one keyspace lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    /// The default one, which is the only one.
    Alone,
    /// The default one beside others.
    Default,
    Numbered(Prefix),
    /// One that does not exist at the moment in question: it has no keys.
    Nowhere,
}

/// Longest key of a keyspace with a number.
pub const MAX_NUMBERED_KEY_BYTES: usize = MAX_KEY_BYTES - MOST_BYTES;

impl Space {
    /// The place of `key`.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for an over-long key.
    pub fn place<'k>(&self, key: &'k [u8]) -> Result<Cow<'k, [u8]>> {
        let limit = match self {
            Space::Numbered(_) | Space::Nowhere => MAX_NUMBERED_KEY_BYTES,
            Space::Default if is_high(key) => MAX_KEY_BYTES - 1,
            Space::Alone | Space::Default => MAX_KEY_BYTES,
        };
        if key.len() > limit {
            return Err(Error::invalid(format!("a key of {} bytes is over the limit of {limit}", key.len())));
        }
        Ok(self.encode(key))
    }

    /// The place of a key of any length.
    pub fn encode<'k>(&self, key: &'k [u8]) -> Cow<'k, [u8]> {
        match self {
            Space::Numbered(prefix) => Cow::Owned([prefix.as_slice(), key].concat()),
            Space::Default if is_high(key) => Cow::Owned([&[ESCAPE], key].concat()),
            Space::Alone | Space::Default | Space::Nowhere => Cow::Borrowed(key),
        }
    }

    /// Whether `place` is one of this keyspace's.
    pub fn holds(&self, place: &[u8]) -> bool {
        match self {
            Space::Alone => true,
            Space::Default => !is_high(place) || place.starts_with(&BEHIND),
            Space::Numbered(prefix) => place.starts_with(prefix.as_slice()),
            Space::Nowhere => false,
        }
    }

    /// Bytes before the key at `place`, which is one of this keyspace's.
    fn before(&self, place: &[u8]) -> usize {
        match self {
            Space::Alone | Space::Nowhere => 0,
            Space::Default => usize::from(is_high(place)),
            Space::Numbered(prefix) => prefix.as_slice().len(),
        }
    }

    /// The key at `place`, which is one of this keyspace's.
    pub fn key_in<'p>(&self, place: &'p [u8]) -> &'p [u8] {
        &place[self.before(place)..]
    }

    /// The same, owned.
    pub fn key_at(&self, place: Bytes) -> Bytes {
        match self.before(&place) {
            0 => place,
            before => place.slice(before..),
        }
    }

    /// The key at any place beside which the default keyspace lies so, whosever it is.
    pub fn key_of(&self, place: &[u8]) -> Vec<u8> {
        let before = match (self, Prefix::number_at(place)) {
            (Space::Default, Some(number)) if !self.holds(place) => Prefix::of(number).as_slice().len(),
            _ => self.before(place),
        };
        place[before..].to_vec()
    }

    /// The places of the keys in a range: one range of them, or two with other keyspaces between them.
    pub fn places(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> (Places, Option<Places>) {
        let lower = from.map(|key| self.encode(key).into_owned());
        let upper = to.map(|key| self.encode(key).into_owned());
        match self {
            Space::Alone => ((lower, upper), None),
            Space::Nowhere => ((Bound::Unbounded, Bound::Excluded(Vec::new())), None),
            Space::Numbered(prefix) => {
                let first = Bound::Included(prefix.as_slice().to_vec());
                let lower = if lower == Bound::Unbounded { first } else { lower };
                let upper = if upper == Bound::Unbounded { Bound::Excluded(prefix.end()) } else { upper };
                ((lower, upper), None)
            }
            Space::Default => {
                let is_behind = matches!(from, Bound::Included(key) | Bound::Excluded(key) if is_high(key));
                let ends_before = matches!(to, Bound::Included(key) | Bound::Excluded(key) if !is_high(key));
                if is_behind || ends_before {
                    return ((lower, upper), None);
                }
                let front = (lower, Bound::Excluded(vec![ESCAPE]));
                (front, Some((Bound::Included(BEHIND.to_vec()), upper)))
            }
        }
    }
}

/// Whether `key` begins with the byte behind which keyspaces lie.
#[inline]
pub(crate) fn is_high(key: &[u8]) -> bool {
    key.first() == Some(&ESCAPE)
}

/// The smallest key above every key that begins with `prefix`; `None` if there is none.
pub(crate) fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_end_of_a_prefix() {
        assert_eq!(after_prefix(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(after_prefix(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(after_prefix(b"\xff"), None);
        assert_eq!(after_prefix(b""), None);
    }

    #[test]
    fn numbers_take_few_bytes() {
        let lengths =
            [0, 239, 240, 255, 256, 65_535, 65_536, u32::MAX].map(|n| Prefix::of(n).as_slice().len());
        assert_eq!(lengths, [2, 2, 3, 3, 4, 4, 5, 6]);
    }

    #[test]
    fn what_is_no_number_is_nobodys() {
        let nobodys: [&[u8]; 6] = [
            b"\xff",
            b"\xff\xf0",
            b"\xff\xf0\x01",
            b"\xff\xf1\x00\xff",
            b"\xff\xf4\x01\x01\x01\x01\x01",
            b"\xff\xff",
        ];
        nobodys.iter().for_each(|place| assert_eq!(Prefix::number_at(place), None, "{place:02x?}"));
    }

    fn keys() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![Just(0xff), Just(0xf0), Just(0), any::<u8>()], 0..6)
    }

    fn spaces() -> impl Strategy<Value = Space> {
        let number = prop_oneof![0u32..600, any::<u32>(), 65_000u32..66_000];
        prop_oneof![Just(Space::Default), number.prop_map(|number| Space::Numbered(Prefix::of(number)))]
    }

    fn is_in(key: &[u8], (from, to): &Places) -> bool {
        (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice)).contains_key(key)
    }

    #[test]
    fn a_keyspace_that_does_not_exist_has_no_keys() {
        let (nothing, second) = Space::Nowhere.places(Bound::Included(b"a"), Bound::Unbounded);
        assert!(second.is_none() && !Space::Nowhere.holds(b"a"));
        assert!(![&b""[..], b"a", b"\xff"].iter().any(|place| is_in(place, &nothing)));
    }

    /// Whether bounds of any order contain a key.
    trait ContainsKey {
        fn contains_key(&self, key: &[u8]) -> bool;
    }

    impl ContainsKey for (Bound<&[u8]>, Bound<&[u8]>) {
        fn contains_key(&self, key: &[u8]) -> bool {
            let above = match self.0 {
                Bound::Included(from) => from <= key,
                Bound::Excluded(from) => from < key,
                Bound::Unbounded => true,
            };
            above
                && match self.1 {
                    Bound::Included(to) => key <= to,
                    Bound::Excluded(to) => key < to,
                    Bound::Unbounded => true,
                }
        }
    }

    fn bound(kind: u8, key: &[u8]) -> Bound<&[u8]> {
        match kind % 3 {
            0 => Bound::Included(key),
            1 => Bound::Excluded(key),
            _ => Bound::Unbounded,
        }
    }

    proptest! {
        #[test]
        fn places_are_in_order_and_belong_to_one(a in keys(), b in keys(), one in spaces(), other in spaces()) {
            let (place, next) = (one.encode(&a).into_owned(), one.encode(&b).into_owned());
            prop_assert_eq!(a.cmp(&b), place.cmp(&next));
            prop_assert!(one.holds(&place));
            prop_assert_eq!(one == other, other.holds(&place));
            prop_assert_eq!(one.key_at(Bytes::from(place)), a);
        }

        #[test]
        fn a_place_names_its_keyspace(number in any::<u32>(), key in keys()) {
            let place = Space::Numbered(Prefix::of(number)).encode(&key).into_owned();
            prop_assert_eq!(Prefix::number_at(&place), Some(number));
        }

        #[test]
        fn a_range_is_where_its_keys_are(
            key in keys(), from in keys(), to in keys(), kinds in any::<(u8, u8)>(),
            space in spaces(), other in spaces(),
        ) {
            let range = (bound(kinds.0, &from), bound(kinds.1, &to));
            let (first, second) = space.places(range.0, range.1);
            let covers = |place: &[u8]| is_in(place, &first) || second.as_ref().is_some_and(|s| is_in(place, s));
            prop_assert_eq!(covers(&space.encode(&key)), range.contains_key(&key));
            if space != other {
                prop_assert!(!covers(&other.encode(&key)));
            }
        }
    }
}
