//! The gate orders writes: single writes share it, and an operation that needs a moment without them holds it
//! alone.
//!
//! It is held for one operation, and never while its holder waits for background work, which takes it, too.

use std::sync::OnceLock;

use crossbeam_utils::CachePadded;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use terrace_pmem::thread_slot;

/// Most parts of a gate.
const MOST_PARTS: usize = 8;

/// The gate of one store. Threads share it by parts, so that sharing it costs little. Who holds it alone holds all
/// parts, which cost more the more there are: as many as threads run at the same time, up to a limit.
#[derive(Debug)]
pub(in crate::engine) struct WriteGate(Box<[CachePadded<RwLock<()>>]>);

/// The gate, shared with others.
pub(in crate::engine) type Shared<'a> = RwLockReadGuard<'a, ()>;

/// The gate, with nobody else inside.
pub(in crate::engine) struct Exclusive<'a> {
    _parts: [Option<RwLockWriteGuard<'a, ()>>; MOST_PARTS],
}

impl Default for WriteGate {
    fn default() -> Self {
        static PARTS: OnceLock<usize> = OnceLock::new();
        let parts = || std::thread::available_parallelism().map_or(MOST_PARTS, |at_once| at_once.get());
        let parts = (*PARTS.get_or_init(parts)).next_power_of_two().min(MOST_PARTS);
        WriteGate((0..parts).map(|_| CachePadded::default()).collect())
    }
}

impl WriteGate {
    /// Waits until nobody holds the gate alone.
    #[inline]
    pub(in crate::engine) fn shared(&self) -> Shared<'_> {
        self.0[thread_slot::current() & (self.0.len() - 1)].read()
    }

    /// The gate alone, if nobody holds it.
    pub(in crate::engine) fn try_exclusive(&self) -> Option<Exclusive<'_>> {
        let mut parts = [const { None }; MOST_PARTS];
        for (held, part) in parts.iter_mut().zip(&self.0) {
            *held = Some(part.try_write()?);
        }
        Some(Exclusive { _parts: parts })
    }

    /// Waits until nobody else holds the gate.
    pub(in crate::engine) fn exclusive(&self) -> Exclusive<'_> {
        let mut parts = [const { None }; MOST_PARTS];
        // All take them in one order.
        parts.iter_mut().zip(&self.0).for_each(|(held, part)| *held = Some(part.write()));
        Exclusive { _parts: parts }
    }
}
