//! Records: one for each version of a key, with its key and value.
//!
//! 1. A record is written, flushed and active before anything names it, and drained before the word that
//!    names it is published. Except for its link nothing of it changes as long as it exists.
//! 2. It is freed after nothing names it any more and all who may see it have left (`limbo`).
//! 3. A link leads to an older version of the same key, with a lower number. Links serve snapshots, which a session
//!    does not outlive: they are never made durable, and those of earlier sessions mean nothing.

use std::sync::atomic::Ordering;

use terrace_base::{Error, Result};
use terrace_pmem::{Kind as PmKind, POff, Pool, Slot};

use super::layout::{
    HEAD_BYTES, Head, LINK_BYTES, LINKED_KIND, NUMBER_MASK, RECORD_KIND, REMOTE_LEN, RecordRef, record_crc,
};

/// Values of at least this many bytes are copied past the caches.
const STREAM_BYTES: usize = 512;

/// A record that is written and flushed, not drained, and without a name. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct NewRecord<'p> {
    pool: &'p Pool,
    slot: Option<Slot>,
    word: RecordRef,
    number: u64,
}

/// The contents of a new record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Version<'a> {
    pub key: &'a [u8],
    /// `None`: the key is deleted.
    pub value: Option<&'a [u8]>,
    pub number: u64,
    /// The word of the version under it that a snapshot needs.
    pub older: Option<u64>,
}

impl<'p> NewRecord<'p> {
    pub fn write(pool: &'p Pool, version: &Version<'_>) -> Result<Self> {
        Self::write_as(pool, version, version.older.is_some(), false)
    }

    /// A record with a link whose value lies at the place of a word.
    pub fn remote(pool: &'p Pool, key: &[u8], place: u64, number: u64, older: Option<u64>) -> Result<Self> {
        let version = Version { key, value: Some(&place.to_le_bytes()), number, older };
        Self::write_as(pool, &version, true, true)
    }

    /// A copy of `record`, in a slot of the same kind and size, over the version under that record.
    pub fn copy(pool: &'p Pool, record: &Record<'_>, older: Option<u64>) -> Result<Self> {
        let value = (!record.word.is_tombstone()).then_some(record.value);
        let version = Version { key: record.key, value, number: record.number, older };
        Self::write_as(pool, &version, record.word.is_linked(), record.word.is_remote())
    }

    fn write_as(pool: &'p Pool, version: &Version<'_>, linked: bool, remote: bool) -> Result<Self> {
        let Version { key, value, number, older } = *version;
        let value_bytes = value.unwrap_or_default();
        let before_key = HEAD_BYTES + if linked { LINK_BYTES } else { 0 };
        let bytes = before_key + (key.len() + value_bytes.len()) as u64;
        let kind = if linked { LINKED_KIND } else { RECORD_KIND };
        let slot = pool.reserve(kind, bytes)?;
        let at = slot.offset;
        let value_len = if remote { REMOTE_LEN } else { value_bytes.len() as u32 };
        let key_len = key.len() as u16;
        let mut head = Head { crc: 0, value_len, tombstone: value.is_none(), key_len, number };
        head.crc = record_crc(pool.place(at), &head.encode(), key, value_bytes);
        pool.write(at, &head.encode());
        if linked {
            let link = older.unwrap_or(0);
            pool.atomic(POff::new(at + HEAD_BYTES)).store(link, Ordering::Release);
        }
        let value_at = at + before_key + key.len() as u64;
        pool.write(at + before_key, key);
        if value_bytes.len() < STREAM_BYTES {
            pool.write(value_at, value_bytes);
            pool.flush(at, bytes);
        } else {
            pool.flush(at, value_at - at);
            pool.copy_flush(value_at, value_bytes);
        }
        pool.activate(&slot);
        let word =
            if remote { RecordRef::remote(at, linked) } else { RecordRef::new(at, value.is_none(), linked) };
        Ok(NewRecord { pool, slot: Some(slot), word, number })
    }

    pub fn word(&self) -> RecordRef {
        self.word
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// The record has a name now: it stays.
    pub fn keep(mut self) -> RecordRef {
        self.slot = None;
        self.word
    }
}

impl Drop for NewRecord<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.pool.cancel(slot);
        }
    }
}

/// A version of a key in the pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'p> {
    pub word: RecordRef,
    pub key: &'p [u8],
    pub value: &'p [u8],
    pub number: u64,
}

impl<'p> Record<'p> {
    /// [`peek`](Self::peek), charged as a read.
    ///
    /// # Safety
    ///
    /// As for [`peek`](Self::peek).
    pub unsafe fn load(pool: &'p Pool, word: RecordRef) -> Result<Self> {
        // SAFETY: the caller's promise.
        let record = unsafe { Record::peek(pool, word)? };
        if pool.charges_reads() {
            let (at, len) = record.range();
            pool.charge_read(at, len);
        }
        Ok(record)
    }

