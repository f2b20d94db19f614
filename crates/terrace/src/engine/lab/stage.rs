//! The value tree as the stage between memtables and level 0.

use std::sync::Arc;

use terrace_base::Result;
use terrace_pmem::Marks;
use terrace_table::{Cursor, Entry};

use super::cursor::{Purpose, TreeCursor};
use super::tree::ValueTree;
use super::{check, evict, flush, passed};
use crate::core::report::CheckReport;
use crate::leveled::{
    LeveledTree, LevelsEdit, Memtable, MergePart, Moment, Relocations, Stage, Watched, WriteBuffer,
};
use crate::levels::Stale;
use crate::manifest::State;
use crate::stats::Stats;

/// The value tree; none if the options want none, and in a repair.
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

    fn watch<'a>(&'a self, part: &MergePart<'a>) -> Result<Option<Watched<'a>>> {
        Ok(self.0.as_ref().and_then(|values| passed::watch(values, part)))
    }

    fn placed<B: WriteBuffer<Stage = Self>>(tree: &LeveledTree<B>, relocations: &Relocations) {
        if let Some(values) = &tree.stage().0 {
            values.hints.placed(relocations, tree.run_bytes(), &|run| tree.entry_bytes(run));
        }
    }

    fn stale(&self) -> Arc<Stale> {
        self.0.as_ref().map_or_else(Arc::default, |values| values.hints.stale())
    }

    fn prove(&self, state: &State, logged: impl FnOnce(u64) -> Option<u64>) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |values| values.prove(state, logged))
    }

    fn flush<B: WriteBuffer<Stage = Self>>(
        tree: &LeveledTree<B>,
        memtable: &B::Memtable,
    ) -> Result<LevelsEdit> {
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

    fn check<B: WriteBuffer<Stage = Self>>(tree: &LeveledTree<B>, report: &mut CheckReport) -> Result<()> {
        tree.stage().0.as_ref().map_or(Ok(()), |values| check::check(values, tree, report))
    }

    fn dram_bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |values| values.dram_bytes())
    }

    fn fill_stats(&self, stats: &mut Stats) {
        self.0.iter().for_each(|values| values.fill_stats(stats));
    }

    fn close(&self) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |values| values.close())
    }
}
