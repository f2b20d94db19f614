//! fjall: one keyspace of one database.

use std::sync::Arc;

use fjall::config::{BlockSizePolicy, BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{Database, Guard, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::{
    BACKGROUND_THREADS, BLOCK_BYTES, FILTER_BITS, Opened, Setup, mib, page_cache_durability, settings,
};
use crate::store::{Batch, Direction, Store, StoreResult, StoreStats, Visit, bounds, walk_either};

struct Fjall {
    db: Database,
    records: Keyspace,
    sync: bool,
}

pub(super) fn open(setup: &Setup) -> StoreResult<Opened> {
    let db =
        Database::builder(&setup.dir).cache_size(setup.cache()).worker_threads(BACKGROUND_THREADS).open()?;
    let bloom = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(FILTER_BITS as f32));
    let records = db.keyspace("records", || {
        KeyspaceCreateOptions::default()
            .max_memtable_size(setup.write_buffer())
            .data_block_size_policy(BlockSizePolicy::all(BLOCK_BYTES as u32))
            .filter_policy(FilterPolicy::all(bloom))
    })?;
    let settings = settings(&[
        ("version", "fjall 3.1".into()),
        ("durability", page_cache_durability(setup.sync)),
        ("max_memtable_size", mib(setup.write_buffer())),
        ("cache_size", mib(setup.cache())),
        ("filter", format!("Bloom, {FILTER_BITS} bits a key")),
        ("data_block_size", BLOCK_BYTES.to_string()),
        ("compression", "none (not built in)".into()),
        ("worker_threads", BACKGROUND_THREADS.to_string()),
    ]);
    Ok(Opened { store: Arc::new(Fjall { db, records, sync: setup.sync }), settings })
}

impl Fjall {
    /// Without `sync`, fjall hands every write to the system on its own.
    fn persist(&self) -> StoreResult<()> {
        if self.sync {
            self.db.persist(PersistMode::SyncData)?;
        }
        Ok(())
    }
}

impl Store for Fjall {
    fn put(&self, key: &[u8], value: &[u8]) -> StoreResult<()> {
        self.records.insert(key, value)?;
        self.persist()
    }

    fn delete(&self, key: &[u8]) -> StoreResult<()> {
        self.records.remove(key)?;
        self.persist()
    }

    fn get(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> StoreResult<bool> {
        let value = self.records.get(key)?;
        Ok(value.map(|value| visit(&value)).is_some())
    }

    fn scan(&self, from: Option<&[u8]>, direction: Direction, visit: Visit<'_>) -> StoreResult<()> {
        let records = self.records.range::<&[u8], _>(bounds(from, direction));
        walk_either(records.map(Guard::into_inner), direction, |(key, value)| visit(&key, &value))
    }

    fn write_batch(&self, batch: &Batch) -> StoreResult<()> {
        let mut writes = self.db.batch();
        for (key, value) in batch.iter() {
            match value {
                Some(value) => writes.insert(&self.records, key, value),
                None => writes.remove(&self.records, key),
            }
        }
        writes.commit()?;
        self.persist()
    }

    fn flush(&self) -> StoreResult<()> {
        Ok(self.records.rotate_memtable_and_wait()?)
    }

    fn compact(&self) -> StoreResult<()> {
        Ok(self.records.major_compact()?)
    }

    fn stats(&self) -> StoreStats {
        StoreStats { compactions: Some(self.db.compactions_completed() as u64), ..StoreStats::default() }
    }
}
