//! Entries that expire: which ones are dated, and whether they are due.
//!
//! 1. An entry is gone for every reader from its deadline on, by the clock of its environment. What is due may go from
//!    the media at any time, like a tombstone: what it hides must not come back.
//! 2. In a database without keyspaces a key may lie where a dated keyspace would. So a version counts as dated only if
//!    its number is of the time since there are keyspaces.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use terrace_base::Result;
use terrace_base::clock::Clock;

use crate::keyspaces::{NEVER, OpenKeyspace, deadline_of, is_dated};

/// Fewest puts to dated keyspaces after which it is worth while to look for what is due.
const FEWEST_PUTS: u64 = 4096;

/// The shortest time between two searches that begin because there is no room, in the unit of deadlines.
const BETWEEN_REFUSALS: u64 = 1000;

#[derive(Debug)]
pub(crate) struct Deadlines {
    clock: Arc<dyn Clock>,
    /// The number from which on places of dated keyspaces are theirs.
    since: AtomicU64,
    /// Puts to dated keyspaces since the last search for what is due, and those after which the next one begins.
    puts: AtomicU64,
    next: AtomicU64,
    is_search_wanted: AtomicBool,
    /// When a write was refused for a lack of room and a search has begun.
    refused_at: AtomicU64,
}

impl Deadlines {
    pub fn new(clock: Arc<dyn Clock>) -> Deadlines {
        // As if some had been put before: processes that put a few begin a search as seldom as they put few.
        let puts = AtomicU64::new(clock.calendar().subsec_nanos() as u64 % FEWEST_PUTS);
        let (since, next) = (AtomicU64::new(u64::MAX), AtomicU64::new(FEWEST_PUTS));
        let (is_search_wanted, refused_at) = (AtomicBool::default(), AtomicU64::new(u64::MAX));
        Deadlines { clock, since, puts, next, is_search_wanted, refused_at }
    }

    /// There are keyspaces since the version `number`.
    pub fn begin(&self, number: u64) {
        self.since.store(number, Ordering::Release);
    }

    /// There are none after all.
    pub fn end(&self) {
        self.since.store(u64::MAX, Ordering::Release);
    }

    /// Whether what a reader at `at`, or now, finds at `place` is dated.
    #[inline]
    pub fn is_dated(&self, place: &[u8], at: Option<u64>) -> bool {
        is_dated(place) && self.has_begun(at)
    }

    /// Whether a reader at `at`, or now, may find dated entries.
    pub fn has_begun(&self, at: Option<u64>) -> bool {
        match self.since.load(Ordering::Acquire) {
            u64::MAX => false,
            since => at.is_none_or(|at| at >= since),
        }
    }

    /// The present, in the unit of deadlines.
    pub fn now(&self) -> u64 {
        u64::try_from(self.clock.calendar().as_millis()).unwrap_or(NEVER - 1)
    }

    /// The deadline of what lives for `time_to_live` from now on, in the same unit.
    pub fn deadline(&self, time_to_live: u64) -> u64 {
        match time_to_live {
            NEVER => NEVER,
            // Far beyond any calendar.
            time_to_live => self.now().saturating_add(time_to_live).min(NEVER - 1),
        }
    }

    /// Whether a stored value is due.
    #[inline]
    pub fn is_due(&self, stored: &[u8]) -> bool {
        deadline_of(stored).is_some_and(|deadline| deadline != NEVER && deadline <= self.now())
    }

