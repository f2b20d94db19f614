//! The Spot-on guidelines as wrappers. They adapt a persistent structure to media that write 256 bytes at a time and
//! are slow at following pointers.
//!
//! * **B**, buffer: changes gather in DRAM, by the node that they belong to, and are merged when a node's buffer is
//!   full. A log in persistent memory keeps them meanwhile (`log`).
//! * **O**, out of place: a buffer and its node become a new node, which takes the old one's place, in a few drains
//!   instead of one or two a change.
//! * **C**, cache: a copy of the structure's inner part in DRAM leads to its nodes.
//!
//! [`BufferedIndex`] puts them on any [`Base`]: [`FastFair`](terrace_index::FastFair),
//! [`SkipIndex`](terrace_index::SkipIndex) and [`Cceh`](crate::Cceh).
//!
//! ```text
//! write: partition of the key -> lock -> log, durable -> buffer        read: partition -> buffer, else base
//! full:  buffer -> base (in or out of place), durable -> buffer empty -> partition cut where nodes begin
//! log:   old enough -> new generation; when that is nearly as old, buffers that still have entries of the old one
//!        are merged, a few with each write; then the old one is freed by one publish
//! ```
//!
//! Thread safety: every method may be called from any thread at any time. Writers of a partition exclude each other
//! and its readers; readers of one do not exclude each other. Locks are taken in this order: a partition, the
//! log, a lane of it or the backlog; a partition, the base's own.
//!
//! Invariants:
//!
//! 1. Partitions cover all places, each once. A key's latest word is in its partition's buffer or, if there is no
//!    entry, in the base.
//! 2. An entry of a buffer is in a generation of the log that is not freed, and was durable before it was visible.
//! 3. A buffer is emptied when the base has all of it, durably, under the partition's lock.
//! 4. The previous generation is freed when every buffer that had an entry in it has been merged since.
//! 5. The base is changed by merges alone. So replaying the log into it, at opening, is right no matter how much of the
//!    log had been merged already.

mod backlog;
mod base;
mod buffer;
mod log;
mod merge;
mod partition;
mod scan;

use std::fmt;
use std::ops::Bound;
use std::sync::atomic::{AtomicI64, Ordering};

use terrace_base::{Error, Result};
use terrace_index::parts::{admit_key, leads_on};
use terrace_index::{HashFigures, HashIndex, OrderedIndex, PointIndex, ScanBatch, ScanPosition, Wish};
use terrace_pmem::{Marks, Pool};

use backlog::Backlog;
use log::WriteLog;
use partition::{Partition, Partitions};

pub use base::{Base, Edge, Merge};

/// The options of a [`BufferedIndex`].
#[derive(Debug, Clone, Copy)]
pub struct BufferOptions {
    /// How buffers are merged.
    pub merge: Merge,
    /// Whether the base's inner part is kept in DRAM.
    pub cache: bool,
    /// Changes a buffer takes; the base's own figure if there is none.
    pub capacity: Option<usize>,
    /// Bytes of entries from which on a generation of the log is merged and freed, and at least as many as all
    /// buffers take.
    pub log_bytes: u64,
    /// Logs of a generation, 1 to 1024. Threads beyond that share.
    pub lanes: usize,
    /// Seed of the base's hashes, if it has any; `None`: drawn when it is made.
    pub seed: Option<u64>,
}

impl Default for BufferOptions {
    fn default() -> Self {
        BufferOptions {
            merge: Merge::OutOfPlace,
            cache: true,
            capacity: None,
            log_bytes: 32 << 20,
            lanes: 4,
            seed: None,
        }
    }
}

/// A persistent structure behind write buffers.
pub struct BufferedIndex<B: Base> {
    base: B,
    log: WriteLog,
    partitions: Partitions,
    merge: Merge,
    capacity: usize,
    /// Keys more than the base has.
    surplus: AtomicI64,
    backlog: Backlog,
}

impl<B: Base> BufferedIndex<B> {
    /// Makes an empty base, and an empty log, under the root `root_name` of at most 18 bytes.
    pub fn create(pool: &Pool, root_name: &str, options: &BufferOptions) -> Result<Self> {
        let log = WriteLog::create(pool, options.lanes, options.log_bytes)?;
        let made = B::create(pool, &base_root(root_name), options.seed).and_then(|base| {
            match pool.set_root(root_name, log.header()) {
                Ok(()) => Ok(base),
                Err(e) => {
                    // A base without a log has no owner: the next reclaim frees its memory.
                    pool.clear_root(&base_root(root_name))?;
                    Err(e)
                }
            }
        });
        match made {
            Ok(base) => Ok(Self::over(base, log, options)),
            Err(e) => {
                log.free()?;
                Err(e)
            }
        }
    }

    /// Opens the index under the root `root_name`, and merges the log's entries into the base: time in proportion to
    /// the log's size, which `log_bytes` bounds.
    pub fn open(pool: &Pool, root_name: &str, options: &BufferOptions) -> Result<Self> {
        let header = pool
            .root(root_name)?
            .ok_or_else(|| Error::corruption(pool.path(), 0, format!("a root {root_name}"), "none"))?;
        let base = B::open(pool, &base_root(root_name))?;
        let (log, replayed) = WriteLog::open(pool, header, options.lanes, options.log_bytes)?;
        let index = Self::over(base, log, options);
        index.replay(&replayed)?;
        Ok(index)
    }

