//! Whose turn it is among those who try a transaction or an update again.
//!
//! Attempts that follow a conflict wait for their turn, so that they do not spoil each other's; who has waited for 2 to
//! 32 ms goes beside the one whose turn it is. Two threads that write the same can still fall into step, so that always
//! the same one is too late: who has met many conflicts asks to be let go first. Whoever begins anew then waits for it,
//! the longer the more attempts of it have failed, up to 32 ms: so a transaction that takes some time comes through
//! beside short ones.
//!
//! Transactions and updates of one key take turns apart: an update does not wait for a long transaction that tries
//! again, unless that asks.
//!
//! Invariants:
//!
//! 1. Every wait is bounded, so a turn that does not come is no deadlock.
//! 2. A thread does not wait for itself: a transaction within another's work has its turn.
//! 3. A wait that has run out ends the request. Who asked may ask again after its next conflict.
//! 4. Only who has the turn asks, and who raised the request ends it: not one within its work.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::{ReentrantMutex, ReentrantMutexGuard};

/// How long the second attempt waits for its turn. Each further attempt waits longer by as much.
const TURN: Duration = Duration::from_millis(2);

/// Attempts up to which the wait grows.
const MOST_TURNS: u32 = 16;

/// Attempts after which others are asked to wait.
const PATIENCE: u32 = 8;

#[derive(Debug, Default)]
pub(super) struct Turns {
    transactions: Turn,
    updates: Turn,
}

#[derive(Debug, Default)]
struct Turn {
    lock: ReentrantMutex<()>,
    /// How many attempts have failed of who has the turn and is to be let go first; 0 if nobody is.
    asked: AtomicU32,
}

/// The attempts of one transaction or update, and its turn if it has that.
pub(super) struct Attempts<'t> {
    turn: &'t Turn,
    failed: u32,
    has_turn: Option<ReentrantMutexGuard<'t, ()>>,
    asks: bool,
}

/// How long is waited for a turn, by who has failed so often or for it.
fn wait_after(failed: u32) -> Duration {
    TURN * failed.min(MOST_TURNS)
}

impl Turns {
    /// The attempts of a transaction that begins: after who asks to be let go first.
    pub(super) fn begin_transaction(&self) -> Attempts<'_> {
        self.begin(&self.transactions)
    }

    /// The same of an update of one key.
    pub(super) fn begin_update(&self) -> Attempts<'_> {
        self.begin(&self.updates)
    }

    fn begin<'t>(&'t self, turn: &'t Turn) -> Attempts<'t> {
        self.transactions.give_way();
        self.updates.give_way();
        Attempts { turn, failed: 0, has_turn: None, asks: false }
    }
}

impl Turn {
    /// Waits for who asks, if anybody does. A wait that runs out ends that request, unless it was made anew meanwhile.
    fn give_way(&self) {
        let asked = self.asked.load(Ordering::Relaxed);
        if asked > 0 && self.lock.try_lock_for(wait_after(asked)).is_none() {
            let _ = self.asked.compare_exchange(asked, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

impl Attempts<'_> {
    /// Attempts so far.
    pub(super) fn failed(&self) -> u32 {
        self.failed
    }

    /// Notes an attempt that met a conflict, and waits for the turn. Returns whether it had to wait: what was read
    /// before may be old then.
    pub(super) fn fail(&mut self) -> bool {
        self.failed = self.failed.saturating_add(1);
        let mut has_waited = false;
        if self.has_turn.is_none() {
            self.has_turn = self.turn.lock.try_lock();
        }
        if self.has_turn.is_none() {
            has_waited = true;
            self.has_turn = self.turn.lock.try_lock_for(wait_after(self.failed));
        }
        if self.has_turn.is_some() && self.failed >= PATIENCE {
            self.asks |= self.turn.asked.fetch_max(self.failed, Ordering::Relaxed) == 0;
        }
        has_waited
    }
}

impl Drop for Attempts<'_> {
    fn drop(&mut self) {
        if self.asks {
            self.turn.asked.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn asked(turns: &Turns) -> u32 {
        turns.transactions.asked.load(Ordering::Relaxed)
    }

    fn asking(turns: &Turns) -> Attempts<'_> {
        let mut attempts = turns.begin_transaction();
        for _ in 0..PATIENCE {
            attempts.fail();
        }
        attempts
    }

    #[test]
    fn a_turn_is_asked_for_after_many_conflicts_and_while_they_last() {
        let turns = Turns::default();
        let mut attempts = turns.begin_transaction();
        for failed in 1..=PATIENCE {
            assert_eq!(asked(&turns), 0, "{failed}");
            assert!(!attempts.fail(), "nobody has the turn");
        }
        for failed in PATIENCE..PATIENCE + 20 {
            assert_eq!(asked(&turns), failed);
            attempts.fail();
        }
        drop(attempts);
        assert_eq!(asked(&turns), 0);
        assert!(turns.transactions.lock.try_lock().is_some());
    }

    #[test]
    fn a_wait_grows_with_what_has_failed() {
        let millis = [0, 1, PATIENCE, MOST_TURNS, u32::MAX].map(|failed| wait_after(failed).as_millis());
        assert_eq!(millis, [0, 2, 16, 32, 32]);
    }

    #[test]
    fn a_transaction_within_another_has_its_turn_and_ends_no_request_but_its_own() {
        let turns = Turns::default();
        let outer = asking(&turns);
        let mut inner = turns.begin_transaction();
        assert_eq!(asked(&turns), PATIENCE, "the wait has not run out");
        inner.fail();
        assert!(inner.has_turn.is_some());
        drop(inner);
        drop(asking(&turns));
        assert_eq!(asked(&turns), PATIENCE, "the outer one still asks");
        // One whose wait has run out has ended it.
        turns.transactions.asked.store(0, Ordering::Relaxed);
        let inner = asking(&turns);
        assert_eq!(asked(&turns), PATIENCE);
        drop(inner);
        assert_eq!(asked(&turns), 0);
        drop(outer);
    }

    /// Has another thread ask, lets `then` do what it does meanwhile, and the other one meet a further conflict.
    fn beside_who_asks(turns: &Turns, then: impl FnOnce()) {
        let (asked, was_asked) = channel();
        let (over, is_over) = channel::<()>();
        // What is moved into the scope is dropped if `then` fails, which ends the other thread.
        std::thread::scope(move |scope| {
            scope.spawn(move || {
                let mut attempts = asking(turns);
                asked.send(()).unwrap();
                is_over.recv().unwrap();
                attempts.fail();
                assert_eq!(self::asked(turns), PATIENCE + 1);
            });
            was_asked.recv().unwrap();
            then();
            over.send(()).unwrap();
        });
        assert_eq!(self::asked(turns), 0);
    }

    #[test]
    fn a_wait_that_runs_out_ends_the_request_until_the_next_conflict() {
        let turns = Turns::default();
        beside_who_asks(&turns, || {
            let attempts = turns.begin_transaction();
            assert!(attempts.has_turn.is_none() && asked(&turns) == 0);
        });
    }

    /// A transaction that has the turn and does not ask keeps no update waiting.
    #[test]
    fn updates_take_turns_of_their_own() {
        let turns = Turns::default();
        beside_who_asks(&turns, || {
            turns.transactions.asked.store(0, Ordering::Relaxed);
            let mut update = turns.begin_update();
            assert!(!update.fail() && update.has_turn.is_some());
            let mut transaction = turns.begin_transaction();
            assert!(transaction.fail() && transaction.has_turn.is_none());
        });
    }
}
