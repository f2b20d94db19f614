//! Room that is kept back for what makes room.
//!
//! Some of the last free extents are for those who claim some, and the very last for those who claim all. The pool's
//! medium knows nothing of it: a crash leaves nothing, and an owner says anew what is to be kept.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pool::Pool;

/// How far into the room that is kept back somebody may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claim {
    /// Not at all, as everybody who claims nothing.
    None,
    /// To the last of it.
    Some,
    /// To its end.
    All,
}

impl Claim {
    /// What the calling thread claims, for another that works for it.
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
}

impl Kept {
    /// Free units that the calling thread must leave.
    pub(super) fn to_leave(&self) -> u64 {
        let all = self.all.load(Ordering::Relaxed);
        match CLAIM.get() {
            Claim::None => all + self.some.load(Ordering::Relaxed),
            Claim::Some => all,
            Claim::All => 0,
        }
    }
}

/// Puts the claim back that was there before, also when what was to be done panics.
struct Before(Claim);

impl Drop for Before {
    fn drop(&mut self) {
        CLAIM.set(self.0);
    }
}

impl Pool {
    /// Keeps free extents back: `some` bytes for those who claim some, `all` bytes more for those who claim all. It is for later
    /// reservations; what is taken stays.
    pub fn keep_back(&self, some: u64, all: u64) {
        let units = |bytes: u64| bytes.div_ceil(self.extent_bytes());
        self.inner.alloc.kept.some.store(units(some), Ordering::Relaxed);
        self.inner.alloc.kept.all.store(units(all), Ordering::Relaxed);
    }

    /// Does `work`, on this thread, with a claim to what is kept back; one that is there already is not lessened.
    pub fn claiming<T>(&self, claim: Claim, work: impl FnOnce() -> T) -> T {
        let before = CLAIM.get();
        let _before = Before(before);
        CLAIM.set(before.max(claim));
        work()
    }
}
