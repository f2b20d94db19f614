//! Ingesting: tables are written from a sorted stream, and appear on the levels in one step.
//!
//! [`levels::hidden`](crate::levels::hidden) has what holds for the tables of every engine. Beside that:
//!
//! 1. When they appear nothing is in memtables, and the manifest says so in the same group: what is logged later is
//!    newer, and no log lacks their number.
//! 2. Each lies on the lowest level where nothing older lies beside or above it, and where no compaction writes.
//! 3. They are visible before a compaction may read them: whoever needs what they replace is registered by then.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::{Error, Result};

use super::change::LevelsEdit;
use super::{LeveledTree, Stage, WriteBuffer};
use crate::compaction::leveled::Lowest;
use crate::core::engine::{Engine, Fill, HiddenTables};
use crate::levels::hidden::{HiddenStream, holds_some};
use crate::levels::output::{Below, Outputs, Written};
use crate::manifest::Edit;

/// The tables of one stream.
struct NewTables<B: WriteBuffer> {
    tree: Arc<LeveledTree<B>>,
    stream: HiddenStream,
}

impl<B: WriteBuffer> HiddenTables for NewTables<B> {
    fn prepare(&mut self) -> Result<()> {
        let _open = self.tree.jobs.hold_open()?;
        self.tree.slow_down(0.0, false, self.stream.bytes())
    }

    fn show(self: Box<Self>) -> Result<()> {
        let NewTables { tree, stream } = *self;
        let _open = tree.jobs.hold_open()?;
        tree.core.health.check()?;
        tree.decide_ingest()?;
        tree.manifest.announce_pool()?;
        tree.rotate()?;
        tree.wait_for_flushes()?;
        let number = stream.number;
        let add = |tables| tree.add_tables(number, tables);
        let shown = stream.appear(&tree.core, &tree.manifest, &tree.undecided, add);
        match &shown {
            Ok(()) => tree.spawn_compaction(),
            Err(_) => tree.sweep(),
        }
        shown
    }

    fn renumbered(self: Box<Self>, number: u64) -> Result<Box<dyn HiddenTables>> {
        self.tree.write_tables(number, &mut |take| self.stream.pass(&self.tree.core, take))
    }
}

impl<B: WriteBuffer> LeveledTree<B> {
    /// Whether tables may appear beside what is stored. Beside a stage, which may hold older versions above all levels,
    /// they may not; nor where tables would never fall back to persistent memory for want of room.
    pub(super) fn can_ingest(&self) -> bool {
        let takes_tables = self.runs.lists().is_none_or(|lists| lists.options.tiering.falls_back());
        !B::Stage::CHANGES && takes_tables
    }

    /// Writes hidden tables with the entries that `fill` passes.
    pub(super) fn write_tables(&self, number: u64, fill: &mut Fill<'_>) -> Result<Box<dyn HiddenTables>> {
        let tree = self.me.upgrade().ok_or(Error::Closed)?;
        // Not the size of level 0, where tables are as large as memtables.
        let options = self.writer_options(self.policy.outputs(1).run_bytes);
        let outputs = Outputs::new(&self.core, &self.manifest, options, Below::default()).hidden();
        let stream = HiddenStream::write(number, outputs, &self.jobs, fill, |_, _| Ok(()))?;
        Ok(Box::new(NewTables { tree, stream }))
    }

    /// Has `tables`, whose versions have this number, appear. The caller leads, and nothing is in memtables.
    fn add_tables(&self, number: u64, tables: Vec<Written>) -> Result<()> {
        // Nothing is chosen before these are where they belong, and visible.
        let busy = self.choosing.lock();
        let (mut change, mut counted) = (LevelsEdit::default(), Vec::new());
        {
            let levels = self.readable().levels.clone();
            let (state, stale) = (self.manifest.state(), self.buffer.stage().stale());
            let view = levels.view(self.policy.levels(), &busy, &state.candidates, &stale);
            let lowest = Lowest::new(&view, self.policy.base(&view.sizes()));
            for written in tables {
                let range = (&written.meta.smallest[..], &written.meta.largest[..]);
                let holds =
                    |number| self.runs.get(number).map_or(true, |run| holds_some(&run, &written.meta));
                let level = lowest.level(range, holds);
                counted.push((level, written.written_bytes));
                change.add(level, vec![written]);
            }
        }
        change.edits.push(Edit::FlushedSeq(number));
        self.install(change, None)?;
        self.applied.fetch_max(number, Ordering::AcqRel);
        self.core.snapshots.advance(number);
        drop(busy);
        counted.into_iter().for_each(|(level, bytes)| self.core.counters.count_flush(0, level, bytes));
        Ok(())
    }

    /// Has the manifest decide that an ingest which has failed never takes place.
    pub(super) fn decide_ingest(&self) -> Result<()> {
        if self.undecided.decide(&self.manifest)? {
            self.sweep();
        }
        Ok(())
    }
}
