//! Operands in memtables and runs, and the values that readers see for them.
//!
//! An operand stands on the next older version of its key. A reader finds all of them in the one readable set with which
//! it began: in a later one a merge of runs may have folded some of them.

use std::cmp::Reverse;

use bytes::Bytes;
use terrace_base::Result;
use terrace_table::Entry;

use super::{LeveledTree, Memtable, Readable, Stage, WriteBuffer};
use crate::core::lent::Lent;
use crate::memtable::Version;

impl<B: WriteBuffer> LeveledTree<B> {
    /// Whether operands may lie in it: versions may be found by their numbers in one readable set. Where a stage changes
    /// beneath readers they may not.
    pub(super) fn can_keep_operands(&self) -> bool {
        !B::Stage::CHANGES
    }

    /// The value of `key` up to sequence number `at`, where the newest version is an operand.
    pub(super) fn folded(
        &self,
        readable: &Readable<B::Memtable>,
        key: &[u8],
        at: u64,
    ) -> Result<Option<Lent<'static>>> {
        let mut versions = stack(at, |at| Ok(newest_in_memory(readable, key, at)))?;
        if versions.last().is_none_or(|last| !last.kind.is_whole()) {
            versions.extend(stack(at, |at| readable.levels.get(key, at))?);
            // After a repair some may be in both, and an operand as well as what a merge has made of it.
            versions.sort_by_key(|entry| Reverse((entry.seq, entry.kind.is_whole())));
            versions.dedup_by_key(|entry| entry.seq);
        }
        let Some(number) = versions.first().map(|newest| newest.seq) else { return Ok(None) };
        let operands: Vec<Bytes> = versions
            .iter()
            .map_while(|entry| (!entry.kind.is_whole()).then(|| entry.value.clone()))
            .collect();
        let base = versions.into_iter().nth(operands.len()).and_then(Entry::into_value);
        Ok(Some(match self.core.merging.fold(key, base, &operands) {
            Ok(value) => Lent::own(number, value),
            Err(why) => Lent::unknown(number, why),
        }))
    }

    /// How many operands lie in memtables on top of what is below them; `None` if the value of `key`, or that it has
    /// none, is known there.
    pub(super) fn operands_above_runs(&self, key: &[u8]) -> Option<usize> {
        let (readable, mut up_to, mut count) = (self.readable.load(), Some(u64::MAX), 0);
        while let Some(at) = up_to {
            let found = |version: Version<'_>| (version.seq, version.kind);
            let Some((seq, kind)) = readable.memtables.iter().find_map(|table| table.get(key, at, found))
            else {
                break;
            };
            if kind.is_whole() {
                return None;
            }
            count += 1;
            up_to = seq.checked_sub(1);
        }
        Some(count)
    }
}

/// Operands up to sequence number `at`, the newest first, and the version on which they stand, if `newest` knows it: the
/// newest version up to a number.
fn stack(at: u64, newest: impl Fn(u64) -> Result<Option<Entry>>) -> Result<Vec<Entry>> {
    let (mut versions, mut up_to) = (Vec::new(), Some(at));
    while let Some(at) = up_to {
        let Some(entry) = newest(at)? else { break };
        up_to = entry.seq.checked_sub(1).filter(|_| !entry.kind.is_whole());
        versions.push(entry);
    }
    Ok(versions)
}

/// The newest version of `key` in memtables up to sequence number `at`.
fn newest_in_memory<M: Memtable>(readable: &Readable<M>, key: &[u8], at: u64) -> Option<Entry> {
    let entry = |version: Version<'_>| Entry {
        seq: version.seq,
        kind: version.kind,
        value: Bytes::copy_from_slice(version.value),
    };
    readable.memtables.iter().find_map(|memtable| memtable.get(key, at, entry))
}
