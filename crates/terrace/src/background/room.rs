//! Where writers wait for a flush to make room.

use parking_lot::{Condvar, Mutex};

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
}
