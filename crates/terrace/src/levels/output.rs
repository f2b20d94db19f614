//! Writing the tables of a flush or a compaction, one after the other as each fills up.
//!
//! A finished table is synced, though neither its name nor any word of it is in the manifest: [`Outputs::finish`]
//! makes the names durable, the rest is the caller's. What is dropped before has its files removed.

use std::path::PathBuf;

use terrace_base::Result;
use terrace_table::{Kind, TableBuilder, TableMeta, TableOptions};

use super::table_path;
use crate::db::core::Core;

/// How tables are cut and written.
#[derive(Debug, Clone)]
pub(crate) struct OutputOptions {
    /// Bytes at which the next table is begun.
    pub table_bytes: u64,
    /// How each table is written.
    pub table: TableOptions,
}

/// A table that was written.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    pub meta: TableMeta,
    /// It holds versions beside the newest of their key, which only snapshots keep.
    pub keeps_old: bool,
}

/// Writes a series of tables. All versions of a key go into the same one.
pub(crate) struct Outputs<'a> {
    core: &'a Core,
    options: OutputOptions,
    number: &'a (dyn Fn() -> u64 + Sync),
    current: Option<TableBuilder>,
    last_key: Vec<u8>,
    keeps_old: bool,
    /// Tables of the level below the output's: none of the outputs is to overlap too much of them.
    below: Below,
    done: Vec<Written>,
    /// Files that are to be removed if this comes to nothing.
    files: Vec<PathBuf>,
}

/// The ranges and sizes of tables that outputs should not overlap too many of, so that each is cheap to compact.
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

    /// Passes the tables that end before `key`; whether the output being written has overlapped too much.
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
    /// Tables numbered by `number` in the database's directory.
    pub fn new(
        core: &'a Core,
        options: OutputOptions,
        below: Below,
        number: &'a (dyn Fn() -> u64 + Sync),
    ) -> Self {
        let (done, files) = (Vec::new(), Vec::new());
        Outputs {
            core,
            options,
            number,
            current: None,
            last_key: Vec::new(),
            keeps_old: false,
            below,
            done,
            files,
        }
    }

    /// Adds a version; keys ascend, and the sequence numbers of a key descend.
    pub fn add(&mut self, key: &[u8], seq: u64, kind: Kind, value: &[u8]) -> Result<()> {
        if self.current.is_none() || self.last_key != key {
            self.cut(key)?;
            self.last_key.clear();
            self.last_key.extend_from_slice(key);
        } else {
            self.keeps_old = true;
        }
        match &mut self.current {
            Some(builder) => builder.add(key, seq, kind, value),
            None => Ok(()),
        }
    }

    /// Ends the table being written where it is full, and begins one where there is none.
    fn cut(&mut self, key: &[u8]) -> Result<()> {
        let enough = self.below.is_enough(key, self.current.is_some());
        let full = self.current.as_ref().is_some_and(|b| b.estimated_bytes() >= self.options.table_bytes);
        if enough || full {
            self.close()?;
        }
        if self.current.is_none() {
            let number = (self.number)();
            let path = table_path(&self.core.dir, number);
            let file = self.core.fs().create(&path)?;
            self.files.push(path);
            self.current = Some(TableBuilder::new(file, number, self.options.table.clone())?);
            self.below.overlapped = 0;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        if let Some(builder) = self.current.take() {
            let keeps_old = std::mem::take(&mut self.keeps_old);
            self.done.push(Written { meta: builder.finish()?.meta, keeps_old });
            self.core.counters.tables_written.add(1);
        }
        Ok(())
    }

    /// Ends the last table and makes the names of all durable; their figures, in order.
    pub fn finish(mut self) -> Result<Vec<Written>> {
        self.close()?;
        if !self.done.is_empty() {
            self.core.fs().sync_dir(&self.core.dir)?;
        }
        self.files.clear();
        Ok(std::mem::take(&mut self.done))
    }
}

impl Drop for Outputs<'_> {
    fn drop(&mut self) {
        self.current = None;
        for path in &self.files {
            // One that cannot be removed is no table of the manifest and goes at the next open.
            let _ = self.core.fs().remove(path);
        }
    }
}
