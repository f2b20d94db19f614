//! How many keys an index holds, and how many bytes.
//!
//! Both are counted in DRAM while they are known, saved on close, and trusted on open only if that close was in the
//! session just before and the pool was closed in order. Otherwise the first question counts by a walk. Until then
//! writers' counts are ignored, and during the walk writers wait: they hold `gate` shared if they started before the
//! totals were known.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::{RwLock, RwLockReadGuard};
use terrace_base::checksum::{crc32c, crc32c_append};
use terrace_pmem::{Opened, Pool};

/// The totals of one index.
#[derive(Debug, Default)]
pub struct Totals {
    known: AtomicBool,
    keys: CachePadded<AtomicI64>,
    bytes: CachePadded<AtomicI64>,
    gate: RwLock<()>,
}

/// The place in the index's header where a close saves them.
#[derive(Debug)]
pub struct SavedTotals<'h> {
    /// The keys.
    pub keys: &'h AtomicU64,
    /// The bytes.
    pub bytes: &'h AtomicU64,
    /// The checksum of both and of the session; 0 where nothing was saved.
    pub crc: &'h AtomicU32,
    /// Where the header lies in the pool, and its bytes.
    pub header: (u64, u64),
}

impl Totals {
    /// The totals are these.
    pub fn set(&self, keys: u64, bytes: u64) {
        self.keys.store(keys as i64, Ordering::Relaxed);
        self.bytes.store(bytes as i64, Ordering::Relaxed);
        self.known.store(true, Ordering::Release);
    }

    /// To be held by a writer; free of cost once the totals are known.
    #[inline]
    pub fn writing(&self) -> Option<RwLockReadGuard<'_, ()>> {
        if self.known.load(Ordering::Acquire) { None } else { Some(self.gate.read()) }
    }

    /// Counts. Has no effect while the totals are not known, since they will be counted by a walk.
    #[inline]
    pub fn add(&self, keys: i64, bytes: i64) {
        if keys != 0 {
            self.keys.fetch_add(keys, Ordering::Relaxed);
        }
        if bytes != 0 {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Keys and bytes, by the walk `count` if they are not known.
    pub fn counted(&self, count: impl FnOnce() -> (u64, u64)) -> (u64, u64) {
        if !self.known.load(Ordering::Acquire) {
            let _alone = self.gate.write();
            if !self.known.load(Ordering::Acquire) {
                let (keys, bytes) = count();
                self.set(keys, bytes);
            }
        }
        self.get()
    }

    /// Takes over the totals of the last close, if they can be trusted.
    pub fn load(&self, pool: &Pool, saved: &SavedTotals<'_>) {
        let (keys, bytes) = (saved.keys.load(Ordering::Acquire), saved.bytes.load(Ordering::Acquire));
        let last = pool.generation().wrapping_sub(1);
        if pool.opened() == Opened::Clean && saved.crc.load(Ordering::Acquire) == crc_of(keys, bytes, last) {
            self.set(keys, bytes);
        }
    }

    /// Saves the totals for the next session, durably; does nothing if they are not known.
    pub fn save(&self, pool: &Pool, saved: &SavedTotals<'_>) {
        if !self.known.load(Ordering::Acquire) {
            return;
        }
        let (keys, bytes) = self.get();
        saved.keys.store(keys, Ordering::Relaxed);
        saved.bytes.store(bytes, Ordering::Relaxed);
        saved.crc.store(crc_of(keys, bytes, pool.generation()), Ordering::Release);
        let (at, len) = saved.header;
        pool.persist(at, len);
    }

    fn get(&self) -> (u64, u64) {
        let read = |n: &AtomicI64| n.load(Ordering::Relaxed).max(0) as u64;
        (read(&self.keys), read(&self.bytes))
    }
}

/// The checksum of totals saved in session `generation`, never 0.
fn crc_of(keys: u64, bytes: u64, generation: u64) -> u32 {
    let mut crc = crc32c(&keys.to_le_bytes());
    crc = crc32c_append(crc, &bytes.to_le_bytes());
    crc32c_append(crc, &generation.to_le_bytes()).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_before_the_totals_were_known_counts_once() {
        let totals = Totals::default();
        drop(totals.writing().expect("not known yet"));
        totals.add(1, 10);
        assert_eq!(totals.counted(|| (1, 10)), (1, 10));
        assert!(totals.writing().is_none());
        totals.add(2, -4);
        assert_eq!(totals.counted(|| unreachable!("known")), (3, 6));
    }

    #[test]
    fn golden_checksum() {
        assert_eq!(crc_of(3, 4096, 7), 3508027071);
    }
}
