//! Tables of a sorted stream, which nobody sees before all of them appear in one step.
//!
//! 1. Their versions have one number, ahead of those given out; when they appear it is the highest.
//! 2. Until then their files are hidden: no opening and no repair takes them for the database's. While they get their
//!    names a note names them, and outlives those that the manifest does not come to name.
//! 3. Whether an ingest has taken place is decided before anything is written after it: it might come back over that,
//!    after a crash.
//! 4. Nothing of the stream's source runs while a close, a check or a writer is kept waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace_base::{Error, Result};
use terrace_disk::Access;
use terrace_table::{Cursor, Kind, Table, TableMeta};

use super::output::{Outputs, Written};
use super::run::{Made, Run};
use crate::background::Background;
use crate::core::Core;
use crate::core::engine::{Fill, Take};
use crate::manifest::{IngestNote, Manifest};

/// Bytes read ahead of a table that is written again.
const READAHEAD_BYTES: usize = 1 << 20;

/// The tables of one stream, in order.
#[derive(Debug)]
pub(crate) struct HiddenStream {
    pub number: u64,
    pub tables: Vec<Written>,
}

impl HiddenStream {
    /// Writes the entries that `fill` passes to `outputs`, which are hidden. `begin` is called before each table with
    /// its first key.
    pub fn write<'a>(
        number: u64,
        mut outputs: Outputs<'a>,
        jobs: &Arc<Background>,
        fill: &mut Fill<'_>,
        begin: impl Fn(&mut Outputs<'a>, &[u8]) -> Result<()>,
    ) -> Result<HiddenStream> {
        fill(&mut |key, value| {
            // A table that is begun takes a number of the manifest, which must not be closed meanwhile.
            let _open = match outputs.begins_with(key) {
                true => {
                    let open = jobs.hold_open()?;
                    begin(&mut outputs, key)?;
                    Some(open)
                }
                false => None,
            };
            if jobs.is_closing() {
                return Err(Error::Closed);
            }
            outputs.add(key, number, Kind::Put, value)
        })?;
        let _open = jobs.hold_open()?;
        Ok(HiddenStream { number, tables: outputs.finish()? })
    }

    /// Bytes of all tables.
    pub fn bytes(&self) -> u64 {
        self.tables.iter().map(|written| written.written_bytes).sum()
    }

    /// Passes the entries of all tables.
    pub fn pass(&self, core: &Core, take: &mut Take<'_>) -> Result<()> {
        self.tables.iter().try_for_each(|written| pass_hidden(core, &written.meta, take))
    }

    /// Has the tables appear by `install`, which has the manifest name all of them in one group. The caller leads, and
    /// nothing is in memtables. If that fails, the room of the tables is wanted: the caller sweeps.
    pub fn appear(
        self,
        core: &Core,
        manifest: &Manifest,
        undecided: &Undecided,
        install: impl FnOnce(Vec<Written>) -> Result<()>,
    ) -> Result<()> {
        let HiddenStream { number, mut tables } = self;
        let numbers = tables.iter().map(|written| written.meta.number).collect();
        let note = IngestNote { origin: manifest.state().identity.origin(), seq: number, tables: numbers };
        let shown = core
            .files
            .begin_ingest(&note)
            .and_then(|()| get_names(core, &mut tables))
            .and_then(|()| undecided.decided(manifest, || install(tables)));
        match &shown {
            Ok(()) => core.files.end_ingest(&note),
            Err(_) => core.files.give_up_ingest(&note),
        }
        shown
    }
}

/// Hides the tables no more.
fn get_names(core: &Core, tables: &mut [Written]) -> Result<()> {
    for written in tables {
        if let Made::File(file) = &mut written.made {
            file.show()?;
        }
    }
    core.files.sync_names()
}

/// Passes the entries of a hidden table.
pub(crate) fn pass_hidden(core: &Core, meta: &TableMeta, take: &mut Take<'_>) -> Result<()> {
    let path = core.files.hidden_table(meta.number);
    let table = Table::open(core.fs(), &path, meta.number, core.cache().clone(), Access::Sequential)?;
    let mut cursor = table.cursor(false, READAHEAD_BYTES);
    cursor.seek_first()?;
    while cursor.valid() {
        take(cursor.key(), &cursor.value()?)?;
        cursor.next()?;
    }
    Ok(())
}

/// Whether `run` has a key between the first and the last of `table`. What cannot be read may hold anything.
pub(crate) fn holds_some(run: &Run, table: &TableMeta) -> bool {
    let look = || -> Result<bool> {
        let mut cursor = run.cursor(true, 0);
        cursor.seek(&table.smallest, u64::MAX)?;
        Ok(cursor.valid() && *cursor.key() <= *table.largest)
    };
    look().unwrap_or(true)
}

/// Whether the manifest has yet to decide about an ingest that has failed.
#[derive(Debug, Default)]
pub(crate) struct Undecided(AtomicBool);

impl Undecided {
    /// Does `install`, which has the manifest name the tables of an ingest, and if it fails has that decided, now or
    /// before the next write.
    fn decided(&self, manifest: &Manifest, install: impl FnOnce() -> Result<()>) -> Result<()> {
        self.0.store(true, Ordering::Release);
        let installed = install();
        match &installed {
            Ok(()) => self.0.store(false, Ordering::Release),
            Err(_) => drop(self.decide(manifest)),
        }
        installed
    }

    /// Has the manifest decide that an ingest which has failed never takes place; returns whether there was one.
    pub fn decide(&self, manifest: &Manifest) -> Result<bool> {
        if !self.0.load(Ordering::Acquire) {
            return Ok(false);
        }
        manifest.decide()?;
        self.0.store(false, Ordering::Release);
        Ok(true)
    }
}
