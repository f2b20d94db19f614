//! Older versions that snapshots need, and how they are dropped.
//!
//! A version hangs under its successor's link. It is dropped by the first write of its key after the
//! snapshots that needed it have gone, or by who releases a snapshot: at once if there are few versions and nobody
//! writes, else by a job.

use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use terrace_base::Result;
use terrace_index::PointIndex;
use terrace_pmem::Claim;

use super::PmStore;
use super::elsewhere::{Elsewhere, Place, PlaceOf, VersionRef, VersionRefOf};
use super::index::PmEngine;
use crate::core::snapshots::is_needed;
use crate::versions::{LINKED_KIND, Record, RecordRef};

/// Linked records whose keys are processed during one hold of the gate.
const CHUNK: usize = 32;

/// Linked records whose keys the thread that releases a snapshot processes itself.
const FEW: usize = 4;

/// Linked records that are remembered one by one: 8 MiB. Beyond that the pool is searched for all of them.
const MOST_REMEMBERED: usize = 1 << 20;

/// The linked records under which something may hang. Some may be gone, with others in their places: a user
/// of a remembered word first asks the pool whether a linked record is there. If it belongs to another key,
/// that key is processed, which is harmless.
#[derive(Debug, Default)]
pub(super) struct Kept {
    words: Vec<RecordRef>,
    /// Not all of them are remembered.
    overflown: bool,
    /// Somebody is looking at what was remembered, and remembers again what stays.
    is_taken: bool,
    /// Some are not necessary, and could not be dropped for lack of room.
    is_put_off: bool,
    /// The snapshots beside which all of them were found necessary, and none has come since.
    necessary_for: Option<Vec<u64>>,
}

impl Kept {
    pub fn is_empty(&self) -> bool {
        self.words.is_empty() && !self.overflown && !self.is_taken
    }

    /// How many there are, if all of them are remembered.
    fn count(&self) -> Option<usize> {
        (!self.overflown).then_some(self.words.len())
    }

    fn add(&mut self, word: RecordRef) {
        self.necessary_for = None;
        match self.words.len() < MOST_REMEMBERED {
            true => self.words.push(word),
            false => self.overflown = true,
        }
    }
}

/// Somebody looks at what was remembered. What a panic keeps from being looked at is searched for.
struct Taken<'k>(&'k Mutex<Kept>);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut kept = self.0.lock();
        kept.is_taken = false;
        kept.overflown |= std::thread::panicking();
    }
}

/// A version, as far as it is known without looking outside the pool.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) enum Named<'p, P> {
    Record(Record<'p>),
    Place(P),
}

impl<P: Place> Named<'_, P> {
    pub fn word(&self) -> VersionRef<P> {
        match self {
            Named::Record(record) => VersionRef::Record(record.word),
            Named::Place(place) => VersionRef::Place(*place),
        }
    }

    /// A lower bound of its number.
    pub fn lowest(&self) -> u64 {
        match self {
            Named::Record(record) => record.number,
            Named::Place(_) => 0,
        }
    }
}

