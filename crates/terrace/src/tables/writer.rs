//! Writing tables for a flush or a compaction, one after the other as each fills up.
//!
//! 1. A file is dropped with its writer: it is removed unless somebody keeps it.
//! 2. All versions of a key that one input gives go into the same table: the caller cuts where `may_cut` says so.
//! 3. The keys of a keyspace with settings of its own are written by them, into whatever table they come.

use std::sync::Arc;

use terrace_base::exec::Executor;
use terrace_base::{Error, Result};
use terrace_disk::{BehindFile, SyncBehind};
use terrace_table::{BlockSpan, Built, Kind, TableBuilder, TableMeta, TableOptions};

use crate::core::Core;
use crate::core::files::Files;
use crate::core::keyspace_tables::TableStyles;
use crate::manifest::Manifest;

/// How tables are cut and written.
#[derive(Debug, Clone)]
pub(crate) struct WriterOptions {
    /// Bytes at which a table is full.
    pub table_bytes: u64,
    /// How each table is written.
    pub table: TableOptions,
}

/// Writes a series of tables.
pub(crate) struct TableWriter<'a> {
    files: &'a Arc<Files>,
    manifest: &'a Manifest,
    options: WriterOptions,
    styles: Option<TableStyles>,
    /// The key from which on entries of the table being written may be written otherwise.
    restyle_at: Option<Vec<u8>>,
    is_hidden: bool,
    /// Whether threads write the files.
    writes_behind: bool,
    /// The sync of the table before the current one.
    syncing: Option<SyncBehind>,
    /// Why some finished table is not durable.
    unsynced: Option<Error>,
    current: Option<Open>,
    last_key: Vec<u8>,
}

/// The table being written. Its file is closed before it is removed.
struct Open {
    builder: TableBuilder,
    file: MadeFile,
}

/// A finished table. Its bytes are durable, those of a hidden one once [`TableWriter::synced`] has said so; its name is
/// not, and the manifest does not name it.
#[derive(Debug)]
pub(crate) struct MadeTable {
    pub meta: TableMeta,
    /// Its data blocks in order.
    pub blocks: Vec<BlockSpan>,
    pub file: MadeFile,
}

/// The file of a table; dropping this removes it.
#[derive(Debug)]
pub(crate) struct MadeFile {
    files: Arc<Files>,
    number: u64,
    is_hidden: bool,
    kept: bool,
}

impl MadeFile {
    fn new(files: &Arc<Files>, number: u64, is_hidden: bool) -> MadeFile {
        MadeFile { files: files.clone(), number, is_hidden, kept: false }
    }

    /// Hides it no more.
    pub fn show(&mut self) -> Result<()> {
        if self.is_hidden {
            self.files.show_table(self.number)?;
            self.is_hidden = false;
        }
        Ok(())
    }

    /// The table's number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The file stays: the manifest has it.
    pub fn keep(mut self) {
        self.kept = true;
    }

    /// The file stays until the manifest has decided about a failed group that names it.
    pub fn keep_until_decided(mut self) {
        self.kept = true;
        self.files.remove_when_decided([self.number]);
    }
}

impl Drop for MadeFile {
    fn drop(&mut self) {
        match (self.kept, self.is_hidden) {
            (true, _) => {}
            (false, true) => self.files.remove([self.files.hidden_table(self.number)]),
            // The manifest may have it.
            (false, false) if std::thread::panicking() => self.files.remove_when_decided([self.number]),
            (false, false) => self.files.remove_tables([self.number]),
        }
    }
}

impl<'a> TableWriter<'a> {
    /// A writer of tables with numbers from `manifest`.
    pub fn new(core: &'a Core, manifest: &'a Manifest, options: WriterOptions) -> Self {
        TableWriter {
            files: &core.files,
            manifest,
            options,
            styles: core.keyspace_tables.styles(),
            restyle_at: None,
            is_hidden: false,
            writes_behind: false,
            syncing: None,
            unsynced: None,
            current: None,
            last_key: Vec::new(),
        }
    }

    /// The same; the tables are hidden until they are shown. What is written goes to their files beside what the caller
    /// does, if jobs of `executor` go on beside it.
    pub fn hidden(self, executor: &dyn Executor) -> Self {
        TableWriter { is_hidden: true, writes_behind: executor.runs_beside(), ..self }
    }

    /// The number of the table being written.
    pub fn number(&self) -> Option<u64> {
        self.current.as_ref().map(|open| open.file.number)
    }

    /// Whether a version of `key` may go to a new table: the one being written, if there is one, has none.
    pub fn may_cut(&self, key: &[u8]) -> bool {
        self.current.is_none() || self.last_key != key
    }

    /// Whether the table being written has reached its size.
    pub fn is_full(&self) -> bool {
        self.current.as_ref().is_some_and(|open| open.builder.estimated_bytes() >= self.options.table_bytes)
    }

    /// Adds a version; keys ascend, and the sequence numbers of a key descend. Begins a table if there is
    /// none.
    pub fn add(&mut self, key: &[u8], seq: u64, kind: Kind, value: &[u8]) -> Result<()> {
        let mut open = match self.current.take() {
            Some(open) => open,
            None => self.begin(key)?,
        };
        if self.restyle_at.as_ref().is_some_and(|at| **at <= *key) {
            open.builder.change_options(&self.style_from(key))?;
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.current.insert(open).builder.add(key, seq, kind, value)
    }

    /// How entries from `key` on are written, up to `restyle_at`, which is set.
    fn style_from(&mut self, key: &[u8]) -> TableOptions {
        let all = &self.options.table;
        match &self.styles {
            None => all.clone(),
            Some(styles) => {
                let (options, until) = styles.at(key, all);
                self.restyle_at = until;
                options
            }
        }
    }

    /// Begins a table with `key`.
    fn begin(&mut self, key: &[u8]) -> Result<Open> {
        self.manifest.unseal()?;
        let number = self.manifest.take_numbers(1).start;
        let created = match self.is_hidden {
            true => self.files.create_hidden(number)?,
            false => self.files.create_table(number)?,
        };
        let created = if self.writes_behind { Box::new(BehindFile::new(created)) } else { created };
        let file = MadeFile::new(self.files, number, self.is_hidden);
        let mut builder = TableBuilder::new(created, number, self.style_from(key))?;
        if self.styles.as_ref().is_some_and(|styles| styles.may_filter(&self.options.table)) {
            builder = builder.with_filter_by_entries();
        }
        Ok(Open { builder, file })
    }

    /// Finishes the table being written, if there is one, and makes its bytes durable: those of a hidden one beside
    /// what the caller does.
    pub fn finish(&mut self) -> Result<Option<MadeTable>> {
        let Some(Open { builder, file }) = self.current.take() else { return Ok(None) };
        let Built { meta, blocks, .. } = match self.is_hidden {
            false => builder.finish()?,
            true => {
                let (built, written) = builder.finish_unsynced()?;
                // One at a time, lest they pile up.
                self.synced()?;
                let sync = if self.writes_behind { SyncBehind::start } else { SyncBehind::later };
                self.syncing = Some(sync(written));
                built
            }
        };
        Ok(Some(MadeTable { meta, blocks, file }))
    }

    /// Waits until the bytes of all finished tables are durable.
    pub fn synced(&mut self) -> Result<()> {
        if let Some(syncing) = self.syncing.take() {
            self.unsynced = self.unsynced.take().or(syncing.wait().err());
        }
        self.unsynced.clone().map_or(Ok(()), Err)
    }
}
