//! Taking back a group of batches that was cut short.
//!
//! Before anything of a group is in the index, a list of all changes to it is durable, and then the header
//! names the list. The group has happened when the header no longer names it: that one store is its commit.
//! An open that finds a list gives every key its old word back; doing so twice does no harm.
//!
//! While the header names a list, nothing that the list's words name is freed, and only the leader that
//! applies the group writes.

use terrace_base::Result;
use terrace_base::checksum::{seal48, unseal48};
use terrace_pmem::{POff, Pool, Slot};

use super::index::KeyIndex;
use super::layout::{self, UNDO_AT, UNDO_HEAD_BYTES, UNDO_KIND, WordChange};
use crate::versions::{Record, RecordRef};

/// One key's part in a group, to be taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Undo {
    pub change: WordChange,
    pub key: Box<[u8]>,
}

/// A list that is durable, and that the header names.
pub(super) struct Armed<'p> {
    pool: &'p Pool,
    header: u64,
    slot: Slot,
}

impl<'p> Armed<'p> {
    /// Makes the list of `changes` durable, with everything that the caller has flushed, and makes the header
    /// name it. It is written `with_keys` where a word need not lead to its key.
    pub fn arm(pool: &'p Pool, header: u64, changes: &[Undo], with_keys: bool) -> Result<Self> {
        let words: Vec<WordChange> = changes.iter().map(|undo| undo.change).collect();
        let keys: Vec<&[u8]> = changes.iter().map(|undo| &*undo.key).collect();
        let encode = |place| layout::encode_undo(place, &words, with_keys.then_some(&keys));
        let slot = pool.reserve(UNDO_KIND, encode(0).len() as u64)?;
        pool.copy_flush(slot.offset, &encode(pool.place(slot.offset)));
        pool.activate(&slot);
        pool.drain();
        name(pool, header, slot.offset);
        Ok(Armed { pool, header, slot })
    }

    /// Removes the list: the group has happened, or nothing of it is left. That is certain on return; an
    /// error only says that the list's memory could not be given back.
    pub fn disarm(self) -> Result<()> {
        name(self.pool, self.header, 0);
        self.pool.free(self.slot.offset, UNDO_KIND)
    }
}

fn name(pool: &Pool, header: u64, list: u64) {
    let at = header + UNDO_AT;
    pool.publish(POff::new(at), seal48(pool.place(at), list));
}

/// The changes of the list that the header names, and its place. A change whose key cannot be found is an
/// error among them.
fn named(pool: &Pool, header: u64) -> Result<Option<(u64, Vec<Result<Undo>>)>> {
    let at = header + UNDO_AT;
    let word = pool.atomic_checked(POff::new(at))?.load(std::sync::atomic::Ordering::Acquire);
    let damaged = |at| pool.corruption(at, "the undo list of a group, or none", "something else");
    if word == 0 {
        return Ok(None);
    }
    let list = unseal48(pool.place(at), word).ok_or_else(|| damaged(at))?;
    if list == 0 {
        return Ok(None);
    }
    // SAFETY: nobody writes to a list that the header names.
    let head = unsafe { pool.bytes(list, UNDO_HEAD_BYTES)? };
    let (mut bytes, has_keys) = layout::undo_bytes(head).ok_or_else(|| damaged(list))?;
    if has_keys {
        // SAFETY: as above.
        let front = unsafe { pool.bytes(list, bytes)? };
        let keys = front.last_chunk().map_or(0, |last| u64::from_le_bytes(*last));
        bytes = bytes.checked_add(keys).ok_or_else(|| damaged(list))?;
    }
    // SAFETY: as above.
    let bytes = unsafe { pool.bytes(list, bytes)? };
    let changes = layout::decode_undo(pool.place(list), bytes).ok_or_else(|| damaged(list))?;
    let undo = |(change, key): (WordChange, Option<&[u8]>)| match key {
        Some(key) => Ok(Undo { change, key: key.into() }),
        None => Ok(Undo { change, key: key_of(pool, change)? }),
    };
    Ok(Some((list, changes.into_iter().map(undo).collect())))
}

