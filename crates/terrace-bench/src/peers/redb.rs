//! redb: a transaction for each write.
//!
//! redb has no durability between "lost when the process dies" and "synced". Without `sync` this file commits without
//! durability and makes every so many writes durable: without any durable commit the file would never reuse a page.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redb::{Database, Durability, ReadableDatabase, TableDefinition, WriteTransaction};

use super::{Opened, Setup, mib, settings};
use crate::store::{Batch, Direction, Store, StoreResult, StoreStats, Visit, bounds, walk_either};

const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

/// Commits from one durable one to the next.
const DURABLE_EVERY: u64 = 10_000;

struct Redb {
    db: Database,
    sync: bool,
    commits: AtomicU64,
}

pub(super) fn open(setup: &Setup) -> StoreResult<Opened> {
    let mut builder = Database::builder();
    builder.set_cache_size(setup.memory as usize);
    let db = builder.create(setup.dir.join("records.redb"))?;
    let making = db.begin_write()?;
    making.open_table(RECORDS)?;
    making.commit()?;
    let durability = match setup.sync {
        true => "each write survives a power cut".to_string(),
        false => format!(
            "Durability::None, every {DURABLE_EVERY}th commit durable: a crash of the process loses the writes since"
        ),
    };
    let settings = settings(&[
        ("version", "redb 4.5".into()),
        ("durability", durability),
        ("cache_size", mib(setup.memory)),
        ("writes", "one transaction each".into()),
    ]);
    Ok(Opened { store: Arc::new(Redb { db, sync: setup.sync, commits: AtomicU64::new(0) }), settings })
}

impl Redb {
    fn begin(&self) -> StoreResult<WriteTransaction> {
        let mut writing = self.db.begin_write()?;
        let count = self.commits.fetch_add(1, Ordering::Relaxed) + 1;
        if !self.sync && !count.is_multiple_of(DURABLE_EVERY) {
            writing.set_durability(Durability::None)?;
        }
        Ok(writing)
    }
}

impl Store for Redb {
    fn put(&self, key: &[u8], value: &[u8]) -> StoreResult<()> {
        let writing = self.begin()?;
        writing.open_table(RECORDS)?.insert(key, value)?;
        Ok(writing.commit()?)
    }

    fn delete(&self, key: &[u8]) -> StoreResult<()> {
        let writing = self.begin()?;
        writing.open_table(RECORDS)?.remove(key)?;
        Ok(writing.commit()?)
    }

    fn get(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> StoreResult<bool> {
        let table = self.db.begin_read()?.open_table(RECORDS)?;
        let value = table.get(key)?;
        Ok(value.map(|value| visit(value.value())).is_some())
    }

    fn scan(&self, from: Option<&[u8]>, direction: Direction, visit: Visit<'_>) -> StoreResult<()> {
        let table = self.db.begin_read()?.open_table(RECORDS)?;
        let records = table.range::<&[u8]>(bounds(from, direction))?;
        walk_either(records, direction, |(key, value)| visit(key.value(), value.value()))
    }

    fn write_batch(&self, batch: &Batch) -> StoreResult<()> {
        let writing = self.begin()?;
        let mut table = writing.open_table(RECORDS)?;
        for (key, value) in batch.iter() {
            match value {
                Some(value) => table.insert(key, value)?,
                None => table.remove(key)?,
            };
        }
        drop(table);
        Ok(writing.commit()?)
    }

    /// An empty durable transaction makes those before it durable.
    fn flush(&self) -> StoreResult<()> {
        Ok(self.db.begin_write()?.commit()?)
    }

    /// A B+-tree has nothing to compact while others use it.
    fn compact(&self) -> StoreResult<()> {
        self.flush()
    }

    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }
}
