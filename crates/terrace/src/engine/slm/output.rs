//! Writing tables for a flush or a compaction, one after the other as each fills up.
//!
//! A finished table is synced, in the manifest and open for readers before it is handed on to be
//! indexed. All versions of a key go into the same table.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrace_base::Result;
use terrace_disk::Access;
use terrace_table::{BlockSpan, Kind, Position, Table, TableBuilder, TableOptions};

use super::Slm;
use super::tables::table_path;
use crate::db::memory::{Loan, Memory};
use crate::manifest::Edit;

/// What a table being written takes beside its entries' notes: blocks on their way, the index.
const BUILDER_BYTES: usize = 1 << 20;

/// Entries after which what their notes hold is counted again.
const NOTES_COUNTED: usize = 4096;

/// Where a compaction found a version.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin {
    /// The table.
    pub table: u64,
    /// The next newer version of its key there, by sequence number.
    pub newer: Option<u64>,
}

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

/// A table that is in the manifest, with what to put into the index.
#[derive(Debug)]
pub(super) struct Finished {
    pub number: u64,
    /// Puts in the table, which the manifest counts as live from the start.
    pub puts: u64,
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
    current: Option<(u64, TableBuilder, Notes)>,
    /// Bytes of the tables finished so far.
    pub bytes: u64,
    /// Entries, by table, that only a snapshot keeps.
    pub pinned: BTreeMap<u64, u64>,
}

impl<'a> Outputs<'a> {
    pub fn new(slm: &'a Slm, job: u64) -> Self {
        Outputs { slm, job, current: None, bytes: 0, pinned: BTreeMap::new() }
    }

    /// Adds an entry; keys ascend, and the sequence numbers of a key descend. Returns a table that this
    /// key found full.
    pub fn add(
        &mut self,
        key: &[u8],
        seq: u64,
        kind: Kind,
        value: &[u8],
        origin: Option<Origin>,
    ) -> Result<Option<Finished>> {
        let finished = if self.is_full_for(key) { self.finish()? } else { None };
        if self.current.is_none() {
            self.current = Some(self.begin()?);
        }
        if let Some((_, builder, notes)) = &mut self.current {
            builder.add(key, seq, kind, value)?;
            notes.keys.extend_from_slice(key);
            notes.entries.push(Note { key_end: notes.keys.len(), seq, kind, origin });
            if notes.entries.len().is_multiple_of(NOTES_COUNTED) {
                notes.count();
                self.slm.settle_memory();
            }
        }
        Ok(finished)
    }

    /// Notes that `entries` of those just added stay for a snapshot alone.
    pub fn pin(&mut self, entries: u64) {
        if let (Some((number, ..)), 1..) = (&self.current, entries) {
            *self.pinned.entry(*number).or_default() += entries;
        }
    }

    fn is_full_for(&self, key: &[u8]) -> bool {
        self.current.as_ref().is_some_and(|(_, builder, notes)| {
            builder.estimated_bytes() >= self.slm.table_bytes && notes.last_key() != Some(key)
        })
    }

    fn begin(&self) -> Result<(u64, TableBuilder, Notes)> {
        let number = self.slm.new_file_number();
        let file = self.slm.core.fs().create(&table_path(&self.slm.core.dir, number))?;
        let options = TableOptions {
            block_bytes: self.slm.core.options.slm.block_bytes,
            compression: self.slm.core.options.compression,
            filter_bits_per_key: 0,
            ..TableOptions::default()
        };
        Ok((number, TableBuilder::new(file, number, options)?, Notes::new(&self.slm.core.memory)))
    }

    /// Finishes the table being written, if there is one.
    pub fn finish(&mut self) -> Result<Option<Finished>> {
        let Some((number, builder, notes)) = self.current.take() else { return Ok(None) };
        let built = builder.finish()?;
        let core = &self.slm.core;
        core.fs().sync_dir(&core.dir)?;
        let path = table_path(&core.dir, number);
        let table = Table::open(core.fs(), &path, number, core.cache().clone(), Access::Random)?;
        self.slm.manifest.apply(&[Edit::AddTable { level: 0, job: self.job, meta: built.meta.clone() }])?;
        self.slm.tables.insert(number, table);
        self.bytes += built.meta.file_bytes;
        core.counters.tables_written.add(1);
        let puts = built.meta.entries - built.meta.deletes;
        Ok(Some(Finished { number, puts, notes, blocks: built.blocks }))
    }
}

impl Notes {
    fn new(memory: &Arc<Memory>) -> Self {
        Notes { keys: Vec::new(), entries: Vec::new(), loan: memory.lend(BUILDER_BYTES) }
    }

    /// Has what the notes hold counted.
    fn count(&mut self) {
        let entries = self.entries.capacity() * size_of::<Note>();
        self.loan.becomes(BUILDER_BYTES + self.keys.capacity() + entries);
    }

    fn last_key(&self) -> Option<&[u8]> {
        let end = self.entries.last()?.key_end;
        let start = self.entries.len().checked_sub(2).map_or(0, |i| self.entries[i].key_end);
        Some(&self.keys[start..end])
    }
}

impl Finished {
    /// How many entries it has.
    pub fn len(&self) -> u64 {
        self.notes.entries.len() as u64
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
