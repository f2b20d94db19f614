//! Many changes of an index at once: all new nodes are written before the first is linked, so that two drains make
//! them durable.

use std::sync::atomic::Ordering;

use terrace_base::Result;

use super::Record;
use super::index::{INDEX_KIND, SkipIndex};
use super::write::{Linked, Staged};
use crate::ordered::OrderedIndex;
use crate::spot_on::Change;
use crate::word_cell::{CELL_BYTES, state_in_flight};

impl SkipIndex {
    /// Makes all `changes`, which ascend by key, durably. A crash leaves any part of them.
    pub(crate) fn merge_batch(&self, changes: &[Change<'_>]) -> Result<()> {
        let mut staged: Vec<(Staged<'_>, &[u8], u64)> = Vec::new();
        for &Change { key, word, is_new, .. } in changes {
            match word {
                None if is_new => {}
                None => drop(self.remove(key)?),
                // A key that was there once has its node still: linking finds out.
                Some(word) if is_new || self.lookup(key)? == 0 => {
                    staged.push((self.stage_new(key, word)?, key, word));
                }
                Some(word) => drop(self.insert(key, word)?),
            }
        }
        let list = self.list();
        list.pool.drain();
        let mut linked = Vec::with_capacity(staged.len());
        let mut present = Vec::new();
        for (node, key, word) in staged {
            let at = node.offset();
            match list.link(node)? {
                Linked::New => linked.push(at),
                Linked::Exists(_) => present.push((key, word)),
            }
        }
        list.pool.drain();
        linked.iter().for_each(|at| list.mark_settled(*at));
        self.keys.fetch_add(linked.len() as u64, Ordering::Relaxed);
        present.into_iter().try_for_each(|(key, word)| self.insert(key, word).map(drop))
    }

    /// A node for a key that is not there, written and flushed.
    pub(super) fn stage_new<'k>(&self, key: &'k [u8], word: u64) -> Result<Staged<'k>> {
        let mut value = [0; CELL_BYTES as usize];
        value[..8].copy_from_slice(&word.to_le_bytes());
        // The node is durable before others may use its cell (`lookup` settles), so nothing is in flight.
        value[8..].copy_from_slice(&(state_in_flight(self.generation) - 1).to_le_bytes());
        let record = Record { key, seq: 0, kind: INDEX_KIND, value: &value, batch_first: 0, batch_len: 1 };
        self.list().stage(key, &record)
    }
}
