//! The locks of segments: one word each, in DRAM, odd while a writer is at work.
//!
//! Readers take none. They read the word before and after: between two equal values at most one writer, the one that
//! the word announced, has changed the segment.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crossbeam_utils::Backoff;

/// A lock for every place where a segment may lie.
pub(super) struct Locks {
    words: Box<[AtomicU64]>,
    /// Segments begin at multiples of this.
    grain: u64,
}

/// A locked segment; unlocked when dropped.
pub(super) struct Held<'a>(&'a AtomicU64);

impl Locks {
    /// Locks for segments at multiples of `grain` bytes in a pool of at most `pool_bytes`. Memory is taken for those
    /// that are used, page by page.
    pub fn new(pool_bytes: u64, grain: u64) -> Self {
        let count = (pool_bytes / grain + 1) as usize;
        // SAFETY: an atomic integer of zero bytes is a valid one.
        let words = unsafe { Box::<[AtomicU64]>::new_zeroed_slice(count).assume_init() };
        Locks { words, grain }
    }

    /// Whether there is a lock for a segment at `offset`.
    #[inline]
    pub fn cover(&self, offset: u64) -> bool {
        offset.is_multiple_of(self.grain) && offset / self.grain < self.words.len() as u64
    }

    /// The lock word of the segment at `offset`, which lies in the pool.
    #[inline]
    pub fn word(&self, offset: u64) -> &AtomicU64 {
        &self.words[(offset / self.grain) as usize]
    }

    /// Locks the segment at `offset`.
    pub fn lock(&self, offset: u64) -> Held<'_> {
        let word = self.word(offset);
        let backoff = Backoff::new();
        loop {
            let seen = word.load(Ordering::Relaxed);
            if seen & 1 == 0
                && word.compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                // A reader that still sees the even word at its end must not see stores from now on.
                fence(Ordering::Release);
                return Held(word);
            }
            backoff.snooze();
        }
    }
}

impl Held<'_> {
    /// Makes active readers begin again: later changes must not be mixed with the state before.
    pub fn turn(&self) {
        self.0.fetch_add(2, Ordering::AcqRel);
        fence(Ordering::Release);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// Whether a writer is at work.
#[inline]
pub(super) fn is_busy(word: u64) -> bool {
    word & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_exclude_and_move_on() {
        let locks = Locks::new(1 << 20, 128);
        let word = locks.word(256);
        assert!(!is_busy(word.load(Ordering::Relaxed)));
        let held = locks.lock(256);
        assert!(is_busy(word.load(Ordering::Relaxed)));
        held.turn();
        drop(held);
        assert_eq!(word.load(Ordering::Relaxed), 4);
        let mut sum = 0u64;
        let shared = std::sync::atomic::AtomicPtr::new(&mut sum);
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    for _ in 0..2000 {
                        let _held = locks.lock(512);
                        // SAFETY: the lock is held, so no other thread is here.
                        unsafe { *shared.load(Ordering::Relaxed) += 1 };
                    }
                });
            }
        });
        assert_eq!(sum, 6000);
    }
}
