//! Room that is lost to slabs in which little is left, and how it comes back.
//!
//! Slots of one size lie together in slabs, and a slab is there for other sizes only when all of it is free. Where most of
//! what had one size is deleted, each slab may be left with a little. What is left is moved into slabs of its kind and size
//! that have room for it, as an update moves it: a copy is made durable, the word that named the old one names the copy, and
//! the old one is freed when its readers have left. So a crash leaves the one or the other, and what it leaves without a name
//! is reclaimed as ever.
//!
//! A key's newest version moves beside other writers, whose word wins if they are faster. Versions under it, which snapshots
//! need, move while nobody writes. What the index keeps in slots it moves by itself ([`KeyIndex::move_slot`]).
//!
//! That is done by writes that find no room, before they are refused, as far as they need it; and in the background, where a
//! third of all that slabs hold is free: then those that are less than half full are emptied. A few slots are moved at a
//! time, and one slab after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use terrace_base::Result;
use terrace_pmem::{Claim, Clearing, Kind as PmKind};

use super::elsewhere::{Elsewhere, PlaceOf, VersionRef};
use super::index::KeyIndex;
use super::versions::Named;
use super::{NO_GROUP, PmStore};
use crate::versions::{LINKED_KIND, NewRecord, RECORD_KIND, Record};

/// Slots that are moved while the gate is held once.
const CHUNK: usize = 32;

/// Slabs that a write without room has emptied at first; each time that this is not enough, twice as many, up to so many
/// times: what it needs may come and go again.
pub(super) const FIRST_SLABS: usize = 2;
pub(super) const MOST_TIMES: u32 = 20;

/// Slabs that a job in the background empties before others get a chance.
const JOB_SLABS: usize = 16;

/// Hundredths of a slab that are in use at most where it is emptied in the background.
const HALF_FULL: u64 = 50;

/// Records that are freed before somebody looks whether slabs are sparse, and extents' worth of free slots that are not
/// minded.
const LOOK_EVERY: u64 = 1024;
const EXTENTS_NOT_MINDED: u64 = 16;

/// Attempts to have what was moved freed, while readers look at it.
const ATTEMPTS: usize = 1000;

/// What is known of sparse slabs.
#[derive(Debug, Default)]
pub(super) struct Sparse {
    /// Records freed since the open.
    freed: Arc<AtomicU64>,
    /// How many of them there are when somebody looks next.
    look_at: AtomicU64,
    /// A job is on its way.
    sent: AtomicBool,
    /// Held to empty slabs: how many records had been freed when that last came to nothing.
    vain: Mutex<Option<u64>>,
}

impl Sparse {
    /// Counts the records that are freed from now on by `freed`.
    pub fn counting(freed: Arc<AtomicU64>) -> Self {
        Sparse { freed, look_at: AtomicU64::new(LOOK_EVERY), ..Sparse::default() }
    }
}

impl<I: KeyIndex> PmStore<I> {
    /// Something is retired: sees to it that slabs do not stay sparse.
    #[inline]
    pub(super) fn mind_slabs(&self) {
        if self.sparse.freed.load(Ordering::Relaxed) >= self.sparse.look_at.load(Ordering::Relaxed) {
            self.look_at_slabs();
        }
    }

    /// Has sparse slabs emptied in the background if they come to much.
    #[cold]
    pub(super) fn look_at_slabs(&self) {
        let (bytes, free) = self.pool.slab_bytes();
        // A look takes as long as there are slabs.
        let next = LOOK_EVERY + bytes / self.pool.extent_bytes();
        self.sparse.look_at.store(self.sparse.freed.load(Ordering::Relaxed) + next, Ordering::Relaxed);
        if free * 3 >= bytes && free >= EXTENTS_NOT_MINDED * self.pool.extent_bytes() {
            self.send_to_slabs();
        }
    }

    fn send_to_slabs(&self) {
        if self.sparse.sent.swap(true, Ordering::AcqRel) {
            return;
        }
        let sent = self.spawn(|store| {
            store.sparse.sent.store(false, Ordering::Release);
            if store.empty_slabs(JOB_SLABS, HALF_FULL) >= JOB_SLABS {
                store.look_at_slabs();
            }
        });
        if !sent {
            self.sparse.sent.store(false, Ordering::Release);
        }
    }

    /// Empties up to `want` slabs, the sparsest first, for a write that has found no room; whether any has gone. The caller
    /// does not hold the gate and is not present.
    pub(super) fn make_room(&self, want: usize) -> bool {
        self.empty_slabs(want, 100) > 0
    }

    /// Empties up to `want` slabs of which at most `most` hundredths are in use; how many have gone.
    pub(super) fn empty_slabs(&self, want: usize, most: u64) -> usize {
        let mut vain = self.sparse.vain.lock();
        self.give_back_sharing();
        let freed = self.sparse.freed.load(Ordering::Relaxed);
        if *vain == Some(freed) {
            return 0;
        }
        let kinds: Vec<PmKind> = [RECORD_KIND, LINKED_KIND].iter().chain(I::MOVES).copied().collect();
        let (mut gone, mut waiting) = (0, Vec::new());
        for slab in self.pool.sparse_slabs(&kinds, most) {
            if gone >= want || self.jobs.is_closing() {
                break;
            }
            let Some(mut clearing) = self.pool.clear_slab(slab) else { continue };
            let is_empty = self.move_all(&clearing);
            let let_go = {
                let _shared = self.gate.shared();
                // An error leaves the slab where it is.
                let let_go = clearing.let_go();
                self.give_back();
                let_go
            };
            if clearing.is_gone() {
                gone += 1;
            } else if is_empty && let_go.is_ok() {
                waiting.push(clearing);
            }
        }
        if gone == 0 {
            gone = self.wait_for_one(&waiting);
        }
        if gone == 0 && most == 100 {
            // Moving has freed some; what is left is what cannot be moved.
            *vain = Some(self.sparse.freed.load(Ordering::Relaxed));
        }
        gone
    }

