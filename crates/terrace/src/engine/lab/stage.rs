//! The value tree as the stage between memtables and level 0.

use std::sync::Arc;

use terrace_base::Result;
use terrace_pmem::Marks;
use terrace_table::{Cursor, Entry};

use super::cursor::{Purpose, TreeCursor};
use super::tree::ValueTree;
use super::{evict, flush};
use crate::core::report::CheckReport;
use crate::leveled::{Change, LeveledTree, Memtable, Moment, Stage, WriteBuffer};
use crate::stats::Stats;

/// The value tree, or none: where the options want none, and in a repair.
#[derive(Debug)]
pub(super) struct Values(pub Option<Arc<ValueTree>>);

impl Stage for Values {
    const CHANGES: bool = true;

    fn get(&self, key: &[u8], at: u64) -> Result<Option<Entry>> {
        self.0.as_ref().map_or(Ok(None), |values| values.get(key, at))
    }

    fn cursors(&self, moment: &Arc<Moment>) -> Vec<Box<dyn Cursor>> {
        let cursor =
            |values| Box::new(TreeCursor::new(values, Purpose::Reading(moment.clone()))) as Box<dyn Cursor>;
        self.0.iter().map(cursor).collect()
    }

    fn hiding(&self, seq: u64) -> Option<Box<dyn Cursor>> {
        let cursor = |values| Box::new(TreeCursor::new(values, Purpose::Hiding(seq))) as Box<dyn Cursor>;
        self.0.as_ref().map(cursor)
    }

    fn flush<B: WriteBuffer<Stage = Self>>(tree: &LeveledTree<B>, memtable: &B::Memtable) -> Result<Change> {
        match &tree.stage().0 {
            Some(values) => flush::flush(values, tree, memtable),
            None => tree.to_level_0(|add| memtable.visit(add)),
        }
    }

    fn evict<B: WriteBuffer<Stage = Self>>(tree: &LeveledTree<B>) -> Result<()> {
        tree.stage().0.as_ref().map_or(Ok(()), |values| evict::evict(values, tree))
    }

    fn clear<B: WriteBuffer<Stage = Self>>(tree: &LeveledTree<B>) -> Result<()> {
        tree.stage().0.as_ref().map_or(Ok(()), |values| evict::clear(values, tree))
    }

    fn with_marked<T>(&self, marks: Marks, then: impl FnOnce(Marks) -> Result<T>) -> Result<T> {
        match &self.0 {
            Some(values) => values.with_marked(marks, then),
            None => then(marks),
        }
    }

    fn check(&self, last: u64, report: &mut CheckReport) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |values| values.check(last, report))
    }

    fn fill_stats(&self, stats: &mut Stats) {
        self.0.iter().for_each(|values| values.fill_stats(stats));
    }

    fn close(&self) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |values| values.close())
    }
}
