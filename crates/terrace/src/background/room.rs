//! Where writers wait for a flush to make room.

use parking_lot::{Condvar, Mutex};
use terrace_base::Result;

use crate::core::Core;

/// A condition that background work changes.
#[derive(Debug, Default)]
pub(crate) struct Room {
    changes: Mutex<u64>,
    changed: Condvar,
}

impl Room {
    /// Something changed: whoever waits looks again.
    pub fn notify(&self) {
        *self.changes.lock() += 1;
        self.changed.notify_all();
    }

    /// Waits until one of the conditions holds. Both are judged under the lock that
    /// [`notify`](Self::notify) takes, so no change is missed.
    pub fn wait_until(&self, done: impl Fn() -> bool, failed: impl Fn() -> bool) {
        let mut changes = self.changes.lock();
        while !done() && !failed() {
            self.changed.wait(&mut changes);
        }
    }
    /// Waits until a memtable that awaits its flush is `gone`. If nobody has `flushing` locked, because the background
    /// threads are busy or the flush has failed before, it is flushed right here, and the caller gets its cause if it fails.
    pub fn wait_for_flush(
        &self,
        core: &Core,
        gone: impl Fn() -> bool,
        flushing: &Mutex<()>,
        flush: impl Fn() -> Result<()>,
    ) -> Result<()> {
        core.stalled(|| {
            while !gone() {
                if core.env.executor.help() {
                    continue;
                }
                if flushing.is_locked() {
                    self.wait_until(&gone, || !flushing.is_locked());
                } else {
                    flush()?;
                }
            }
            Ok(())
        })
    }
}
