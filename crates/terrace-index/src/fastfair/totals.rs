//! How many keys the tree holds, and how many bytes.
//!
//! Both are counted in DRAM while they are known, saved on close, and trusted on open only if that close was
//! in the session just before and the pool was closed in order. Otherwise the first who asks counts by a walk over
//! the leaves. Until then writers count nothing, and while the walk goes on they wait: they hold `gate`
//! shared whenever they started before the totals were known.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};
use terrace_base::Result;
use terrace_pmem::{Opened, POff};

use super::FastFair;
use super::layout::{self, RECORD_HEAD_BYTES, TREE_HEADER_BYTES};

#[derive(Default)]
pub(super) struct Totals {
    known: AtomicBool,
    keys: AtomicI64,
    bytes: AtomicI64,
    gate: RwLock<()>,
}

impl Totals {
    /// The totals are these.
    pub fn set(&self, keys: u64, bytes: u64) {
        self.keys.store(keys as i64, Ordering::Relaxed);
        self.bytes.store(bytes as i64, Ordering::Relaxed);
        self.known.store(true, Ordering::Release);
    }

    /// To be held by a writer; free of cost once the totals are known.
    pub fn writing(&self) -> Option<RwLockReadGuard<'_, ()>> {
        if self.known.load(Ordering::Acquire) { None } else { Some(self.gate.read()) }
    }

    /// Counts keys; without effect on totals that are not known, which will be counted anew.
    pub fn add_keys(&self, n: i64) {
        self.keys.fetch_add(n, Ordering::Relaxed);
    }

    /// Counts bytes.
    pub fn add_bytes(&self, n: i64) {
        self.bytes.fetch_add(n, Ordering::Relaxed);
    }

    fn get(&self) -> (u64, u64) {
        let read = |n: &AtomicI64| n.load(Ordering::Relaxed).max(0) as u64;
        (read(&self.keys), read(&self.bytes))
    }
}

impl<const N: usize> FastFair<N> {
    /// Keys and bytes.
    pub(super) fn counted(&self) -> (u64, u64) {
        if !self.totals.known.load(Ordering::Acquire) {
            let _alone = self.totals.gate.write();
            if !self.totals.known.load(Ordering::Acquire) {
                // A damaged tree is counted as far as it can be read; `check` says what is wrong.
                let (keys, bytes) = self.count_all();
                self.totals.set(keys, bytes);
            }
        }
        self.totals.get()
    }

    /// Takes over what the last close saved, if it can be trusted.
    pub(super) fn load_totals(&self) -> Result<()> {
        let head = self.header()?;
        let (keys, bytes) = (head.keys.load(Ordering::Acquire), head.bytes.load(Ordering::Acquire));
        let crc = head.totals_crc.load(Ordering::Acquire);
        let last = self.generation.wrapping_sub(1);
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
        head.bytes.store(bytes, Ordering::Relaxed);
        head.totals_crc.store(layout::totals_crc(keys, bytes, self.generation), Ordering::Release);
        self.pool.persist(self.header_off, TREE_HEADER_BYTES);
        Ok(())
    }

    fn count_all(&self) -> (u64, u64) {
        let _here = self.limbo.enter();
        let mut keys = 0;
        let mut bytes = TREE_HEADER_BYTES;
        // An error ends the walk; what was counted until then stands.
        let _ = self.for_each_node(&mut |node| {
            bytes += Self::NODE_BYTES + self.key_object_bytes(node.n.prefix)?;
            if node.level() > 0 {
                return Ok(());
            }
            bytes += self.key_object_bytes(node.n.low)?;
            for i in 0..node.count() {
                let ptr = node.ptr(i);
                if i > 0 && ptr == node.ptr(i - 1) {
                    continue;
                }
                keys += u64::from(self.pool.atomic_checked(POff::new(ptr))?.load(Ordering::Acquire) != 0);
                bytes += RECORD_HEAD_BYTES + self.record_key(ptr)?.len() as u64;
            }
            Ok(())
        });
        (keys, bytes)
    }
}
