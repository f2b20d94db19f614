//! The directory in DRAM: the same words, so that finding a segment touches no PM.
//!
//! Words are entered where the directory's are, after those, under `structure`. While the directory is being
//! doubled the mirror is blind: its words are of two depths then.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use terrace_base::Result;
use terrace_pmem::POff;

use super::Cceh;
use super::layout::Entry;

/// A directory of more bits is not mirrored: 64 MiB.
const MAX_MIRRORED: u32 = 23;

/// Nothing is mirrored.
const BLIND: u32 = u32::MAX;

/// The directory's words.
pub(super) struct Mirror {
    words: std::sync::OnceLock<Box<[AtomicU64]>>,
    /// The depth of the directory that the words are of.
    depth: AtomicU32,
}

impl Default for Mirror {
    fn default() -> Self {
        Mirror { words: Default::default(), depth: AtomicU32::new(BLIND) }
    }
}

impl Mirror {
    /// The word at `index` of a directory of `depth`, if it is mirrored.
    #[inline]
    pub fn word(&self, depth: u32, index: u64) -> Option<u64> {
        if self.depth.load(Ordering::Acquire) != depth {
            return None;
        }
        Some(self.words.get()?[index as usize].load(Ordering::Acquire))
    }

    /// Hides the mirror until [`show`](Self::show).
    pub fn hide(&self) {
        self.depth.store(BLIND, Ordering::SeqCst);
    }

    /// Shows the mirror, which has the words of a directory of `depth`.
    fn show(&self, depth: u32) {
        self.depth.store(depth, Ordering::SeqCst);
    }

    /// Enters a word, where there is a mirror.
    pub fn set(&self, index: u64, word: u64) {
        if let Some(place) = self.words.get().and_then(|words| words.get(index as usize)) {
            place.store(word, Ordering::Release);
        }
    }

    /// Bytes of DRAM that are used.
    pub fn bytes(&self, depth: u32) -> u64 {
        if self.words.get().is_some() { 8 << depth.min(MAX_MIRRORED) } else { 0 }
    }

    fn words(&self) -> &[AtomicU64] {
        self.words.get_or_init(|| {
            // Memory is taken as it is used. SAFETY: an atomic integer of zero bytes is a valid one.
            unsafe { Box::<[AtomicU64]>::new_zeroed_slice(1 << MAX_MIRRORED).assume_init() }
        })
    }
}

impl<const BUCKETS: usize, const PROBE: usize> Cceh<BUCKETS, PROBE> {
    /// Keeps the directory in DRAM too, or no longer.
    pub fn cache_directory(&self, cached: bool) {
        let _alone = self.structure.lock();
        self.mirror.hide();
        if cached && self.directory().is_ok_and(|directory| self.fill_mirror(directory).is_ok()) {
            self.mirrors.store(true, Ordering::Relaxed);
        } else {
            self.mirrors.store(false, Ordering::Relaxed);
        }
    }

    /// Fills the hidden mirror with the words of `directory` and shows it. The caller holds `structure`.
    pub(super) fn fill_mirror(&self, directory: Entry) -> Result<()> {
        if directory.depth > MAX_MIRRORED {
            return Ok(());
        }
        for (index, place) in self.mirror.words().iter().enumerate().take(1 << directory.depth) {
            let at = POff::new(directory.offset + index as u64 * 8);
            place.store(self.pool.atomic_checked(at)?.load(Ordering::Acquire), Ordering::Release);
        }
        self.mirror.show(directory.depth);
        Ok(())
    }
}
