//! Point reads: the memtables, then the index and one block (`located`).

use bytes::Bytes;
use terrace_base::Result;
use terrace_base::trail::{self, Touch};
use terrace_table::Kind;

use super::Slm;
use super::memtable::MemSet;
use crate::core::engine::no_operands;
use crate::core::lent::Lent;

/// The result of a lookup in the memtables: a version with a value has its number, too.
pub(super) enum InMemory<'m> {
    Value(u64, &'m [u8]),
    Deleted,
    Unknown,
}

impl Slm {
    /// What `take` makes of the value of `key`, at snapshot `at` or now; it is called once at most.
    pub(super) fn with_value<T>(
        &self,
        key: &[u8],
        at: Option<u64>,
        take: impl FnOnce(Lent<'_>) -> T,
    ) -> Result<Option<T>> {
        let visible = at.unwrap_or_else(|| self.core.snapshots.visible());
        match lookup(&self.mem.load(), key, visible)? {
            InMemory::Value(number, value) => return Ok(Some(take(Lent::in_place(number, value)))),
            InMemory::Deleted => return Ok(None),
            InMemory::Unknown => {}
        }
        // Whatever the index holds has long been visible: without a snapshot, the newest counts.
        let found = self.located.newest(key, at.unwrap_or(u64::MAX))?;
        Ok(found.and_then(Lent::of_entry).map(take))
    }

    /// The values of `keys` for a reader at `at`.
    pub(super) fn get_values(&self, keys: &[&[u8]], at: u64) -> Result<Vec<Option<Bytes>>> {
        let mut values = vec![None; keys.len()];
        let (mut places, mut unknown) = (Vec::new(), Vec::new());
        {
            let mem = self.mem.load();
            for (i, key) in keys.iter().enumerate() {
                match lookup(&mem, key, at)? {
                    InMemory::Value(_, value) => values[i] = Some(Bytes::copy_from_slice(value)),
                    InMemory::Deleted => {}
                    InMemory::Unknown => {
                        places.push(i);
                        unknown.push(*key);
                    }
                }
            }
        }
        for (i, value) in places.into_iter().zip(self.located.get_many(&unknown, at)?) {
            values[i] = value;
        }
        Ok(values)
    }

    pub(super) fn contains_key(&self, key: &[u8]) -> Result<bool> {
        match lookup(&self.mem.load(), key, self.core.snapshots.visible())? {
            InMemory::Value(..) => Ok(true),
            InMemory::Deleted => Ok(false),
            InMemory::Unknown => self.located.contains(key),
        }
    }
}

/// Looks `key` up in the memtables, newest first, as of `visible`.
pub(super) fn lookup<'m>(mem: &'m MemSet, key: &[u8], visible: u64) -> Result<InMemory<'m>> {
    for memtable in mem.iter() {
        let found = memtable.list().get(key, visible)?;
        trail::note(|| Touch::Memtable { found: found.is_some() });
        if let Some(found) = found {
            return Ok(match found.version_kind()? {
                Kind::Put => InMemory::Value(found.seq(), found.value()?),
                Kind::Delete => InMemory::Deleted,
                Kind::Operand => return Err(no_operands()),
            });
        }
    }
    Ok(InMemory::Unknown)
}
