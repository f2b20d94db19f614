//! Writing the runs of a flush or a compaction, one after the other as each fills up: tables, or lists in persistent
//! memory.
//!
//! A finished table is synced, though neither its name nor any word of it is in the manifest: [`Outputs::finish`]
//! makes the names durable, and the caller does the rest.

mod stack;

use std::ops::RangeInclusive;
use std::sync::Arc;

use terrace_base::Result;
use terrace_table::{BlockSpan, Cursor, Kind, Position, TableMeta};

use super::list_writer::{ListJob, ListWriter};
use super::lists::ListStore;
use super::merge::Survivors;
use super::run::Made;
use crate::core::Core;
use crate::core::filters::Judge;
use crate::manifest::Manifest;
use crate::tables::{MadeTable, TableWriter, WriterOptions};

/// Entries merged between two checks for more urgent work.
const ENTRIES_A_LOOK: u32 = 4096;

/// A run that was written. Dropping this removes it unless somebody keeps it.
#[derive(Debug)]
pub(crate) struct Written {
    pub meta: TableMeta,
    pub made: Made,
    /// Bytes written for it.
    pub written_bytes: u64,
    /// It holds versions beside the newest of their key, which only snapshots keep.
    pub keeps_old: bool,
    /// The places of the keys that somebody asked about.
    pub hints: Vec<BlockHint>,
}

impl AsRef<TableMeta> for Written {
    fn as_ref(&self) -> &TableMeta {
        &self.meta
    }
}

/// The block of a table with the newest version of a key there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockHint {
    pub key: Vec<u8>,
    pub block: Position,
    /// Entries of the block.
    pub entries: u64,
}

/// Whether to note the place of a key; called with ascending keys.
pub(crate) type Wanted<'a> = dyn FnMut(&[u8]) -> bool + 'a;

/// Whatever is written.
#[expect(
    clippy::large_enum_variant,
    reason = "a job has one, and a box would stand in the way of each entry"
)]
enum Writer<'a> {
    Tables(TableWriter<'a>),
    Lists(ListWriter<'a>),
}

/// Writes a series of runs. All versions of a key go into the same one.
pub(crate) struct Outputs<'a> {
    core: &'a Core,
    writer: Writer<'a>,
    keeps_old: bool,
    /// Whether the version that was added last stands on the next older one.
    needs_older: bool,
    /// Tables of the level below the output's: no output may overlap too much of them.
    below: Below,
    /// Keys before which a table ends, ascending, the next one last.
    cuts: Vec<Vec<u8>>,
    wanted: Option<Box<Wanted<'a>>>,
    judge: Option<Judge<'a>>,
    /// Wanted keys in the table being written, each with the ordinal of its newest version there.
    hints: Vec<(Vec<u8>, u64)>,
    /// Entries of the table being written.
    entries: u64,
    done: Vec<Written>,
}

/// The ranges and sizes of tables that one output should not overlap too many of, so that each is cheap to
/// compact.
#[derive(Debug, Default, Clone)]
pub(crate) struct Below {
    /// The tables' largest keys and bytes, in order.
    pub tables: Vec<(Vec<u8>, u64)>,
    /// Bytes that one output may overlap.
    pub max_bytes: u64,
    at: usize,
    overlapped: u64,
}

impl Below {
    pub fn new(tables: Vec<(Vec<u8>, u64)>, max_bytes: u64) -> Self {
        Below { tables, max_bytes, at: 0, overlapped: 0 }
    }

    /// Passes the tables that end before `key`; returns whether the output being written has overlapped too
    /// much.
    fn is_enough(&mut self, key: &[u8], open: bool) -> bool {
        while let Some((largest, bytes)) = self.tables.get(self.at)
            && **largest < *key
        {
            self.overlapped += if open { *bytes } else { 0 };
            self.at += 1;
        }
        let enough = self.overlapped > self.max_bytes;
        if enough {
            self.overlapped = 0;
        }
        enough
    }
}

impl<'a> Outputs<'a> {
    /// Tables with numbers from `manifest`, cut and written as `options` say.
    pub fn new(core: &'a Core, manifest: &'a Manifest, options: WriterOptions, below: Below) -> Self {
        let writer = Writer::Tables(TableWriter::new(core, manifest, options));
        Outputs::with(core, writer, below)
    }

