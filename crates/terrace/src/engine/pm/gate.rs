//! The gate orders writes: single writes share it, and an operation that needs a moment without them holds it
//! alone.
//!
//! It is held for one operation, and never while its holder waits for background work, which takes it, too.

use std::sync::{PoisonError, TryLockError};

use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};

/// The gate of one store. Every thread has its own part of it, so that sharing it costs little.
#[derive(Debug, Default)]
pub(in crate::engine) struct WriteGate(ShardedLock<()>);

/// The gate, shared with others.
pub(in crate::engine) type Shared<'a> = ShardedLockReadGuard<'a, ()>;

/// The gate, with nobody else inside.
pub(in crate::engine) type Exclusive<'a> = ShardedLockWriteGuard<'a, ()>;

impl WriteGate {
    /// Waits until nobody holds the gate alone.
    #[inline]
    pub(in crate::engine) fn shared(&self) -> Shared<'_> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The gate alone, if nobody holds it.
    pub(in crate::engine) fn try_exclusive(&self) -> Option<Exclusive<'_>> {
        match self.0.try_write() {
            Ok(alone) => Some(alone),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits until nobody else holds the gate.
    pub(in crate::engine) fn exclusive(&self) -> Exclusive<'_> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
