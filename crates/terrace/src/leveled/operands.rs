//! Operands of a tree with levels ([`levels::operands`](crate::levels::operands)).

use terrace_base::Result;

use super::{LeveledTree, Memtable, Readable, Stage, WriteBuffer};
use crate::core::lent::Lent;
use crate::levels::operands::{count_on_top, folded};
use crate::memtable::Version;

impl<B: WriteBuffer> LeveledTree<B> {
    /// Whether operands may lie in it: versions may be found by their numbers in one readable set. Where a stage
    /// changes beneath readers they may not.
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
        let in_memory = |at| newest_in_memory(readable, key, at, |version| version.into_entry());
        folded(&self.core.merging, key, at, in_memory, |at| readable.levels.get(key, at))
    }

    /// How many operands lie in memtables on top of what is below them; `None` if the value of `key`, or that it has
    /// none, is known there.
    pub(super) fn operands_above_runs(&self, key: &[u8]) -> Option<usize> {
        let readable = self.readable.load();
        count_on_top(|at| newest_in_memory(&readable, key, at, |version| (version.seq, version.kind)))
    }
}

/// What `take` makes of the newest version of `key` in memtables up to sequence number `at`.
fn newest_in_memory<M: Memtable, T>(
    readable: &Readable<M>,
    key: &[u8],
    at: u64,
    take: impl Fn(Version<'_>) -> T,
) -> Option<T> {
    readable.memtables.iter().find_map(|memtable| memtable.get(key, at, &take))
}
