//! The open tables of the single level, by file number.
//!
//! Readers take a snapshot of the map and keep their tables as long as they hold it. A table enters
//! before any index word names it and leaves after no index word does, so a reader that finds no
//! table for a word has an outdated word and looks again.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use terrace_table::Table;

/// The open tables of one moment.
pub(super) type TableMap = HashMap<u64, Arc<Table>>;

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
            map.insert(number, table);
        });
    }

    pub fn remove(&self, numbers: &[u64]) {
        self.change(|map| map.retain(|number, _| !numbers.contains(number)));
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
    dir.join(format!("{number:06}.sst"))
}

/// The path of commit log `number` in `dir`.
pub(super) fn log_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:06}.log"))
}

/// What a file of the database directory is, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileKind {
    Table(u64),
    Log(u64),
    Other,
}

/// Reads a file's kind and number from its name.
pub(super) fn classify(path: &Path) -> FileKind {
    let number = || path.file_stem()?.to_str()?.parse().ok();
    match (path.extension().and_then(|e| e.to_str()), number()) {
        (Some("sst"), Some(n)) => FileKind::Table(n),
        (Some("log"), Some(n)) => FileKind::Log(n),
        _ => FileKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let dir = Path::new("/db");
        assert_eq!(classify(&table_path(dir, 12)), FileKind::Table(12));
        assert_eq!(classify(&log_path(dir, 1_234_567)), FileKind::Log(1_234_567));
        assert_eq!(classify(Path::new("/db/x.sst")), FileKind::Other);
        assert_eq!(classify(Path::new("/db/CURRENT")), FileKind::Other);
    }
}
