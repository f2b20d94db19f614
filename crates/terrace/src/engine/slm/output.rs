//! Writing tables for a flush or a compaction, one after the other as each fills up.
//!
//! A finished table is synced, in the manifest and open for readers before it is passed on to be indexed. All
//! versions of a key go into the same table.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrace_base::Result;
use terrace_table::{BlockSpan, Kind, Position, TableOptions};

use super::Slm;
use crate::core::memory::{Loan, Memory};
use crate::located::Origin;
use crate::manifest::Edit;
use crate::tables::{MadeTable, TableWriter, WriterOptions};

/// Bytes of a table being written beside its entries' notes: blocks on their way, the index.
const BUILDER_BYTES: usize = 2 << 20;

/// Entries after which the notes' bytes are counted again.
const NOTES_COUNTED: usize = 4096;

/// The entries of a table being written, without their values.
#[derive(Debug)]
struct Notes {
    keys: Vec<u8>,
    entries: Vec<Note>,
    loan: Loan,
}

#[derive(Debug)]
struct Note {
    key_end: usize,
    seq: u64,
    kind: Kind,
    origin: Option<Origin>,
}

/// Receives finished tables.
pub(super) type Sink<'a> = &'a mut dyn FnMut(Finished);

/// A table that is in the manifest, with the entries to put into the index.
#[derive(Debug)]
pub(super) struct Finished {
    pub number: u64,
    /// Puts in the table, which the manifest counts as live from the start.
    pub puts: u64,
    /// The file's length.
    pub bytes: u64,
    notes: Notes,
    blocks: Vec<BlockSpan>,
}

/// One entry of a finished table.
#[derive(Debug)]
pub(super) struct Placed<'a> {
    pub key: &'a [u8],
    pub seq: u64,
    pub kind: Kind,
    pub origin: Option<Origin>,
    pub position: Position,
}

/// Writes a series of tables.
pub(super) struct Outputs<'a> {
    slm: &'a Slm,
    job: u64,
    writer: TableWriter<'a>,
    notes: Notes,
    /// Entries, by table, that only a snapshot keeps.
    pub pinned: BTreeMap<u64, u64>,
}

impl<'a> Outputs<'a> {
    pub fn new(slm: &'a Slm, job: u64) -> Self {
        let options = &slm.core.options;
        let table = TableOptions {
            block_bytes: options.slm.block_bytes,
            compression: options.compression,
            filter_bits_per_key: 0,
            origin: slm.manifest.state().identity.origin(),
            ..TableOptions::default()
        };
        let options = WriterOptions { table_bytes: slm.table_bytes, table };
        let writer = TableWriter::new(&slm.core, &slm.manifest, options);
        let notes = Notes::new(&slm.core.memory);
        Outputs { slm, job, writer, notes, pinned: BTreeMap::new() }
    }

    /// Adds an entry; keys ascend, and the sequence numbers of a key descend. If this key finds the table
    /// full, the table goes to `sink` before anything else can fail: it is in the manifest by then.
    pub fn add(
        &mut self,
        key: &[u8],
        seq: u64,
        kind: Kind,
        value: &[u8],
        origin: Option<Origin>,
        sink: Sink<'_>,
    ) -> Result<()> {
        if self.writer.is_full() && self.writer.may_cut(key) {
            self.finish(sink)?;
        }
        self.writer.add(key, seq, kind, value)?;
        let notes = &mut self.notes;
        notes.keys.extend_from_slice(key);
        notes.entries.push(Note { key_end: notes.keys.len(), seq, kind, origin });
        if notes.entries.len().is_multiple_of(NOTES_COUNTED) {
            notes.count();
            self.slm.fit_cache();
        }
        Ok(())
    }

    /// Notes that `entries` of those just added are kept only for a snapshot.
    pub fn pin(&mut self, entries: u64) {
        if let (Some(number), 1..) = (self.writer.number(), entries) {
            *self.pinned.entry(number).or_default() += entries;
        }
    }

    /// Finishes the table being written, if there is one; `sink` gets it.
    pub fn finish(&mut self, sink: Sink<'_>) -> Result<()> {
        let Some(MadeTable { meta, blocks, file }) = self.writer.finish()? else { return Ok(()) };
        let notes = std::mem::replace(&mut self.notes, Notes::new(&self.slm.core.memory));
        let core = &self.slm.core;
        core.files.sync_names()?;
        let number = file.number();
        let table = self.slm.tables.made(&meta)?;
        if let Err(e) =
            self.slm.manifest.apply(&[Edit::AddTable { level: 0, job: self.job, meta: meta.clone() }])
        {
            file.keep_until_decided();
            return Err(e);
        }
        file.keep();
        self.slm.tables.insert([table]);
        core.counters.tables_written.add(1);
        let (puts, bytes) = (meta.entries - meta.deletes, meta.file_bytes);
        sink(Finished { number, puts, bytes, notes, blocks });
        Ok(())
    }
}

impl Notes {
    fn new(memory: &Arc<Memory>) -> Self {
        Notes { keys: Vec::new(), entries: Vec::new(), loan: memory.lend(BUILDER_BYTES) }
    }

    /// Counts the notes' bytes.
    fn count(&mut self) {
        let entries = self.entries.capacity() * size_of::<Note>();
        self.loan.becomes(BUILDER_BYTES + self.keys.capacity() + entries);
    }
}

impl Finished {
    /// The number of its entries.
    pub fn len(&self) -> u64 {
        self.notes.entries.len() as u64
    }

    /// The last key in it.
    pub fn last_key(&self) -> Option<&[u8]> {
        let end = self.notes.entries.last()?.key_end;
        let start = self.notes.entries.len().checked_sub(2).map_or(0, |i| self.notes.entries[i].key_end);
        Some(&self.notes.keys[start..end])
    }

    /// The entries in order, each with its place.
    pub fn entries(&self) -> impl Iterator<Item = Placed<'_>> {
        let mut blocks = self.blocks.iter().peekable();
        let mut position = None;
        let mut start = 0;
        self.notes.entries.iter().enumerate().filter_map(move |(i, note)| {
            while let Some(span) = blocks.next_if(|b| b.first_entry <= i as u64) {
                position = Some(span.position);
            }
            let key = &self.notes.keys[std::mem::replace(&mut start, note.key_end)..note.key_end];
            let placed =
                |position| Placed { key, seq: note.seq, kind: note.kind, origin: note.origin, position };
            position.map(placed)
        })
    }
}
