//! The tables of a database, by number.
//!
//! The manifest's figures of a table are in memory; its file is opened when it is read ([`Table::lazy`]), and
//! the number of open files is bounded (`Options::max_open_tables`).
//!
//! 1. Readers take the tables at one moment and may read them as long as they hold them: a file is removed
//!    when the manifest no longer names it and nobody holds its table.
//! 2. A table enters before anything leads to it and leaves when nothing does any more. So a reader that finds no table
//!    has used a stale name, and looks again.
//! 3. The cost of a change depends on the change: the tables of two moments share the rest.
//! 4. Each change decides again whether tables are read through mappings (`core/table_reads.rs`).

use std::collections::BTreeSet;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use rpds::RedBlackTreeMapSync;
use terrace_base::clock::Clock;
use terrace_base::{Error, Result};
use terrace_disk::MeteredFs;
use terrace_table::{BlockCache, Cursor, Table, TableMeta};

use crate::core::Core;
use crate::core::files::{Files, missing_table};
use crate::core::scrub::LiveTables;
use crate::core::table_reads::TableReader;
use crate::manifest::Manifest;

/// The tables at one moment. A copy shares what it does not change.
pub(crate) type TableMap = RedBlackTreeMapSync<u64, Arc<Table>>;

/// The tables of an open database.
#[derive(Debug)]
pub(crate) struct TableStore {
    files: Arc<Files>,
    cache: Arc<BlockCache>,
    /// The origin of all of them.
    origin: u64,
    map: ArcSwap<TableMap>,
    reader: Arc<TableReader>,
    fs: Arc<MeteredFs>,
    clock: Arc<dyn Clock>,
    /// Bytes of all tables; locked while they change.
    bytes: Mutex<u64>,
}

impl TableStore {
    /// The tables that the manifest names; none of them is opened yet. In a session that keeps nothing, a
    /// missing table stands for what is lost: reading anything that may have been in it is an error.
    pub fn new(core: &Core, manifest: &Manifest) -> Result<TableStore> {
        let state = manifest.state();
        let missing: BTreeSet<u64> = match reads_only(core) {
            true => manifest.listing()?.missing_tables.into_iter().collect(),
            false => BTreeSet::new(),
        };
        let store = TableStore {
            files: core.files.clone(),
            cache: core.cache().clone(),
            origin: state.identity.origin(),
            map: ArcSwap::from_pointee(TableMap::new_sync()),
            reader: core.table_reader.clone(),
            fs: core.fs.clone(),
            clock: core.env.clock.clone(),
            bytes: Mutex::default(),
        };
        let files = state.tables.iter().filter(|(_, table)| table.list.is_none());
        let named = files.map(|(number, table)| match missing.contains(number) {
            true => (*number, store.missing(&table.meta)),
            false => (*number, store.of(&table.meta)),
        });
        let named: TableMap = named.collect();
        *store.bytes.lock() = named.values().map(|table| table.meta().file_bytes).sum();
        store.map.store(Arc::new(named));
        store.decide();
        Ok(store)
    }

    fn missing(&self, meta: &TableMeta) -> Arc<Table> {
        let missing = missing_table(&self.files.table(meta.number));
        tracing::warn!(error = %missing, "opened to be read without it");
        Table::missing(meta.clone(), missing, self.cache.clone())
    }

    fn of(&self, meta: &TableMeta) -> Arc<Table> {
        let (file, cache) = (self.files.hold_table(meta), self.cache.clone());
        Table::mapped(file, meta.clone(), self.origin, cache, self.reader.maps())
    }

    /// A table that was just written; it is opened now, so that nothing fails once the manifest names it.
    pub fn made(&self, meta: &TableMeta) -> Result<Arc<Table>> {
        let table = self.of(meta);
        table.load()?;
        Ok(table)
    }

    /// The tables now.
    pub fn load(&self) -> Guard<Arc<TableMap>> {
        self.map.load()
    }

    /// A table of the manifest.
    pub fn get(&self, number: u64) -> Result<Arc<Table>> {
        let table = self.map.load().get(&number).cloned();
        table.ok_or_else(|| {
            Error::corruption(&self.files.table(number), 0, "a table of the manifest", "no open table")
        })
    }

    /// A cursor over table `number` for a job, which reads `ahead` bytes ahead and fills no cache.
    pub fn cursor(&self, number: u64, ahead: usize) -> Result<Box<dyn Cursor>> {
        Ok(Box::new(self.get(number)?.cursor(false, ahead)))
    }

    /// Adds tables that the manifest names.
    pub fn insert(&self, tables: impl IntoIterator<Item = Arc<Table>>) {
        self.change(|map, bytes| {
            for table in tables {
                debug_assert!(!map.contains_key(&table.number()), "no two tables have a number");
                *bytes += table.meta().file_bytes;
                map.insert_mut(table.number(), table);
            }
        });
    }

    /// Removes tables that the manifest no longer names. Their files are removed in this order once nobody
    /// reads them.
    pub fn remove(&self, numbers: &[u64]) {
        self.change(|map, bytes| {
            for number in numbers {
                *bytes -= map.get(number).map_or(0, |table| table.meta().file_bytes);
                map.remove_mut(number);
            }
        });
        self.files.remove_tables(numbers.iter().copied());
    }

    fn decide(&self) {
        let bytes = *self.bytes.lock();
        self.reader.decide(&*self.fs, self.clock.now(), bytes);
    }

    fn change(&self, edit: impl FnOnce(&mut TableMap, &mut u64)) {
        let mut alone = self.bytes.lock();
        let mut map = TableMap::clone(&self.map.load());
        edit(&mut map, &mut alone);
        let before = self.map.swap(Arc::new(map));
        // Dropping a table may remove files: nobody waits for that.
        drop(alone);
        drop(before);
        self.decide();
    }
}

impl LiveTables for TableStore {
    fn at_or_above(&self, number: u64) -> Option<Arc<Table>> {
        self.map.load().range(number..).next().map(|(_, table)| table.clone())
    }

    fn end(&self) -> u64 {
        self.map.load().last().map_or(0, |(number, _)| number + 1)
    }

    fn bytes(&self) -> u64 {
        *self.bytes.lock()
    }
}

/// An error that names a missing table, before anything is opened that would have to be closed cleanly. A
/// database that is opened only for reading works without it.
pub(crate) fn refuse_missing(core: &Core, manifest: &Manifest) -> Result<()> {
    let missing = manifest.listing()?.missing_tables;
    match missing.first() {
        Some(number) if !reads_only(core) => Err(missing_table(&core.files.table(*number))),
        _ => Ok(()),
    }
}

/// Whether the database is only read, so that a missing table takes nothing else with it.
fn reads_only(core: &Core) -> bool {
    core.options.read_only || core.is_scratch
}
