//! RocksDB through its own crate, whose sources are built with it.

use std::path::Path;
use std::sync::Arc;

use rocksdb::{BlockBasedOptions, Cache, DB, DBCompressionType, Options, WriteBatch, WriteOptions};

use super::{
    BACKGROUND_THREADS, BLOCK_BYTES, FILTER_BITS, Opened, Settings, Setup, WRITE_BUFFERS, mib,
    page_cache_durability, settings,
};
use crate::store::{Batch, COUNTED_LEVELS, Direction, Store, StoreResult, StoreStats, Visit};

struct RocksDb {
    db: DB,
    write: WriteOptions,
}

pub(super) fn open(setup: &Setup, log_dir: Option<&Path>) -> StoreResult<Opened> {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(setup.cache() as usize));
    table.set_bloom_filter(f64::from(FILTER_BITS), false);
    table.set_block_size(BLOCK_BYTES);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    options.set_write_buffer_size(setup.write_buffer() as usize);
    options.set_max_write_buffer_number(WRITE_BUFFERS as i32);
    options.set_compression_type(DBCompressionType::None);
    options.set_max_background_jobs(BACKGROUND_THREADS as i32);
    options.set_level_compaction_dynamic_level_bytes(true);
    if let Some(dir) = log_dir {
        std::fs::create_dir_all(dir)?;
        options.set_wal_dir(dir);
    }
    let mut write = WriteOptions::default();
    write.set_sync(setup.sync);
    let db = DB::open(&options, &setup.dir)?;
    let settings = describe(setup, log_dir.is_some(), checksums(&setup.dir));
    Ok(Opened { store: Arc::new(RocksDb { db, write }), settings })
}

/// Whether it computes checksums by the processor's own instructions. RocksDB says so in its log at each start, if the
/// log has its default level.
fn checksums(dir: &Path) -> String {
    let log = std::fs::read(dir.join("LOG")).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let found = log.lines().find_map(|line| Some(line.split_once("Fast CRC32 supported: ")?.1));
    found.unwrap_or("not said").trim().to_string()
}

fn describe(setup: &Setup, log_on_pm: bool, checksums: String) -> Settings {
    let log = if log_on_pm { "on the emulated persistent memory (tmpfs)" } else { "on the SSD" };
    let durability = match log_on_pm {
        true => "each write is in the emulated persistent memory through write(2)".to_string(),
        false => page_cache_durability(setup.sync),
    };
    settings(&[
        ("version", "RocksDB 11.8.1 (crate rocksdb 0.25)".into()),
        ("durability", durability),
        ("log", log.into()),
        ("write_buffer_size", format!("{WRITE_BUFFERS} x {}", mib(setup.write_buffer()))),
        ("block_cache", mib(setup.cache())),
        ("filter", format!("Bloom, {FILTER_BITS} bits a key")),
        ("block_size", BLOCK_BYTES.to_string()),
        ("compression", "none".into()),
        ("fast CRC32", checksums),
        ("statistics", "off".into()),
        ("max_background_jobs", BACKGROUND_THREADS.to_string()),
        ("everything else", "RocksDB's defaults (dynamic level bytes)".into()),
    ])
}

impl Store for RocksDb {
    fn put(&self, key: &[u8], value: &[u8]) -> StoreResult<()> {
        Ok(self.db.put_opt(key, value, &self.write)?)
    }

    fn delete(&self, key: &[u8]) -> StoreResult<()> {
        Ok(self.db.delete_opt(key, &self.write)?)
    }

    fn get(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> StoreResult<bool> {
        let value = self.db.get_pinned(key)?;
        Ok(value.map(|value| visit(&value)).is_some())
    }

    fn scan(&self, from: Option<&[u8]>, direction: Direction, visit: Visit<'_>) -> StoreResult<()> {
        // The raw iterator shows records where they lie; the other one copies them.
        let mut at = self.db.raw_iterator();
        match (from, direction) {
            (Some(from), Direction::Forward) => at.seek(from),
            (Some(from), Direction::Backward) => at.seek_for_prev(from),
            (None, Direction::Forward) => at.seek_to_first(),
            (None, Direction::Backward) => at.seek_to_last(),
        }
        while let Some((key, value)) = at.item() {
            if !visit(key, value) {
                break;
            }
            match direction {
                Direction::Forward => at.next(),
                Direction::Backward => at.prev(),
            }
        }
        Ok(at.status()?)
    }

    fn write_batch(&self, batch: &Batch) -> StoreResult<()> {
        let mut writes = WriteBatch::default();
        for (key, value) in batch.iter() {
            match value {
                Some(value) => writes.put(key, value),
                None => writes.delete(key),
            }
        }
        Ok(self.db.write_opt(writes, &self.write)?)
    }

    fn flush(&self) -> StoreResult<()> {
        Ok(self.db.flush()?)
    }

    fn compact(&self) -> StoreResult<()> {
        self.db.compact_range::<&[u8], &[u8]>(None, None);
        Ok(())
    }

    fn stats(&self) -> StoreStats {
        // Counters of operations would cost time with each, and are off by default.
        let text = self.db.property_value("rocksdb.cfstats").ok().flatten();
        StoreStats {
            table_bytes_written: text.as_deref().and_then(table_bytes),
            level_bytes_written: text.as_deref().map(level_bytes),
            ..StoreStats::default()
        }
    }
}

/// Bytes that flushes and compactions have written, from RocksDB's statistics of a column family.
fn table_bytes(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix("Cumulative compaction: "))?;
    let gib: f64 = line.split_once(" GB write")?.0.trim().parse().ok()?;
    Some((gib * f64::from(1 << 30)) as u64)
}

/// The same by level, in tenths of a GiB.
fn level_bytes(text: &str) -> [u64; COUNTED_LEVELS] {
    let mut bytes = [0; COUNTED_LEVELS];
    for line in text.lines() {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let level = columns.first().and_then(|name| name.strip_prefix('L')?.parse::<usize>().ok());
        // The columns: level, files, size and its unit, score, then GB read, read of this level, read of the next,
        // written.
        let gib = columns.get(8).and_then(|written| written.parse::<f64>().ok());
        if let (Some(level), Some(gib)) = (level, gib) {
            let slot = &mut bytes[level.min(COUNTED_LEVELS - 1)];
            // The statistics hold the table twice; the second one is by priority and has no levels.
            *slot = (*slot).max((gib * f64::from(1 << 30)) as u64);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_compactions_wrote_is_read_from_what_it_tells() {
        let text = "Uptime(secs): 1.0\nCumulative compaction: 2.50 GB write, 1.00 MB/s write, 0.00 GB read\n";
        assert_eq!(table_bytes(text), Some(5 << 29));
        assert_eq!(table_bytes("nothing of that"), None);
    }

    #[test]
    fn what_went_into_each_level_is_read_from_its_table() {
        let text = "Level    Files   Size     Score Read(GB)  Rn(GB) Rnp1(GB) Write(GB) Wnew(GB)\n\
                    ----------------------------------------------------------------------------\n  \
                    L0      2/0   49.46 MB   0.5      0.0     0.0      0.0       1.5      1.5\n  \
                    L4     21/3    1.20 GB   0.9      3.0     1.0      2.0       2.5      0.5\n \
                    Sum     23/3    1.25 GB   0.0      3.0     1.0      2.0       4.0      2.0\n";
        let bytes = level_bytes(text);
        assert_eq!((bytes[0], bytes[4], bytes.iter().sum::<u64>()), (3 << 29, 5 << 29, 8 << 29));
    }
}
