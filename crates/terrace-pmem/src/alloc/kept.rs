//! Room that is kept back for work that frees room.
//!
//! Some of the last free extents are reserved for threads that claim some, half of these also for threads that claim
//! few, and the very last ones for threads that claim all. None of this is stored: after a crash an owner sets the
//! amounts again.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pool::Pool;

/// A thread's claim to the room that is kept back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claim {
    /// No claim.
    None,
    /// A claim to half of what is kept back for those who claim some: what frees room does not use up what others need
    /// who free room.
    Few,
    /// A claim to all but the last part.
    Some,
    /// A claim to all of it.
    All,
}

impl Claim {
    /// The calling thread's claim, to pass it to another thread that works for it.
    pub fn current() -> Claim {
        CLAIM.get()
    }
}

thread_local! {
    static CLAIM: Cell<Claim> = const { Cell::new(Claim::None) };
}

/// Units that are kept back.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    some: AtomicU64,
    all: AtomicU64,
    in_rows: AtomicU64,
    /// Units of such a row; zero if none are kept.
    row: AtomicU64,
}

impl Kept {
    /// Free units that the calling thread must leave.
    pub(super) fn to_leave(&self) -> u64 {
        let (some, all) = (self.some.load(Ordering::Relaxed), self.all.load(Ordering::Relaxed));
        match CLAIM.get() {
            Claim::None => all + some,
            Claim::Few => all + some / 2,
            Claim::Some => all,
            Claim::All => 0,
        }
    }

    /// Free units that the calling thread must leave in rows, and the units of a row; `None` if it need not.
    pub(super) fn rows_to_leave(&self) -> Option<(u64, u64)> {
        let row = self.row.load(Ordering::Relaxed);
        (row > 0 && CLAIM.get() < Claim::All).then(|| (self.in_rows.load(Ordering::Relaxed), row))
    }
}

/// Restores the former claim, also after a panic.
struct Before(Claim);

impl Drop for Before {
    fn drop(&mut self) {
        CLAIM.set(self.0);
    }
}

impl Pool {
    /// Keeps free extents back: `some` bytes for those who claim some, `all` bytes more for those who claim all. This
    /// affects later reservations; existing ones stay.
    pub fn keep_back(&self, some: u64, all: u64) {
        let units = |bytes: u64| bytes.div_ceil(self.extent_bytes());
        self.inner.alloc.kept.some.store(units(some), Ordering::Relaxed);
        self.inner.alloc.kept.all.store(units(all), Ordering::Relaxed);
    }

    /// Keeps as many of the free extents as are of `bytes` in rows, each of `row` bytes side by side, for those who claim
    /// all: others take what breaks no such row. This holds once the pool has its full size.
    pub fn keep_rows(&self, bytes: u64, row: u64) {
        let units = |bytes: u64| bytes.div_ceil(self.extent_bytes());
        self.inner.alloc.kept.in_rows.store(units(bytes), Ordering::Relaxed);
        self.inner.alloc.kept.row.store(units(row), Ordering::Relaxed);
    }

    /// Runs `work` on this thread with a claim to the room that is kept back; an existing larger claim stays.
    pub fn claiming<T>(&self, claim: Claim, work: impl FnOnce() -> T) -> T {
        let before = CLAIM.get();
        let _before = Before(before);
        CLAIM.set(before.max(claim));
        work()
    }
}
