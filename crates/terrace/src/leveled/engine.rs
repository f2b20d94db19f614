//! The tree as the store sees it.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use terrace_base::Result;
use terrace_pmem::Pool;

use super::{LeveledTree, Memtable, Stage, WriteBuffer, check};
use crate::core::engine::{Direction, Engine, EngineIter, Fill, HiddenTables};
use crate::core::lent::{Lent, to_keep};
use crate::core::report::CheckReport;
use crate::core::request::Group;
use crate::core::scrub::LiveTables;
use crate::pool;
use crate::stats::Stats;

impl<B: WriteBuffer> Engine for LeveledTree<B> {
    fn apply(&self, group: Group<'_>) -> Result<()> {
        self.apply_group(group)
    }

    fn write_hidden(&self, number: u64, fill: &mut Fill<'_>) -> Option<Result<Box<dyn HiddenTables>>> {
        self.can_ingest().then(|| self.write_tables(number, fill))
    }

    fn rotate(&self) -> Result<()> {
        if self.readable().active().is_empty() {
            return Ok(());
        }
        B::mend(self)?;
        while self.readable().memtables.len() >= self.settings.memtables {
            self.wait_for_flush()?;
        }
        self.rotate_memtable()
    }

    fn wait_until_flushed(&self) -> Result<()> {
        self.jobs.unless_closed(|| self.has_immutable(), || self.wait_for_flushes())
    }

    fn sync(&self) -> Result<()> {
        B::mend(self)?;
        B::sync(self)
    }

    fn keeps_operands(&self) -> bool {
        self.can_keep_operands()
    }

    fn operands_in_memory(&self, key: &[u8]) -> Option<usize> {
        self.operands_above_runs(key)
    }

    fn get(&self, key: &[u8], at: Option<u64>) -> Result<Option<Bytes>> {
        self.with_value(key, at, |value| value.known().map(to_keep))?.transpose()
    }

    fn get_with(&self, key: &[u8], at: Option<u64>, show: &mut dyn FnMut(Lent<'_>)) -> Result<bool> {
        Ok(self.with_value(key, at, show)?.is_some())
    }

    fn get_many(&self, keys: &[&[u8]], at: u64) -> Result<Vec<Option<Bytes>>> {
        self.get_values(keys, at)
    }

    fn contains(&self, key: &[u8]) -> Result<bool> {
        self.exists(key)
    }

    fn walk(self: Arc<Self>, at: u64, direction: Direction) -> Result<Box<dyn EngineIter>> {
        Ok(self.merged_walk(at, direction))
    }

    fn compact(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<()> {
        let _open = self.jobs.hold_open()?;
        self.compact_range(from, to)
    }

    fn released(&self) {
        if self.holds_garbage.load(Ordering::Relaxed) {
            self.spawn_compaction();
        }
    }

    fn fill_stats(&self, stats: &mut Stats) {
        check::fill_stats(self, stats);
    }

    fn tables(&self) -> Option<&dyn LiveTables> {
        Some(self.runs.tables())
    }

    fn check(&self) -> Result<CheckReport> {
        check::check(self)
    }

    fn pool(&self) -> Option<&Pool> {
        self.pool.as_ref()
    }

    fn close(&self) -> Result<()> {
        if !self.jobs.close() {
            return Ok(());
        }
        self.core.health.uncut()?;
        if !self.core.options.read_only {
            B::close(self)?;
            self.buffer.stage().close()?;
            self.sweep();
            if let (Some(lists), Some(pool)) = (self.runs.lists(), &self.pool)
                && lists.lists().has_unnamed()
            {
                // What readers keep stays until they release it, and is unreachable if the process ends
                // before.
                pool.leave_unreclaimed();
            }
        }
        pool::close(&self.core, &self.manifest, self.pool.as_ref())
    }
}
