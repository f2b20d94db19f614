//! Room in sparsely used slabs, and how it is recovered.
//!
//! Slots of one size lie together in slabs, and a slab serves other sizes only when all of it is free. Where
//! most of what had one size is deleted, each slab may be left with a little. The remaining slots are moved
//! into slabs of their kind and size that have room, as an update moves them: a copy is made durable, the
//! word that named the old slot names the copy, and the old slot is freed when its readers have left. So a
//! crash leaves one of the two, and a slot without a name is reclaimed as usual.
//!
//! A key's newest version moves beside other writers, whose word wins if they are faster. Versions under it, which
//! snapshots need, move while nobody writes. The index moves its own slots ([`KeyIndex::move_slot`]).
//!
//! Writes that find no room do this before they are refused, as far as they need it; a background job does it
//! when a third of all slabs' room is free, and empties slabs that are less than half full. A few slots are
//! moved at a time, and one slab after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use terrace_base::Result;
use terrace_index::PointIndex;
use terrace_pmem::{Claim, Clearing, Kind as PmKind};

use super::elsewhere::{Elsewhere, PlaceOf, VersionRef};
use super::index::{KeyIndex, PmEngine};
use super::versions::Named;
use super::{NO_GROUP, PmStore};
use crate::versions::{LINKED_KIND, NewRecord, RECORD_KIND, Record};

/// Slots moved during one hold of the gate.
const CHUNK: usize = 32;

/// Slabs that a write without room empties at first; each time that this is not enough it doubles, up to the
/// given number of times: the room that it needs may come and go again.
pub(super) const FIRST_SLABS: usize = 2;
pub(super) const MOST_TIMES: u32 = 20;

/// Slabs that a background job empties before others get a turn.
const JOB_SLABS: usize = 16;

/// A slab is emptied in the background if at most this percentage of it is in use.
const HALF_FULL: u64 = 50;

/// Records freed between two looks for sparse slabs, and extents' worth of free slots that are tolerated.
const LOOK_EVERY: u64 = 1024;
const EXTENTS_NOT_MINDED: u64 = 16;

/// Attempts to free what was moved, while readers look at it.
const ATTEMPTS: usize = 1000;

/// What is known of sparse slabs.
#[derive(Debug, Default)]
pub(super) struct Sparse {
    /// Records freed since the open.
    freed: Arc<AtomicU64>,
    /// The count of freed records at which to look next.
    look_at: AtomicU64,
    /// A job is queued or running.
    sent: AtomicBool,
    /// Held while emptying slabs: the count of freed records when that last achieved nothing.
    vain: Mutex<Option<u64>>,
    /// How often the index has given something back.
    relieved: AtomicU64,
    /// Held while the index is made smaller, and by who goes through all of it: the count of freed records when giving
    /// back last failed.
    relieving: Mutex<Option<u64>>,
}

impl Sparse {
    /// Counts freed records by `freed`.
    pub fn counting(freed: Arc<AtomicU64>) -> Self {
        Sparse { freed, look_at: AtomicU64::new(LOOK_EVERY), ..Sparse::default() }
    }
}

impl<E: PmEngine> PmStore<E> {
    /// Called when something is retired: keeps slabs from staying sparse.
    #[inline]
    pub(super) fn mind_slabs(&self) {
        if self.sparse.freed.load(Ordering::Relaxed) >= self.sparse.look_at.load(Ordering::Relaxed) {
            self.look_at_slabs();
        }
    }

