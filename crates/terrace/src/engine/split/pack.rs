//! Packing: large items leave blocks of the file of slots that they share with nothing that lives.
//!
//! Whole blocks tear, so a block that holds a living item is not written to, however much of it is free: after
//! its neighbours have gone, or where it was submitted alone, an item of 4,130 bytes takes 8 KiB. When the
//! blocks that are held have too many bytes for the items in them, a walk along the index takes the items with
//! the largest shares of blocks for their sizes, a few MiB at a time, and writes them again one behind the
//! other. Each word is replaced if it still leads to the former place; that place is retired.
//!
//! 1. The mover is present while it reads and writes: the places that it has looked up are not used again.
//! 2. A copy has its item's bytes, and so its number: which of the two a repair finds does not matter.
//! 3. What a snapshot alone needs stays where it is, since no word of the index leads there.

use std::ops::Bound;
use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_base::exec::Lane;
use terrace_disk::{BlockBuf, Slot, SlotStats};
use terrace_index::ScanBatch;

use super::home::Ssd;
use super::item;
use super::migrate::replace_word;
use super::place::OnSsd;
use crate::engine::pm::{KeyIndex, Place, PmEngine, PmStore, VersionRef};

/// Blocks hold more than their items by at most this part of the items.
const LOOSE_PART: u64 = 6;

/// Keys examined together.
const BATCH_KEYS: usize = 256;

/// Bytes of items that are moved together, and keys among which they are looked for: meanwhile nothing that was retired
/// is freed.
const PACK_BYTES: u64 = 4 << 20;
const PACK_KEYS: usize = 128 << 10;

/// Words replaced during one hold of the gate.
const CHUNK: usize = 64;

/// The part of a run that slots may hold in vain in each of these ways: retired and not looked at, free and
/// not given back, kept free, between items that are not packed. Together these are one run.
const RUN_PART: u64 = 4;

/// The least of these: less is not worth a job.
const LEAST_SLACK_BYTES: u64 = 256 << 10;

/// The part of the held bytes that is kept free.
const SPARE_PART: u64 = 16;

/// The part of all items' bytes that changes between two looks at how they lie.
const CHANGED_PART: u64 = 64;

impl Ssd {
    /// Bytes that may be held in vain in each of several ways.
    pub(super) fn slack_bytes(&self) -> u64 {
        (self.core.options.split.run_bytes / RUN_PART).max(LEAST_SLACK_BYTES)
    }

    /// Bytes of slots that are kept free.
    pub(super) fn spare_bytes(&self, slots: &SlotStats) -> u64 {
        self.slack_bytes().max(slots.held_bytes / SPARE_PART)
    }

    /// Gives back free space of slots.
    pub(super) fn tidy_slots(&self) -> Result<()> {
        self.slots.give_back(self.spare_bytes(&self.slots.stats())).map(drop)
    }

