//! Which keys may have been written since a moment, for transactions that would else read them again.
//!
//! Keys share slots by their hashes, and a slot has the number of the last write of any of its keys. So what is
//! answered is "nobody has written it" or "perhaps somebody has", and the latter costs a look and no more.
//!
//! 1. The leader notes a group before it applies it, if a transaction began not long ago. Who sees the group by the
//!    visible number sees what was noted of it.
//! 2. What was noted is one run of numbers without a gap. Groups that were not noted, deleted ranges, and
//!    numbers that something else has taken, as an ingest does, begin the run anew.
//! 3. An answer is given only where the run covers everything between then and now. So it does not matter how soon a
//!    leader learns that somebody asks, nor when it forgets that.

use std::sync::OnceLock;

use terrace_base::checksum::hash64;

use crate::sync::{AtomicU64, Ordering};

/// Slots: 64 KiB, made when the first transaction begins.
const SLOTS: usize = if cfg!(terrace_model) { 4 } else { 1 << 13 };

/// Writes that are noted for a transaction. After more of them few slots are as they were.
const NOTED: u64 = if cfg!(terrace_model) { 2 } else { 4 * SLOTS as u64 };

#[derive(Debug, Default)]
pub(crate) struct RecentWrites {
    /// Writes up to this number are noted.
    until: AtomicU64,
    /// The run has what was written after this number,
    from: AtomicU64,
    /// up to this one.
    to: AtomicU64,
    slots: OnceLock<Box<[AtomicU64]>>,
}

/// What was noted of the writes between two numbers: all of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Noted<'a> {
    slots: &'a [AtomicU64],
    then: u64,
}

impl Noted<'_> {
    /// Whether nobody has written `key` in between. "No" is said of other keys, too.
    pub fn is_untouched(&self, key: &[u8]) -> bool {
        slot_of(self.slots, key).load(Ordering::Relaxed) <= self.then
    }
}

fn slot_of<'s>(slots: &'s [AtomicU64], key: &[u8]) -> &'s AtomicU64 {
    &slots[hash64(key) as usize % SLOTS]
}

impl RecentWrites {
    /// Has the next writes after `now` noted.
    pub fn watch(&self, now: u64) {
        self.slots.get_or_init(|| (0..SLOTS).map(|_| AtomicU64::new(0)).collect());
        if self.until.load(Ordering::Relaxed) < now + NOTED / 2 {
            self.until.store(now + NOTED, Ordering::Relaxed);
        }
    }

    /// Notes a group of the numbers from `first` to `last` that writes `keys`, and perhaps `deletes_range`. Called by
    /// the leader before the group is applied.
    pub fn note<'k>(
        &self,
        (first, last): (u64, u64),
        keys: impl Iterator<Item = &'k [u8]>,
        deletes_range: bool,
    ) {
        let slots = self.slots.get().filter(|_| self.until.load(Ordering::Relaxed) >= first);
        let Some(slots) = slots else { return };
        keys.for_each(|key| slot_of(slots, key).store(last, Ordering::Relaxed));
        if deletes_range {
            self.from.store(last, Ordering::Relaxed);
        } else if self.to.load(Ordering::Relaxed) + 1 != first {
            self.from.store(first - 1, Ordering::Relaxed);
        }
        // Who sees the end of the run sees its beginning.
        self.to.store(last, Ordering::Release);
    }

    /// What was noted of all that was written after `then` and up to `now`, a number that was visible before the call;
    /// `None` if not all of it was.
    pub fn between(&self, then: u64, now: u64) -> Option<Noted<'_>> {
        let is_covered = self.to.load(Ordering::Acquire) >= now && self.from.load(Ordering::Relaxed) <= then;
        let slots = self.slots.get().filter(|_| is_covered)?;
        Some(Noted { slots, then })
    }
}

#[cfg(all(test, not(terrace_model)))]
mod tests {
    use super::*;

    fn note(recent: &RecentWrites, numbers: (u64, u64), key: &str) {
        recent.note(numbers, [key.as_bytes()].into_iter(), false);
    }

    fn is_untouched(recent: &RecentWrites, key: &str, then: u64, now: u64) -> Option<bool> {
        recent.between(then, now).map(|noted| noted.is_untouched(key.as_bytes()))
    }

    #[test]
    fn what_was_written_since_is_told() {
        let recent = RecentWrites::default();
        recent.watch(10);
        note(&recent, (11, 12), "a");
        note(&recent, (13, 13), "b");
        let of = |key, then| is_untouched(&recent, key, then, 13);
        assert_eq!(
            (of("a", 10), of("a", 12), of("b", 12), of("c", 10)),
            (Some(false), Some(true), Some(false), Some(true))
        );
        assert_eq!(of("c", 9), None, "10 was written before anything was noted");
        assert_eq!(is_untouched(&recent, "c", 10, 14), None, "14 is not noted yet");
    }

    #[test]
    fn what_was_not_noted_is_not_spoken_for() {
        let recent = RecentWrites::default();
        note(&recent, (1, 1), "a");
        assert_eq!(is_untouched(&recent, "a", 0, 1), None, "no transaction had begun");
        recent.watch(1);
        note(&recent, (2, NOTED), "a");
        let (last, next) = (NOTED + 1, NOTED + 2);
        note(&recent, (last, last), "c");
        assert_eq!(is_untouched(&recent, "b", 1, last), Some(true));
        note(&recent, (next, next), "b");
        assert_eq!(is_untouched(&recent, "b", last, next), None, "the transaction began long ago");
        recent.watch(next);
        let (first, far) = (next + 1, next + 100);
        note(&recent, (first, first), "c");
        assert_eq!(is_untouched(&recent, "b", last, first), None, "one was not noted");
        assert_eq!(is_untouched(&recent, "b", next, first), Some(true));
        // Something else takes the numbers between.
        note(&recent, (far, far), "c");
        assert_eq!(
            (is_untouched(&recent, "b", first, far), is_untouched(&recent, "b", far - 1, far)),
            (None, Some(true))
        );
        recent.note((far + 1, far + 1), std::iter::empty(), true);
        assert_eq!(is_untouched(&recent, "b", far, far + 1), None, "a range was deleted");
        note(&recent, (far + 2, far + 2), "c");
        assert_eq!(
            (is_untouched(&recent, "b", far, far + 2), is_untouched(&recent, "b", far + 1, far + 2)),
            (None, Some(true))
        );
    }
}
