//! Who writes beside whom: single writes beside each other, everything that needs a moment without them alone.
//!
//! A turn is taken for one operation and never while background work is waited for, which takes turns itself.

use std::sync::PoisonError;

use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};

/// The turns of one store.
#[derive(Debug, Default)]
pub(super) struct Turns(ShardedLock<()>);

/// A turn beside others.
pub(super) type Shared<'a> = ShardedLockReadGuard<'a, ()>;

/// A turn alone.
pub(super) type Alone<'a> = ShardedLockWriteGuard<'a, ()>;

impl Turns {
    /// Takes a turn beside others.
    #[inline]
    pub fn share(&self) -> Shared<'_> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a turn alone: every turn before it is over.
    pub fn alone(&self) -> Alone<'_> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
