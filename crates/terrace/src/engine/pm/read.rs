//! Point reads: the index, then one record.
//!
//! A reader is present in the store's limbo from before it asks the index until it has copied what it found. It takes no
//! lock. Without a snapshot it sees the newest version, unless that is of a group that is still being applied.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use terrace_base::Result;

use super::index::KeyIndex;
use super::{NO_GROUP, PmStore};
use crate::versions::{Record, RecordRef};

/// What a reader without a snapshot is to see of a key.
enum Newest<'p> {
    Record(Record<'p>),
    Nothing,
    /// The group has happened in between.
    Again,
}

impl<I: KeyIndex> PmStore<I> {
    pub(super) fn get_newest(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let _here = self.limbo.enter();
        let since = self.taken_back();
        let Some(bits) = self.index.get(key)? else {
            return if self.is_doubtful(since) { self.get_replaced(key) } else { Ok(None) };
        };
        let word = self.decode(bits)?;
        // SAFETY: present since before the word was loaded.
        let record = unsafe { Record::load(&self.pool, word)? }.of(&self.pool, key)?;
        // Asked after the word: a group whose word this is has said so before.
        if record.number >= self.pending.load(Ordering::Acquire) || self.taken_back() != since {
            return self.get_replaced(key);
        }
        Ok(value(&record))
    }

    /// Whether a group is being applied.
    fn is_applying(&self) -> bool {
        self.pending.load(Ordering::Acquire) != NO_GROUP
    }

    /// Groups taken back so far.
    fn taken_back(&self) -> u64 {
        self.taken_back.load(Ordering::Acquire)
    }

    /// Whether what the index has said since as many groups had been taken back may be of a group that has not happened.
    fn is_doubtful(&self, since: u64) -> bool {
        // In this order: a group is counted before it is no longer said to be applied.
        self.is_applying() || self.taken_back() != since
    }

    #[cold]
    fn get_replaced(&self, key: &[u8]) -> Result<Option<Bytes>> {
        loop {
            match self.newest(key)? {
                Newest::Record(record) => return Ok(value(&record)),
                Newest::Nothing => return Ok(None),
                Newest::Again => {}
            }
        }
    }

    /// The newest version of `key`, beside a group perhaps. The caller is present.
    fn newest(&self, key: &[u8]) -> Result<Newest<'_>> {
        let since = self.taken_back();
        let word = self.decode_some(self.index.get(key)?)?;
        let group = match self.is_applying() {
            true => self.group.load_full(),
            false => None,
        };
        let word = match group {
            Some(group) => group.words.get(key).copied().unwrap_or(word),
            None => word,
        };
        let Some(word) = word else {
            return Ok(if self.taken_back() == since { Newest::Nothing } else { Newest::Again });
        };
        // SAFETY: present since before the word was loaded; what a group replaces is retired after the overlay has gone.
        let record = unsafe { Record::load(&self.pool, word)? }.of(&self.pool, key)?;
        let is_of_group = record.number >= self.pending.load(Ordering::Acquire);
        Ok(match is_of_group || self.taken_back() != since {
            true => Newest::Again,
            false => Newest::Record(record),
        })
    }

    pub(super) fn contains_key(&self, key: &[u8]) -> Result<bool> {
        let _here = self.limbo.enter();
        let since = self.taken_back();
        let word = self.decode_some(self.index.get(key)?)?;
        if self.is_doubtful(since) {
            return Ok(self.get_replaced(key)?.is_some());
        }
        Ok(word.is_some_and(|word| !word.is_tombstone()))
    }

    /// The value of `key` as a snapshot of number `at` sees it.
    pub(super) fn get_at(&self, key: &[u8], at: u64) -> Result<Option<Bytes>> {
        let _here = self.limbo.enter();
        let Some(word) = self.decode_some(self.index.get(key)?)? else { return Ok(None) };
        self.value_at(word, key, at)
    }

    /// The value that a reader at `at` sees of `key`, given its newest version. The caller is present.
    pub(super) fn value_at(&self, word: RecordRef, key: &[u8], at: u64) -> Result<Option<Bytes>> {
        Ok(self.version_at(word, key, at)?.as_ref().and_then(value))
    }
}

/// The value of a version; `None`: the key is deleted.
pub(super) fn value(record: &Record<'_>) -> Option<Bytes> {
    (!record.word.is_tombstone()).then(|| Bytes::copy_from_slice(record.value))
}
