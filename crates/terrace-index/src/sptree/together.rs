//! Lookups of many keys side by side: what one of them waits for is loaded while the others go on.
//!
//! For some keys at a time, all nodes are found, then all slots that may have a key are loaded, then the records of
//! these, and then each key is looked up as if it were alone, in what is in the processor's caches by then.

use terrace_base::Result;

use super::Core;
use super::key::Probe;
use super::layout::{OFFSET_MASK, RECORD};
use super::leaf::{RECORD_LINE, load};
use super::mnode::Mnode;

/// Keys that are looked up side by side.
const TOGETHER: usize = 16;

impl Core {
    /// Appends the words of `keys` to `words`. The caller is present.
    pub(super) fn get_together(&self, keys: &[&[u8]], words: &mut Vec<Option<u64>>) -> Result<()> {
        words.reserve(keys.len());
        for keys in keys.chunks(TOGETHER) {
            let probes: Vec<Probe<'_>> = keys.iter().map(|key| Probe::new(key)).collect();
            let nodes: Vec<Option<&Mnode>> =
                probes.iter().map(|probe| self.leading_to(probe, false)).collect();
            let located: Vec<_> = nodes
                .into_iter()
                .zip(&probes)
                .map(|(node, probe)| {
                    let found = node.and_then(|node| Self::fitting(node, probe, false));
                    found.into_iter().for_each(|(node, _)| self.prefetch_candidates(node, probe));
                    found
                })
                .collect();
            for ((node, _), probe) in located.iter().flatten().zip(&probes) {
                self.prefetch_records(node, probe);
            }
            for (probe, located) in probes.iter().zip(located) {
                words.push(self.get_from(probe, located)?);
            }
        }
        Ok(())
    }

    /// The slots of `node` that may have the key, as of now.
    fn candidates<'n>(&'n self, node: &'n Mnode, probe: &Probe<'_>) -> impl Iterator<Item = usize> + 'n {
        let mut left = node.candidates(&self.arena.shape, probe.hash);
        std::iter::from_fn(move || {
            let slot = (left != 0).then(|| left.trailing_zeros() as usize);
            left &= left.wrapping_sub(1);
            slot
        })
    }

    /// Starts loading those slots.
    fn prefetch_candidates(&self, node: &Mnode, probe: &Probe<'_>) {
        self.candidates(node, probe).for_each(|slot| self.prefetch_slot(node.leaf(), slot, false));
    }

    /// Starts loading the records in those slots. Their contents may be changing: it is only a hint.
    fn prefetch_records(&self, node: &Mnode, probe: &Probe<'_>) {
        let Ok(leaf) = self.leaf(node.leaf()) else { return };
        for ((key_word, _, kind), _) in self.candidates(node, probe).map(|slot| load(leaf, slot)) {
            if kind == RECORD {
                self.pool.prefetch(key_word & OFFSET_MASK, RECORD_LINE);
            }
        }
    }
}
