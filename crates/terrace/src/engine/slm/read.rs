//! Point reads: the memtables, then the index and one block (`located`).

use bytes::Bytes;
use terrace_base::Result;
use terrace_table::Kind;

use super::Slm;
use super::memtable::MemSet;

/// The result of a lookup in the memtables.
pub(super) enum InMemory {
    Value(Bytes),
    Deleted,
    Unknown,
}

impl Slm {
    pub(super) fn get_value(&self, key: &[u8], at: Option<u64>) -> Result<Option<Bytes>> {
        let visible = at.unwrap_or_else(|| self.core.snapshots.visible());
        match lookup(&self.mem.load(), key, visible)? {
            InMemory::Value(value) => Ok(Some(value)),
            InMemory::Deleted => Ok(None),
            // Whatever the index holds has long been visible: without a snapshot, the newest counts.
            InMemory::Unknown => self.located.get(key, at.unwrap_or(u64::MAX)),
        }
    }

    pub(super) fn contains_key(&self, key: &[u8]) -> Result<bool> {
        match lookup(&self.mem.load(), key, self.core.snapshots.visible())? {
            InMemory::Value(_) => Ok(true),
            InMemory::Deleted => Ok(false),
            InMemory::Unknown => self.located.contains(key),
        }
    }
}

/// Looks `key` up in the memtables, newest first, as of `visible`.
pub(super) fn lookup(mem: &MemSet, key: &[u8], visible: u64) -> Result<InMemory> {
    for memtable in mem.iter() {
        if let Some(found) = memtable.list().get(key, visible)? {
            return Ok(match found.version_kind()? {
                Kind::Put => InMemory::Value(Bytes::copy_from_slice(found.value()?)),
                Kind::Delete => InMemory::Deleted,
            });
        }
    }
    Ok(InMemory::Unknown)
}