    /// If enough has changed since the last look, how full the file is.
    pub(super) fn look_at_slots(&self) -> Option<SlotStats> {
        let changed = self.changed_bytes.load(Ordering::Relaxed);
        let next = self.looked_at.load(Ordering::Relaxed);
        if changed < next {
            return None;
        }
        let slots = self.slots.stats();
        let step = self.slack_bytes().max(slots.item_bytes / CHANGED_PART).max(1);
        // Another thread may have looked between the two.
        self.looked_at
            .compare_exchange(next, changed + step, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
            .then_some(slots)
    }
}

/// Whether items of so many bytes take too much room.
fn is_loose(items: u64, held: u64) -> bool {
    held.saturating_sub(items) > items / LOOSE_PART
}

/// Whether so much is loose that it is worth a walk; `spare` bytes may be loose in any case.
fn is_due(slots: &SlotStats, spare: u64) -> bool {
    is_loose(slots.item_bytes, slots.held_bytes.saturating_sub(spare))
}

/// Starts packing in the background if that is worth it, or gives back free space if there is much.
pub(super) fn send_if_due<E: PmEngine<Home = Ssd>>(store: &PmStore<E>, slots: &SlotStats) {
    let ssd = &*store.home;
    if is_due(slots, ssd.slack_bytes()) {
        send(store);
    } else if slots.free_bytes > ssd.spare_bytes(slots) {
        store.spawn(|store| drop(store.home.tidy_slots()));
    }
}

/// Starts packing in the background.
fn send<E: PmEngine<Home = Ssd>>(store: &PmStore<E>) {
    let ssd = &*store.home;
    if store.core.is_scratch || !ssd.runs.are_counted() || ssd.packing.swap(true, Ordering::AcqRel) {
        return;
    }
    let sent = store.jobs.spawn(Lane::Compaction, &store.me, |store| {
        let packed = all(store);
        let outcome = store.home.tidy_slots().and(packed);
        store.home.packing.store(false, Ordering::Release);
        if let Err(error) = outcome {
            // What was not moved is where it was.
            tracing::warn!(%error, "large items could not be packed");
            store.core.put_off(&error);
        }
    });
    if !sent {
        ssd.packing.store(false, Ordering::Release);
    }
}

/// Packs what is loose, in one walk along the index.
pub(super) fn all<E: PmEngine<Home = Ssd>>(store: &PmStore<E>) -> Result<()> {
    let slots = store.home.slots.stats();
    if !store.home.runs.are_counted() || !is_loose(slots.item_bytes, slots.held_bytes) {
        return Ok(());
    }
    let mut after = None;
    let mut batch = ScanBatch::new();
    while !store.jobs.is_closing() {
        let moving = store.home.moving.lock();
        let is_over = pack_next(store, &mut after, &mut batch)?;
        drop(moving);
        {
            // The former places are freed when their readers have left.
            let _shared = store.gate.shared();
            store.give_back();
        }
        if is_over {
            return Ok(());
        }
        store.jobs.give_way(Lane::Compaction);
    }
    Ok(())
}

/// An item that is moved.
struct Loose {
    key: Vec<u8>,
    from: Slot,
}

/// Packs the next loose items after `after`; returns whether there are no more. The caller keeps others from
/// moving anything.
fn pack_next<E: PmEngine<Home = Ssd>>(
    store: &PmStore<E>,
    after: &mut Option<Vec<u8>>,
    batch: &mut ScanBatch,
) -> Result<bool> {
    let ssd = &*store.home;
    let _here = store.limbo.enter();
    let (mut loose, mut bytes, mut share) = (Vec::new(), 0, 0);
    let (mut seen, mut is_over) = (0, false);
    while bytes < PACK_BYTES && seen < PACK_KEYS && !is_over {
        batch.clear();
        let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        store.index.scan(from, false, BATCH_KEYS, batch)?;
        is_over = batch.len() < BATCH_KEYS;
        for (key, bits) in batch.iter() {
            if bytes >= PACK_BYTES {
                is_over = false;
                break;
            }
            seen += 1;
            *after = Some(key.to_vec());
            let Some(OnSsd::Slot(from)) = OnSsd::from_bits(bits) else { continue };
            let (own, its_share) = (ssd.slot_bytes(from), ssd.slots.share_of(from));
            if is_loose(own, its_share) {
                (bytes, share) = (bytes + own, share + its_share);
                loose.push(Loose { key: key.to_vec(), from });
            }
        }
    }
    // Packed, they take their own bytes and less than a block.
    if share.saturating_sub(bytes) >= ssd.slots.block_bytes() {
        move_items(store, loose)?;
    }
    Ok(is_over)
}

fn move_items<E: PmEngine<Home = Ssd>>(store: &PmStore<E>, loose: Vec<Loose>) -> Result<()> {
    let ssd = &*store.home;
    {
        let _shared = store.gate.shared();
        store.admit()?;
    }
    let places: Vec<Slot> = loose.iter().map(|one| one.from).collect();
    let sound = |read: BlockBuf| Some(read).filter(|read| item::decode(ssd.origin(), read).is_some());
    let one = |place: &Slot| ssd.slots.read_many(&[*place]).ok()?.pop().and_then(sound);
    let read: Vec<Option<BlockBuf>> = match ssd.slots.read_many(&places) {
        Ok(read) => read.into_iter().map(sound).collect(),
        Err(error) => {
            tracing::warn!(%error, "some large items cannot be read, and are not packed");
            store.core.put_off(&error);
            places.iter().map(one).collect()
        }
    };
    // Damage and what cannot be read stay where they are, for a reader to find.
    let (loose, items): (Vec<Loose>, Vec<BlockBuf>) =
        loose.into_iter().zip(read).filter_map(|(one, read)| Some((one, read?))).unzip();
    if items.is_empty() {
        return Ok(());
    }
    ssd.stamp(store.next_number())?;
    let written = ssd.slots.pack(items)?;
    let mut moved = Vec::with_capacity(loose.len());
    let done = name(store, &loose, &written, &mut moved);
    for ((one, to), is_moved) in
        loose.iter().zip(written).zip(moved.into_iter().chain(std::iter::repeat(false)))
    {
        if !is_moved {
            // Nothing has led there.
            store.afterwards(store.retire_version(&one.key, VersionRef::Place(OnSsd::Slot(to))));
        }
    }
    done
}

/// Makes the words of `loose` lead to where they were `written`, and says of each whether it does now.
fn name<E: PmEngine<Home = Ssd>>(
    store: &PmStore<E>,
    loose: &[Loose],
    written: &[Slot],
    moved: &mut Vec<bool>,
) -> Result<()> {
    for (chunk, slots) in loose.chunks(CHUNK).zip(written.chunks(CHUNK)) {
        let _shared = store.gate.shared();
        store.admit()?;
        if store.is_pending() {
            // What a group that could not be taken back has replaced stays as it is.
            return Ok(());
        }
        for (one, to) in chunk.iter().zip(slots) {
            let from = VersionRef::Place(OnSsd::Slot(one.from));
            moved.push(replace_word(store, &one.key, from, OnSsd::Slot(*to))?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sixth_and_what_is_spare_may_be_loose() {
        let slots = |item_bytes, held_bytes| SlotStats { item_bytes, held_bytes, ..SlotStats::default() };
        assert!(!is_due(&slots(1200, 1400), 0) && is_due(&slots(1200, 1401), 0));
        assert!(!is_due(&slots(1200, 1500), 100) && is_due(&slots(1200, 1501), 100));
        assert!(!is_due(&slots(0, 0), 0) && !is_due(&slots(0, 4096), 4096));
    }
}
