//! What engines share that keep everything in persistent memory: records of keys and values, an index from
//! each key to the record of its newest version, and nothing else.
//!
//! ```text
//!   index: key ─▶ word ─▶ record: number, key, value ─link─▶ older record, while a snapshot needs it
//! ```
//!
//! **Numbers.** A version is written under the current number, which goes up whenever a snapshot is taken or
//! a group of batches is applied, and at no other time. A snapshot of number `s` sees versions up to `s`.
//! Versions of one key under one number are in the order in which the index took them; only the last of them
//! is visible to anyone.
//!
//! **Single writes** (`write`) run beside each other. A record is flushed, and the index drains both record
//! and word before it publishes the word: whenever the power fails, the key has its new version or its old
//! one.
//!
//! **Groups** of batches (`group`) run alone. The versions that they replace are written down first (`undo`),
//! so that the next open takes back a group that was cut short. Until the group has happened readers are
//! shown the replaced versions.
//!
//! Thread safety: every method may be called from any thread. Readers take no locks. Invariants:
//!
//! 1. Every word of the index names a sound record of its key, and the records that links made since the open
//!    lead to exist. They include what a held snapshot sees of a key.
//! 2. Only a holder of the whole gate (`gate`) registers a snapshot, so never beside a write. A writer
//!    therefore knows which versions are needed, and no existing snapshot sees the version that it writes.
//! 3. Only holders of the gate change links and words of versions. The index decides which writer may replace
//!    a key's newest version; only a holder of the whole gate changes an older one.
//! 4. Lock order: the gate, then what the parts lock. Nobody waits for background jobs while holding the
//!    gate.

mod check;
mod elsewhere;
mod gate;
mod gathered;
mod group;
mod index;
mod layout;
mod open;
mod placed;
mod read;
mod recover;
mod repair;
mod sparse;
#[cfg(test)]
mod tests;
mod together;
mod undo;
mod versions;
mod walk;
mod write;

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use parking_lot::Mutex;
use terrace_base::checksum::seal48;
use terrace_base::exec::Lane;
use terrace_base::{Error, Result};
use terrace_index::PointIndex;
use terrace_index::limbo::Limbo;
use terrace_index::pins::Pins;
use terrace_pmem::{POff, Pool};

use crate::background::Background;
use crate::batch::Op;
use crate::core::Core;
use crate::core::condition::{Check, Condition};
use crate::core::engine::{Direction, Engine, EngineIter};
use crate::core::lent::{Lent, to_keep};
use crate::core::report::CheckReport;
use crate::core::request::Group;
use crate::core::scrub::LiveTables;
use crate::core::snapshots::{Held, Snapshots};
use crate::manifest::Manifest;
use crate::pool;
use crate::stats::Stats;

pub(crate) use elsewhere::{
    Elsewhere, Item, Loaded, Nowhere, Place, Salvaged, Tell, VersionRef, VersionRefOf,
};
pub(crate) use index::{KeyIndex, PmEngine, PositionOf};
pub(crate) use open::open;
pub(crate) use repair::repair;
pub(in crate::engine) use versions::Named;

use elsewhere::PlaceOf;
use gate::WriteGate;
use group::Overlay;
use sparse::Sparse;
use versions::Kept;

/// No group is being applied.
const NO_GROUP: u64 = u64::MAX;

/// Numbers that are set aside durably at a time.
const NUMBERS: u64 = 1 << 20;

/// An open database of the engine `E`.
#[derive(Debug)]
pub(crate) struct PmStore<E: PmEngine> {
    pub(in crate::engine) me: Weak<PmStore<E>>,
    pub(in crate::engine) core: Arc<Core>,
    pub(in crate::engine) pool: Pool,
    pub(in crate::engine) index: E::Index,
    /// Records and places without a name, until their readers have left.
    pub(in crate::engine) limbo: Limbo<VersionRefOf<E>, Pins>,
    manifest: Arc<Manifest>,
    /// The part outside the pool.
    pub(in crate::engine) home: Arc<E::Home>,
    /// Where the records' header lies.
    header: u64,
    pub(in crate::engine) gate: WriteGate,
    /// Writers that have put a version elsewhere, or are about to, and have not finished.
    pub(in crate::engine) placing: AtomicUsize,
    /// The current number. Where versions share numbers, it is changed only by a holder of the whole gate.
    now: AtomicU64,
    /// The highest number that is durably set aside; changes only while `marking` is held.
    mark: AtomicU64,
    marking: Mutex<()>,
    /// The highest number of a record of an earlier session: such a record's link means nothing.
    inherited: u64,
    /// The number of the group that is being applied, or [`NO_GROUP`].
    pending: AtomicU64,
    /// Groups taken back so far: what readers have seen of such a group never happened.
    taken_back: AtomicU64,
    /// The versions that this group replaces.
    group: ArcSwapOption<Overlay<PlaceOf<E>>>,
    /// Where older versions hang.
    kept: Mutex<Kept>,
    /// Held while versions are dropped that were taken from `kept`: whoever waits for it finds them dropped. Locked
    /// before the gate.
    drops: Mutex<()>,
    sparse: Sparse,
    pub(in crate::engine) jobs: Arc<Background>,
    /// A job that drops versions is queued or running.
    dropping: AtomicBool,
    closed: AtomicBool,
    /// A line about the work of opening.
    opened: OnceLock<String>,
    /// The medium that an emulated pool stands for.
    emulated: Option<String>,
}