    /// The record's offset and length.
    pub fn range(&self) -> (u64, u64) {
        (self.word.offset(), self.word.before_key() + (self.key.len() + self.value.len()) as u64)
    }

    /// The record that `word` names, which is not trusted.
    ///
    /// # Safety
    ///
    /// If a record was there when the word was loaded, it must not be freed for `'p`: the caller has been
    /// present in the store's limbo since before that, or holds the gate alone. A damaged word may lead
    /// anywhere, where bytes may change: what is read there is taken for a record only with its checksum.
    pub unsafe fn peek(pool: &'p Pool, word: RecordRef) -> Result<Self> {
        let at = word.offset();
        // SAFETY: a record does not change except for its link, which is not in this range, and is not freed
        // (the caller's promise).
        let front = unsafe { pool.bytes(at, HEAD_BYTES)? };
        let Some(front) = front.first_chunk() else { return Err(damaged(pool, at, "a short record")) };
        let head = Head::decode(front);
        let before_key = word.before_key();
        let len = u64::from(head.key_len) + head.body_bytes();
        // SAFETY: as above; the link lies before this range.
        let rest = unsafe { pool.bytes(at + before_key, len)? };
        let (key, value) = rest.split_at(usize::from(head.key_len));
        if record_crc(pool.place(at), front, key, value) != head.crc {
            return Err(damaged(pool, at, "another checksum"));
        }
        if head.tombstone != word.is_tombstone() || head.is_remote() != word.is_remote() {
            return Err(damaged(pool, at, "a record of another sort than is said where it is named"));
        }
        Ok(Record { word, key, value, number: head.number })
    }

    /// The record in a slot of `kind` at `at`, if it is sound.
    ///
    /// # Safety
    ///
    /// As for [`peek`](Self::peek), for the record that is there now.
    pub unsafe fn at(pool: &'p Pool, kind: PmKind, at: u64) -> Option<Self> {
        let linked = kind == LINKED_KIND;
        let plain = [false, true].map(|tombstone| RecordRef::new(at, tombstone, linked));
        let words = plain.into_iter().chain([RecordRef::remote(at, linked)]);
        // SAFETY: the caller's promise.
        words.into_iter().find_map(|word| unsafe { Record::load(pool, word) }.ok())
    }

    /// The number of the record at `at`, if there is one: an unproved guess.
    pub fn number_at(pool: &Pool, at: u64) -> Option<u64> {
        let word = pool.atomic_checked(POff::new(at + 8)).ok()?.load(Ordering::Relaxed);
        Some(word & NUMBER_MASK)
    }

    /// The word of the value's place, for a record that has one.
    pub fn place(&self) -> Option<u64> {
        let bits = || self.value.try_into().map(u64::from_le_bytes).ok();
        if self.word.is_remote() { bits() } else { None }
    }

    /// The word that the link has now, or 0. It is followed only if the record was written since the open.
    pub fn link(&self, pool: &Pool) -> Result<u64> {
        if !self.word.is_linked() {
            return Ok(0);
        }
        Ok(pool.atomic_checked(POff::new(self.word.offset() + HEAD_BYTES))?.load(Ordering::Acquire))
    }

    /// Makes the link lead to `older`. This is not durable, and need not be.
    pub fn relink(&self, pool: &Pool, older: Option<u64>) -> Result<()> {
        if !self.word.is_linked() {
            return Err(damaged(pool, self.word.offset(), "a record without a link"));
        }
        debug_assert!(
            older.is_none_or(|older| self.may_lie_over(pool, older)),
            "a link leads to an older version"
        );
        let at = self.word.offset() + HEAD_BYTES;
        pool.atomic_checked(POff::new(at))?.store(older.unwrap_or(0), Ordering::Release);
        Ok(())
    }

    /// Whether nothing speaks against a link to the version that `word` names: a later one may not lie under it.
    fn may_lie_over(&self, pool: &Pool, word: u64) -> bool {
        let Some(word) = RecordRef::decode(word) else { return true };
        // SAFETY: the caller links versions and holds the gate for that, so none of them is freed.
        unsafe { Record::peek(pool, word) }.map_or(true, |older| older.number <= self.number)
    }

    /// An error unless this is a version of `key`.
    pub fn of(self, pool: &Pool, key: &[u8]) -> Result<Self> {
        if self.key == key {
            return Ok(self);
        }
        Err(damaged(pool, self.word.offset(), "another key's record"))
    }
}

#[cold]
fn damaged(pool: &Pool, at: u64, found: &str) -> Error {
    pool.corruption(at, "the record of a version", found)
}
