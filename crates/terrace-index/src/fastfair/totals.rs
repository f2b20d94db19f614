//! How many keys the tree holds, and how many bytes.

use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_pmem::POff;

use super::FastFair;
use super::layout::{RECORD_HEAD_BYTES, TREE_HEADER_BYTES};
use crate::totals::SavedTotals;

impl<const N: usize> FastFair<N> {
    /// Keys and bytes. A damaged tree is counted as far as it can be read; `check` says what is wrong.
    pub(super) fn counted(&self) -> (u64, u64) {
        self.totals.counted(|| self.count_all())
    }

    /// The totals of the last close, and the place for those of the next one.
    pub(super) fn saved_totals(&self) -> Result<SavedTotals<'_>> {
        let head = self.header()?;
        let header = (self.header_off, TREE_HEADER_BYTES);
        Ok(SavedTotals { keys: &head.keys, bytes: &head.bytes, crc: &head.totals_crc, header })
    }

    fn count_all(&self) -> (u64, u64) {
        let _here = self.limbo.enter();
        let mut keys = 0;
        let mut bytes = TREE_HEADER_BYTES;
        // An error ends the walk; the counts until then stand.
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
