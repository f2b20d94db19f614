//! How many keys the table holds, and the bytes of its records.
//!
//! Both are counted in DRAM while they are known, saved on close, and trusted on open only if that close was in
//! the session just before and the pool was closed in order. Otherwise the first who asks counts by a walk. Until
//! then writers count in vain, and while the walk goes on they wait: they hold `gate` shared whenever they
//! started before the totals were known.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::{RwLock, RwLockReadGuard};
use terrace_base::Result;
use terrace_pmem::Opened;

use super::Cceh;
use super::layout::{self, HEADER_BYTES};

#[derive(Default)]
pub(super) struct Totals {
    known: AtomicBool,
    keys: CachePadded<AtomicI64>,
    pair_bytes: CachePadded<AtomicI64>,
    gate: RwLock<()>,
}

impl Totals {
    /// The totals are these.
    pub fn set(&self, keys: u64, pair_bytes: u64) {
        self.keys.store(keys as i64, Ordering::Relaxed);
        self.pair_bytes.store(pair_bytes as i64, Ordering::Relaxed);
        self.known.store(true, Ordering::Release);
    }

    /// To be held by a writer; free of cost once the totals are known.
    #[inline]
    pub fn writing(&self) -> Option<RwLockReadGuard<'_, ()>> {
        if self.known.load(Ordering::Acquire) { None } else { Some(self.gate.read()) }
    }

    #[inline]
    pub fn add(&self, keys: i64, pair_bytes: i64) {
        if keys != 0 {
            self.keys.fetch_add(keys, Ordering::Relaxed);
        }
        if pair_bytes != 0 {
            self.pair_bytes.fetch_add(pair_bytes, Ordering::Relaxed);
        }
    }

    fn get(&self) -> (u64, u64) {
        let read = |n: &AtomicI64| n.load(Ordering::Relaxed).max(0) as u64;
        (read(&self.keys), read(&self.pair_bytes))
    }
}

impl<const BUCKETS: usize, const PROBE: usize> Cceh<BUCKETS, PROBE> {
    /// Keys, and bytes of records.
    pub(super) fn counted(&self) -> (u64, u64) {
        if !self.totals.known.load(Ordering::Acquire) {
            let _alone = self.totals.gate.write();
            if !self.totals.known.load(Ordering::Acquire) {
                let (keys, pair_bytes) = self.count_all();
                self.totals.set(keys, pair_bytes);
            }
        }
        self.totals.get()
    }

    /// Takes over what the last close saved, if it can be trusted.
    pub(super) fn load_totals(&self) -> Result<()> {
        let head = self.header()?;
        let (keys, bytes) = (head.keys.load(Ordering::Acquire), head.pair_bytes.load(Ordering::Acquire));
        let crc = head.totals_crc.load(Ordering::Acquire);
        let last = self.pool.generation().wrapping_sub(1);
        if self.pool.opened() == Opened::Clean && crc == layout::totals_crc(keys, bytes, last) {
            self.totals.set(keys, bytes);
        }
        Ok(())
    }

    /// Saves the totals for the next session.
    pub(super) fn save_totals(&self) -> Result<()> {
        if !self.totals.known.load(Ordering::Acquire) {
            return Ok(());
        }
        let (keys, bytes) = self.totals.get();
        let head = self.header()?;
        head.keys.store(keys, Ordering::Relaxed);
        head.pair_bytes.store(bytes, Ordering::Relaxed);
        let crc = layout::totals_crc(keys, bytes, self.pool.generation());
        head.totals_crc.store(crc, Ordering::Release);
        self.pool.persist(self.header_off, HEADER_BYTES);
        Ok(())
    }
}