    /// Starts a job that empties sparse slabs if they amount to much.
    #[cold]
    pub(super) fn look_at_slabs(&self) {
        let (bytes, free) = self.pool.slab_bytes();
        // The time of a look grows with the number of slabs.
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

    /// Empties up to `want` slabs, the sparsest first, for a write that has found no room, or else takes from the index
    /// what it can do without; returns whether there may be room now. The caller does not hold the gate and is not
    /// present.
    pub(super) fn make_room(&self, want: usize) -> bool {
        self.empty_slabs(want, 100) > 0 || self.relieve_index()
    }

    /// Empties up to `want` slabs of which at most `most` per cent are in use; returns how many were freed.
    pub(super) fn empty_slabs(&self, want: usize, most: u64) -> usize {
        let mut vain = self.sparse.vain.lock();
        self.give_back_sharing();
        let freed = self.sparse.freed.load(Ordering::Relaxed);
        if *vain == Some(freed) {
            return 0;
        }
        let kinds: Vec<PmKind> = [RECORD_KIND, LINKED_KIND].iter().chain(E::Index::MOVES).copied().collect();
        let (mut gone, mut waiting) = (0, Vec::new());
        for slab in self.pool.sparse_slabs(&kinds, most) {
            if gone >= want || self.jobs.is_closing() {
                break;
            }
            let Some(mut clearing) = self.pool.clear_slab(slab) else { continue };
            let is_empty = self.move_all(&clearing);
            let let_go = {
                let _shared = self.gate.shared();
                // After an error the slab stays where it is.
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
            // Moving has freed some; the rest cannot be moved.
            *vain = Some(self.sparse.freed.load(Ordering::Relaxed));
        }
        gone
    }

    /// Nobody makes the index smaller while this is held. It is taken before the gate.
    pub(super) fn hold_index(&self) -> MutexGuard<'_, Option<u64>> {
        self.sparse.relieving.lock()
    }

    /// Has the index give back what it can do without; returns whether that was anything, also where another thread has
    /// had it do so meanwhile.
    fn relieve_index(&self) -> bool {
        let sparse = &self.sparse;
        let before = sparse.relieved.load(Ordering::Acquire);
        let mut failed_at = self.hold_index();
        if sparse.relieved.load(Ordering::Acquire) != before {
            return true;
        }
        let freed = sparse.freed.load(Ordering::Relaxed);
        if *failed_at == Some(freed) {
            return false;
        }
        // What this takes from the room kept back is given back soon. Who needs a damaged part gets the error.
        let catch_up = || self.pool.claiming(Claim::Few, || self.index.catch_up());
        let caught_up = self.jobs.hold_open().and_then(|_open| catch_up());
        let given_up = {
            let _shared = self.gate.shared();
            let give_up = || self.pool.claiming(Claim::Few, || self.index.give_up_buffers());
            self.admit().and_then(|()| give_up())
        };
        *failed_at = (caught_up.is_err() || given_up.is_err()).then_some(freed);
        let has_relieved = caught_up.unwrap_or(false) | given_up.unwrap_or(false);
        if has_relieved {
            self.give_back_sharing();
            *sparse.vain.lock() = None;
            sparse.relieved.fetch_add(1, Ordering::AcqRel);
        }
        has_relieved
    }

    /// Gives back what readers have left, while nobody looks at the whole pool or closes it.
    fn give_back_sharing(&self) {
        let _shared = self.gate.shared();
        self.give_back();
    }

    /// Waits until readers have left the contents moved out of at least one of these slabs; returns how many
    /// were freed.
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

    /// Moves the contents of a slab elsewhere; returns whether that was everything.
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
            // Nothing names it: what is retired is freed soon.
            return true;
        }
        older.chunks(CHUNK).all(|chunk| {
            let _alone = self.gate.exclusive();
            self.move_chunk(chunk, kind, &|at| self.move_older(kind, at)).is_some()
        })
    }

    /// Moves these slots by `how`; returns those that have no name. `None`: no more may be moved. The caller
    /// holds the gate.
    fn move_chunk(&self, chunk: &[u64], kind: PmKind, how: &dyn Fn(u64) -> Result<bool>) -> Option<Vec<u64>> {
        // While the header names an undo list, nothing that the list's words name may go.
        if self.admit().is_err() || self.pending.load(Ordering::Relaxed) != NO_GROUP {
            return None;
        }
        let _here = self.limbo.enter();
        let mut not_named = Vec::new();
        for &at in chunk {
            // The index may take what else it needs from the room kept back: it is given back soon.
            match self.pool.moving(kind, || self.pool.claiming(Claim::Few, || how(at))) {
                Ok(true) => {}
                Ok(false) => not_named.push(at),
                Err(e) if e.is_out_of_space() => return None,
                // A reader of the damaged record gets the error; the record stays where it is.
                Err(_) => not_named.push(at),
            }
        }
        Some(not_named)
    }

    /// Moves what the index names at `at`, in a slab that is held; false if it names nothing there. The caller holds
    /// the gate and is present.
    fn move_named(&self, kind: PmKind, at: u64) -> Result<bool> {
        if kind != RECORD_KIND && kind != LINKED_KIND {
            // SAFETY: the slab is held, so nobody takes a slot that was active in it.
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
        self.home.was_written(copy, Some(VersionRef::<PlaceOf<E>>::Record(record.word)));
        let word = VersionRef::Record(copy);
        if under.is_some() || record.word.is_remote() {
            self.note_kept(word);
        }
        // If it has a place, the copy has that place now.
        self.limbo.retire(VersionRef::Record(record.word));
        Ok(true)
    }

    /// Moves the version at `at`, in a slab that is held, if a word or a link leads to it; returns whether
    /// one does. The caller is alone and present.
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
        // SAFETY: the slab is held, so nobody takes a slot that was active in it, and a record is active when
        // it is written.
        unsafe { Record::at(&self.pool, kind, at) }
    }
}
