//! Ingesting: tables are written from a sorted stream, and appear on the levels in one step.
//!
//! 1. Their versions have one number. The stream's writer has chosen it ahead of those given out; when they appear it is
//!    the highest.
//! 2. Until then their files are hidden: no opening and no repair takes them for the database's. While they get their
//!    names a file names them, and outlives those that the manifest does not come to name.
//! 3. When they appear nothing is in memtables, and the manifest says so in the same group: what is logged later is newer,
//!    and no log lacks their number.
//! 4. Each lies on the lowest level where nothing older lies beside or above it, and where no compaction writes.
//! 5. They are visible before a compaction may read them: whoever needs what they replace is registered by then.
//! 6. Nothing of the stream's source runs while a close, a check or a writer is kept waiting.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::{Error, Result};
use terrace_disk::Access;
use terrace_table::{Cursor, Kind, Table, TableMeta};

use super::change::LevelsEdit;
use super::{LeveledTree, Stage, WriteBuffer};
use crate::compaction::leveled::Lowest;
use crate::core::engine::{Engine, Fill, HiddenTables, Take};
use crate::levels::output::{Below, Outputs, Written};
use crate::levels::run::Made;
use crate::manifest::{Edit, IngestNote};

/// Bytes read ahead of a table that is written again.
const READAHEAD_BYTES: usize = 1 << 20;

/// The tables of one stream.
struct NewTables<B: WriteBuffer> {
    tree: Arc<LeveledTree<B>>,
    number: u64,
    tables: Vec<Written>,
}

impl<B: WriteBuffer> HiddenTables for NewTables<B> {
    fn wait_for_room(&self) -> Result<()> {
        let bytes = self.tables.iter().map(|written| written.written_bytes).sum();
        let _open = self.tree.jobs.hold_open()?;
        self.tree.slow_down(0.0, false, bytes)
    }

    fn show(self: Box<Self>) -> Result<()> {
        let NewTables { tree, number, tables } = *self;
        let _open = tree.jobs.hold_open()?;
        tree.core.health.check()?;
        tree.decide_ingest()?;
        tree.manifest.announce_pool()?;
        tree.rotate()?;
        tree.wait_for_flushes()?;
        let numbers = tables.iter().map(|written| written.meta.number).collect();
        let origin = tree.manifest.state().identity.origin();
        let (files, note) = (&tree.core.files, IngestNote { origin, seq: number, tables: numbers });
        let shown = files.begin_ingest(&note).and_then(|()| tree.add_tables(number, tables));
        match &shown {
            Ok(()) => {
                files.end_ingest(&note);
                tree.spawn_compaction();
            }
            Err(_) => {
                files.give_up_ingest(&note);
                // Its room is wanted: it is why this has failed, or is for the next try.
                tree.sweep();
            }
        }
        shown
    }

    fn renumbered(self: Box<Self>, number: u64) -> Result<Box<dyn HiddenTables>> {
        self.tree.write_tables(number, &mut |take| {
            self.tables.iter().try_for_each(|written| self.tree.pass_hidden(written, take))
        })
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
        let mut outputs = Outputs::new(&self.core, &self.manifest, options, Below::default()).hidden();
        fill(&mut |key, value| {
            // A table that is begun takes a number of the manifest, which must not be closed meanwhile.
            let _open = outputs.begins_next().then(|| self.jobs.hold_open()).transpose()?;
            if self.jobs.is_closing() {
                return Err(Error::Closed);
            }
            outputs.add(key, number, Kind::Put, value)
        })?;
        let _open = self.jobs.hold_open()?;
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
                let level = lowest.level(range, |number| self.holds_some(number, &written.meta));
                counted.push((level, written.written_bytes));
                change.add(level, vec![written]);
            }
        }
        change.edits.push(Edit::FlushedSeq(number));
        self.is_ingest_undecided.store(true, Ordering::Release);
        if let Err(error) = self.install(change, None) {
            // Later writes wait for this.
            let _ = self.decide_ingest();
            return Err(error);
        }
        self.is_ingest_undecided.store(false, Ordering::Release);
        self.applied.fetch_max(number, Ordering::AcqRel);
        self.core.snapshots.advance(number);
        drop(busy);
        counted.into_iter().for_each(|(level, bytes)| self.core.counters.count_flush(0, level, bytes));
        Ok(())
    }

    /// Whether run `number` of level 0 has a key between the first and the last of `table`.
    fn holds_some(&self, number: u64, table: &TableMeta) -> bool {
        let looked = self.runs.get(number).and_then(|run| {
            let mut cursor = run.cursor(true, 0);
            cursor.seek(&table.smallest, u64::MAX)?;
            Ok(cursor.valid() && *cursor.key() <= *table.largest)
        });
        // What cannot be read may hold anything.
        looked.unwrap_or(true)
    }

    /// Has the manifest decide that an ingest which has failed never takes place. Until then nothing is written: it
    /// might come back over that, after a crash.
    pub(super) fn decide_ingest(&self) -> Result<()> {
        if self.is_ingest_undecided.load(Ordering::Acquire) {
            self.manifest.decide()?;
            self.is_ingest_undecided.store(false, Ordering::Release);
            self.sweep();
        }
        Ok(())
    }
}
