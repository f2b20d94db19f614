//! Ingesting: tables are written from a sorted stream, and appear on the levels in one step.
//!
//! 1. Their versions have one number. The stream's writer has chosen it ahead of those given out; when they appear it is
//!    the highest.
//! 2. Until then their files are hidden: no opening and no repair takes them for the database's.
//! 3. When they appear nothing is in memtables, and the manifest says so in the same group: what is logged later is newer,
//!    and no log lacks their number.
//! 4. Each lies on the lowest level where nothing older lies beside or above it, and where no compaction writes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::{Error, Result};
use terrace_disk::Access;
use terrace_table::{Cursor, Kind, Table};

use super::change::LevelsEdit;
use super::{LeveledTree, Stage, WriteBuffer};
use crate::compaction::leveled::lowest_level;
use crate::core::engine::{Engine, Fill, HiddenTables, Take};
use crate::levels::output::{Below, Outputs, Written};
use crate::levels::run::Made;
use crate::manifest::Edit;

/// Bytes read ahead of a table that is written again.
const READAHEAD_BYTES: usize = 1 << 20;

/// The tables of one stream.
struct NewTables<B: WriteBuffer> {
    tree: Arc<LeveledTree<B>>,
    number: u64,
    tables: Vec<Written>,
}

impl<B: WriteBuffer> HiddenTables for NewTables<B> {
    fn show(self: Box<Self>) -> Result<()> {
        let tree = &self.tree;
        let _open = tree.jobs.hold_open()?;
        tree.core.health.check()?;
        tree.manifest.announce_pool()?;
        tree.rotate()?;
        tree.wait_for_flushes()?;
        tree.add_tables(self.number, self.tables)
    }

    fn renumbered(self: Box<Self>, number: u64) -> Result<Box<dyn HiddenTables>> {
        self.tree.write_tables(number, &mut |take| {
            self.tables.iter().try_for_each(|written| self.tree.pass_hidden(written, take))
        })
    }
}

impl<B: WriteBuffer> LeveledTree<B> {
    /// Whether tables may appear beside what is stored. Beside a stage, which may hold older versions above all levels,
    /// they may not.
    pub(super) fn can_ingest(&self) -> bool {
        !B::Stage::CHANGES
    }

    /// Writes hidden tables with the entries that `fill` passes.
    pub(super) fn write_tables(&self, number: u64, fill: &mut Fill<'_>) -> Result<Box<dyn HiddenTables>> {
        let tree = self.me.upgrade().ok_or(Error::Closed)?;
        let _open = self.jobs.hold_open()?;
        // Not the size of level 0, where tables are as large as memtables.
        let options = self.writer_options(self.policy.outputs(1).run_bytes);
        let mut outputs = Outputs::new(&self.core, &self.manifest, options, Below::default()).hidden();
        fill(&mut |key, value| {
            if self.jobs.is_closing() {
                return Err(Error::Closed);
            }
            outputs.add(key, number, Kind::Put, value)
        })?;
        let tables = outputs.finish()?;
        Ok(Box::new(NewTables { tree, number, tables }))
    }

    /// Passes the entries of a hidden table.
    fn pass_hidden(&self, written: &Written, take: &mut Take<'_>) -> Result<()> {
        let number = written.meta.number;
        let (core, path) = (&self.core, self.core.files.hidden_table(number));
        let table = Table::open(core.fs(), &path, number, core.cache().clone(), Access::Sequential)?;
        let mut cursor = table.cursor(false, READAHEAD_BYTES);
        cursor.seek_first()?;
        while cursor.valid() {
            take(cursor.key(), &cursor.value()?)?;
            cursor.next()?;
        }
        Ok(())
    }

    /// Has `tables`, whose versions have this number, appear. The caller leads, and nothing is in memtables.
    fn add_tables(&self, number: u64, mut tables: Vec<Written>) -> Result<()> {
        for written in &mut tables {
            if let Made::File(file) = &mut written.made {
                file.show()?;
            }
        }
        self.core.files.sync_names()?;
        // Nothing is chosen before these are where they belong.
        let busy = self.choosing.lock();
        let levels = self.readable().levels.clone();
        let (state, stale) = (self.manifest.state(), self.buffer.stage().stale());
        let view = levels.view(self.policy.levels(), &busy, &state.candidates, &stale);
        let mut change = LevelsEdit::default();
        for written in tables {
            let level = lowest_level(&view, (&written.meta.smallest, &written.meta.largest));
            self.core.counters.count_flush(0, level, written.written_bytes);
            change.add(level, vec![written]);
        }
        change.edits.push(Edit::FlushedSeq(number));
        self.install(change, None)?;
        self.applied.fetch_max(number, Ordering::AcqRel);
        drop(busy);
        self.spawn_compaction();
        Ok(())
    }
}