    /// Gives back what readers have left, while nobody looks at all of the pool or closes it.
    fn give_back_sharing(&self) {
        let _shared = self.gate.shared();
        self.give_back();
    }

    /// How many of these slabs have gone, once readers have left what was moved out of one at least.
    fn wait_for_one(&self, waiting: &[Clearing]) -> usize {
        let attempts = if waiting.is_empty() { 0 } else { ATTEMPTS };
        for _ in 0..attempts {
            self.give_back_sharing();
            let gone = waiting.iter().filter(|clearing| clearing.is_gone()).count();
            if gone > 0 {
                return gone;
            }
            std::thread::yield_now();
        }
        0
    }

    /// Moves what is in a slab elsewhere; whether that was everything.
    fn move_all(&self, clearing: &Clearing) -> bool {
        let (kind, slots) = (clearing.kind(), clearing.slots());
        let mut older = Vec::new();
        for chunk in slots.chunks(CHUNK) {
            let _shared = self.gate.shared();
            let Some(not_named) = self.move_chunk(chunk, kind, &|at| self.move_named(kind, at)) else {
                return false;
            };
            older.extend(not_named);
        }
        let is_record = kind == RECORD_KIND || kind == LINKED_KIND;
        if !is_record || self.kept.lock().is_empty() {
            // Nobody's: what is retired is freed soon.
            return true;
        }
        older.chunks(CHUNK).all(|chunk| {
            let _alone = self.gate.exclusive();
            self.move_chunk(chunk, kind, &|at| self.move_older(kind, at)).is_some()
        })
    }

    /// Moves these slots by `how`; those that are not named. `None`: no more may be moved. The caller holds the gate.
    fn move_chunk(&self, chunk: &[u64], kind: PmKind, how: &dyn Fn(u64) -> Result<bool>) -> Option<Vec<u64>> {
        // While the header names an undo list nothing that its words name may go.
        if self.admit().is_err() || self.pending.load(Ordering::Relaxed) != NO_GROUP {
            return None;
        }
        let _here = self.limbo.enter();
        let mut not_named = Vec::new();
        for &at in chunk {
            // What an index needs beside may come out of what is kept back: it is given back soon.
            match self.pool.moving(kind, || self.pool.claiming(Claim::Some, || how(at))) {
                Ok(true) => {}
                Ok(false) => not_named.push(at),
                Err(e) if e.is_out_of_space() => return None,
                // Whoever asks for what is damaged is told; it stays where it is.
                Err(_) => not_named.push(at),
            }
        }
        Some(not_named)
    }

    /// Moves what the index names at `at`, in a slab that is held; false if it names nothing there. The caller holds the gate and is
    /// present.
    fn move_named(&self, kind: PmKind, at: u64) -> Result<bool> {
        if kind != RECORD_KIND && kind != LINKED_KIND {
            // SAFETY: the slab is held: of what was active in it nobody takes a slot.
            return unsafe { self.index.move_slot(kind, at) };
        }
        let Some(record) = self.record_at(kind, at) else { return Ok(false) };
        if self.index.get(record.key)? != Some(record.word.bits()) {
            return Ok(false);
        }
        let under = self.link(&record)?;
        let copy = NewRecord::copy(&self.pool, &record, under.map(VersionRef::bits))?;
        if !self.index.drains_first() {
            self.pool.drain();
        }
        let (from, to) = (record.word.bits(), copy.word().bits());
        if self.index.compare_exchange(record.key, Some(from), Some(to))?.is_err() {
            // Another writer was faster, and has retired it.
            return Ok(true);
        }
        let copy = copy.keep();
        self.home.was_written(copy, Some(VersionRef::<PlaceOf<I>>::Record(record.word)));
        let word = VersionRef::Record(copy);
        if under.is_some() || record.word.is_remote() {
            self.note_kept(word);
        }
        // Where it has a place, the copy has that now.
        self.limbo.retire(VersionRef::Record(record.word));
        Ok(true)
    }

    /// Moves the version at `at`, in a slab that is held, if it is named or a link leads there; whether it is. The caller is
    /// alone and present.
    fn move_older(&self, kind: PmKind, at: u64) -> Result<bool> {
        let Some(record) = self.record_at(kind, at) else { return Ok(false) };
        let Some(head) = self.decode_some(self.index.get(record.key)?)? else { return Ok(false) };
        let chain = self.chain(head, record.key)?;
        let at_link = chain.iter().position(|version| version.word() == VersionRef::Record(record.word));
        let Some(i) = at_link else { return Ok(false) };
        let Some(newer) = i.checked_sub(1) else { return self.move_named(kind, at) };
        let Named::Record(newer) = chain[newer] else { return Ok(false) };
        let under = chain.get(i + 1).map(|version| version.word().bits());
        let copy = NewRecord::copy(&self.pool, &record, under)?;
        newer.relink(&self.pool, Some(copy.word().bits()))?;
        copy.keep();
        self.limbo.retire(VersionRef::Record(record.word));
        Ok(true)
    }

    /// The record in an active slot of a slab that is held, if there is one.
    fn record_at(&self, kind: PmKind, at: u64) -> Option<Record<'_>> {
        // SAFETY: the slab is held: of what was active in it nobody takes a slot, and a record is active when it is written.
        unsafe { Record::at(&self.pool, kind, at) }
    }
}
