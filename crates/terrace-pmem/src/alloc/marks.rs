//! The owners' marks of reachable objects.

use std::collections::{BTreeMap, BTreeSet};

use terrace_base::Result;

use super::check::Problem;
use super::slab::bit;
use crate::pool::Pool;

/// A walk over the pool: owners mark all objects that they reach from their roots. [`Pool::check`] and
/// [`Pool::reclaim`] compare the marks with the allocator's state.
///
/// An owner that marks beside writers collects objects under a lock and marks them after releasing it: writers may work
/// at every mark ([`Media::marking`](crate::Media::marking)). An object that is freed in between is no longer
/// inherited, so its mark does no harm.
#[derive(Debug)]
pub struct Marks {
    pool: Pool,
    /// Offsets of extents and of slots in extents of their own.
    pub(super) whole: BTreeSet<u64>,
    /// Marked slots of each slab, 48 bits a word, by unit.
    pub(super) slots: BTreeMap<u64, Vec<u64>>,
    pub(super) problems: Vec<Problem>,
}

impl Pool {
    /// An empty set of marks.
    pub fn marks(&self) -> Marks {
        Marks { pool: self.clone(), whole: BTreeSet::new(), slots: BTreeMap::new(), problems: Vec::new() }
    }
}

impl Marks {
    /// An extent is reachable. Marking it twice is noted as a problem: two owners claim it.
    ///
    /// Errors: [`Corruption`](terrace_base::Error::Corruption) if no extent can begin at `offset`.
    pub fn extent(&mut self, offset: u64) -> Result<()> {
        self.pool.media().marking(offset);
        self.insert_extent(offset)
    }

    fn insert_extent(&mut self, offset: u64) -> Result<()> {
        if offset == 0 || offset >= self.pool.size() || !offset.is_multiple_of(self.pool.extent_bytes()) {
            return Err(self.pool.corruption(offset, "the offset of an extent", format!("{offset:#x}")));
        }
        if !self.whole.insert(offset) {
            self.problems.push(Problem::new(offset, "extent reached twice"));
        }
        Ok(())
    }

    /// A slot is reachable; as [`extent`](Self::extent). A place where no slot can begin is noted as a problem
    /// and no more: beside mutators the slab may have just gone.
    pub fn slot(&mut self, offset: u64) -> Result<()> {
        self.pool.media().marking(offset);
        let unit = offset / self.pool.extent_bytes();
        let Some(slab) = self.pool.inner.alloc.slabs.get(unit) else {
            if offset.is_multiple_of(self.pool.extent_bytes()) {
                return self.insert_extent(offset);
            }
            self.problems.push(Problem::new(offset, "slot reached where no slab is"));
            return Ok(());
        };
        let Some(slot) = slab.slot_at(offset) else {
            self.problems.push(Problem::new(offset, "slot reached where none begins"));
            return Ok(());
        };
        let words = self.slots.entry(unit).or_default();
        words.resize(words.len().max(slab.geometry.words() as usize), 0);
        let (word, bit) = bit(slot);
        if words[word as usize] & bit != 0 {
            self.problems.push(Problem::new(offset, "slot reached twice"));
        }
        words[word as usize] |= bit;
        Ok(())
    }

    /// Extents and slots marked so far.
    pub fn len(&self) -> u64 {
        let slots: u64 = self.slots.values().flatten().map(|w| u64::from(w.count_ones())).sum();
        self.whole.len() as u64 + slots
    }

    /// Whether nothing is marked.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
