//! The owners of the file's blocks: the bookkeeping alone; others change the file accordingly.
//!
//! 1. Each block is free, given back (a hole), being written or given back just now (`busy`), unknown, or holds a part
//!    of a slot. All of a slot's blocks are in the file.
//! 2. A block that holds parts of `n` slots has `n - 1` in `shared`, if that is not zero.
//! 3. `retired` has the slots that nothing leads to any more but that somebody may still read. They hold their blocks.
//! 4. Until the file is adopted, nothing below `unknown` is given out. Slots that are retired there before stay retired
//!    until then, even if they are freed; and `early` has all slots that were given out since.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::Slot;
use crate::extents::Extents;

#[derive(Debug)]
pub(super) struct Map {
    sectors_per_block: u64,
    /// How many blocks the file has.
    end: u64,
    unknown: u64,
    is_known: bool,
    free: Extents,
    holes: Extents,
    busy: Extents,
    shared: BTreeMap<u64, u32>,
    retired: BTreeMap<u64, Slot>,
    /// Retired slots that were freed before the file was adopted.
    freed_early: BTreeSet<Slot>,
    /// Slots that were given out before the file was adopted.
    early: BTreeSet<Slot>,
    /// Items that are given out, those retired included, and their sectors.
    items: u64,
    sectors: u64,
    retired_sectors: u64,
}

/// Figures of a [`Map`], in blocks unless they say otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) end: u64,
    pub(super) free: u64,
    pub(super) holes: u64,
    pub(super) items: u64,
    pub(super) sectors: u64,
    pub(super) retired_sectors: u64,
}

/// A run of blocks for consecutive items of a submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) blocks: Range<u64>,
    pub(super) slots: Vec<Slot>,
}

