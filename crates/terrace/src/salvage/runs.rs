//! Entries on their way into new tables: sorted in parts, so that memory never holds more than the budget
//! allows; each part is written when it is full.

use bytes::Bytes;
use terrace_base::Result;
use terrace_table::{Cursor, Kind, Table, TableBuilder, TableMeta, TableOptions};

use crate::core::Core;
use crate::manifest::FileName;
use crate::tables::{each_newest, merge_ahead};

/// The least size of a part.
const LEAST_BYTES: usize = 1 << 20;

/// The largest size of a part, however large the memory budget is.
const MOST_BYTES: usize = 32 << 20;

/// Bytes of memory that an entry takes beside its key and value.
const ENTRY_BYTES: usize = 96;

/// Bytes read ahead from each table of a merge, at most.
const READAHEAD_BYTES: usize = 256 << 10;

/// A version of a key: the key, its number, its kind and its value.
type Version = (Vec<u8>, u64, Kind, Bytes);

/// Receives a version: its key, its number, its kind and its value.
pub(crate) type Each<'a> = dyn FnMut(&[u8], u64, Kind, &[u8]) -> Result<()> + 'a;

/// Builds tables from entries that come in any order.
pub(crate) struct TableSorter<'a> {
    core: &'a Core,
    options: &'a TableOptions,
    next: &'a mut u64,
    held: Vec<Version>,
    bytes: usize,
    limit: usize,
    /// Whether all entries so far came in order: then a part ends between two keys.
    ordered: bool,
    made: Vec<TableMeta>,
}

impl<'a> TableSorter<'a> {
    /// Tables in the directory of `core`, numbered from `next` on.
    pub fn new(core: &'a Core, options: &'a TableOptions, next: &'a mut u64) -> TableSorter<'a> {
        let limit = (core.options.memory_budget as usize / 8).clamp(LEAST_BYTES, MOST_BYTES);
        TableSorter {
            core,
            options,
            next,
            held: Vec::new(),
            bytes: 0,
            limit,
            ordered: true,
            made: Vec::new(),
        }
    }

    /// Adds a version.
    pub fn add(&mut self, key: &[u8], seq: u64, kind: Kind, value: Bytes) -> Result<()> {
        let last = self.held.last().map(|(key, seq, ..)| (&**key, std::cmp::Reverse(*seq)));
        self.ordered &= last.is_none_or(|last| last < (key, std::cmp::Reverse(seq)));
        let between_keys = self.held.last().is_none_or(|(last, ..)| **last != *key);
        if self.bytes >= self.limit && (between_keys || !self.ordered) {
            self.write()?;
        }
        self.bytes += ENTRY_BYTES + key.len() + value.len();
        self.held.push((key.to_vec(), seq, kind, value));
        Ok(())
    }

    /// Writes a part as a table. If that fails, what there is of the file stays: the repair has failed as a whole, and the
    /// view in which it works is discarded with everything in it (`repair/switch.rs`).
    fn write(&mut self) -> Result<()> {
        // Of an operand and of what a merge has made of it, which have one number, this is more.
        self.held.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)).then(b.2.is_whole().cmp(&a.2.is_whole())));
        self.held.dedup_by(|a, b| a.0 == b.0 && a.1 == b.1);
        if self.held.is_empty() {
            return Ok(());
        }
        let number = *self.next;
        *self.next += 1;
        let file = self.core.fs().create(&FileName::Table(number).path(&self.core.dir))?;
        let mut builder = TableBuilder::new(file, number, self.options.clone())?;
        for (key, seq, kind, value) in self.held.drain(..) {
            builder.add(&key, seq, kind, &value)?;
        }
        self.bytes = 0;
        self.made.push(builder.finish()?.meta);
        self.core.fs().sync_dir(&self.core.dir)
    }

    /// The tables that were written.
    pub fn finish(mut self) -> Result<Vec<TableMeta>> {
        self.write()?;
        Ok(self.made)
    }
}

/// Gives `each` the newest version of each key in the `tables`, in order of the keys. [`TableSorter`] has written
/// these tables without an owner.
pub(crate) fn each_newest_in(core: &Core, tables: &[TableMeta], each: &mut Each<'_>) -> Result<()> {
    let child = |meta: &TableMeta, ahead| -> Result<Box<dyn Cursor>> {
        let file = core.files.hold_table(meta);
        let table = Table::lazy(file, meta.clone(), TableOptions::default().origin, core.cache().clone());
        Ok(Box::new(table.cursor(false, ahead)))
    };
    let (mut cursor, _loan) = merge_ahead(core, READAHEAD_BYTES, tables, child)?;
    each_newest(&mut cursor, |newest| {
        let value = newest.value()?;
        each(newest.key(), newest.seq(), newest.kind(), &value)
    })
}