    fn over(base: B, log: WriteLog, options: &BufferOptions) -> Self {
        base.cache_inner(options.cache);
        BufferedIndex {
            base,
            log,
            partitions: Partitions::default(),
            merge: options.merge,
            capacity: options.capacity.unwrap_or(B::CAPACITY).max(1),
            surplus: AtomicI64::new(0),
            backlog: Backlog::default(),
        }
    }

    /// The structure below the buffers.
    pub fn base(&self) -> &B {
        &self.base
    }

    fn look_up(&self, key: &[u8]) -> Result<Option<u64>> {
        let head = self.base.head(key);
        loop {
            let partition = self.partitions.find(head, key)?;
            let body = partition.body.read();
            if !body.holds(head, key) {
                continue;
            }
            return match body.buffer.search(head, key).ok().and_then(|at| body.buffer.get(at)) {
                Some(entry) => Ok(entry.word()),
                None => self.base.get(key),
            };
        }
    }
}

/// The root of the structure below.
fn base_root(root_name: &str) -> String {
    format!("{root_name}.base")
}

impl<B: Base> PointIndex for BufferedIndex<B> {
    fn get(&self, key: &[u8]) -> Result<Option<u64>> {
        admit_key(key)?;
        self.look_up(key)
    }

    fn update(&self, key: &[u8], wish: &mut dyn FnMut(Option<u64>) -> Wish) -> Result<Option<u64>> {
        admit_key(key)?;
        self.apply(key, wish)
    }

    fn len(&self) -> u64 {
        (self.base.len() as i64 + self.surplus.load(Ordering::Relaxed)).max(0) as u64
    }

    fn mark(&self, marks: &mut Marks) -> Result<()> {
        self.base.mark(marks)?;
        self.log.mark(marks)
    }

    fn check(&self) -> Result<Vec<String>> {
        let mut findings = self.base.check()?;
        findings.extend(self.log.check());
        let all = self.partitions.all()?;
        let nexts = all.iter().skip(1).map(|next| Some(next.low.clone())).chain([None]);
        let logged = self.log.last_words()?;
        let mut surplus = 0;
        for (partition, next) in all.iter().zip(nexts) {
            let body = partition.body.read();
            surplus += body.buffer.surplus();
            if body.high != next {
                findings.push(format!("the partition at {:?} ends where no other begins", partition.low));
            }
            if body.oldest.is_some() == body.buffer.is_empty() {
                findings.push(format!("the partition at {:?} does not know its oldest entry", partition.low));
            }
            let entries = body.buffer.entries();
            if entries.iter().any(|entry| logged.get(entry.key()) != Some(&entry.word())) {
                findings.push(format!("the buffer at {:?} has an entry that the log has not", partition.low));
            }
            let place = |at: usize| (entries[at].head, entries[at].key());
            let ordered = (1..entries.len()).all(|at| place(at - 1) < place(at));
            let low = (partition.low.head, &*partition.low.key);
            let inside =
                (0..entries.len()).all(|at| low <= place(at) && body.holds(place(at).0, place(at).1));
            if !ordered || !inside {
                findings.push(format!("the buffer at {:?} has entries out of place", partition.low));
            }
        }
        if surplus != self.surplus.load(Ordering::Relaxed) {
            findings.push(format!(
                "buffers add {surplus} keys, {} are counted",
                self.surplus.load(Ordering::Relaxed)
            ));
        }
        Ok(findings)
    }

    fn dram_bytes(&self) -> u64 {
        let all = self.partitions.all().unwrap_or_default();
        let each = size_of::<Partition>() + 2 * size_of::<buffer::Place>() + size_of::<usize>();
        let buffers: u64 = all.iter().map(|p| p.body.read().buffer.bytes()).sum();
        self.base.dram_bytes() + buffers + (all.len() * each) as u64
    }

    fn pm_bytes(&self) -> u64 {
        self.base.pm_bytes() + self.log.pm_bytes()
    }

    fn close(&self) -> Result<()> {
        self.flush()?;
        self.base.close()
    }
}

impl<B: Base + OrderedIndex> OrderedIndex for BufferedIndex<B> {
    fn scan(&self, from: Bound<&[u8]>, reverse: bool, limit: usize, out: &mut ScanBatch) -> Result<()> {
        let (before, end) = (out.len(), out.len().saturating_add(limit));
        if reverse {
            self.scan_down(from, end, out)?
        } else {
            self.scan_up(from, end, out)?
        }
        if leads_on(from, reverse, before, out) {
            return Ok(());
        }
        Err(self.log.damaged("keys in their order below buffers", "keys out of it"))
    }
}

impl<B: Base + HashIndex> HashIndex for BufferedIndex<B> {
    fn scan_unordered(&self, cursor: &mut ScanPosition, limit: usize, out: &mut ScanBatch) -> Result<()> {
        self.scan_hashes(cursor, limit, out)
    }

    /// Figures of the base; everything is merged first.
    fn figures(&self) -> Result<HashFigures> {
        self.flush()?;
        self.base.figures()
    }
}

impl<B: Base> fmt::Debug for BufferedIndex<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferedIndex").field("base", &self.base).field("merge", &self.merge).finish()
    }
}
