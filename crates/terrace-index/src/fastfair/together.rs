//! Lookups of many keys side by side: what one of them waits for is loaded while the others go on.
//!
//! For some keys at a time, all shortcuts are found, then all leaves are loaded, then all records, and then each key
//! is looked up as if it were alone, in what is in the processor's caches by then. Nothing depends on the steps before.

use terrace_base::Result;

use super::FastFair;
use super::key::slice;
use super::layout::{RECORD_LINE, STRAY, value_of};
use super::node::NodeRef;

/// Keys that are looked up side by side.
const TOGETHER: usize = 16;

impl<const N: usize> FastFair<N> {
    /// Appends the words of `keys` to `words`. The caller is present.
    pub(super) fn get_together(&self, keys: &[&[u8]], words: &mut Vec<Option<u64>>) -> Result<()> {
        words.reserve(keys.len());
        for keys in keys.chunks(TOGETHER) {
            let mut leaves = [None; TOGETHER];
            self.shortcuts.prefetch(keys);
            for (key, leaf) in keys.iter().zip(&mut leaves) {
                *leaf = self.shortcuts.find(key)?;
                leaf.iter().for_each(|off| self.pool.prefetch(*off, Self::NODE_BYTES));
            }
            self.pool.charge_reads(leaves.iter().flatten().map(|off| (*off, Self::NODE_BYTES)));
            for (key, off) in keys.iter().zip(leaves) {
                if let Some(leaf) = off.and_then(|off| self.node(off).ok()) {
                    self.prefetch_record(leaf, key);
                }
            }
            for (key, off) in keys.iter().zip(leaves) {
                let leaf = match off.map(|off| self.living(off)).transpose()?.flatten() {
                    Some(leaf) => Some(leaf),
                    None => self.leaf_of(key)?,
                };
                words.push(leaf.map_or(Ok(None), |leaf| self.get_in(leaf, key))?);
            }
        }
        Ok(())
    }

    /// Starts loading the record of `key`, if `leaf` has it.
    fn prefetch_record(&self, leaf: NodeRef<'_, N>, key: &[u8]) {
        let wanted = slice(key, leaf.skip());
        let is_at_or_past = |i: &usize| {
            let (slice, word) = leaf.sealed_entry(*i);
            slice >= wanted || value_of(word) == 0
        };
        let record = (0..N).find(is_at_or_past).map_or(0, |i| leaf.ptr(i));
        if record != 0 && record != STRAY {
            self.pool.prefetch(record, RECORD_LINE);
        }
    }
}