/// An error in a list of slots: the slot, and the reason.
pub(super) type Wrong = (Slot, &'static str);

/// The blocks that slots hold.
struct Laid {
    owned: Extents,
    shared: BTreeMap<u64, u32>,
}

impl Map {
    /// The map of a file of `end` blocks, of which nothing is known.
    pub(super) fn unknown(sectors_per_block: u64, end: u64) -> Map {
        Map {
            sectors_per_block,
            end,
            unknown: end,
            is_known: false,
            free: Extents::default(),
            holes: Extents::default(),
            busy: Extents::default(),
            shared: BTreeMap::new(),
            retired: BTreeMap::new(),
            freed_early: BTreeSet::new(),
            early: BTreeSet::new(),
            items: 0,
            sectors: 0,
            retired_sectors: 0,
        }
    }

    fn blocks(&self, slot: Slot) -> Range<u64> {
        slot.first() / self.sectors_per_block..slot.end().div_ceil(self.sectors_per_block)
    }

    /// The blocks that `slots`, in order, hold; which of them lies outside of the file or on another.
    fn lay(&self, slots: &BTreeSet<Slot>) -> Result<Laid, Wrong> {
        let mut laid = Laid { owned: Extents::default(), shared: BTreeMap::new() };
        let (mut end, mut last) = (0, None);
        for &slot in slots {
            let blocks = self.blocks(slot);
            if blocks.end > self.end {
                return Err((slot, "it ends behind the end of the file"));
            }
            if slot.first() < end {
                return Err((slot, "it overlaps another one"));
            }
            if last == Some(blocks.start) {
                *laid.shared.entry(blocks.start).or_default() += 1;
            }
            (end, last) = (slot.end(), Some(blocks.end - 1));
            laid.owned.insert(blocks);
        }
        Ok(laid)
    }

    /// Below `unknown` only the slots of `live` and those retired since hold blocks; all else there is free. Slots that
    /// were given out since may be in `live`, too.
    pub(super) fn adopt(&mut self, live: &BTreeSet<Slot>) -> Result<(), Wrong> {
        if self.is_known {
            return Ok(());
        }
        let border = self.unknown;
        let is_below = |slot: &Slot, map: &Map| map.blocks(*slot).start < border;
        let mut old: BTreeSet<Slot> = live.iter().filter(|slot| is_below(slot, self)).copied().collect();
        old.extend(self.retired.values().filter(|slot| is_below(slot, self)));
        old.extend(&self.freed_early);
        let laid = self.lay(&old)?;
        if let Some(&slot) = live.iter().find(|slot| self.blocks(**slot).end > self.end) {
            return Err((slot, "it ends behind the end of the file"));
        }
        if let Some(&slot) = live.iter().find(|slot| !is_below(slot, self) && !self.early.contains(slot)) {
            return Err((slot, "the file ended before it when it was opened"));
        }
        if let Some(&slot) = old.iter().find(|slot| self.blocks(**slot).end > border) {
            return Err((slot, "it ends where the file ended when it was opened"));
        }
        let is_counted = |slot: &Slot| self.is_retired(*slot) || self.freed_early.contains(slot);
        let added: Vec<Slot> = old.iter().filter(|slot| !is_counted(slot)).copied().collect();
        self.items += added.len() as u64;
        self.sectors += added.iter().map(|slot| slot.sectors()).sum::<u64>();
        (self.unknown, self.is_known, self.early) = (0, true, BTreeSet::new());
        self.free.insert(0..border);
        laid.owned.iter().for_each(|blocks| self.free.remove(&blocks));
        self.shared.extend(laid.shared);
        for slot in std::mem::take(&mut self.freed_early) {
            self.let_go(slot);
        }
        Ok(())
    }

    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    /// The file has become `end` blocks long.
    pub(super) fn grown(&mut self, end: u64) {
        self.free.insert(self.end..end.max(self.end));
        self.end = self.end.max(end);
    }

    /// Finds places for consecutive items of so many sectors each, in as few runs as possible, and in one if they are
    /// `packed`; the error is how many more blocks the file needs. The runs' blocks are busy.
    pub(super) fn place(&mut self, sizes: &[u64], packed: bool) -> Result<Vec<Run>, u64> {
        let (mut runs, mut at): (Vec<Run>, _) = (Vec::new(), 0);
        let mut sectors: u64 = sizes.iter().sum();
        while at < sizes.len() {
            let rest = sectors.div_ceil(self.sectors_per_block);
            let (blocks, count) = if let Some(blocks) = self.free.take(rest) {
                (blocks, sizes.len() - at)
            } else if let Some(found) = if packed { None } else { self.take_part(&sizes[at..]) } {
                found
            } else if let Some(blocks) = self.holes.take(rest) {
                (blocks, sizes.len() - at)
            } else {
                // Free space at the end of the file is used together with the space that it is grown by.
                let tail = self.free.overlapping(&(self.end.saturating_sub(1)..self.end)).next();
                runs.iter().for_each(|run| self.put_back(run));
                return Err(rest - tail.map_or(0, |tail| tail.end - tail.start));
            };
            sectors -= sizes[at..at + count].iter().sum::<u64>();
            runs.push(self.run(blocks, &sizes[at..at + count]));
            at += count;
        }
        Ok(runs)
    }

    /// The longest free range, for as many items as it has room for.
    fn take_part(&mut self, sizes: &[u64]) -> Option<(Range<u64>, usize)> {
        let longest = self.free.longest()?;
        let room = (longest.end - longest.start) * self.sectors_per_block;
        let mut used = 0;
        let fits = |size: &&u64| {
            used += **size;
            used <= room
        };
        let count = sizes.iter().take_while(fits).count();
        if count == 0 {
            return None;
        }
        let sectors: u64 = sizes[..count].iter().sum();
        let blocks = longest.start..longest.start + sectors.div_ceil(self.sectors_per_block);
        self.free.remove(&blocks);
        Some((blocks, count))
    }

    fn run(&mut self, blocks: Range<u64>, sizes: &[u64]) -> Run {
        self.busy.insert(blocks.clone());
        let mut first = blocks.start * self.sectors_per_block;
        let slots = sizes.iter().map(|&sectors| {
            let slot = Slot::of(first, sectors);
            first += sectors;
            slot
        });
        Run { slots: slots.collect(), blocks }
    }

    /// Nothing was written to `run`, or nothing that is needed.
    pub(super) fn put_back(&mut self, run: &Run) {
        self.busy.remove(&run.blocks);
        self.free.insert(run.blocks.clone());
    }

    /// The slots of `run` are written.
    pub(super) fn give_out(&mut self, run: &Run) {
        self.busy.remove(&run.blocks);
        let mut last = None;
        for &slot in &run.slots {
            let blocks = self.blocks(slot);
            if last == Some(blocks.start) {
                *self.shared.entry(blocks.start).or_default() += 1;
            }
            last = Some(blocks.end - 1);
            self.items += 1;
            self.sectors += slot.sectors();
        }
        if !self.is_known {
            self.early.extend(&run.slots);
        }
    }

    /// What `slot` takes of its blocks, in sectors. Within one block, an equal share with the others in it. Of several
    /// blocks, its own sectors, and the rest of those at its ends that it alone holds: one that it shares counts as
    /// full, as it is if no item lies within a block.
    pub(super) fn share_of(&self, slot: Slot) -> u64 {
        let blocks = self.blocks(slot);
        let others = |block: u64| u64::from(self.shared.get(&block).copied().unwrap_or(0));
        if blocks.end - blocks.start == 1 {
            return self.sectors_per_block.div_ceil(others(blocks.start) + 1);
        }
        let before = slot.first() - blocks.start * self.sectors_per_block;
        let behind = blocks.end * self.sectors_per_block - slot.end();
        let rest = |block: u64, sectors: u64| if others(block) == 0 { sectors } else { 0 };
        slot.sectors() + rest(blocks.start, before) + rest(blocks.end - 1, behind)
    }

    fn is_retired(&self, slot: Slot) -> bool {
        self.retired.get(&slot.first()) == Some(&slot)
    }

    /// Notes that nothing leads to `slot` any more, but that somebody may read it.
    pub(super) fn retire(&mut self, slot: Slot) -> Result<(), Wrong> {
        let blocks = self.blocks(slot);
        let is_given_out = blocks.end <= self.end
            && [&self.free, &self.holes, &self.busy].iter().all(|set| set.count_in(&blocks) == 0);
        if !is_given_out {
            return Err((slot, "nothing is there"));
        }
        let after = self.retired.range(..slot.end()).next_back();
        if after.is_some_and(|(_, other)| other.end() > slot.first()) || self.freed_early.contains(&slot) {
            return Err((slot, "it was retired before"));
        }
        if blocks.start < self.unknown {
            self.items += 1;
            self.sectors += slot.sectors();
        }
        self.retired.insert(slot.first(), slot);
        self.retired_sectors += slot.sectors();
        Ok(())
    }

    /// Notes that nobody reads the retired `slot` any more.
    pub(super) fn free(&mut self, slot: Slot) -> Result<(), Wrong> {
        if !self.is_retired(slot) {
            return Err((slot, "it was not retired"));
        }
        self.retired.remove(&slot.first());
        self.retired_sectors -= slot.sectors();
        if self.blocks(slot).start < self.unknown {
            self.freed_early.insert(slot);
        } else {
            self.let_go(slot);
        }
        Ok(())
    }

    /// Frees the blocks that `slot` alone holds.
    fn let_go(&mut self, slot: Slot) {
        let blocks = self.blocks(slot);
        let (mut start, mut end) = (blocks.start, blocks.end);
        if self.leave(start) {
            start += 1;
        }
        if start < end && self.leave(end - 1) {
            end -= 1;
        }
        self.free.insert(start..end.max(start));
        self.items -= 1;
        self.sectors -= slot.sectors();
    }

    /// Notes that `block` has one slot less; whether there are others.
    fn leave(&mut self, block: u64) -> bool {
        let Some(others) = self.shared.get_mut(&block) else { return false };
        *others -= 1;
        if *others == 0 {
            self.shared.remove(&block);
        }
        true
    }

    /// Chooses blocks to give back, at most `most`, if more than `spare` are free. They are busy.
    pub(super) fn take_spare(&mut self, spare: u64, most: u64) -> Option<Range<u64>> {
        let over = self.free.total().saturating_sub(spare);
        let longest = self.free.longest().filter(|_| over > 0)?;
        let blocks = longest.end - (longest.end - longest.start).min(over).min(most)..longest.end;
        self.free.remove(&blocks);
        self.busy.insert(blocks.clone());
        Some(blocks)
    }

    /// The blocks that [`take_spare`](Self::take_spare) gave are given back, or are not.
    pub(super) fn end_spare(&mut self, blocks: Range<u64>, are_holes: bool) {
        self.busy.remove(&blocks);
        let to = if are_holes { &mut self.holes } else { &mut self.free };
        to.insert(blocks);
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            end: self.end,
            free: self.free.total(),
            holes: self.holes.total(),
            items: self.items,
            sectors: self.sectors,
            retired_sectors: self.retired_sectors,
        }
    }

    /// Compares with the slots that are `live`. Returns how many blocks nobody owns: those of written items that
    /// nothing leads to yet, or no longer.
    pub(super) fn check(&self, live: &BTreeSet<Slot>) -> Result<u64, Wrong> {
        let mut all = live.clone();
        for slot in self.retired.values().chain(&self.freed_early) {
            if !all.insert(*slot) {
                return Err((*slot, "it was retired, and something leads to it"));
            }
        }
        let laid = self.lay(&all)?;
        let in_free = |slot: &&Slot| {
            let sets = [&self.free, &self.holes, &self.busy];
            sets.iter().any(|set| set.count_in(&self.blocks(**slot)) > 0)
        };
        if let Some(&slot) = all.iter().find(in_free) {
            return Err((slot, "its blocks are free"));
        }
        let owned = laid.owned.total() + self.free.total() + self.holes.total() + self.busy.total();
        let nobodys = (self.end - self.unknown_outside(&laid.owned)).saturating_sub(owned);
        let is_short = |(block, others): (&u64, &u32)| {
            *block >= self.unknown && self.shared.get(block).is_none_or(|known| known < others)
        };
        let short = laid.shared.iter().find(|&entry| is_short(entry)).map(|(block, _)| *block);
        if let Some(&slot) = short.and_then(|b| all.iter().find(|slot| self.blocks(**slot).contains(&b))) {
            return Err((slot, "its block is taken for that of fewer items"));
        }
        Ok(nobodys)
    }

    /// Blocks about which nothing is known and in which no slot of `owned` lies.
    fn unknown_outside(&self, owned: &Extents) -> u64 {
        self.unknown - owned.count_in(&(0..self.unknown))
    }
}

#[cfg(test)]
mod tests;
