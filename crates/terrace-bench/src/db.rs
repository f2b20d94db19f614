//! Terrace behind the [`Store`] trait.

use terrace::{Db, WriteBatch};

use crate::store::{Batch, Direction, Store, StoreResult, StoreStats, Visit, bounds};

/// A Terrace database of any engine.
#[derive(Debug)]
pub struct TerraceStore {
    db: Db,
}

impl TerraceStore {
    /// Puts `db` behind the trait.
    pub fn new(db: Db) -> Self {
        TerraceStore { db }
    }
}

impl Store for TerraceStore {
    fn put(&self, key: &[u8], value: &[u8]) -> StoreResult<()> {
        Ok(self.db.put(key, value)?)
    }

    fn delete(&self, key: &[u8]) -> StoreResult<()> {
        Ok(self.db.delete(key)?)
    }

    fn get(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> StoreResult<bool> {
        let value = self.db.get(key)?;
        Ok(value.map(|value| visit(&value)).is_some())
    }

    fn multi_get(&self, keys: &[&[u8]], visit: &mut dyn FnMut(Option<&[u8]>)) -> StoreResult<()> {
        self.db.multi_get(keys)?.iter().for_each(|value| visit(value.as_deref()));
        Ok(())
    }

    fn scan(&self, from: Option<&[u8]>, direction: Direction, visit: Visit<'_>) -> StoreResult<()> {
        let mut records = self.db.range(bounds(from, direction))?;
        loop {
            let more = match direction {
                Direction::Forward => records.next_with(&mut *visit),
                Direction::Backward => records.next_back_with(&mut *visit),
            };
            if !more.transpose()?.unwrap_or(false) {
                return Ok(());
            }
        }
    }

    fn write_batch(&self, batch: &Batch) -> StoreResult<()> {
        let mut writes = WriteBatch::new();
        for (key, value) in batch.iter() {
            match value {
                Some(value) => writes.put(key, value),
                None => writes.delete(key),
            }
        }
        Ok(self.db.write(writes)?)
    }

    fn flush(&self) -> StoreResult<()> {
        Ok(self.db.flush()?)
    }

    fn compact(&self) -> StoreResult<()> {
        Ok(self.db.compact_range(..)?)
    }

    fn partitions(&self) -> Vec<Vec<u8>> {
        self.db.partitions()
    }

    fn stats(&self) -> StoreStats {
        let stats = self.db.stats();
        StoreStats {
            ssd_bytes_written: Some(stats.ssd.bytes_written),
            table_bytes_written: Some(stats.counts.flush_bytes + stats.counts.compaction_bytes),
            compaction_bytes_written: Some(stats.counts.compaction_bytes),
            level_bytes_written: Some(stats.counts.level_bytes),
            ssd_bytes_read: Some(stats.ssd.bytes_read),
            // On an ordinary file XPLines are not counted.
            pm_bytes_written: Some(stats.pm.traffic.xpline_bytes()).filter(|&bytes| bytes > 0),
            pm_drains: Some(stats.pm.traffic.drains),
            flushes: Some(stats.counts.flushes),
            compactions: Some(stats.counts.compactions),
            stall_nanos: Some(stats.counts.stall_nanos),
        }
    }
}
