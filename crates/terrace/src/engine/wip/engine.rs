//! The engine as the store sees it.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::Result;
use terrace_pmem::Pool;

use super::iter::BucketIter;
use super::{Wip, check};
use crate::core::engine::{Direction, Engine, EngineIter, Fill, HiddenTables};
use crate::core::lent::{Lent, to_keep};
use crate::core::report::CheckReport;
use crate::core::request::Group;
use crate::core::scrub::LiveTables;
use crate::pool;
use crate::stats::Stats;

impl Engine for Wip {
    fn apply(&self, group: Group<'_>) -> Result<()> {
        self.apply_group(group)
    }

    fn write_hidden(&self, number: u64, fill: &mut Fill<'_>) -> Option<Result<Box<dyn HiddenTables>>> {
        Some(self.write_tables(number, fill))
    }

    fn rotate(&self) -> Result<()> {
        self.log.mend(self)?;
        self.freeze_all();
        Ok(())
    }

    fn wait_until_flushed(&self) -> Result<()> {
        self.jobs.unless_closed(|| self.has_frozen(), || self.wait_for_frozen())
    }

    fn sync(&self) -> Result<()> {
        self.log.mend(self)?;
        self.log.sync().inspect_err(|_| self.log.try_to_mend(self))
    }

    fn keeps_operands(&self) -> bool {
        true
    }

    fn operands_in_memory(&self, key: &[u8]) -> Option<usize> {
        self.operands_above_tables(key)
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
        Ok(Box::new(BucketIter::new(self, at, direction)))
    }

    fn compact(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<()> {
        let _open = self.jobs.hold_open()?;
        self.compact_range(from, to)
    }

    fn released(&self) {
        if !self.manifest.state().candidates.is_empty() {
            self.spawn_compaction();
        }
    }

    fn fill_stats(&self, stats: &mut Stats) {
        check::fill_stats(self, stats);
    }

    fn partitions(&self) -> Vec<Vec<u8>> {
        self.buckets().iter().map(|bucket| bucket.lower.clone()).collect()
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
            self.log.close(self)?;
            self.sweep();
        }
        pool::close(&self.core, &self.manifest, self.pool.as_ref())
    }
}
