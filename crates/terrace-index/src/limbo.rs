//! Decides when memory that was unlinked from a persistent structure may be given back to its pool.
//!
//! Readers run without locks, so a node that has just been unlinked may still be in use. It waits in limbo until all
//! readers that could see it have left. This is epoch-based reclamation with state of its own for each structure, not
//! one for the whole process: closing a database empties its limbo and lets its pool go, and a simulated run frees at
//! the same moments every time.
//!
//! 1. A reader is counted in the slot of the parity of the epoch it entered in.
//! 2. The epoch goes from `e` to `e + 1` only when no reader of `e - 1` is left.
//! 3. An object that was retired in epoch `r` is freed once the epoch is at least `r + 2`: readers that entered in `r`
//!    or before have left, and later ones entered after the unlink.
//!
//! A crash forgets limbo; the objects in it are unreachable and are reclaimed by the pool's marks.

use std::fmt::Debug;

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering};

/// Reader counters per parity; threads spread over them.
const SHARDS: usize = 16;

/// Frees a retired object.
type Free<T> = Box<dyn Fn(T) + Send + Sync>;

/// How readers are counted (invariants 1 and 2).
pub trait Readers {
    /// A reader's presence: nothing it can reach is freed before it is dropped.
    type Presence<'a>
    where
        Self: 'a;

    /// Things parked before a retiring thread tries to advance the epoch.
    const ADVANCE_EVERY: usize;

    /// Announces a reader. Readers may nest.
    fn enter(&self) -> Self::Presence<'_>;

    /// The epoch.
    fn epoch(&self) -> u64;

    /// Moves the epoch on by one if no reader of the one before it is left; the epoch then. Called by one thread at
    /// a time.
    fn advance(&self) -> Option<u64>;
}

/// Readers counted in shared counters by the parity of the epoch.
#[derive(Debug)]
pub struct Counters {
    epoch: AtomicU64,
    readers: [[CachePadded<AtomicUsize>; SHARDS]; 2],
}

impl Default for Counters {
    fn default() -> Self {
        Counters { epoch: AtomicU64::new(2), readers: Default::default() }
    }
}

impl Readers for Counters {
    type Presence<'a> = Presence<'a>;
    const ADVANCE_EVERY: usize = 64;

    fn enter(&self) -> Presence<'_> {
        loop {
            let epoch = self.epoch();
            let slot = &self.readers[(epoch & 1) as usize][shard()];
            slot.fetch_add(1, Ordering::SeqCst);
            let presence = Presence(slot);
            if self.epoch() == epoch {
                return presence;
            }
        }
    }

    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    fn advance(&self) -> Option<u64> {
        let next = self.epoch() + 1;
        self.may_advance().then(|| self.set_epoch(next)).map(|()| next)
    }
}

impl Counters {
    /// Whether no reader of the epoch before is left; none comes any more.
    pub(crate) fn may_advance(&self) -> bool {
        let before = &self.readers[(self.epoch().wrapping_sub(1) & 1) as usize];
        before.iter().all(|count| count.load(Ordering::SeqCst) == 0)
    }

    /// Moves the epoch on to `next`, the following one. The caller advances alone and [may](Self::may_advance).
    pub(crate) fn set_epoch(&self, next: u64) {
        self.epoch.store(next, Ordering::SeqCst);
    }
}

/// Unlinked things of type `T` (offsets, lists, whole extents) waiting for their readers.
pub struct Limbo<T: Send, R: Readers = Counters> {
    readers: R,
    /// Ascending by epoch: it is read under the lock.
    parked: Mutex<Vec<(u64, T)>>,
    /// Held while the epoch is moved on, which may take long; things are parked meanwhile.
    advancing: Mutex<()>,
    /// Threads that are freeing objects that they have taken out of `parked`. Incremented under its lock.
    freeing: AtomicUsize,
    free: Free<T>,
}

/// A reader's presence: nothing it can reach is freed before it is dropped.
#[derive(Debug)]
pub struct Presence<'a>(&'a AtomicUsize);

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Counts a freeing thread out, also after a panic.
struct Freeing<'a>(&'a AtomicUsize);

impl Drop for Freeing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<T: Send> Limbo<T> {
    /// A limbo whose things are given back by `free`.
    pub fn new(free: impl Fn(T) + Send + Sync + 'static) -> Self {
        Limbo::with(Counters::default(), free)
    }
}

impl<T: Send, R: Readers> Limbo<T, R> {
    /// A limbo with these readers, whose things are given back by `free`.
    pub fn with(readers: R, free: impl Fn(T) + Send + Sync + 'static) -> Self {
        let (parked, advancing) = (Mutex::new(Vec::new()), Mutex::new(()));
        Limbo { readers, parked, advancing, freeing: AtomicUsize::new(0), free: Box::new(free) }
    }