    /// The same with lists of `store`.
    pub fn lists(
        core: &'a Core,
        manifest: &'a Manifest,
        store: &'a Arc<ListStore>,
        job: ListJob,
        below: Below,
    ) -> Self {
        Outputs::with(core, Writer::Lists(ListWriter::new(store, manifest, job)), below)
    }

    fn with(core: &'a Core, writer: Writer<'a>, below: Below) -> Self {
        Outputs {
            core,
            writer,
            keeps_old: false,
            needs_older: false,
            below,
            cuts: Vec::new(),
            wanted: None,
            judge: None,
            hints: Vec::new(),
            entries: 0,
            done: Vec::new(),
        }
    }

    /// The same; tables are hidden until they are shown.
    pub fn hidden(self) -> Self {
        let writer = match self.writer {
            Writer::Tables(writer) => Writer::Tables(writer.hidden(&*self.core.env.executor)),
            lists @ Writer::Lists(_) => lists,
        };
        Outputs { writer, ..self }
    }

    /// The same; notes the places of the keys that are `wanted`.
    pub fn noting(self, wanted: Option<Box<Wanted<'a>>>) -> Self {
        Outputs { wanted, ..self }
    }

    /// The same; filters hear of the entries of a compaction into `level`.
    pub fn judged(self, level: usize) -> Self {
        Outputs { judge: self.core.filters.judge(level), ..self }
    }

    /// Ends the table being written; later ones end before each of `cuts`, which ascend. Keys may start from
    /// the beginning again.
    pub fn begin_part(&mut self, mut cuts: Vec<Vec<u8>>) -> Result<()> {
        self.close(None)?;
        cuts.reverse();
        self.cuts = cuts;
        Ok(())
    }

    /// Adds a version; keys ascend, and the sequence numbers of a key descend.
    pub fn add(&mut self, key: &[u8], seq: u64, kind: Kind, value: &[u8]) -> Result<()> {
        self.add_version(key, (seq, kind, value), None)
    }

    /// The same of a version whose record lies at `record` in the pool, if it does.
    fn add_version(
        &mut self,
        key: &[u8],
        (seq, kind, value): (u64, Kind, &[u8]),
        record: Option<u64>,
    ) -> Result<()> {
        self.before(key, kind)?;
        match &mut self.writer {
            Writer::Tables(writer) => writer.add(key, seq, kind, value),
            Writer::Lists(writer) => writer.add((key, seq, kind, value.len()), record, || Ok(value)),
        }
    }

    /// Adds the version at `cursor`: into a list by its record's place, if it has one.
    fn add_at<C: Cursor>(&mut self, cursor: &C) -> Result<()> {
        let (key, seq, kind) = (cursor.key(), cursor.seq(), cursor.kind());
        self.before(key, kind)?;
        match &mut self.writer {
            Writer::Tables(writer) => writer.add(key, seq, kind, &cursor.value()?),
            Writer::Lists(writer) => {
                writer.add((key, seq, kind, cursor.value_len()), cursor.record(), || cursor.value())
            }
        }
    }

    fn before(&mut self, key: &[u8], kind: Kind) -> Result<()> {
        let may_cut = match &self.writer {
            Writer::Tables(writer) => writer.may_cut(key),
            Writer::Lists(writer) => writer.may_cut(key),
        };
        if may_cut {
            self.cut(key)?;
            if self.wanted.as_mut().is_some_and(|wanted| wanted(key)) {
                self.hints.push((key.to_vec(), self.entries));
            }
        } else {
            // What an operand stands on is no garbage.
            self.keeps_old |= !self.needs_older;
        }
        self.needs_older = !kind.is_whole();
        self.entries += 1;
        Ok(())
    }

    fn is_open(&self) -> bool {
        match &self.writer {
            Writer::Tables(writer) => writer.number().is_some(),
            Writer::Lists(writer) => writer.is_open(),
        }
    }

    /// Whether `key`, which is the next one, goes into a run that is not begun.
    pub fn begins_with(&self, key: &[u8]) -> bool {
        !self.is_open() || self.is_full() || self.cuts.last().is_some_and(|cut| **cut <= *key)
    }

    fn is_full(&self) -> bool {
        match &self.writer {
            Writer::Tables(writer) => writer.is_full(),
            Writer::Lists(writer) => writer.is_full(),
        }
    }

