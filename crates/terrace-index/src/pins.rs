//! Readers counted without a fence on their path.
//!
//! [`Counters`] cost a reader two locked instructions, which wait for every load before them. For an operation of a few
//! loads, which the processor would overlap with the next operation's, that is most of its time. Here each thread has
//! its own slot, in which it notes the epoch that it entered in. The freeing thread pays instead: before it reads the
//! slots, it asks the kernel for a barrier in every running thread of the process (`membarrier`).
//!
//! 1. A slot is written by its thread alone: the epoch and how many presences are nested, or 0.
//! 2. Between its slot's store and its further loads a reader needs a full barrier. If the slot's store is not seen by
//!    a thread that looks after its barrier, then the reader's loads come after that barrier, and so after the
//!    unlinking.
//! 3. The epoch goes on only when every slot is 0 or of that epoch, and no shared reader of the one before is left.
//! 4. The epoch of the shared readers follows the epoch and is never ahead of it. So an object that is retired in an
//!    epoch is not seen by shared readers of a later one.
//!
//! Threads without a number of their own (`thread_slot`) are counted as in `Counters`. Without the system call,
//! readers make the barrier themselves.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};

use crossbeam_utils::CachePadded;
use terrace_pmem::thread_slot;

use crate::limbo::{Counters, Presence, Readers};

/// Where the epoch begins in a slot; below it is the nesting.
const EPOCH_SHIFT: u32 = 20;

/// Readers in slots of their threads.
#[derive(Debug)]
pub struct Pins {
    epoch: AtomicU64,
    /// The epoch in the form that a quick pin notes.
    stamp: AtomicU64,
    slots: Box<[CachePadded<Slots>; thread_slot::EXCLUSIVE]>,
    /// Whether the kernel makes the readers' barriers.
    asymmetric: bool,
    shared: Counters,
}

/// A thread's notes.
#[derive(Debug, Default)]
struct Slots {
    /// Its presences.
    pin: AtomicU64,
    /// Its quick pin.
    quick: AtomicU64,
}

impl Default for Pins {
    fn default() -> Self {
        Pins {
            epoch: AtomicU64::new(2),
            stamp: AtomicU64::new(2 << EPOCH_SHIFT | 1),
            slots: Box::new(std::array::from_fn(|_| CachePadded::default())),
            asymmetric: barrier::is_asymmetric(),
            shared: Counters::default(),
        }
    }
}

/// A reader's presence; stays with its thread.
#[derive(Debug)]
pub struct Pin<'a> {
    slot: Option<&'a AtomicU64>,
    _shared: Option<Presence<'a>>,
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            let now = slot.load(Ordering::Relaxed);
            let nested = now & ((1 << EPOCH_SHIFT) - 1);
            slot.store(if nested > 1 { now - 1 } else { 0 }, Ordering::Release);
        }
    }
}

impl Readers for Pins {
    type Presence<'a> = Pin<'a>;
    /// A barrier in every thread takes tens of microseconds, which this many share. With more of them, freed memory
    /// would have left the processor's cache before it is reused.
    const ADVANCE_EVERY: usize = 128;

    #[inline]
    fn enter(&self) -> Pin<'_> {
        let Some(slots) = self.slots.get(thread_slot::current()) else { return self.enter_shared() };
        let slot = &slots.pin;
        let now = slot.load(Ordering::Relaxed);
        let next = if now == 0 { self.epoch.load(Ordering::Relaxed) << EPOCH_SHIFT | 1 } else { now + 1 };
        slot.store(next, Ordering::Relaxed);
        if self.asymmetric {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
        Pin { slot: Some(slot), _shared: None, _of_this_thread: PhantomData }
    }

    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    fn advance(&self) -> Option<u64> {
        self.advance_in_steps(|| ())
    }
}

/// A presence that takes one store. No other quick pin begins within it: a thread has one at most.
#[derive(Debug)]
pub(crate) struct QuickPin<'a> {
    slot: &'a AtomicU64,
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for QuickPin<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.slot.store(0, Ordering::Release);
    }
}

impl Pins {
    /// Whether [`pin_quickly`](Self::pin_quickly) may be called.
    pub(crate) fn has_quick_pins(&self) -> bool {
        self.asymmetric
    }

    /// Announces a reader that takes no other quick pin while it is there: cheaper than `enter`. `None`: use `enter`.
    /// Only where [`has_quick_pins`](Self::has_quick_pins) says so.
    #[inline(always)]
    pub(crate) fn pin_quickly(&self) -> Option<QuickPin<'_>> {
        debug_assert!(self.asymmetric);
        let slot = &self.slots.get(thread_slot::known())?.quick;
        slot.store(self.stamp.load(Ordering::Relaxed), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Some(QuickPin { slot, _of_this_thread: PhantomData })
    }

    /// [`advance`](Readers::advance); `step` is called between its steps, where other threads may act.
    fn advance_in_steps(&self, mut step: impl FnMut()) -> Option<u64> {
        if self.asymmetric {
            barrier::everywhere()
        } else {
            fence(Ordering::SeqCst)
        }
        let epoch = self.epoch();
        let is_current = |slot: &AtomicU64| {
            let seen = slot.load(Ordering::Acquire);
            seen == 0 || seen >> EPOCH_SHIFT == epoch
        };
        if !self.slots.iter().all(|slots| is_current(&slots.pin) && is_current(&slots.quick)) {
            return None;
        }
        // In step with the epoch here: both begin at 2, and only this moves either.
        if !self.shared.may_advance() {
            return None;
        }
        step();
        self.epoch.store(epoch + 1, Ordering::SeqCst);
        step();
        self.stamp.store((epoch + 1) << EPOCH_SHIFT | 1, Ordering::SeqCst);
        step();
        self.shared.set_epoch(epoch + 1);
        step();
        Some(epoch + 1)
    }

