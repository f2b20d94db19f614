//! The flushes of an engine: one runs at a time, on any thread; others wait for it, or for the room that it
//! makes.

use parking_lot::{Condvar, Mutex, MutexGuard};
use terrace_base::Result;

use crate::core::Core;
use crate::manifest::Manifest;
use crate::memtable::Memtables;

/// The running flush, and its waiters.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    /// Held by the one flush, and by whatever must not run beside one.
    alone: Mutex<()>,
    /// Held while a waiter checks its condition: the condition changes before [`notify`](Flushes::notify).
    looking: Mutex<()>,
    changed: Condvar,
}

/// The right to flush. Its release wakes those who wait for room, however it comes about.
#[derive(Debug)]
pub(crate) struct Flushing<'a> {
    flushes: &'a Flushes,
    lock: Option<MutexGuard<'a, ()>>,
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        // In this order: a woken waiter checks whether the lock is free.
        self.lock = None;
        self.flushes.notify();
    }
}

impl Flushes {
    /// Waits for the one flush, and prevents others.
    pub fn claim(&self) -> Flushing<'_> {
        Flushing { flushes: self, lock: Some(self.alone.lock()) }
    }

    /// Flushes, by `flush`, what `next` names, until nothing is left. One caller works, the others wait. The
    /// first failure ends it, and is the database's until a flush succeeds.
    pub fn run<M>(
        &self,
        core: &Core,
        manifest: &Manifest,
        next: impl Fn() -> Result<Option<M>>,
        flush: impl Fn(&M) -> Result<()>,
    ) -> Result<()> {
        let _alone = self.claim();
        // Let go before the claim.
        let _whole = core.health.whole();
        let mut outcome = Ok(());
        while let Some(memtable) = next()? {
            // Files that could not be removed before may be the room that is missing.
            core.files.sweep(manifest);
            let (running, before) = (core.begin_flush(), core.counters.flush_bytes.get());
            outcome = core.health.check().and_then(|()| flush(&memtable));
            if let Err(e) = &outcome {
                drop(running);
                core.counters.background_errors.add(1);
                core.health.fail(e.clone());
                break;
            }
            // Nobody else flushes.
            running.done(core.counters.flush_bytes.get() - before);
            core.health.recover();
            self.notify();
        }
        core.files.sweep(manifest);
        outcome
    }

    /// Waits until the oldest of `memtables` that awaits its flush now has left them.
    pub fn wait_for_oldest<M>(
        &self,
        core: &Core,
        memtables: impl Fn() -> Memtables<M>,
        flush: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let Some(oldest) = memtables().oldest_immutable().cloned() else { return Ok(()) };
        self.wait_until(core, || !memtables().contains(&oldest), flush)
    }

    /// Waits until a memtable that awaits its flush is `gone`. If nobody flushes, because the background threads are
    /// busy or the flush has failed before, the caller flushes it by `flush`, and gets the cause if that fails.
    pub fn wait_until(
        &self,
        core: &Core,
        gone: impl Fn() -> bool,
        flush: impl Fn() -> Result<()>,
    ) -> Result<()> {
        core.stalled(|| {
            while !gone() {
                if core.env.executor.help() {
                    continue;
                }
                if self.alone.is_locked() {
                    self.wait_while_one_runs(&gone);
                } else {
                    flush()?;
                }
            }
            Ok(())
        })
    }

    /// Something changed: waiters check again.
    fn notify(&self) {
        drop(self.looking.lock());
        self.changed.notify_all();
    }

    /// Both conditions are checked under the lock that [`notify`](Self::notify) takes, so no change is
    /// missed.
    fn wait_while_one_runs(&self, gone: &impl Fn() -> bool) {
        let mut looking = self.looking.lock();
        while !gone() && self.alone.is_locked() {
            self.changed.wait(&mut looking);
        }
    }
}
