//! Many changes of an index at once. New nodes for one gap of the list name each other, so that one store links them
//! all; and all are written before the first is linked, so that two drains make them durable.

use std::slice;
use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_pmem::StartedRead;

use super::Record;
use super::index::{INDEX_KIND, SkipIndex};
use super::write::{Linked, Staged};
use crate::btree::Place;
use crate::change::Change;
use crate::point::PointIndex;
use crate::word_cell::{CELL_BYTES, state_in_flight};

/// New nodes for one gap of the list.
struct Chain<'k> {
    gap: Place,
    /// The node before the gap, on its way into the caches.
    prev: StartedRead,
    nodes: Vec<Staged<'k>>,
}

/// The outcome of linking.
#[derive(Default)]
struct Outcome<'k> {
    /// Nodes that are in the list.
    linked: Vec<u64>,
    /// Keys that had a node, which only a damaged list does not show before.
    present: Vec<&'k [u8]>,
}

impl SkipIndex {
    /// Makes all `changes`, which ascend by key, durably. A crash leaves any part of them, and so does an error: nodes
    /// that were staged until then are linked, since otherwise each attempt in a full pool would use up room in vain.
    pub fn merge_out_of_place(&self, changes: &[Change<'_>]) -> Result<()> {
        let mut chains = Vec::new();
        // From the last on, since a node names the one behind it.
        let staged = changes.iter().rev().try_for_each(|change| self.stage_change(&mut chains, change));
        let list = self.list();
        list.pool.drain();
        let mut outcome = Outcome::default();
        let linked = chains.into_iter().try_for_each(|chain| self.link_nodes(chain, &mut outcome));
        list.pool.drain();
        outcome.linked.iter().for_each(|at| list.mark_durable(*at));
        self.keys.fetch_add(outcome.linked.len() as u64, Ordering::Relaxed);
        staged.and(linked)?;
        for Change { key, word, .. } in changes.iter().filter(|change| outcome.present.contains(&change.key))
        {
            word.map(|word| self.insert(key, word)).transpose()?;
        }
        Ok(())
    }

    /// Makes a change in its key's node, or puts a new one in front of the chain for its gap.
    fn stage_change<'k>(&self, chains: &mut Vec<Chain<'k>>, change: &Change<'k>) -> Result<()> {
        match change.word {
            None if change.is_new => Ok(()),
            None => self.remove(change.key).map(drop),
            Some(word) => self.put_or_chain(chains, change, word),
        }
    }

    fn put_or_chain<'k>(&self, chains: &mut Vec<Chain<'k>>, change: &Change<'k>, word: u64) -> Result<()> {
        let list = self.list();
        let (trail, gap) = list.known_place(change.key, 0)?;
        // A key that was there once has its node still.
        if gap.exact || (!change.is_new && self.lookup(change.key)? != 0) {
            return self.insert(change.key, word).map(drop);
        }
        if chains.last().is_none_or(|chain| chain.gap != gap) {
            chains.push(Chain { gap, prev: list.pool.start_read(gap.prev, 8), nodes: Vec::new() });
        }
        let Some(chain) = chains.last_mut() else { return Ok(()) };
        let next = chain.nodes.last().map_or(gap.next, Staged::offset);
        let place = Place { next, ..gap };
        chain.nodes.push(self.stage_new(change.key, word, |record| {
            list.stage_at(change.key, record, (trail, place), chain.prev)
        })?);
        Ok(())
    }

    /// Links the nodes of a chain.
    fn link_nodes<'k>(&self, mut chain: Chain<'k>, outcome: &mut Outcome<'k>) -> Result<()> {
        chain.nodes.reverse();
        let offsets = chain.nodes.iter().map(Staged::offset);
        if let Linked::New = self.list().link_chain(&chain.nodes)? {
            outcome.linked.extend(offsets);
            return Ok(());
        }
        for node in &chain.nodes {
            match self.list().link_chain(slice::from_ref(node))? {
                Linked::New => outcome.linked.push(node.offset()),
                Linked::Exists(_) => outcome.present.push(node.key()),
            }
        }
        Ok(())
    }

    /// A node for a key that is not there, as `stage` writes and flushes it.
    pub(super) fn stage_new<'k>(
        &self,
        key: &'k [u8],
        word: u64,
        stage: impl FnOnce(&Record<'_>) -> Result<Staged<'k>>,
    ) -> Result<Staged<'k>> {
        let mut value = [0; CELL_BYTES as usize];
        value[..8].copy_from_slice(&word.to_le_bytes());
        // The node is durable before others may use its cell (`lookup` sees to it), so nothing is in flight.
        value[8..].copy_from_slice(&(state_in_flight(self.generation) - 1).to_le_bytes());
        stage(&Record { key, seq: 0, kind: INDEX_KIND, value: &value, batch_first: 0, batch_len: 1 })
    }
}
