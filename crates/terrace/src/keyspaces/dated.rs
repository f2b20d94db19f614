//! Keyspaces whose entries can expire: dated ones.
//!
//! 1. A place tells whether its keyspace is dated: the number of such a keyspace has the highest bit.
//! 2. Every value in a dated keyspace is stored behind its deadline, in milliseconds since the beginning of 1970, eight
//!    bytes, the least significant first. `NEVER` stands for none.

use std::time::Duration;

use terrace_base::{Error, Result};

use super::space::Prefix;
use crate::batch::MAX_VALUE_BYTES;

/// The bit of the numbers of dated keyspaces.
pub(crate) const DATED: u32 = 1 << 31;

/// The deadline of what does not expire.
pub(crate) const NEVER: u64 = u64::MAX;

/// Bytes before a value.
pub(crate) const DEADLINE_BYTES: usize = 8;

/// What the places of all dated keyspaces begin with, and the byte behind it that is at least this.
const BEFORE: [u8; 3] = {
    let first = Prefix::of(DATED);
    let [a, b, c, ..] = *first.as_array();
    [a, b, c]
};

/// Whether `place` is one of a dated keyspace, if there are keyspaces at all.
#[inline]
pub(crate) fn is_dated(place: &[u8]) -> bool {
    matches!(place, [a, b, c, ..] if *a == BEFORE[0] && *b == BEFORE[1] && *c >= BEFORE[2])
}

/// The first place of dated keyspaces, and the first behind all of them.
pub(crate) fn all_dated() -> (Vec<u8>, Vec<u8>) {
    (Prefix::of(DATED).as_slice().to_vec(), Prefix::of(u32::MAX).end())
}

/// `duration` in the unit of deadlines, rounded up; `Duration::MAX` is for good.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(NEVER)
}

/// `value` as it is stored.
///
/// # Errors
///
/// `InvalidArgument` if there is no room for a deadline before it.
pub(crate) fn dated(deadline: u64, value: &[u8]) -> Result<Vec<u8>> {
    let limit = MAX_VALUE_BYTES - DEADLINE_BYTES;
    if value.len() > limit {
        let len = value.len();
        return Err(Error::invalid(format!(
            "a value of {len} bytes is over the limit of {limit} where entries expire"
        )));
    }
    Ok([&deadline.to_le_bytes()[..], value].concat())
}

/// The deadline of a stored value; `None` if it is too short to have one.
#[inline]
pub(crate) fn deadline_of(stored: &[u8]) -> Option<u64> {
    stored.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::keyspaces::Space;

    #[test]
    fn durations_are_rounded_up() {
        assert_eq!(millis(Duration::ZERO), 0);
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_millis(7)), 7);
        assert_eq!(millis(Duration::MAX), NEVER);
    }

    #[test]
    fn a_stored_value_has_its_deadline() {
        let stored = dated(77, b"value").unwrap();
        assert_eq!((deadline_of(&stored), &stored[DEADLINE_BYTES..]), (Some(77), &b"value"[..]));
        assert_eq!(deadline_of(&stored[..7]), None);
    }

    proptest! {
        #[test]
        fn a_place_tells_whether_it_is_dated(number in any::<u32>(), key in prop::collection::vec(any::<u8>(), 0..4)) {
            let (from, end) = all_dated();
            let place = Space::Numbered(Prefix::of(number)).encode(&key).into_owned();
            prop_assert_eq!(is_dated(&place), number & DATED != 0);
            prop_assert_eq!(from <= place && place < end, is_dated(&place));
            let default = Space::Default.encode(&place).into_owned();
            prop_assert!(!is_dated(&default));
        }
    }
}
