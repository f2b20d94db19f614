//! Older versions: those that snapshots need, and their end.
//!
//! A version hangs under its successor's link. It goes with the first write of its key after the snapshots that needed it,
//! or when a job comes by that every release of a snapshot sends.

use std::sync::atomic::Ordering;

use terrace_base::Result;

use super::PmStore;
use super::index::KeyIndex;
use crate::core::engine::Engine;
use crate::core::snapshots::is_needed;
use crate::versions::{LINKED_KIND, Record, RecordRef};

/// Linked records whose keys are looked after while the gate is held once.
const CHUNK: usize = 32;

/// Linked records that are remembered one by one: 8 MiB. Where there are more the pool is asked for all.
const MOST_REMEMBERED: usize = 1 << 20;

/// The linked records under which something may hang. Some may be gone, and others be in their places: whoever goes by
/// a remembered word asks the pool first whether a linked record is there. If that is another key's, that key is looked
/// after, which is harmless.
#[derive(Debug, Default)]
pub(super) struct Kept {
    words: Vec<RecordRef>,
    /// Not all of them are remembered.
    overflown: bool,
}

impl Kept {
    pub fn is_empty(&self) -> bool {
        self.words.is_empty() && !self.overflown
    }

    fn add(&mut self, word: RecordRef) {
        match self.words.len() < MOST_REMEMBERED {
            true => self.words.push(word),
            false => self.overflown = true,
        }
    }
}

impl<I: KeyIndex> PmStore<I> {
    /// The version under `record`. Links of earlier sessions mean nothing.
    pub(super) fn link<'p>(&'p self, record: &Record<'p>) -> Result<Option<RecordRef>> {
        if record.number <= self.inherited { Ok(None) } else { record.link(&self.pool) }
    }

    /// Remembers that something hangs under the record of `word`.
    pub(super) fn note_kept(&self, word: RecordRef) {
        if !word.is_linked() {
            return;
        }
        self.kept.lock().add(word);
        if self.core.snapshots.newest() == 0 {
            // The snapshot that needed it has gone meanwhile, and has sent nobody.
            self.released();
        }
    }

    /// Retires a version and all under it. The caller is present, and nothing names `word` any more.
    pub(super) fn retire_chain(&self, word: RecordRef) -> Result<()> {
        let mut next = Some(word);
        while let Some(word) = next {
            next = if word.is_linked() {
                // SAFETY: the caller is present, and `word` is retired only now.
                let record = unsafe { Record::load(&self.pool, word)? };
                self.link(&record)?
            } else {
                None
            };
            self.limbo.retire(word);
        }
        Ok(())
    }

    /// The version of `key` that a reader at `at` sees, given its newest. The caller is present.
    pub(super) fn version_at(&self, word: RecordRef, key: &[u8], at: u64) -> Result<Option<Record<'_>>> {
        // SAFETY: the caller is present since before the word was loaded.
        let newest = unsafe { Record::load(&self.pool, word)? }.of(&self.pool, key)?;
        self.version_from(newest, at)
    }

    /// The version that a reader at `at` sees of a key whose newest is `newest`. The caller is present.
    pub(super) fn version_from<'p>(&'p self, newest: Record<'p>, at: u64) -> Result<Option<Record<'p>>> {
        let mut record = newest;
        while record.number > at {
            let Some(next) = self.link(&record)? else { return Ok(None) };
            record = self.under(&record, next)?;
        }
        Ok((!record.word.is_tombstone()).then_some(record))
    }

    /// The record that `record` has a link to.
    fn under<'p>(&'p self, record: &Record<'p>, next: RecordRef) -> Result<Record<'p>> {
        // SAFETY: as for `record`, whose reader keeps what hangs under it from being freed, too.
        let older = unsafe { Record::load(&self.pool, next)? }.of(&self.pool, record.key)?;
        match older.number < record.number {
            true => Ok(older),
            false => Err(self.pool.corruption(next.offset(), "an older version", "one that is not")),
        }
    }

    /// All versions from `word` on, newest first. The caller is present.
    pub(super) fn chain<'p>(&'p self, word: RecordRef, key: &[u8]) -> Result<Vec<Record<'p>>> {
        // SAFETY: the caller is present since before the word was loaded.
        let mut chain = vec![unsafe { Record::load(&self.pool, word)? }.of(&self.pool, key)?];
        while let Some(last) = chain.last().copied()
            && let Some(next) = self.link(&last)?
        {
            chain.push(self.under(&last, next)?);
        }
        Ok(chain)
    }

    /// Drops versions that no snapshot needs any more, few at a time.
    pub(super) fn drop_versions(&self) -> Result<()> {
        let words = self.take_kept();
        for chunk in words.chunks(CHUNK) {
            let _alone = self.gate.exclusive();
            self.drop_versions_of(chunk)?;
        }
        Ok(())
    }

    /// The same for a caller that is alone.
    pub(super) fn drop_versions_alone(&self) -> Result<()> {
        self.drop_versions_of(&self.take_kept())
    }

    fn take_kept(&self) -> Vec<RecordRef> {
        let kept = std::mem::take(&mut *self.kept.lock());
        if !kept.overflown {
            return kept.words;
        }
        let slots = self.pool.slots(LINKED_KIND);
        slots.flat_map(|(at, _)| [false, true].map(|tombstone| RecordRef::new(at, tombstone, true))).collect()
    }

    fn drop_versions_of(&self, words: &[RecordRef]) -> Result<()> {
        let done = self.try_drop_versions_of(words);
        if done.is_err() {
            // Whoever comes next looks everywhere.
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
            // SAFETY: the caller is alone: nobody frees or writes records, and a linked one is here, though not for
            // certain the one that was meant: a deletion may be in the place of a put.
            let Ok(record) = (unsafe { Record::load(&self.pool, *word) }) else { continue };
            let key = record.key.to_vec();
            if let Some(still) = self.collapse(&key, &held)? {
                self.note_kept(still);
            }
        }
        Ok(())
    }

    /// Drops the versions of `key` that no snapshot in `held` (ascending) needs; its newest, if something still hangs
    /// under that. The caller is alone and present.
    pub(super) fn collapse(&self, key: &[u8], held: &[u64]) -> Result<Option<RecordRef>> {
        let Some(head) = self.decode_some(self.index.get(key)?)? else { return Ok(None) };
        let chain = self.chain(head, key)?;
        let mut kept = vec![chain[0]];
        let mut newer = chain[0].number;
        let mut dropped = Vec::new();
        for version in &chain[1..] {
            match is_needed(held, version.number, newer) {
                true => kept.push(*version),
                false => dropped.push(version.word),
            }
            newer = version.number;
        }
        // A deletion under which there is nothing says nothing, but where it is what a snapshot sees first.
        while kept.len() > 1 && kept.last().is_some_and(|last| last.word.is_tombstone()) {
            dropped.extend(kept.pop().map(|last| last.word));
        }
        for (i, version) in kept.iter().enumerate() {
            let under = kept.get(i + 1).map(|next| next.word);
            if self.link(version)? != under {
                version.relink(&self.pool, under)?;
            }
        }
        if kept.len() == 1
            && head.is_tombstone()
            && self.index.compare_exchange(key, Some(head.bits()), None)?.is_ok()
        {
            dropped.push(head);
        }
        dropped.into_iter().for_each(|word| self.limbo.retire(word));
        Ok((kept.len() > 1).then_some(head))
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
