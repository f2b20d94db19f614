//! Taking back a group of batches that was cut short.
//!
//! Before anything of a group is in the index, a list of all that it changes there is durable, and then the header names
//! it. The group has happened when the header names it no more: that one store is its commit. An open that finds a list
//! gives every key the word back that it had; doing so twice does no harm.
//!
//! While the header names a list nothing that its words name is freed, and nobody writes but the leader that applies the group.

use terrace_base::Result;
use terrace_base::checksum::{seal48, unseal48};
use terrace_pmem::{POff, Pool, Slot};

use super::index::KeyIndex;
use super::layout::{self, CHANGE_BYTES, Change, UNDO_AT, UNDO_HEAD_BYTES, UNDO_KIND};
use crate::versions::{Record, RecordRef};

/// A list that is durable, and that the header names.
pub(super) struct Armed<'p> {
    pool: &'p Pool,
    header: u64,
    slot: Slot,
}

impl<'p> Armed<'p> {
    /// Makes the list of `changes` durable, with everything that the caller has flushed, and has the header name it.
    pub fn arm(pool: &'p Pool, header: u64, changes: &[Change]) -> Result<Self> {
        let bytes = UNDO_HEAD_BYTES + CHANGE_BYTES * changes.len() as u64;
        let slot = pool.reserve(UNDO_KIND, bytes)?;
        pool.copy_flush(slot.offset, &layout::encode_undo(pool.place(slot.offset), changes));
        pool.activate(&slot);
        pool.drain();
        name(pool, header, slot.offset);
        Ok(Armed { pool, header, slot })
    }

    /// The group has happened, or nothing of it is left: the list goes. That is certain on return; an error says that
    /// the list's memory could not be given back, and nothing of the group.
    pub fn disarm(self) -> Result<()> {
        name(self.pool, self.header, 0);
        self.pool.free(self.slot.offset, UNDO_KIND)
    }
}

fn name(pool: &Pool, header: u64, list: u64) {
    let at = header + UNDO_AT;
    pool.publish(POff::new(at), seal48(pool.place(at), list));
}

/// The changes of the list that the header names, and where it is.
fn named(pool: &Pool, header: u64) -> Result<Option<(u64, Vec<Change>)>> {
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
    let count = layout::undo_count(head).ok_or_else(|| damaged(list))?;
    // SAFETY: as above.
    let bytes = unsafe { pool.bytes(list, UNDO_HEAD_BYTES + CHANGE_BYTES * count)? };
    let changes = layout::decode_undo(pool.place(list), bytes).ok_or_else(|| damaged(list))?;
    Ok(Some((list, changes)))
}

/// What a group that was cut short was to change; nothing if there is none.
pub(super) fn pending(pool: &Pool, header: u64) -> Result<Vec<Change>> {
    Ok(named(pool, header)?.map_or_else(Vec::new, |(_, changes)| changes))
}

/// Whether a group was cut short.
pub(super) fn is_armed(pool: &Pool, header: u64) -> Result<bool> {
    Ok(named(pool, header)?.is_some())
}

/// Takes back what the session before has left of a group; the number of keys. Nobody else is there.
pub(super) fn take_back<I: KeyIndex>(pool: &Pool, header: u64, index: &I) -> Result<u64> {
    let Some((list, changes)) = named(pool, header)? else { return Ok(0) };
    // Keys that the group has added go first, so that in a full pool there is room for those that it has removed.
    let (added, others): (Vec<Change>, Vec<Change>) = changes.iter().partition(|change| change.old == 0);
    added.into_iter().chain(others).try_for_each(|change| put_back(pool, index, change))?;
    // What was put back is durable, as every write of an index.
    name(pool, header, 0);
    pool.free(list, UNDO_KIND)?;
    Ok(changes.len() as u64)
}

/// Gives the key of a change its old word.
pub(super) fn put_back<I: KeyIndex>(pool: &Pool, index: &I, change: Change) -> Result<()> {
    let either = if change.new != 0 { change.new } else { change.old };
    let damaged = || pool.corruption(0, "the word of a version in an undo list", format!("{either:#018x}"));
    let word = RecordRef::decode(either).ok_or_else(damaged)?;
    // SAFETY: what an undo list names is not freed as long as the header names the list.
    let record = unsafe { Record::load(pool, word)? };
    match change.old {
        0 => index.remove(record.key).map(drop),
        old => index.insert(record.key, old).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use terrace_pmem::{Granularity, MemMedia, PoolOptions};

    use super::*;
    use crate::engine::pm::layout::{HEADER_BYTES, HEADER_KIND, encode_header};

    /// That the list's memory cannot be given back is told, and the group is committed all the same.
    #[test]
    fn what_is_disarmed_is_disarmed() {
        let media = MemMedia::new(1 << 20, 1 << 20, Granularity::CacheLine).unwrap();
        let options = PoolOptions { max_size: 1 << 20, extent_bytes: 4096, ..PoolOptions::default() };
        let pool = Pool::create_on(Arc::new(media), Path::new("memory"), &options).unwrap();
        let header = pool.reserve(HEADER_KIND, HEADER_BYTES).unwrap();
        pool.copy_persist(header.offset, &encode_header(pool.place(header.offset), 0));
        let change = Change { new: 0x40, old: 0 };
        for behind_its_back in [false, true] {
            let list = Armed::arm(&pool, header.offset, &[change]).unwrap();
            assert_eq!(pending(&pool, header.offset).unwrap(), [change]);
            if behind_its_back {
                pool.free(list.slot.offset, UNDO_KIND).unwrap();
            }
            assert_eq!(list.disarm().is_err(), behind_its_back);
            assert!(!is_armed(&pool, header.offset).unwrap());
        }
    }
}