    /// Announces a reader. Cheap; readers may nest.
    #[inline]
    pub fn enter(&self) -> R::Presence<'_> {
        self.readers.enter()
    }

    /// The readers.
    #[inline(always)]
    pub fn readers(&self) -> &R {
        &self.readers
    }

    /// Parks `thing`, whose unlinking is durable. It is freed when nobody can see it any more.
    pub fn retire(&self, thing: T) {
        let mut parked = self.parked.lock();
        parked.push((self.readers.epoch(), thing));
        let due = parked.len().is_multiple_of(R::ADVANCE_EVERY);
        drop(parked);
        if due {
            self.advance();
        }
    }

    /// Frees as much as possible now.
    pub fn advance(&self) {
        let advancing = self.advancing.lock();
        let Some(epoch) = self.readers.advance() else { return };
        drop(advancing);
        let mut parked = self.parked.lock();
        let kept = parked.partition_point(|(retired, _)| retired + 2 <= epoch);
        if kept == 0 {
            return;
        }
        let ready: Vec<_> = parked.drain(..kept).collect();
        self.freeing.fetch_add(1, Ordering::SeqCst);
        let _freeing = Freeing(&self.freeing);
        drop(parked);
        ready.into_iter().for_each(|(_, thing)| (self.free)(thing));
    }

    /// Things parked.
    pub fn len(&self) -> usize {
        self.parked.lock().len()
    }

    /// Whether everything that was retired has been freed: nothing is parked, and nobody is still at it.
    pub fn is_empty(&self) -> bool {
        self.parked.lock().is_empty() && self.freeing.load(Ordering::SeqCst) == 0
    }

    /// Calls `visit` with everything that is parked.
    pub fn for_each(&self, visit: impl FnMut(&T)) {
        self.parked.lock().iter().map(|(_, thing)| thing).for_each(visit);
    }

    /// Frees as much as present readers allow; everything when there are none.
    pub fn drain(&self) {
        for _ in 0..3 {
            self.advance();
        }
    }
}

impl<T: Send, R: Readers> Debug for Limbo<T, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Limbo").field("epoch", &self.readers.epoch()).field("parked", &self.len()).finish()
    }
}

impl<T: Send, R: Readers> Drop for Limbo<T, R> {
    fn drop(&mut self) {
        // Exclusive: no reader borrows this limbo any more.
        let parked = std::mem::take(self.parked.get_mut());
        parked.into_iter().for_each(|(_, thing)| (self.free)(thing));
    }
}

/// This thread's reader counter.
fn shard() -> usize {
    use std::cell::Cell;
    use std::sync::atomic::AtomicUsize;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS));
    MINE.with(Cell::get)
}

#[cfg(all(test, not(terrace_model)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn recording() -> (Limbo<u32>, Arc<Mutex<Vec<u32>>>) {
        let freed = Arc::new(Mutex::new(Vec::new()));
        let sink = freed.clone();
        (Limbo::new(move |x| sink.lock().push(x)), freed)
    }

    #[test]
    fn a_reader_keeps_what_it_may_see() {
        let (limbo, freed) = recording();
        let reader = limbo.enter();
        limbo.retire(1);
        for _ in 0..10 {
            limbo.advance();
        }
        assert!(freed.lock().is_empty());
        drop(reader);
        limbo.drain();
        assert_eq!(*freed.lock(), [1]);
    }

    #[test]
    fn a_later_reader_does_not_hold_up_earlier_things() {
        let (limbo, freed) = recording();
        limbo.retire(1);
        limbo.advance();
        let _reader = limbo.enter();
        limbo.advance();
        assert_eq!(*freed.lock(), [1]);
    }

    /// Before memory that a crash left is given out again, no free may still be to come, whatever the freeing thread's
    /// position.
    #[test]
    fn what_is_being_freed_is_not_gone_yet() {
        use std::sync::mpsc::sync_channel;
        let ((begun, begins), (go_on, goes_on)) = (sync_channel(0), sync_channel::<()>(0));
        let goes_on = Mutex::new(goes_on);
        let limbo = Limbo::new(move |_: u32| {
            begun.send(()).unwrap();
            goes_on.lock().recv().unwrap();
        });
        limbo.retire(1);
        std::thread::scope(|scope| {
            scope.spawn(|| limbo.drain());
            begins.recv().unwrap();
            limbo.drain();
            let is_empty = limbo.is_empty();
            go_on.send(()).unwrap();
            assert!(!is_empty);
        });
        assert!(limbo.is_empty());
    }

    #[test]
    fn dropping_frees_everything() {
        let (limbo, freed) = recording();
        limbo.retire(1);
        limbo.retire(2);
        drop(limbo);
        assert_eq!(*freed.lock(), [1, 2]);
    }

    #[test]
    fn nothing_is_freed_under_a_reader_among_threads() {
        // A cell is "alive" until freed; readers check that what they reached stays alive.
        let alive: Arc<Vec<AtomicUsize>> = Arc::new((0..2000).map(|_| AtomicUsize::new(1)).collect());
        let current = Arc::new(AtomicUsize::new(0));
        let limbo = {
            let alive = alive.clone();
            Limbo::new(move |i: usize| alive[i].store(0, Ordering::SeqCst))
        };
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    while current.load(Ordering::SeqCst) + 1 < alive.len() {
                        let _here = limbo.enter();
                        let i = current.load(Ordering::SeqCst);
                        for _ in 0..50 {
                            assert_eq!(alive[i].load(Ordering::SeqCst), 1);
                        }
                    }
                });
            }
            for i in 0..alive.len() - 1 {
                current.store(i + 1, Ordering::SeqCst);
                limbo.retire(i);
            }
        });
        limbo.drain();
        assert_eq!(alive.iter().filter(|a| a.load(Ordering::SeqCst) == 1).count(), 1);
    }
}
