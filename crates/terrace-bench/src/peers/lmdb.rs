//! LMDB through heed: a transaction for each operation.

use std::sync::Arc;

use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions};

use super::{Opened, Setup, page_cache_durability, settings};
use crate::store::{Batch, Direction, Store, StoreResult, StoreStats, Visit, bounds, walk};

/// Addresses set aside for the map, more than any benchmark fills.
const MAP_BYTES: usize = 1 << 38;

struct Lmdb {
    env: Env,
    records: Database<Bytes, Bytes>,
}

pub(super) fn open(setup: &Setup) -> StoreResult<Opened> {
    let mut flags = EnvFlags::NO_READ_AHEAD;
    if !setup.sync {
        flags |= EnvFlags::NO_SYNC;
    }
    let mut options = EnvOpenOptions::new();
    // SAFETY: these flags put data at risk when the power fails, which is what a run without `sync` asks for; they
    // break none of the rules by which LMDB's memory stays valid.
    let options = unsafe { options.map_size(MAP_BYTES).flags(flags) };
    // SAFETY: the directory belongs to this benchmark alone: no other process writes the mapped file, and nobody
    // truncates it while it is mapped.
    let env = unsafe { options.open(&setup.dir)? };
    let mut making = env.write_txn()?;
    let records = env.create_database(&mut making, None)?;
    making.commit()?;
    let settings = settings(&[
        ("version", "LMDB 0.9 (crate heed 0.22)".into()),
        ("durability", page_cache_durability(setup.sync)),
        ("flags", format!("{flags:?}")),
        ("memory", "the page cache: it has no other, so that only a memory bound limits it".into()),
        ("writes", "one transaction each".into()),
    ]);
    Ok(Opened { store: Arc::new(Lmdb { env, records }), settings })
}

impl Store for Lmdb {
    fn put(&self, key: &[u8], value: &[u8]) -> StoreResult<()> {
        let mut writing = self.env.write_txn()?;
        self.records.put(&mut writing, key, value)?;
        Ok(writing.commit()?)
    }

    fn delete(&self, key: &[u8]) -> StoreResult<()> {
        let mut writing = self.env.write_txn()?;
        self.records.delete(&mut writing, key)?;
        Ok(writing.commit()?)
    }

    fn get(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> StoreResult<bool> {
        let reading = self.env.read_txn()?;
        let value = self.records.get(&reading, key)?;
        Ok(value.map(visit).is_some())
    }

    fn scan(&self, from: Option<&[u8]>, direction: Direction, visit: Visit<'_>) -> StoreResult<()> {
        let reading = self.env.read_txn()?;
        let bounds = bounds(from, direction);
        // Each way has an iterator of its own, which goes ahead.
        let show = |(key, value): (&[u8], &[u8])| visit(key, value);
        match direction {
            Direction::Forward => walk(self.records.range(&reading, &bounds)?, show),
            Direction::Backward => walk(self.records.rev_range(&reading, &bounds)?, show),
        }
    }

    fn write_batch(&self, batch: &Batch) -> StoreResult<()> {
        let mut writing = self.env.write_txn()?;
        for (key, value) in batch.iter() {
            match value {
                Some(value) => self.records.put(&mut writing, key, value)?,
                None => {
                    self.records.delete(&mut writing, key)?;
                }
            }
        }
        Ok(writing.commit()?)
    }

    fn flush(&self) -> StoreResult<()> {
        Ok(self.env.force_sync()?)
    }

    /// A B+-tree has nothing to compact.
    fn compact(&self) -> StoreResult<()> {
        Ok(())
    }

    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }
}

impl Drop for Lmdb {
    /// heed keeps environments open that nobody closes, and would refuse to open this one again.
    fn drop(&mut self) {
        let _closing = self.env.clone().prepare_for_closing();
    }
}
