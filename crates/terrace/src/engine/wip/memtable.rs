//! A bucket's memtable: a hash table, or an ordered list if ranges are read often.
//!
//! 1. It takes only keys of its range. Its contents belong to the bucket that it was made for, or to those
//!    into which that bucket was split or joined since.
//! 2. It counts its DRAM in the sum of all memtables until it is flushed. Whoever reads it may keep the memory longer:
//!    that is counted with what was reserved, and makes no writer wait. Writers would flush all that is written
//!    meanwhile, record by record.
//! 3. It counts as being filled from its first version until it is closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use terrace_base::Result;
use terrace_table::{Cursor, Kind};

use crate::batch::Op;
use crate::commit_log::FirstLog;
use crate::memtable::chunks::Chunks;
use crate::memtable::hash::{HashTable, Overflow};
use crate::memtable::{MemList, Version};

/// What the memtables of a database share.
#[derive(Debug)]
pub(super) struct Memory {
    chunks: Arc<Chunks>,
    overflow: Overflow,
    /// Bytes of DRAM in all of them.
    held: AtomicU64,
    /// Memtables that are being filled.
    filling: AtomicU64,
}

impl Memory {
    /// No memory yet. About `spare_bytes` are kept while they are free.
    pub fn new(overflow: Overflow, spare_bytes: u64) -> Arc<Memory> {
        Arc::new(Memory {
            chunks: Chunks::keeping(spare_bytes),
            overflow,
            held: AtomicU64::new(0),
            filling: AtomicU64::new(0),
        })
    }

    /// Memtables that are being filled: active ones with something in them.
    pub fn filling(&self) -> u64 {
        self.filling.load(Ordering::Relaxed)
    }

    /// Bytes of DRAM taken from the system for all memtables.
    pub fn reserved(&self) -> u64 {
        self.held().max(self.chunks.reserved_bytes())
    }

    /// Bytes of DRAM that all memtables hold.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }
}

/// How versions lie in a memtable.
#[derive(Debug)]
enum Shape {
    Hash(HashTable),
    List(MemList),
}

/// The memtable of a range of keys.
#[derive(Debug)]
pub(super) struct BucketMemtable {
    shape: Shape,
    /// The first key of the range, and its end.
    pub lower: Vec<u8>,
    pub upper: Option<Vec<u8>>,
    /// The first log that holds writes of this memtable; zero before there is one.
    first_log: FirstLog,
    /// The smallest sequence number in it; `u64::MAX` if it is empty.
    min_seq: AtomicU64,
    /// Its part of that sum.
    counted: AtomicU64,
    /// Bytes of DRAM that it held when it was closed.
    closed_bytes: AtomicU64,
    is_filling: AtomicBool,
    memory: Arc<Memory>,
}

impl Drop for BucketMemtable {
    fn drop(&mut self) {
        self.end_filling();
        self.leave();
    }
}

impl BucketMemtable {
    /// An empty memtable of the keys from `lower` to `upper`, an ordered list if it is `in_order`.
    pub fn new(
        memory: &Arc<Memory>,
        (lower, upper): (&[u8], Option<&[u8]>),
        in_order: bool,
    ) -> Arc<BucketMemtable> {
        let shape = match in_order {
            true => Shape::List(MemList::new(&memory.chunks)),
            false => Shape::Hash(HashTable::new(&memory.chunks, memory.overflow)),
        };
        Arc::new(BucketMemtable {
            shape,
            lower: lower.to_vec(),
            upper: upper.map(<[u8]>::to_vec),
            first_log: FirstLog::default(),
            min_seq: AtomicU64::new(u64::MAX),
            counted: AtomicU64::new(0),
            closed_bytes: AtomicU64::new(0),
            is_filling: AtomicBool::new(false),
            memory: memory.clone(),
        })
    }

    /// Inserts an operation that is in log `log`. Called by one thread at a time.
    pub fn insert(&self, op: &Op<'_>, seq: u64, log: u64) {
        self.first_log.note(log);
        if self.min_seq.load(Ordering::Relaxed) == u64::MAX {
            self.min_seq.store(seq, Ordering::Release);
            self.is_filling.store(true, Ordering::Relaxed);
            self.memory.filling.fetch_add(1, Ordering::Relaxed);
        }
        match &self.shape {
            Shape::Hash(table) => table.writer().insert(op.key, seq, op.kind, op.value),
            Shape::List(list) => list.writer().insert(op.key, seq, op.kind, op.value),
        }
        self.count();
    }