impl<E: PmEngine> PmStore<E> {
    /// The version that `word` names, a version of `key`. The caller has been present since before the word
    /// was loaded.
    pub(super) fn named(&self, word: VersionRefOf<E>, key: &[u8]) -> Result<Named<'_, PlaceOf<E>>> {
        Ok(match word {
            VersionRef::Record(word) => {
                // SAFETY: the caller is present.
                let record = unsafe { Record::load(&self.pool, word)? };
                Named::Record(record.of(&self.pool, key)?)
            }
            VersionRef::Place(place) => Named::Place(place),
        })
    }

    /// The version under `record`. Links of earlier sessions mean nothing.
    pub(in crate::engine) fn link(&self, record: &Record<'_>) -> Result<Option<VersionRefOf<E>>> {
        if record.number <= self.inherited {
            return Ok(None);
        }
        match record.link(&self.pool)? {
            0 => Ok(None),
            bits => VersionRef::decode(bits).map(Some).ok_or_else(|| {
                self.pool.corruption(
                    record.word.offset(),
                    "the record of a version",
                    "a link that leads nowhere",
                )
            }),
        }
    }

    /// The place in a remote record.
    pub(in crate::engine) fn place_in(&self, record: &Record<'_>) -> Result<Option<PlaceOf<E>>> {
        if !record.word.is_remote() {
            return Ok(None);
        }
        let place = record.place().and_then(PlaceOf::<E>::from_bits);
        place.map(Some).ok_or_else(|| {
            self.pool.corruption(record.word.offset(), "the record of a version", "a place that is none")
        })
    }

    /// Remembers that something hangs under the record of `word`, or that a record may soon be unnecessary.
    pub(super) fn note_kept(&self, word: VersionRefOf<E>) {
        let VersionRef::Record(word) = word else { return };
        if !word.is_linked() {
            return;
        }
        self.kept.lock().add(word);
        if self.core.snapshots.newest() == 0 {
            // The snapshot that needed it has gone meanwhile, and has started no job.
            self.drop_versions_soon();
        }
    }

    /// Retires a version of `key` that nothing names any more, with the place that its record may hold. The
    /// caller is present.
    pub(in crate::engine) fn retire_version(&self, key: &[u8], word: VersionRefOf<E>) -> Result<()> {
        match word {
            VersionRef::Place(place) => self.retire_place(key, place),
            VersionRef::Record(record) if record.is_remote() => {
                // SAFETY: the caller is present, and the record is retired only now.
                let loaded = unsafe { Record::load(&self.pool, record)? };
                let place = self.place_in(&loaded)?;
                self.limbo.retire(word);
                place.map_or(Ok(()), |place| self.retire_place(key, place))
            }
            VersionRef::Record(_) => {
                self.limbo.retire(word);
                Ok(())
            }
        }
    }

    /// Retires the place of a version of `key` that nothing names any more.
    pub(super) fn retire_place(&self, key: &[u8], place: PlaceOf<E>) -> Result<()> {
        self.home.retire(key, place)?;
        self.limbo.retire(VersionRef::Place(place));
        Ok(())
    }

    /// Retires a version of `key` and all under it. The caller is present, and nothing names `word` any more.
    pub(super) fn retire_chain(&self, key: &[u8], word: VersionRefOf<E>) -> Result<()> {
        let mut next = Some(word);
        while let Some(word) = next {
            next = match word {
                VersionRef::Record(record) if record.is_linked() => {
                    // SAFETY: the caller is present, and `word` is retired only now.
                    let record = unsafe { Record::load(&self.pool, record)? };
                    self.link(&record)?
                }
                _ => None,
            };
            self.retire_version(key, word)?;
        }
        Ok(())
    }

    /// The version that a reader at `at` sees of a key whose newest is `newest`, or may see: a version that
    /// is no record has its number only where it lies. The caller is present.
    pub(super) fn version_from<'p>(
        &'p self,
        newest: Named<'p, PlaceOf<E>>,
        at: u64,
    ) -> Result<Option<Named<'p, PlaceOf<E>>>> {
        let mut version = newest;
        loop {
            match version {
                Named::Record(record) if record.number > at => {
                    let Some(next) = self.link(&record)? else { return Ok(None) };
                    version = self.under(&record, next)?;
                }
                Named::Record(record) => return Ok((!record.word.is_tombstone()).then_some(version)),
                Named::Place(_) => return Ok(Some(version)),
            }
        }
    }

    /// The version that `record` links to.
    fn under<'p>(&'p self, record: &Record<'p>, next: VersionRefOf<E>) -> Result<Named<'p, PlaceOf<E>>> {
        // A reader of `record` also keeps what hangs under it from being freed.
        let older = self.named(next, record.key)?;
        match older.lowest() < record.number {
            true => Ok(older),
            false => {
                let at = next.record().map_or(0, RecordRef::offset);
                Err(self.pool.corruption(at, "an older version", "one that is not"))
            }
        }
    }

    /// All versions from `word` on, newest first. The caller is present.
    pub(in crate::engine) fn chain<'p>(
        &'p self,
        word: VersionRefOf<E>,
        key: &[u8],
    ) -> Result<Vec<Named<'p, PlaceOf<E>>>> {
        // The caller has been present since before the word was loaded.
        let mut chain = vec![self.named(word, key)?];
        while let Some(Named::Record(last)) = chain.last().copied()
            && let Some(next) = self.link(&last)?
        {
            chain.push(self.under(&last, next)?);
        }
        Ok(chain)
    }

    /// Drops versions that no snapshot needs any more, if there are so few that this costs less than to wake a thread for
    /// them, and the gate is free; returns whether no job is needed for them. The caller may hold the gate.
    pub(super) fn drop_few_versions(&self) -> bool {
        let are_few = || self.kept.lock().count().is_some_and(|count| count <= FEW);
        if self.core.options.read_only || self.is_nothing_to_drop() {
            return true;
        }
        // What fails on a thread that unwinds would end the process.
        if !are_few() || std::thread::panicking() {
            return false;
        }
        let (Some(_one), Some(_alone)) = (self.drops.try_lock(), self.gate.try_exclusive()) else {
            return false;
        };
        // A close may have had the gate, and others may have been kept meanwhile.
        let is_closed = self.closed.load(Ordering::Acquire);
        if is_closed || !are_few() {
            return is_closed;
        }
        if let Err(e) = self.drop_versions_alone() {
            self.core.health.fail(e);
        }
        true
    }

    /// Whether no version is kept, or the snapshots are those for which the last look has found all of them necessary.
    fn is_nothing_to_drop(&self) -> bool {
        let kept = self.kept.lock();
        kept.is_empty() || kept.necessary_for.as_ref().is_some_and(|held| *held == self.core.snapshots.list())
    }

    /// Has a job drop them.
    pub(super) fn drop_versions_soon(&self) {
        let wanted = !self.core.options.read_only && !self.is_nothing_to_drop();
        if wanted && !self.jobs.is_closing() && !self.dropping.swap(true, Ordering::AcqRel) {
            self.jobs.tidy(&self.me, |store| {
                store.dropping.store(false, Ordering::Release);
                store.drop_versions()
            });
        }
    }

    /// Drops versions that no snapshot needs any more, a few at a time. Those that another thread is dropping have
    /// gone, too, when this returns.
    pub(super) fn drop_versions(&self) -> Result<()> {
        let _one = self.drops.lock();
        let (words, _taken) = self.take_kept();
        for chunk in words.chunks(CHUNK) {
            let _alone = self.gate.exclusive();
            self.drop_versions_of(chunk)?;
        }
        Ok(())
    }

    /// The same for a caller that is alone.
    pub(super) fn drop_versions_alone(&self) -> Result<()> {
        let (words, _taken) = self.take_kept();
        let held = self.core.snapshots.list();
        self.drop_versions_of(&words)?;
        let mut kept = self.kept.lock();
        // If a snapshot was released meanwhile, this is not the present list, and the next look is not in vain.
        kept.necessary_for = (!kept.overflown && !kept.is_put_off).then_some(held);
        Ok(())
    }

    /// What is remembered, and a guard to be kept while it is looked at.
    fn take_kept(&self) -> (Vec<RecordRef>, Taken<'_>) {
        let taken = Taken(&self.kept);
        let kept = std::mem::replace(&mut *self.kept.lock(), Kept { is_taken: true, ..Kept::default() });
        if !kept.overflown {
            return (kept.words, taken);
        }
        let slots = self.pool.slots(LINKED_KIND);
        // The sort of record is found when it is examined.
        (slots.map(|(at, _)| RecordRef::new(at, false, true)).collect(), taken)
    }

    fn drop_versions_of(&self, words: &[RecordRef]) -> Result<()> {
        if self.is_pending() {
            // Only the undo list names what a group that could not be taken back has replaced: it stays.
            self.kept.lock().overflown = true;
            return Ok(());
        }
        let done = self.try_drop_versions_of(words);
        if done.is_err() {
            // The next job looks everywhere.
            self.kept.lock().overflown = true;
        }
        done
    }

    fn try_drop_versions_of(&self, words: &[RecordRef]) -> Result<()> {
        let held = self.core.snapshots.list();
        for word in words {
            let _here = self.limbo.enter();
            if !self.pool.is_active(word.offset(), LINKED_KIND) {
                continue;
            }
            // SAFETY: the caller is alone, so nobody frees or writes records. A linked record is here, though
            // perhaps not the one that was meant: a deletion may be in the place of a put.
            let Some(record) = (unsafe { Record::at(&self.pool, LINKED_KIND, word.offset()) }) else {
                continue;
            };
            let key = record.key.to_vec();
            if let Some(still) = self.collapse(&key, &held)? {
                self.note_kept(still);
            }
        }
        Ok(())
    }

    /// Drops the versions of `key` that no snapshot in `held` (ascending) needs; returns its newest if
    /// something still hangs under that, or if it is a record with a place where the place alone will do one
    /// day. The caller is alone and present.
    pub(super) fn collapse(&self, key: &[u8], held: &[u64]) -> Result<Option<VersionRefOf<E>>> {
        self.try_collapse(key, held).inspect_err(|_| {
            // Some versions may have lost their names and not be retired: nothing finds them before the next opening.
            self.pool.leave_unreclaimed();
        })
    }

    fn try_collapse(&self, key: &[u8], held: &[u64]) -> Result<Option<VersionRefOf<E>>> {
        let Some(head) = self.decode_some(self.index.get(key)?)? else { return Ok(None) };
        let chain = self.chain(head, key)?;
        let mut kept = vec![chain[0]];
        let mut newer = chain[0].lowest();
        let mut dropped = Vec::new();
        for version in &chain[1..] {
            match is_needed(held, version.lowest(), newer) {
                true => kept.push(*version),
                false => dropped.push(version.word()),
            }
            newer = version.lowest();
        }
        // A deletion with nothing under it says nothing, unless a snapshot sees it first.
        while kept.len() > 1 && kept.last().is_some_and(|last| last.word().is_tombstone()) {
            dropped.extend(kept.pop().map(|last| last.word()));
        }
        for (i, version) in kept.iter().enumerate() {
            let Named::Record(version) = version else { break };
            let under = kept.get(i + 1).map(Named::word);
            if self.link(version)? != under {
                version.relink(&self.pool, under.map(VersionRef::bits))?;
            }
        }
        if kept.len() == 1 && head.is_tombstone() && self.replace_or_put_off(key, head, None)? {
            dropped.push(head);
        }
        dropped.into_iter().try_for_each(|word| self.retire_version(key, word))?;
        match kept[..] {
            [Named::Record(only)] if only.word.is_remote() => self.replace_by_place(&only, held),
            _ => Ok((kept.len() > 1).then_some(head)),
        }
    }

    /// Replaces the remote `record`, the only version of its key, by its place, unless a snapshot that does
    /// not see the record would then see the version: the number at the place may be lower. Returns the
    /// record if it stays. The caller is alone and present.
    fn replace_by_place(&self, record: &Record<'_>, held: &[u64]) -> Result<Option<VersionRefOf<E>>> {
        let word = VersionRef::Record(record.word);
        let Some(place) = self.place_in(record)? else { return Ok(None) };
        if is_needed(held, 0, record.number) {
            return Ok(Some(word));
        }
        if self.replace_or_put_off(record.key, word, Some(place.bits()))? {
            self.limbo.retire(word);
        }
        Ok(None)
    }

    /// Replaces the word of `key`, and returns whether it did. The index may take what else it needs from the
    /// room kept back; if there is no room even so, all stays as it is until the next look. The caller is
    /// alone.
    fn replace_or_put_off(&self, key: &[u8], from: VersionRefOf<E>, to: Option<u64>) -> Result<bool> {
        let exchange = || self.index.compare_exchange(key, Some(from.bits()), to);
        match self.pool.claiming(Claim::Some, exchange) {
            Ok(replaced) => Ok(replaced.is_ok()),
            Err(e) if e.is_out_of_space() => {
                // No job is started: it would find no room either.
                if let Some(record) = from.record().filter(|record| record.is_linked()) {
                    let mut kept = self.kept.lock();
                    kept.add(record);
                    kept.is_put_off = true;
                }
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    /// Linked records remembered.
    pub(super) fn kept_versions(&self) -> u64 {
        let kept = self.kept.lock();
        match kept.overflown {
            false => kept.words.len() as u64,
            true => self.pool.slots(LINKED_KIND).count() as u64,
        }
    }

    /// The number of now.
    pub(super) fn number(&self) -> u64 {
        self.now.load(Ordering::Acquire)
    }
}
