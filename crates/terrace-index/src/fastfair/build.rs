//! New objects before they are linked, and old ones after they are unlinked.

use terrace_base::Result;
use terrace_pmem::{Kind, Pool, Slot};

use super::FastFair;
use super::key::{self, Skip};
use super::layout::{NodeFields, RECORD_HEAD_BYTES, encode_record, node_bytes};
use super::node::NodeRef;
use crate::key_object::{KEY_HEAD_BYTES, encode_key};
use crate::kinds;
use crate::word_cell::state_in_flight;

/// Reservations that are given back unless they are kept.
pub(super) struct Fresh<'p> {
    pool: &'p Pool,
    slots: Vec<(Slot, u64)>,
}

impl<'p> Fresh<'p> {
    pub fn new(pool: &'p Pool) -> Self {
        Fresh { pool, slots: Vec::new() }
    }

    /// A place for `bytes` of `kind`.
    fn take(&mut self, kind: Kind, bytes: u64) -> Result<u64> {
        let slot = self.pool.reserve(kind, bytes)?;
        self.slots.push((slot, bytes));
        Ok(slot.offset)
    }

    /// Activates everything; durable, with what was flushed, at the caller's next drain. Bytes taken.
    pub fn keep(mut self) -> u64 {
        let slots = std::mem::take(&mut self.slots);
        slots.iter().for_each(|(slot, _)| self.pool.activate(slot));
        slots.iter().map(|(_, bytes)| bytes).sum()
    }

    /// A flushed key record.
    pub fn record(&mut self, key: &[u8], word: u64, generation: u64) -> Result<u64> {
        self.write(kinds::FASTFAIR_RECORD, RECORD_HEAD_BYTES + key.len() as u64, |place| {
            encode_record(place, key, word, state_in_flight(generation))
        })
    }

    /// A flushed key object.
    pub fn key(&mut self, key: &[u8]) -> Result<u64> {
        self.write(kinds::FASTFAIR_KEY, KEY_HEAD_BYTES + key.len() as u64, |place| encode_key(place, key))
    }

    fn write(&mut self, kind: Kind, bytes: u64, image: impl FnOnce(u64) -> Vec<u8>) -> Result<u64> {
        let off = self.take(kind, bytes)?;
        self.pool.write(off, &image(self.pool.place(off)));
        self.pool.flush(off, bytes);
        Ok(off)
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        self.slots.drain(..).for_each(|(slot, _)| self.pool.cancel(slot));
    }
}

/// One entry of a node to be built.
#[derive(Clone, Copy)]
pub(super) struct Item<'t> {
    /// Leaf: the record's key. Inner: the child's low key, empty where it has no bound.
    pub key: &'t [u8],
    pub ptr: u64,
}

/// A node to be built: its fences with their key objects, and its right sibling.
pub(super) struct Plan<'t> {
    pub level: u8,
    pub low: u64,
    pub low_key: Option<&'t [u8]>,
    pub high: u64,
    pub high_key: Option<&'t [u8]>,
    pub next: u64,
}

impl<const N: usize> FastFair<N> {
    /// A place for a node.
    pub(super) fn place(&self, fresh: &mut Fresh<'_>) -> Result<u64> {
        fresh.take(kinds::FASTFAIR_NODE, Self::NODE_BYTES)
    }

    /// Writes and flushes a node at `off` that suits `items`, and soon a key `extra`.
    pub(super) fn build(
        &self,
        fresh: &mut Fresh<'_>,
        off: u64,
        plan: &Plan<'_>,
        items: &[Item<'_>],
        extra: Option<&[u8]>,
    ) -> Result<()> {
        let skip = choose_skip(plan, items, extra);
        let prefix = match items.last() {
            Some(last) if skip.checked => fresh.key(&last.key[..skip.bytes])?,
            _ => 0,
        };
        let fields =
            NodeFields { level: plan.level, skip: skip.bytes as u16, low: plan.low, high: plan.high, prefix };
        let entries: Vec<_> = items.iter().map(|i| (key::slice(i.key, skip.bytes), i.ptr)).collect();
        let place = self.pool.place(off);
        self.pool.write(off, &fields.encode(place, plan.next, self.generation << 32, &entries, N));
        self.pool.flush(off, node_bytes(N));
        Ok(())
    }

    /// Retires a node that nothing names any more, with its prefix and, if `with_low`, its separator.
    pub(super) fn retire_node(&self, node: NodeRef<'_, N>, with_low: bool) -> Result<()> {
        if node.level() == 0 {
            self.clear_shortcut(node)?;
        }
        if node.n.prefix != 0 {
            self.retire_key(node.n.prefix)?;
        }
        if with_low && node.level() == 0 && node.n.low != 0 {
            self.retire_key(node.n.low)?;
        }
        self.retire((kinds::FASTFAIR_NODE, node.off, Self::NODE_BYTES));
        Ok(())
    }

    fn retire_key(&self, off: u64) -> Result<()> {
        self.retire((kinds::FASTFAIR_KEY, off, self.key_object_bytes(off)?));
        Ok(())
    }

    /// Retires a record that has been taken out of its leaf.
    pub(super) fn retire_record(&self, off: u64) -> Result<()> {
        let bytes = RECORD_HEAD_BYTES + self.record_key(off)?.len() as u64;
        self.retire((kinds::FASTFAIR_RECORD, off, bytes));
        Ok(())
    }

    fn retire(&self, garbage: super::Garbage) {
        self.totals.add(0, -(garbage.2 as i64));
        self.limbo.retire(garbage);
    }

    /// Bytes of the key object at `off`; none at 0.
    pub(super) fn key_object_bytes(&self, off: u64) -> Result<u64> {
        if off == 0 { Ok(0) } else { Ok(KEY_HEAD_BYTES + self.key_bytes(off)?.len() as u64) }
    }
}

/// The skip for a node as planned. The first entry of an inner node takes all keys before the second one, so its own
/// key does not matter.
fn choose_skip(plan: &Plan<'_>, items: &[Item<'_>], extra: Option<&[u8]>) -> Skip {
    let from = usize::from(plan.level > 0).min(items.len());
    let mut keys: Vec<_> = items[from..].iter().map(|i| i.key).collect();
    if let Some(extra) = extra {
        let at = keys.partition_point(|k| *k < extra);
        keys.insert(at, extra);
    }
    key::choose_skip(plan.low_key, plan.high_key, &keys)
}