    /// Prefetches memory that an insertion of `key` will read.
    pub fn prefetch(&self, key: &[u8]) {
        if let Shape::Hash(table) = &self.shape {
            table.prefetch(key);
        }
    }

    /// Updates its part of the sum.
    fn count(&self) {
        let now = self.dram_bytes();
        let before = self.counted.swap(now, Ordering::Relaxed);
        if now != before {
            self.memory.held.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    /// It is flushed, and counts no more.
    pub fn leave(&self) {
        self.memory.held.fetch_sub(self.counted.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Bytes of DRAM that it held when it was closed.
    pub fn closed_bytes(&self) -> u64 {
        self.closed_bytes.load(Ordering::Relaxed)
    }

    /// Nothing is inserted any more.
    pub fn freeze(&self) {
        if let Shape::Hash(table) = &self.shape {
            table.freeze();
        }
        self.count();
        self.closed_bytes.store(self.dram_bytes(), Ordering::Relaxed);
        self.end_filling();
    }

    fn end_filling(&self) {
        if self.is_filling.swap(false, Ordering::Relaxed) {
            self.memory.filling.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The newest version of `key` up to sequence number `at`.
    pub fn get(&self, key: &[u8], at: u64) -> Option<Version<'_>> {
        match &self.shape {
            Shape::Hash(table) => table.get(key, at),
            Shape::List(list) => list.get(key, at),
        }
    }

    /// A cursor over all versions, not yet positioned.
    pub fn cursor(&self) -> Box<dyn Cursor> {
        match &self.shape {
            Shape::Hash(table) => Box::new(table.cursor()),
            Shape::List(list) => Box::new(list.cursor()),
        }
    }

    /// Visits all versions in order.
    pub fn visit(&self, each: impl FnMut(&[u8], u64, Kind, &[u8]) -> Result<()>) -> Result<()> {
        match &self.shape {
            Shape::Hash(table) => table.visit(each),
            Shape::List(list) => list.visit(each),
        }
    }

    /// Whether its range does not end before `key`.
    pub fn reaches(&self, key: &[u8]) -> bool {
        self.upper.as_ref().is_none_or(|upper| *key < **upper)
    }

    /// Whether a walk over it must sort first.
    pub fn is_unsorted(&self) -> bool {
        matches!(self.shape, Shape::Hash(_))
    }

    /// Whether it must be flushed whatever its size.
    pub fn has_overflowed(&self) -> bool {
        match (&self.shape, self.memory.overflow) {
            (Shape::Hash(table), Overflow::Freeze) => table.has_overflowed(),
            _ => false,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.min_seq.load(Ordering::Acquire) == u64::MAX
    }

    /// Bytes of keys and values with their overhead.
    pub fn bytes_used(&self) -> u64 {
        match &self.shape {
            Shape::Hash(table) => table.bytes_used(),
            Shape::List(list) => list.bytes_used(),
        }
    }

    /// Bytes of DRAM held.
    pub fn dram_bytes(&self) -> u64 {
        match &self.shape {
            Shape::Hash(table) => table.dram_bytes(),
            Shape::List(list) => list.dram_bytes(),
        }
    }

    /// The smallest sequence number in it; `u64::MAX` if it is empty.
    pub fn min_seq(&self) -> u64 {
        self.min_seq.load(Ordering::Acquire)
    }

    /// The greatest sequence number in it; 0 if it is empty.
    pub fn max_seq(&self) -> u64 {
        match &self.shape {
            Shape::Hash(table) => table.max_seq(),
            Shape::List(list) => list.max_seq(),
        }
    }

    /// Where its writes begin in the logs.
    pub fn first_log(&self) -> &FirstLog {
        &self.first_log
    }

    /// Checks everything; returns what is wrong.
    pub fn check(&self) -> Vec<String> {
        match &self.shape {
            Shape::Hash(table) => table.check(),
            Shape::List(list) => list.check(),
        }
    }
}
