//! The open tables of the single level, by file number.
//!
//! Readers take a snapshot of the map and keep their tables as long as they hold it. A table enters
//! before any index word names it and leaves after no index word does, so a reader that finds no
//! table for a word has an outdated word and looks again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use rpds::RedBlackTreeMapSync;
use terrace_table::Table;

use crate::manifest::FileName;

/// The open tables of one moment. A copy shares what it does not change.
pub(super) type TableMap = RedBlackTreeMapSync<u64, Arc<Table>>;

/// The open tables.
#[derive(Debug, Default)]
pub(super) struct Tables {
    map: ArcSwap<TableMap>,
    changing: Mutex<()>,
}

impl Tables {
    pub fn new(map: TableMap) -> Self {
        Tables { map: ArcSwap::from_pointee(map), changing: Mutex::default() }
    }

    /// The tables now.
    pub fn load(&self) -> Guard<Arc<TableMap>> {
        self.map.load()
    }

    pub fn get(&self, number: u64) -> Option<Arc<Table>> {
        self.map.load().get(&number).cloned()
    }

    pub fn insert(&self, number: u64, table: Arc<Table>) {
        self.change(|map| {
            map.insert_mut(number, table);
        });
    }

    pub fn remove(&self, numbers: &[u64]) {
        self.change(|map| {
            for number in numbers {
                map.remove_mut(number);
            }
        });
    }

    fn change(&self, edit: impl FnOnce(&mut TableMap)) {
        let _alone = self.changing.lock();
        let mut map = TableMap::clone(&self.map.load());
        edit(&mut map);
        self.map.store(Arc::new(map));
    }
}

/// The path of table `number` in `dir`.
pub(super) fn table_path(dir: &Path, number: u64) -> PathBuf {
    FileName::Table(number).path(dir)
}
