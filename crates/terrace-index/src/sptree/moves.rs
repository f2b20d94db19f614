//! Moves objects out of slots of the pool, so that nearly empty slabs become empty.
//!
//! A key's record moves as a key gets another word: an item that names the copy takes the place of the old one, by one
//! store of the leaf's bitmap. A leaf moves in three steps:
//!
//! 1. The top layer forgets the leaf: every leaf that it names is always in the chain.
//! 2. A copy is written, with a record of its own for a long low key, and drained.
//! 3. The left neighbour's next becomes the copy: from that store on the copy is in the chain and the old leaf is not.
//!
//! Its node in DRAM stays and follows within one change. Both nodes are locked, so that nobody writes to the old leaf
//! meanwhile. The first leaf, which the header names, stays where it is.

use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_pmem::Kind;

use super::bound::Bound;
use super::key::Probe;
use super::layout::{Item, OFFSET_MASK, RECORD, low_bits};
use super::mnode::Locked;
use super::page::Page;
use super::{Core, Garbage, SpTree};
use crate::kinds;

impl SpTree {
    /// The kinds that [`move_slot`](Self::move_slot) moves.
    pub const MOVES: &[Kind] = &[kinds::SPTREE_KEY, kinds::SPTREE_LEAF];

    /// Moves the object in the slot of `kind` at `at`, if it belongs to the tree, to another slot; returns whether it
    /// did. The old slot is given back when its readers have left.
    ///
    /// # Safety
    ///
    /// An active slot of `kind`, one of [`MOVES`](Self::MOVES), begins at `at`, and until this returns only the tree
    /// writes there, even if the slot is freed: its slab is held
    /// ([`Pool::clear_slab`](terrace_pmem::Pool::clear_slab)).
    pub unsafe fn move_slot(&self, kind: Kind, at: u64) -> Result<bool> {
        let core = &self.core;
        let _here = core.limbo.enter();
        match kind {
            kinds::SPTREE_KEY => core.move_key(at),
            kinds::SPTREE_LEAF => core.move_leaf(at),
            _ => Ok(false),
        }
    }
}

impl Core {
    /// Moves the key record at `at`, which is held, if an item or a leaf has it.
    fn move_key(&self, at: u64) -> Result<bool> {
        // A slot without an owner may have arbitrary contents; damage of an owned one is reported by lookups.
        let Ok(key) = self.record_key(at) else { return Ok(false) };
        let probe = Probe::new(key);
        loop {
            let locked = self.lock_leaf_of(&probe)?;
            let node = locked.0;
            let found = self.find(node, &probe, node.version())?.flatten();
            if let Some((slot, item)) = found
                && item.2 == RECORD
                && item.0 & OFFSET_MASK == at
            {
                let bitmap = node.bitmap.load(Ordering::Relaxed);
                if bitmap == u64::MAX {
                    self.split(locked, None)?;
                    continue;
                }
                self.put(&locked, bitmap, &probe, Some(slot), self.key_word(&probe)?, item.1)?;
                self.retire_record(item);
                return Ok(true);
            }
            let leaf = node.leaf();
            let is_low = self.leaf_low(leaf)?.1 == at;
            drop(locked);
            return if is_low { self.move_leaf(leaf) } else { Ok(false) };
        }
    }

    /// Moves the leaf at `at`, if it is in the chain.
    fn move_leaf(&self, at: u64) -> Result<bool> {
        // A leaf that has left the chain may name a freed record; a record is accepted only with its checksum.
        let Ok((low, record)) = self.leaf_low(at) else { return Ok(false) };
        let key = low.to_vec().unwrap_or_default();
        // As with merges: not before the tree is whole, nor while a walk marks what is reachable.
        if key.is_empty() || !self.rebuild.is_whole() {
            return Ok(false);
        }
        let Some(_gate) = self.merges.gate.try_read() else { return Ok(false) };
        let (left, _) = self.locate_below(&Probe::new(&key))?;
        let left = left.lock();
        // Otherwise the leaf was merged away, or never belonged to the tree, and a search for its low key finds the
        // left one.
        let adjoin = !left.0.is_dead() && left.0.high(left.0.version()) == Some(low.clone());
        if !adjoin || self.next_leaf(left.0.leaf())? != at {
            return Ok(false);
        }
        // While the left one is locked, this one stays where it is.
        let (node, _) = self.locate(&Probe::new(&key))?;
        let locked = node.lock();
        if node.is_dead() || node.leaf() != at || node.low() != low {
            return Ok(false);
        }
        self.move_locked(&left, &locked, &low, &key)?;
        self.limbo.retire(Garbage::Slot(kinds::SPTREE_LEAF, at));
        if record != 0 {
            self.limbo.retire(Garbage::Slot(kinds::SPTREE_KEY, record));
        }
        let leaf = node.leaf();
        drop((left, locked));
        self.announce(low, leaf);
        Ok(true)
    }

    fn move_locked(&self, left: &Locked<'_>, locked: &Locked<'_>, low: &Bound, key: &[u8]) -> Result<()> {
        let node = locked.0;
        let mut page = Page::new();
        while self.page(node, node.version(), &mut page)?.is_none() {}
        self.forget(locked, low)?;
        let at = node.leaf();
        let moved = self.next_leaf(at).and_then(|next| self.write_leaf(key, next, page.items()));
        let leaf = match moved {
            Ok(leaf) => leaf,
            Err(e) => {
                self.announce(low.clone(), at);
                return Err(e);
            }
        };
        let bitmap = left.0.bitmap.load(Ordering::Relaxed);
        self.store_state(left.0.leaf(), (bitmap, at), (bitmap, leaf), (bitmap, leaf));
        self.follow(locked, leaf, page.items());
        Ok(())
    }

    /// Lets a node stand for the copy of its leaf, whose first slots hold `items`.
    fn follow(&self, locked: &Locked<'_>, leaf: u64, items: &[Item]) {
        let shape = &self.arena.shape;
        locked.change(false, |node| {
            node.move_to(leaf);
            node.clear_filter(shape);
            node.bitmap.store(low_bits(items.len()), Ordering::Relaxed);
            items.iter().enumerate().for_each(|(slot, item)| node.note(shape, slot, Core::hash_of(*item)));
        });
    }
}