impl<E: PmEngine> PmStore<E> {
    fn name(&self) -> &'static str {
        E::KIND.name()
    }

    /// Runs `job` in the background; nobody waits for this engine's jobs.
    pub(in crate::engine) fn spawn(&self, job: impl FnOnce(&PmStore<E>) + Send + 'static) -> bool {
        self.jobs.spawn(Lane::Tidying, &self.me, job)
    }

    /// An error unless writes are accepted. The caller holds the gate, so that this does not change.
    pub(in crate::engine) fn admit(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::Closed);
        }
        if self.core.options.read_only {
            return Err(Error::ReadOnly);
        }
        self.core.health.check()?;
        self.manifest.announce_pool()
    }

    /// Advances to the next number. The caller is alone, or every version has a number of its own.
    pub(in crate::engine) fn next_number(&self) -> u64 {
        let next = self.now.fetch_add(1, Ordering::AcqRel) + 1;
        if next > self.mark.load(Ordering::Acquire) {
            let _alone = self.marking.lock();
            if next > self.mark.load(Ordering::Acquire) {
                self.set_mark(next + NUMBERS);
            }
        }
        next
    }

    /// Has the next number be the one after `number`. The caller is alone.
    fn number_from(&self, number: u64) {
        self.now.store(number, Ordering::Release);
    }

    /// The number of a version written now. The caller holds the gate.
    fn number_for_version(&self) -> u64 {
        match E::Home::NUMBERS_EACH {
            true => self.next_number(),
            false => self.now.load(Ordering::Relaxed),
        }
    }

    /// Sets numbers up to `mark` aside, durably.
    fn set_mark(&self, mark: u64) {
        let at = self.header + layout::MARK_AT;
        self.pool.publish(POff::new(at), seal48(self.pool.place(at), mark));
        self.mark.store(mark, Ordering::Release);
    }

    /// Decodes a word of the index.
    pub(in crate::engine) fn decode(&self, bits: u64) -> Result<VersionRefOf<E>> {
        VersionRef::decode(bits).ok_or_else(|| {
            self.pool.corruption(0, "the word of a version in the index", format!("{bits:#018x}"))
        })
    }

    pub(in crate::engine) fn decode_some(&self, bits: Option<u64>) -> Result<Option<VersionRefOf<E>>> {
        bits.map(|bits| self.decode(bits)).transpose()
    }

    /// Whether a group is being applied, or one could not be taken back.
    pub(in crate::engine) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire) != NO_GROUP
    }

    /// Whether a reader at `at` came after a group that could not be taken back: the index has a part of it, and only
    /// the newest versions are known, by the overlay.
    fn is_behind_half_a_group(&self, at: u64) -> bool {
        let pending = self.pending.load(Ordering::Acquire);
        pending != NO_GROUP && at >= pending
    }

    /// Refuses a walk that would show such a part.
    fn refuse_half_a_group(&self, at: u64) -> Result<()> {
        if self.is_behind_half_a_group(at) { self.core.health.check() } else { Ok(()) }
    }

    /// Gives back what nobody can see any more; returns whether that is everything.
    pub(in crate::engine) fn give_back(&self) -> bool {
        self.limbo.drain();
        self.index.drain() && self.limbo.is_empty()
    }

    /// Limits the cache to the rest of the memory budget.
    pub(in crate::engine) fn fit_cache(&self) {
        let (tables, index) = (self.core.cache().table_bytes(), self.index.dram_bytes());
        self.core.memory.fit_cache(tables + index + self.pool.dram_bytes());
    }
}

