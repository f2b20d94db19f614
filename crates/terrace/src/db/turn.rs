//! Whose turn it is among those who try a transaction or an update again.
//!
//! Attempts that follow a conflict go one after the other, so that they do not spoil each other's. Two threads that
//! write the same can still fall into step, so that always the same one is too late: who has met many conflicts asks
//! to be let go first, and whoever begins anew then waits for it, but not for long.
//!
//! Invariants:
//!
//! 1. Every wait is bounded, so a turn that does not come is no deadlock.
//! 2. A thread does not wait for itself: a transaction within another's work has its turn.
//! 3. A wait that has run out ends the request. Who asked may ask again after its next conflict.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{ReentrantMutex, ReentrantMutexGuard};

/// How long the second attempt waits for its turn, and others for who is let go first. Each further attempt waits longer
/// by as much.
const TURN: Duration = Duration::from_millis(2);

/// Attempts up to which the wait grows.
const MOST_TURNS: u32 = 16;

/// Attempts after which others are asked to wait.
const PATIENCE: u32 = 8;

#[derive(Debug, Default)]
pub(super) struct Turns {
    turn: ReentrantMutex<()>,
    /// Whether who has the turn is to be let go first.
    asked: AtomicBool,
}

/// The attempts of one transaction or update, and its turn if it has that.
pub(super) struct Attempts<'t> {
    turns: &'t Turns,
    failed: u32,
    turn: Option<ReentrantMutexGuard<'t, ()>>,
    asks: bool,
}

impl Turns {
    /// The attempts of one that begins: after who asks to be let go first.
    pub(super) fn begin(&self) -> Attempts<'_> {
        if self.asked.load(Ordering::Relaxed) && self.turn.try_lock_for(TURN).is_none() {
            self.asked.store(false, Ordering::Relaxed);
        }
        Attempts { turns: self, failed: 0, turn: None, asks: false }
    }
}

impl Attempts<'_> {
    /// Attempts so far.
    pub(super) fn failed(&self) -> u32 {
        self.failed
    }

    /// Notes an attempt that met a conflict, and waits for the turn.
    pub(super) fn fail(&mut self) {
        self.failed = self.failed.saturating_add(1);
        if self.turn.is_none() {
            self.turn = self.turns.turn.try_lock_for(TURN * self.failed.min(MOST_TURNS));
        }
        if self.turn.is_some() && self.failed >= PATIENCE {
            self.asks = true;
            self.turns.asked.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Attempts<'_> {
    fn drop(&mut self) {
        if self.asks {
            self.turns.asked.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn asking(turns: &Turns) -> Attempts<'_> {
        let mut attempts = turns.begin();
        (0..PATIENCE).for_each(|_| attempts.fail());
        attempts
    }

    #[test]
    fn a_turn_is_asked_for_after_many_conflicts_and_while_they_last() {
        let turns = Turns::default();
        let mut attempts = turns.begin();
        for failed in 1..=PATIENCE {
            assert!(!turns.asked.load(Ordering::Relaxed), "{failed}");
            attempts.fail();
        }
        assert!(turns.asked.load(Ordering::Relaxed));
        drop(attempts);
        assert!(!turns.asked.load(Ordering::Relaxed));
        assert!(turns.turn.try_lock().is_some());
    }

    #[test]
    fn a_transaction_within_another_has_its_turn() {
        let turns = Turns::default();
        let outer = asking(&turns);
        let mut inner = turns.begin();
        assert!(turns.asked.load(Ordering::Relaxed), "the wait has not run out");
        inner.fail();
        assert!(inner.turn.is_some());
        drop((inner, outer));
    }

    #[test]
    fn a_wait_that_runs_out_ends_the_request_until_the_next_conflict() {
        let turns = Turns::default();
        let (asked, was_asked) = channel();
        let (over, is_over) = channel::<()>();
        std::thread::scope(|scope| {
            let turns = &turns;
            scope.spawn(move || {
                let mut attempts = asking(turns);
                asked.send(()).unwrap();
                is_over.recv().unwrap();
                attempts.fail();
                assert!(turns.asked.load(Ordering::Relaxed));
            });
            was_asked.recv().unwrap();
            let attempts = turns.begin();
            assert!(attempts.turn.is_none() && !turns.asked.load(Ordering::Relaxed));
            over.send(()).unwrap();
        });
        assert!(!turns.asked.load(Ordering::Relaxed));
    }
}
