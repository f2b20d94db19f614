//! Bare media, for `terrace-bench media` (SplitKV, table 1, and the gain of submitting writes together).
//!
//! Only the storing parts are measured: `terrace-pmem` copies and drains, `terrace-disk` writes sectors in place and
//! syncs. Every write but those of *unsynced* rows is durable when it is counted as done.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use terrace_base::clock::{Clock, SystemClock};
use terrace_base::rng::Rng;
use terrace_disk::{BlockBuf, BlockFile, BlockWrite, Fs, RealFs, Slots};
use terrace_pmem::{Kind, MediaRequest, Pool, PoolOptions, Profile};

use crate::report::columns;
use crate::store::StoreResult;

/// Sizes of the table of latencies, in bytes.
pub const SIZES: [usize; 6] = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10];

/// Sizes of writes that are submitted together, in bytes.
pub const ITEMS: [usize; 3] = [4 << 10, 16 << 10, 64 << 10];

/// How many are submitted together.
pub const DEPTHS: [usize; 4] = [1, 4, 16, 64];

/// How many threads write items side by side.
pub const WRITERS: [usize; 5] = [1, 2, 4, 8, 16];

/// The plan of a measurement.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Bytes that are written to, of the file and of persistent memory.
    pub bytes: u64,
    /// How long each row takes.
    pub time: Duration,
    /// The profile of persistent memory, if it is emulated.
    pub profile: Option<Profile>,
}

/// One row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The operation.
    pub what: String,
    /// Bytes of each write.
    pub bytes: usize,
    /// Writes submitted together, or threads.
    pub depth: usize,
    /// Writes a second.
    pub rate: f64,
    /// Nanoseconds until all writes of a submission are done: the median and 99 of 100.
    pub p50: u64,
    /// See [`p50`](Self::p50).
    pub p99: u64,
}

/// Where the next write goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    InOrder,
    AtRandom,
}

/// Places for writes of so many bytes.
struct Places {
    order: Order,
    unit: u64,
    count: u64,
    next: u64,
    rng: Rng,
}

impl Places {
    fn new(order: Order, unit: u64, within: u64) -> Places {
        Places { order, unit, count: (within / unit).max(1), next: 0, rng: Rng::new(1) }
    }

    fn next(&mut self) -> u64 {
        self.next = match self.order {
            Order::InOrder => (self.next + 1) % self.count,
            Order::AtRandom => self.rng.below(self.count),
        };
        self.next * self.unit
    }

    /// So many distinct places.
    fn several(&mut self, count: usize) -> Vec<u64> {
        let first = self.next();
        (0..count as u64).map(|i| (first + i * self.unit * 7) % (self.count * self.unit)).collect()
    }
}

/// Does `write` for as long as a row takes, `depth` writes each time.
fn row(
    spec: &Spec,
    (what, bytes, depth): (String, usize, usize),
    mut write: impl FnMut() -> StoreResult<()>,
) -> StoreResult<Row> {
    let clock = SystemClock::new();
    let mut latencies = Histogram::<u64>::new(3)?;
    // The first write to each place allocates its room and is not measured.
    (0..16).try_for_each(|_| write())?;
    let begin = clock.now();
    let mut now = begin;
    while now - begin < spec.time {
        write()?;
        let then = clock.now();
        latencies.record((then - now).as_nanos() as u64)?;
        now = then;
    }
    let rate = latencies.len() as f64 * depth as f64 / (now - begin).as_secs_f64();
    let (p50, p99) = (latencies.value_at_quantile(0.5), latencies.value_at_quantile(0.99));
    Ok(Row { what, bytes, depth, rate, p50, p99 })
}

/// The latency of a write by its size, to a new pool at `path`, which is removed.
///
/// # Errors
/// Those of the pool.
pub fn memory(spec: &Spec, path: &Path) -> StoreResult<Vec<Row>> {
    let media = spec.profile.map_or(MediaRequest::Auto, MediaRequest::Emulated);
    let size = spec.bytes + (64 << 20);
    let pool = Pool::create(path, &PoolOptions { size, max_size: size, media, ..PoolOptions::default() })?;
    let extent = pool.reserve_extent(Kind(1), spec.bytes)?;
    // The first touch of a page would cost more than the writes that are measured.
    pool.zero(extent.offset, spec.bytes);
    pool.persist(extent.offset, spec.bytes);
    let data = vec![7; SIZES[SIZES.len() - 1]];
    let mut rows = Vec::new();
    for (order, name) in [(Order::InOrder, "in order"), (Order::AtRandom, "at random")] {
        for bytes in SIZES {
            let mut places = Places::new(order, bytes as u64, spec.bytes);
            let emulated = if spec.profile.is_some() { "emulated " } else { "" };
            let what = format!("{emulated}persistent memory, {name}");
            rows.push(row(spec, (what, bytes, 1), || {
                pool.copy_persist(extent.offset + places.next(), &data[..bytes]);
                Ok(())
            })?);
        }
    }
    drop(pool);
    Pool::remove(path)?;
    Ok(rows)
}

/// A new file of sectors, all of them written.
fn file(spec: &Spec, path: &Path) -> StoreResult<Arc<dyn BlockFile>> {
    let file = RealFs.open_blocks(path, true)?;
    file.grow(spec.bytes)?;
    let data = BlockBuf::zeroed(1 << 20);
    for offset in (0..spec.bytes).step_by(1 << 20) {
        file.write_many(&[BlockWrite { offset, parts: vec![&data] }])?;
    }
    file.sync()?;
    Ok(file)
}