    #[cold]
    fn enter_shared(&self) -> Pin<'_> {
        Pin { slot: None, _shared: Some(self.shared.enter()), _of_this_thread: PhantomData }
    }
}

#[cfg(target_os = "linux")]
mod barrier {
    use std::sync::OnceLock;

    use rustix::thread::{MembarrierCommand, membarrier};

    /// Whether [`everywhere`] works in this process.
    pub(super) fn is_asymmetric() -> bool {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        *REGISTERED.get_or_init(|| membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok())
    }

    /// A full barrier in every running thread of the process; those that do not run pass one before they do.
    pub(super) fn everywhere() {
        let made = membarrier(MembarrierCommand::PrivateExpedited);
        assert!(made.is_ok(), "a process that has registered for membarrier may use it: {made:?}");
    }
}

#[cfg(not(target_os = "linux"))]
mod barrier {
    pub(super) fn is_asymmetric() -> bool {
        false
    }

    pub(super) fn everywhere() {
        super::fence(super::Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limbo::Limbo;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    fn recording(readers: Pins) -> (Limbo<u32, Pins>, Arc<AtomicUsize>) {
        let freed = Arc::new(AtomicUsize::new(0));
        let count = freed.clone();
        let free = move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        };
        (Limbo::with(readers, free), freed)
    }

    #[test]
    fn a_reader_keeps_what_it_may_see_however_nested() {
        for asymmetric in [false, barrier::is_asymmetric()] {
            let (limbo, freed) = recording(Pins { asymmetric, ..Pins::default() });
            let outer = limbo.enter();
            let inner = limbo.enter();
            limbo.retire(1);
            drop(inner);
            (0..10).for_each(|_| limbo.advance());
            assert_eq!(freed.load(Ordering::SeqCst), 0);
            drop(outer);
            limbo.drain();
            assert_eq!(freed.load(Ordering::SeqCst), 1);
        }
    }

    #[test]
    fn shared_readers_count() {
        let (limbo, freed) = recording(Pins::default());
        let reader = limbo.readers().enter_shared();
        limbo.retire(1);
        (0..10).for_each(|_| limbo.advance());
        assert_eq!(freed.load(Ordering::SeqCst), 0);
        drop(reader);
        limbo.drain();
        assert_eq!(freed.load(Ordering::SeqCst), 1);
    }

    /// A reader that keeps itself until it is dropped.
    trait Stays {}
    impl<T> Stays for T {}

    type Enter = for<'a> fn(&'a Pins) -> Box<dyn Stays + 'a>;

    /// Readers of every sort enter between any two steps of an advance, and objects that they see are unlinked between
    /// any two later ones.
    #[test]
    fn nothing_is_freed_under_a_reader_that_met_a_half_made_advance() {
        const STEPS: usize = 4;
        let sorts: [(&str, Enter); 3] = [
            ("shared", |pins| Box::new(pins.enter_shared())),
            ("of a slot", |pins| Box::new(pins.enter())),
            ("quick", |pins| match pins.has_quick_pins() {
                true => Box::new(pins.pin_quickly()),
                false => Box::new(pins.enter()),
            }),
        ];
        thread_slot::current();
        for (sort, enter) in sorts {
            for (entered, retired) in (0..STEPS).flat_map(|e| (e..STEPS).map(move |r| (e, r))) {
                let (limbo, freed) = recording(Pins::default());
                let (mut reader, mut at) = (None, 0);
                let advanced = limbo.readers().advance_in_steps(|| {
                    if at == entered {
                        reader = Some(enter(limbo.readers()));
                    }
                    if at == retired {
                        limbo.retire(1);
                    }
                    at += 1;
                });
                assert_eq!((advanced, at), (Some(3), STEPS));
                (0..10).for_each(|_| limbo.advance());
                let told = format!("{sort}, entered at step {entered}, retired at step {retired}");
                assert_eq!(freed.load(Ordering::SeqCst), 0, "freed under a reader: {told}");
                drop(reader);
                limbo.drain();
                assert_eq!(freed.load(Ordering::SeqCst), 1, "{told}");
            }
        }
    }

    #[test]
    fn nothing_is_freed_under_a_reader_among_threads() {
        let alive: Arc<Vec<AtomicUsize>> = Arc::new((0..3000).map(|_| AtomicUsize::new(1)).collect());
        let current = AtomicUsize::new(0);
        let limbo = {
            let alive = alive.clone();
            Limbo::with(Pins::default(), move |i: usize| alive[i].store(0, Ordering::SeqCst))
        };
        std::thread::scope(|s| {
            // More than have slots of their own.
            for _ in 0..thread_slot::EXCLUSIVE + 16 {
                s.spawn(|| {
                    while current.load(Ordering::Acquire) + 1 < alive.len() {
                        let _here = limbo.enter();
                        let i = current.load(Ordering::Acquire);
                        (0..50).for_each(|_| assert_eq!(alive[i].load(Ordering::Relaxed), 1));
                    }
                });
            }
            for i in 0..alive.len() - 1 {
                current.store(i + 1, Ordering::Release);
                limbo.retire(i);
            }
        });
        limbo.drain();
        assert_eq!(alive.iter().filter(|a| a.load(Ordering::SeqCst) == 1).count(), 1);
    }
}
