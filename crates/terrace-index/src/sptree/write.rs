//! Single-key writes.
//!
//! A new key, and a new word of one that is there, goes to a slot that does not count: slot and meta are
//! persisted first, then the bitmap, whose one store makes the change. So a crash leaves the old or the new word, and
//! no slot is ever seen half written. Only then does the node in DRAM change, which is when readers see it.

use std::num::NonZeroU64;
use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_pmem::Slot;

use super::key::Probe;
use super::layout::{Item, OFFSET_BITS, OFFSET_MASK, RECORD, SLOTS};
use super::mnode::{Locked, Mnode};
use super::{Core, Garbage};
use crate::kinds;
use crate::point::Wish;

/// The outcome of an attempt to change a leaf.
#[derive(PartialEq, Eq)]
enum Changed {
    Done,
    /// There is no room: the leaf must be split first.
    Full,
}

impl Core {
    /// The primitive under insert, compare_exchange and remove; see `PointIndex::update`.
    pub(super) fn apply(&self, key: &[u8], wish: &mut dyn FnMut(Option<u64>) -> Wish) -> Result<Option<u64>> {
        let mut attempt = || {
            let _here = self.limbo.enter();
            self.apply_with(key, &mut *wish, self.is_buffered())
        };
        match attempt() {
            // Memory that was unlinked to make room is given back once no thread is present, including this one.
            Err(e) if e.is_out_of_space() && !self.limbo.is_empty() => {
                self.limbo.drain();
                attempt()
            }
            done => done,
        }
    }

    /// [`apply`](Self::apply) past buffers, which have no entry for the key. The caller is present.
    pub(super) fn apply_to_leaf(
        &self,
        key: &[u8],
        wish: &mut dyn FnMut(Option<u64>) -> Wish,
    ) -> Result<Option<u64>> {
        self.apply_with(key, wish, false)
    }

    fn apply_with(
        &self,
        key: &[u8],
        wish: &mut dyn FnMut(Option<u64>) -> Wish,
        buffered: bool,
    ) -> Result<Option<u64>> {
        let probe = Probe::new(key);
        if buffered {
            self.replay_key(key)?;
        }
        loop {
            let (node, _) = self.locate(&probe)?;
            if !buffered {
                self.prefetch_slot(node.leaf(), free_slot(node.bitmap.load(Ordering::Relaxed)), true);
            }
            let locked = node.lock();
            let version = node.version();
            if version.is_dead() || node.covers(&probe, version) != Some(true) {
                continue;
            }
            if buffered && self.has_logs() {
                match self.apply_buffered(locked, &probe, wish) {
                    Ok(Some(before)) => return Ok(before),
                    Ok(None) => continue,
                    Err(e) if e.is_out_of_space() => self.shed_logs()?,
                    Err(e) => return Err(e),
                }
                continue;
            }
            let found = self.find(node, &probe, version)?.flatten();
            let before = found.map(|(_, item)| item.1);
            let Some(new) = wish(before) else { return Ok(before) };
            let new = new.map(NonZeroU64::get);
            if self.change_leaf(&locked, &probe, found, new)? == Changed::Full {
                self.split(locked, Some(key))?;
                continue;
            }
            self.count_change(before.is_some(), new.is_some());
            let left = node.bitmap.load(Ordering::Relaxed).count_ones() as usize;
            drop(locked);
            if new.is_none() && left < self.capacity / 4 {
                self.merge_near(&probe)?;
            }
            if buffered {
                // The write has been made: without logs it goes on as before.
                let _ = self.resume_logs();
            }
            return Ok(before);
        }
    }

    /// Counts a change of one key.
    pub(super) fn count_change(&self, was: bool, is: bool) {
        if was != is {
            self.keys.fetch_add(i64::from(is) - i64::from(was), Ordering::Relaxed);
        }
    }

    /// Gives the key the word `new`, or removes it.
    fn change_leaf(
        &self,
        locked: &Locked<'_>,
        probe: &Probe<'_>,
        found: Option<(usize, Item)>,
        new: Option<u64>,
    ) -> Result<Changed> {
        let bitmap = locked.0.bitmap.load(Ordering::Relaxed);
        match (found, new) {
            (None, None) => {}
            (Some((slot, item)), None) => {
                self.switch(locked, bitmap & !(1 << slot), None)?;
                self.retire_record(item);
            }
            (found, Some(word)) => {
                let full =
                    bitmap == u64::MAX || found.is_none() && bitmap.count_ones() as usize >= self.capacity;
                if full {
                    return Ok(Changed::Full);
                }
                let key = match found {
                    Some((_, item)) => (item.0, None),
                    None => self.key_word(probe)?,
                };
                self.put(locked, bitmap, probe, found.map(|(slot, _)| slot), key, word)?;
            }
        }
        Ok(Changed::Done)
    }

    /// Puts a key's item into a free slot, in the place of the one in slot `old`. The item's key comes with its record,
    /// if that is new.
    pub(super) fn put(
        &self,
        locked: &Locked<'_>,
        bitmap: u64,
        probe: &Probe<'_>,
        old: Option<usize>,
        (key_word, record): (u64, Option<Slot>),
        word: u64,
    ) -> Result<()> {
        let slot = free_slot(bitmap);
        let stored = self.store_item(locked.0.leaf(), slot, (key_word, word, probe.kind()));
        let old = old.map_or(0, |slot| 1 << slot);
        let done = stored.and_then(|()| {
            if let Some(record) = &record {
                self.pool.activate(record);
            }
            self.pool.drain();
            self.switch(locked, bitmap & !old | 1 << slot, Some((slot, probe.hash)))
        });
        if let (Err(_), Some(record)) = (&done, record) {
            self.pool.cancel(record);
        }
        done
    }

    /// The word of a key in a slot, and the record that it points to if that is new.
    pub(super) fn key_word(&self, probe: &Probe<'_>) -> Result<(u64, Option<Slot>)> {
        if probe.kind() != RECORD {
            return Ok((probe.word, None));
        }
        let record = self.new_record(probe.key)?;
        Ok((record.offset | u64::from(probe.hash) << OFFSET_BITS, Some(record)))
    }

    /// Makes the leaf's bitmap `new`, durably, then the node's. `added`: a new slot and its key's hash.
    fn switch(&self, locked: &Locked<'_>, new: u64, added: Option<(usize, u16)>) -> Result<()> {
        let node = locked.0;
        let next = self.next_leaf(node.leaf())?;
        let old = node.bitmap.load(Ordering::Relaxed);
        self.store_state(node.leaf(), (old, next), (new, next), (new, next));
        locked.change(false, |node| {
            node.bitmap.store(new, Ordering::Relaxed);
            if let Some((slot, hash)) = added {
                node.note(&self.arena.shape, slot, hash);
            }
        });
        Ok(())
    }

    /// Retires the record of an item that no longer counts, if it has one.
    pub(super) fn retire_record(&self, (key_word, _, kind): Item) {
        if kind == RECORD {
            self.limbo.retire(Garbage::Slot(kinds::SPTREE_KEY, key_word & OFFSET_MASK));
        }
    }

    /// Retires a node that nothing leads to any more.
    pub(super) fn retire_node(&self, node: &Mnode) {
        self.limbo.retire(Garbage::Mnode(std::ptr::from_ref(node) as usize));
    }
}

/// The first slot that does not count; the last one if all do.
pub(super) fn free_slot(bitmap: u64) -> usize {
    ((!bitmap).trailing_zeros() as usize).min(SLOTS - 1)
}
