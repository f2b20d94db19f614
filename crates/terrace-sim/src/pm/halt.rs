//! Threads stopped half-way: a medium that stops one thread at a chosen step while others go on.
//!
//! The steps of a thread are its flushes, drains, ordered stores and charged reads: around every publish, and between
//! following one link and the next. One of them, the *slow* thread, is stopped before one of its steps until the others
//! have finished, or until they make no progress because they wait for something that the slow thread has. Trying every
//! step in turn lets others meet each publish half-made.
//!
//! Others count as blocked if they have made no step for a while. On a busy machine the slow thread may go on too
//! early; then fewer orders are tried, but no impossible one.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use terrace_base::Result;
use terrace_pmem::{Granularity, Media};

use super::SimPm;

/// How long the slow thread waits for a step of another, and how often, before it goes on.
const MOMENT: Duration = Duration::from_micros(300);
const PATIENCE: u32 = 3;

/// No step to stop at.
const NEVER: u64 = u64::MAX;

thread_local!(static IS_SLOW: Cell<bool> = const { Cell::new(false) });

/// A simulated medium that stops a thread.
#[derive(Debug)]
pub struct Halting {
    media: Arc<SimPm>,
    /// Steps of the slow thread before the one to stop at.
    left: AtomicU64,
    /// Steps of all others.
    others: AtomicU64,
    phase: Mutex<Phase>,
    changed: Condvar,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// Stopped, and the others do not know it yet.
    Stopped,
    /// Stopped, as long as the others get further.
    Passing,
    /// Stopped, however long the others take.
    Held,
    /// The others are done: it may go on.
    Released,
    /// It has gone on by itself, or has ended.
    Over,
}

/// A thread that has stopped, to the others.
#[derive(Debug, Clone, Copy)]
pub struct Stopped<'h>(&'h Halting);

impl Stopped<'_> {
    /// Keeps the thread stopped until the others are done; false if it has gone on.
    pub fn hold(&self) -> bool {
        let mut phase = self.0.phase.lock();
        if *phase == Phase::Passing {
            *phase = Phase::Held;
        }
        *phase == Phase::Held
    }
}

impl Halting {
    /// `media`, whose calls are steps.
    pub fn new(media: Arc<SimPm>) -> Arc<Halting> {
        Arc::new(Halting {
            media,
            left: AtomicU64::new(NEVER),
            others: AtomicU64::new(0),
            phase: Mutex::new(Phase::Running),
            changed: Condvar::new(),
        })
    }

    /// Runs `slow` in a thread of its own, which stops before its `nth` step, counting from 0, and there `beside` in
    /// this one. Returns the results of `slow` and `beside`; the second is `None` if `slow` has fewer steps.
    pub fn run<S: Send, B>(
        &self,
        nth: u64,
        slow: impl FnOnce() -> S + Send,
        beside: impl FnOnce(Stopped<'_>) -> B,
    ) -> (S, Option<B>) {
        *self.phase.lock() = Phase::Running;
        self.left.store(nth, Ordering::Release);
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| {
                IS_SLOW.set(true);
                let _over = Over(self);
                slow()
            });
            let beside = self.wait_for_stop().then(|| {
                let _release = Release(self);
                beside(Stopped(self))
            });
            match slow.join() {
                Ok(slow) => (slow, beside),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    fn set_phase(&self, to: Phase) {
        *self.phase.lock() = to;
        self.changed.notify_all();
    }

    /// Whether the slow thread has stopped; else it is over.
    fn wait_for_stop(&self) -> bool {
        let mut phase = self.phase.lock();
        while *phase == Phase::Running {
            self.changed.wait(&mut phase);
        }
        let stopped = *phase == Phase::Stopped;
        if stopped {
            *phase = Phase::Passing;
        }
        stopped
    }

    fn step(&self) {
        if !IS_SLOW.get() {
            self.others.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // Changed by the slow thread alone while it runs.
        match self.left.load(Ordering::Relaxed) {
            NEVER => {}
            0 => {
                self.left.store(NEVER, Ordering::Relaxed);
                self.stop();
            }
            left => self.left.store(left - 1, Ordering::Relaxed),
        }
    }

    fn stop(&self) {
        let mut phase = self.phase.lock();
        *phase = Phase::Stopped;
        self.changed.notify_all();
        let (mut seen, mut idle) = (self.others.load(Ordering::Relaxed), 0);
        while *phase != Phase::Released {
            self.changed.wait_for(&mut phase, MOMENT);
            let now = self.others.load(Ordering::Relaxed);
            idle = if now == seen && *phase == Phase::Passing { idle + 1 } else { 0 };
            seen = now;
            if idle > PATIENCE {
                *phase = Phase::Over;
                return;
            }
        }
    }
}

/// Ends the slow thread, also one that panics.
struct Over<'h>(&'h Halting);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.left.store(NEVER, Ordering::Relaxed);
        self.0.set_phase(Phase::Over);
    }
}

/// Lets the slow thread go on, also when the others panic.
struct Release<'h>(&'h Halting);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.set_phase(Phase::Released);
    }
}

impl Media for Halting {
    fn base(&self) -> *mut u8 {
        self.media.base()
    }

    fn len(&self) -> u64 {
        self.media.len()
    }

    fn capacity(&self) -> u64 {
        self.media.capacity()
    }

    fn grow(&self, len: u64) -> Result<()> {
        self.media.grow(len)
    }

    fn granularity(&self) -> Granularity {
        self.media.granularity()
    }

    fn flush(&self, offset: u64, len: u64) {
        self.step();
        self.media.flush(offset, len);
    }

    fn drain(&self) {
        self.step();
        self.media.drain();
    }

    fn order(&self, offset: u64) {
        self.step();
        self.media.order(offset);
    }

    fn charge_read(&self, _offset: u64, _len: u64) {
        self.step();
    }

    fn charge_reads(&self, _reads: u64, _blocks: u64) {
        self.step();
    }

    fn sync(&self) -> Result<()> {
        self.media.sync()
    }

    fn describe(&self) -> String {
        self.media.describe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pm::PmOptions;

    #[test]
    fn every_step_is_stopped_at_and_others_go_on() {
        let media = Halting::new(Arc::new(SimPm::new(PmOptions::default())));
        for nth in 0..4 {
            let seen = AtomicU64::new(0);
            let slow = || {
                for step in 0..3 {
                    seen.store(step, Ordering::SeqCst);
                    media.drain();
                }
                7
            };
            let beside = |stopped: Stopped<'_>| {
                assert!(stopped.hold());
                media.drain();
                seen.load(Ordering::SeqCst)
            };
            assert_eq!(media.run(nth, slow, beside), (7, (nth < 3).then_some(nth)));
        }
    }

    #[test]
    fn a_thread_that_keeps_others_waiting_goes_on() {
        let media = Halting::new(Arc::new(SimPm::new(PmOptions::default())));
        let lock = Mutex::new(());
        let slow = || {
            let _held = lock.lock();
            media.drain();
        };
        let held = media.run(0, slow, |stopped| {
            drop(lock.lock());
            stopped.hold()
        });
        assert_eq!(held.1, Some(false));
    }
}