/// The latency of a write by its size, and the gain of submitting several together, in a new file at `path`, which is
/// removed.
///
/// # Errors
/// Those of the file system.
pub fn drive(spec: &Spec, path: &Path) -> StoreResult<Vec<Row>> {
    let file = file(spec, path)?;
    let sector = file.geometry().sector_bytes as usize;
    let mut rows = Vec::new();
    for (order, name) in [(Order::InOrder, "in order"), (Order::AtRandom, "at random")] {
        for bytes in SIZES {
            let data = BlockBuf::zeroed(bytes.next_multiple_of(sector));
            let unit = data.len().next_multiple_of(file.geometry().block_bytes as usize) as u64;
            let mut places = Places::new(order, unit, spec.bytes);
            rows.push(row(spec, (format!("drive, {name}"), bytes, 1), || {
                file.write_many(&[BlockWrite { offset: places.next(), parts: vec![&data] }])?;
                Ok(file.sync().map(drop)?)
            })?);
        }
    }
    for bytes in ITEMS {
        for depth in DEPTHS {
            for (is_synced, sync) in [(false, ", unsynced"), (true, "")] {
                for (is_batch, way) in [(true, "together"), (false, "one by one")] {
                    rows.push(submissions(spec, &*file, (bytes, depth), (is_synced, is_batch), way, sync)?);
                }
            }
        }
    }
    drop(file);
    RealFs.remove(path)?;
    Ok(rows)
}

fn submissions(
    spec: &Spec,
    file: &dyn BlockFile,
    (bytes, depth): (usize, usize),
    (is_synced, is_batch): (bool, bool),
    way: &str,
    sync: &str,
) -> StoreResult<Row> {
    let data = BlockBuf::zeroed(bytes);
    let mut places = Places::new(Order::AtRandom, bytes as u64, spec.bytes);
    row(spec, (format!("{way}{sync}"), bytes, depth), || {
        let places = places.several(depth);
        let writes: Vec<_> =
            places.into_iter().map(|offset| BlockWrite { offset, parts: vec![&data] }).collect();
        if is_batch {
            file.write_many(&writes)?;
        } else {
            writes.chunks(1).try_for_each(|write| file.write_many(write))?;
        }
        if is_synced {
            file.sync()?;
        }
        Ok(())
    })
}

/// Items of several threads in slots, each durable before its thread goes on, in a new file at `path`, which is
/// removed.
///
/// # Errors
/// Those of the file system.
pub fn slots(spec: &Spec, path: &Path) -> StoreResult<Vec<Row>> {
    let mut rows = Vec::new();
    for bytes in ITEMS {
        for writers in WRITERS {
            rows.push(writers_of(spec, path, bytes, writers)?);
        }
    }
    Ok(rows)
}

/// Items that a thread leaves before it frees the one that it wrote first.
const KEPT: usize = 64;

fn writers_of(spec: &Spec, path: &Path, bytes: usize, writers: usize) -> StoreResult<Row> {
    let slots = Slots::open(file(spec, path)?, 512)?;
    slots.adopt([])?;
    let (clock, total) = (SystemClock::new(), AtomicU64::new(0));
    let begin = clock.now();
    let work = || -> StoreResult<Histogram<u64>> {
        let mut latencies = Histogram::<u64>::new(3)?;
        let (mut kept, mut now) = (std::collections::VecDeque::new(), clock.now());
        // At least one, even if a thread begins late.
        loop {
            kept.push_back(slots.write(BlockBuf::zeroed(bytes), true)?);
            if kept.len() > KEPT
                && let Some(old) = kept.pop_front()
            {
                slots.retire(old)?;
                slots.free(old)?;
            }
            let then = clock.now();
            latencies.record((then - now).as_nanos() as u64)?;
            now = then;
            if now - begin >= spec.time {
                break;
            }
        }
        total.fetch_add(latencies.len(), Ordering::Relaxed);
        Ok(latencies)
    };
    let mut all = Histogram::<u64>::new(3)?;
    std::thread::scope(|scope| -> StoreResult<()> {
        let threads: Vec<_> = (0..writers).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            all.add(thread.join().map_err(|_| "a thread panicked")??)?;
        }
        Ok(())
    })?;
    let rate = total.into_inner() as f64 / (clock.now() - begin).as_secs_f64();
    drop(slots);
    RealFs.remove(path)?;
    let (p50, p99) = (all.value_at_quantile(0.5), all.value_at_quantile(0.99));
    Ok(Row { what: "items in slots".into(), bytes, depth: writers, rate, p50, p99 })
}

/// The measurements, as text.
pub fn table(rows: &[Row]) -> String {
    let micros = |nanos: u64| format!("{:.2}", nanos as f64 / 1000.0);
    let mut lines =
        vec![["what", "bytes", "depth", "writes/s", "p50 us", "p99 us"].map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(|row| {
        let (bytes, depth, rate) = (row.bytes.to_string(), row.depth.to_string(), format!("{:.0}", row.rate));
        vec![row.what.clone(), bytes, depth, rate, micros(row.p50), micros(row.p99)]
    }));
    columns(&lines)
}