/// The key of a change whose existing words both name records.
fn key_of(pool: &Pool, change: WordChange) -> Result<Box<[u8]>> {
    let mut outcome = Err(pool.corruption(0, "the word of a version in an undo list", "none"));
    for word in [change.new, change.old].into_iter().filter(|word| *word != 0) {
        let damaged = || pool.corruption(0, "the word of a version in an undo list", format!("{word:#018x}"));
        outcome = RecordRef::decode(word).ok_or_else(damaged).and_then(|word| {
            // SAFETY: what an undo list names is not freed as long as the header names the list.
            unsafe { Record::load(pool, word) }.map(|record| record.key.into())
        });
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// The changes of a group that was cut short; empty if there is none.
pub(super) fn pending(pool: &Pool, header: u64) -> Result<Vec<Result<Undo>>> {
    Ok(named(pool, header)?.map_or_else(Vec::new, |(_, changes)| changes))
}

/// Whether a group was cut short.
pub(super) fn is_armed(pool: &Pool, header: u64) -> Result<bool> {
    Ok(named(pool, header)?.is_some())
}

/// Takes back what the previous session has left of a group; returns the number of keys. Nobody else uses the
/// pool.
pub(super) fn take_back<I: KeyIndex>(pool: &Pool, header: u64, index: &I) -> Result<u64> {
    let Some((list, changes)) = named(pool, header)? else { return Ok(0) };
    let changes = changes.into_iter().collect::<Result<Vec<Undo>>>()?;
    // Keys that the group has added go first, so that a full pool has room for those that it has removed.
    let (added, others): (Vec<&Undo>, Vec<&Undo>) = changes.iter().partition(|undo| undo.change.old == 0);
    added.into_iter().chain(others).try_for_each(|undo| put_back(index, undo))?;
    // What was put back is durable, like every write of an index.
    name(pool, header, 0);
    pool.free(list, UNDO_KIND)?;
    Ok(changes.len() as u64)
}

/// Gives the key of a change its old word.
pub(super) fn put_back<I: KeyIndex>(index: &I, undo: &Undo) -> Result<()> {
    match undo.change.old {
        0 => index.remove(&undo.key).map(drop),
        old => index.insert(&undo.key, old).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use terrace_pmem::{Granularity, MemMedia, PoolOptions};

    use super::*;
    use crate::engine::pm::layout::{HEADER_BYTES, HEADER_KIND, encode_header};

    /// An error about the list's memory is reported, and the group is committed all the same.
    #[test]
    fn what_is_disarmed_is_disarmed() {
        let media = MemMedia::new(1 << 20, 1 << 20, Granularity::CacheLine).unwrap();
        let options = PoolOptions { max_size: 1 << 20, extent_bytes: 4096, ..PoolOptions::default() };
        let pool = Pool::create_on(Arc::new(media), Path::new("memory"), &options).unwrap();
        let header = pool.reserve(HEADER_KIND, HEADER_BYTES).unwrap();
        pool.copy_persist(header.offset, &encode_header(pool.place(header.offset), 0));
        let undo = Undo { change: WordChange { new: 0x40, old: 0 }, key: b"key"[..].into() };
        for behind_its_back in [false, true] {
            let list = Armed::arm(&pool, header.offset, std::slice::from_ref(&undo), true).unwrap();
            assert_eq!(*pending(&pool, header.offset).unwrap()[0].as_ref().unwrap(), undo);
            if behind_its_back {
                pool.free(list.slot.offset, UNDO_KIND).unwrap();
            }
            assert_eq!(list.disarm().is_err(), behind_its_back);
            assert!(!is_armed(&pool, header.offset).unwrap());
        }
    }
}