    /// `value` as it is stored if it is put into `keyspace` now, for `time_to_live` in the unit of deadlines, or for as
    /// long as values live there.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the value is too long, or if it is to expire and the keyspace is not dated.
    pub fn stored<'v>(
        &self,
        keyspace: &OpenKeyspace,
        value: &'v [u8],
        time_to_live: Option<u64>,
    ) -> Result<Cow<'v, [u8]>> {
        if keyspace.is_dated() {
            self.puts.fetch_add(1, Ordering::Relaxed);
        }
        keyspace.stored(value, time_to_live, |time_to_live| self.deadline(time_to_live))
    }

    /// After a write to keyspaces, which may have been refused for a lack of room: a search for what is due is wanted if
    /// so many entries were put since the last one, or at a refusal if the one before it was a second ago. Returns
    /// whether it is from now on.
    pub fn want_search_after(&self, is_refused: bool) -> bool {
        let puts = self.puts.load(Ordering::Relaxed);
        if puts == 0 {
            return false;
        }
        let makes_room = is_refused && {
            let now = self.now();
            let is_due = self.refused_at.load(Ordering::Relaxed).abs_diff(now) >= BETWEEN_REFUSALS;
            if is_due {
                self.refused_at.store(now, Ordering::Relaxed);
            }
            is_due
        };
        if puts < self.next.load(Ordering::Relaxed) && !makes_room {
            return false;
        }
        // Counted anew at once: a search that fails is not tried again at every put.
        self.puts.store(0, Ordering::Relaxed);
        self.is_search_wanted.store(true, Ordering::Release);
        true
    }

    pub fn is_search_wanted(&self) -> bool {
        self.is_search_wanted.load(Ordering::Acquire)
    }

    /// A search begins.
    pub fn begin_search(&self) {
        self.is_search_wanted.store(false, Ordering::Release);
    }

    /// A search has ended, and found `alive` entries that are not due.
    pub fn end_search(&self, alive: u64) {
        self.next.store(alive.max(FEWEST_PUTS), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use terrace_base::clock::ManualClock;

    use super::*;
    use crate::keyspaces::{DATED, Prefix, dated, millis};

    #[test]
    fn an_entry_is_due_from_its_deadline_on() {
        let clock = Arc::new(ManualClock::default());
        let deadlines = Deadlines::new(clock.clone());
        let stored = dated(deadlines.deadline(millis(Duration::from_secs(2))), b"v").unwrap();
        clock.advance(Duration::from_millis(1999));
        assert!(!deadlines.is_due(&stored));
        clock.advance(Duration::from_millis(1));
        assert!(deadlines.is_due(&stored) && !deadlines.is_due(&dated(NEVER, b"v").unwrap()));
        assert!(
            deadlines.is_due(&dated(deadlines.deadline(0), b"v").unwrap()),
            "it lives for no time at all"
        );
        assert!(!deadlines.is_due(&dated(deadlines.deadline(millis(Duration::MAX)), b"v").unwrap()));
    }

    #[test]
    fn what_is_older_than_keyspaces_is_not_dated() {
        let deadlines = Deadlines::new(Arc::new(ManualClock::default()));
        let place = Prefix::of(DATED | 3);
        assert!(
            !deadlines.is_dated(place.as_slice(), None) && !deadlines.is_dated(place.as_slice(), Some(9))
        );
        deadlines.begin(7);
        assert!(deadlines.is_dated(place.as_slice(), None) && deadlines.is_dated(place.as_slice(), Some(7)));
        assert!(!deadlines.is_dated(place.as_slice(), Some(6)) && !deadlines.is_dated(b"key", None));
    }

    #[test]
    fn searches_cost_in_proportion_to_puts() {
        let deadlines = Deadlines::new(Arc::new(ManualClock::default()));
        let keyspace = OpenKeyspace::new("k", DATED | 1, 0, NEVER);
        let put =
            |times: u64| (0..times).for_each(|_| drop(deadlines.stored(&keyspace, b"v", None).unwrap()));
        put(FEWEST_PUTS);
        assert!(deadlines.want_search_after(false) && deadlines.is_search_wanted());
        assert!(!deadlines.want_search_after(false), "it is wanted already");
        deadlines.begin_search();
        deadlines.end_search(2 * FEWEST_PUTS);
        put(2 * FEWEST_PUTS - 1);
        assert!(!deadlines.want_search_after(false));
        put(1);
        assert!(deadlines.want_search_after(false));
    }

    #[test]
    fn refusals_ask_for_searches_but_not_all_of_them() {
        let clock = Arc::new(ManualClock::default());
        let deadlines = Deadlines::new(clock.clone());
        let keyspace = OpenKeyspace::new("k", DATED | 1, 0, NEVER);
        let put = |is_refused| {
            deadlines.stored(&keyspace, b"v", None).unwrap();
            deadlines.want_search_after(is_refused)
        };
        assert!(!deadlines.want_search_after(true), "nothing was put");
        assert_eq!([false, true, true, false, true].map(put), [false, true, false, false, false]);
        clock.advance(Duration::from_secs(1));
        assert_eq!([true, true].map(put), [true, false]);
    }
}