    /// Adds the versions at `cursor`, up to the key `to`, that `survivors` keeps and that belong to the
    /// inputs by `is_input`: others lie elsewhere, and only hide older ones. It checks for more urgent work
    /// now and then, and ends if that returns an error.
    pub fn add_survivors<C: Cursor, F: Fn(&[u8], RangeInclusive<u64>) -> bool>(
        &mut self,
        cursor: &mut C,
        to: Option<&[u8]>,
        survivors: &mut Survivors<'_, F>,
        is_input: impl Fn(&C) -> bool,
        look_up: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let mut entries = 0u32;
        while cursor.valid() && to.is_none_or(|to| cursor.key() < to) {
            entries = entries.wrapping_add(1);
            if entries.is_multiple_of(ENTRIES_A_LOOK) {
                look_up()?;
            }
            let (key, seq, kind) = (cursor.key(), cursor.seq(), cursor.kind());
            let stays = survivors.keeps(key, seq, kind) && is_input(cursor);
            if stays && !kind.is_whole() {
                self.add_stack(cursor, survivors, &is_input)?;
                continue;
            }
            // What is due is kept for what it hides alone, as a tombstone is.
            let is_due = stays
                && kind == Kind::Put
                && self.core.deadlines.is_dated(key, Some(seq))
                && survivors.hides_nothing(seq)
                && self.core.deadlines.is_due(&cursor.value()?);
            if stays && !is_due {
                if kind == Kind::Put
                    && survivors.is_newest()
                    && let Some(judge) = self.judge.as_mut().filter(|judge| judge.concerns(key))
                {
                    judge.see(key, &cursor.value()?);
                }
                self.add_at(cursor)?;
            }
            cursor.next()?;
        }
        Ok(())
    }

    /// Ends the table being written if it is full.
    fn cut(&mut self, key: &[u8]) -> Result<()> {
        let enough = self.below.is_enough(key, self.is_open());
        let passes = self.passes_cut(key);
        if enough || passes || self.is_full() {
            self.close(Some(key))?;
        }
        if !self.is_open() {
            self.below.overlapped = 0;
        }
        Ok(())
    }

    /// Whether `key` is the first at or after a cut.
    fn passes_cut(&mut self, key: &[u8]) -> bool {
        let before = self.cuts.len();
        while self.cuts.last().is_some_and(|cut| **cut <= *key) {
            self.cuts.pop();
        }
        self.cuts.len() < before
    }

    /// Ends the run being written; `next` is the key that begins the following one, if known.
    fn close(&mut self, next: Option<&[u8]>) -> Result<()> {
        let (keeps_old, hints) = (self.keeps_old, &mut self.hints);
        let written = match &mut self.writer {
            Writer::Tables(writer) => writer.finish()?.map(|made| {
                self.core.counters.tables_written.add(1);
                let hints = placed(std::mem::take(hints), &made);
                let written_bytes = made.meta.file_bytes;
                Written { meta: made.meta, made: Made::File(made.file), keeps_old, written_bytes, hints }
            }),
            Writer::Lists(writer) => writer.finish(keeps_old, next)?.map(|made| {
                let (written_bytes, hints) = (made.written_bytes, Vec::new());
                Written { meta: made.meta, made: Made::List(made.list), keeps_old, written_bytes, hints }
            }),
        };
        if let Some(written) = written {
            (self.keeps_old, self.entries) = (false, 0);
            self.hints.clear();
            self.done.push(written);
        }
        Ok(())
    }

    /// Ends the last table and makes all names durable; returns the tables, in order.
    pub fn finish(mut self) -> Result<Vec<Written>> {
        self.close(None)?;
        if let Writer::Tables(writer) = &mut self.writer {
            writer.synced()?;
        }
        if self.done.iter().any(|written| matches!(written.made, Made::File(_))) {
            self.core.files.sync_names()?;
        }
        Ok(self.done)
    }
}

/// The block of a table for each of some keys, given by the ordinals of their entries, which ascend.
fn placed(keys: Vec<(Vec<u8>, u64)>, made: &MadeTable) -> Vec<BlockHint> {
    let mut at = 0;
    let first_of = |at: usize| made.blocks.get(at).map(|span: &BlockSpan| span.first_entry);
    let hints = keys.into_iter().filter_map(|(key, ordinal)| {
        while first_of(at + 1).is_some_and(|first| first <= ordinal) {
            at += 1;
        }
        let span = made.blocks.get(at)?;
        let end = first_of(at + 1).unwrap_or(made.meta.entries);
        Some(BlockHint { key, block: span.position, entries: end - span.first_entry })
    });
    hints.collect()
}