impl<E: PmEngine> Engine for PmStore<E> {
    fn writes_by_groups(&self) -> bool {
        false
    }

    fn has_happened(&self, number: u64) -> bool {
        // While there is no group, this is above all numbers.
        number < self.pending.load(Ordering::Acquire)
    }

    fn write_one(&self, op: Op<'_>, condition: Condition<'_>) -> Option<Result<bool>> {
        Some(self.write_single(&op, condition))
    }

    fn apply(&self, group: Group<'_>) -> Result<()> {
        self.apply_group(group, &|| Ok(true)).map(drop)
    }

    fn apply_if(&self, group: Group<'_>, holds: Check<'_>) -> Result<bool> {
        self.apply_group(group, holds)
    }

    fn hold(&self, snapshots: &Arc<Snapshots>) -> Held {
        let _alone = self.gate.exclusive();
        let held = snapshots.hold_at(self.now.load(Ordering::Relaxed));
        if !self.core.options.read_only && !self.closed.load(Ordering::Relaxed) {
            self.next_number();
        }
        held
    }

    fn get(&self, key: &[u8], at: Option<u64>) -> Result<Option<Bytes>> {
        self.with_value(key, at, to_keep)
    }

    fn get_with(&self, key: &[u8], at: Option<u64>, show: &mut dyn FnMut(Lent<'_>)) -> Result<bool> {
        Ok(self.with_value(key, at, show)?.is_some())
    }

    fn get_many(&self, keys: &[&[u8]], at: u64) -> Result<Vec<Option<Bytes>>> {
        if self.is_behind_half_a_group(at) {
            return keys.iter().map(|key| self.get(key, None)).collect();
        }
        self.get_many_at(keys, at)
    }

    fn contains(&self, key: &[u8]) -> Result<bool> {
        self.contains_key(key)
    }

    fn walk(self: Arc<Self>, at: u64, direction: Direction) -> Result<Box<dyn EngineIter>> {
        self.ordered()?;
        self.refuse_half_a_group(at)?;
        Ok(Box::new(walk::OrderedIter::new(self, at, direction)))
    }

    fn ordered(&self) -> Result<()> {
        match E::KIND.is_ordered() {
            true => Ok(()),
            false => {
                Err(Error::Unsupported { engine: self.name(), operation: "iteration in the order of keys" })
            }
        }
    }

    fn walk_all(self: Arc<Self>, at: u64) -> Result<Box<dyn EngineIter>> {
        if E::KIND.is_ordered() {
            return self.walk(at, Direction::Forward);
        }
        self.refuse_half_a_group(at)?;
        Ok(Box::new(walk::FullIter::new(self, at)))
    }

    fn rotate(&self) -> Result<()> {
        Ok(())
    }

    fn wait_until_flushed(&self) -> Result<()> {
        if !self.core.options.read_only {
            self.core.files.sweep(&self.manifest);
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn compact(&self, _from: Bound<&[u8]>, _to: Bound<&[u8]>) -> Result<()> {
        let _open = self.jobs.hold_open()?;
        self.drop_versions()?;
        {
            let _alone = self.hold_index();
            self.index.shrink()?;
        }
        self.give_back();
        self.home.compact(self)?;
        self.empty_slabs(usize::MAX, 100);
        Ok(())
    }

    fn released(&self) {
        if !self.drop_few_versions() {
            self.drop_versions_soon();
        }
    }

    fn fill_stats(&self, stats: &mut Stats) {
        check::fill_stats(self, stats);
    }

    fn tables(&self) -> Option<&dyn LiveTables> {
        self.home.tables()
    }

    fn check(&self) -> Result<CheckReport> {
        check::check(self)
    }

    fn pool(&self) -> Option<&Pool> {
        Some(&self.pool)
    }

    fn close(&self) -> Result<()> {
        if !self.jobs.close() {
            return Ok(());
        }
        self.core.health.uncut()?;
        let _alone = self.gate.exclusive();
        self.closed.store(true, Ordering::Release);
        if self.core.options.read_only {
            self.give_back();
            return self.pool.close();
        }
        let versions_go = self.drop_versions_alone();
        let index = self.index.close().and(self.home.close());
        let cut_short = self.pending.load(Ordering::Relaxed) != NO_GROUP;
        if !self.give_back() || cut_short || !self.kept.lock().is_empty() || versions_go.is_err() {
            // What readers and snapshots keep stays until they release it, and is unreachable if the process
            // ends before.
            self.pool.leave_unreclaimed();
        }
        index?;
        pool::close(&self.core, &self.manifest, Some(&self.pool))
    }
}
