//! Sorted lists in persistent memory that are built in one go and never change: TLSM's persistent skiplists.
//!
//! ```text
//!   list     head │ about │ blocks of nodes, in order │ towers │ filter        a node: where its record is, and what
//!                              │      │      │                                  its key begins with
//!   buffers  head │ record │ record │ record │ ..     head │ record │ ..
//! ```
//!
//! Records lie in *buffers*, each filled by one sequential copy. A *list* has the places of records, in order: some in
//! its own buffer, others in the buffers of the lists that it was merged from, which are not copied (the paper's
//! byte-addressable compaction). Since a list is written in order and at once, nodes need no links: the next node lies
//! behind. The upper levels are a row of their own, which is read into DRAM at the first lookup.
//!
//! | file | what it does |
//! |---|---|
//! | `layout.rs` | the bytes |
//! | `lists.rs` | all lists and buffers of a database, and when their memory is given back |
//! | `buffer.rs` | a buffer and its records |
//! | `stage.rs` | records that are gathered for a buffer |
//! | `build.rs`, `about.rs` | writing a list; its notes about its origin |
//! | `open.rs`, `read.rs`, `cursor.rs` | finding a list again, lookups, moving over it |
//! | `check.rs`, `salvage.rs` | verifying a list; records of buffers whose lists are lost |
//!
//! Thread safety: everything may be called from any thread. A builder has one owner.
//!
//! Invariants:
//!
//! 1. A list is *whole* when the word at its end says so, and that is published after its nodes and every buffer that
//!    it leads to are drained, stretch by stretch. A list that is not whole is not reachable.
//! 2. Extents are durable before they are made active, so that no earlier contents of one can be taken for a list.
//! 3. Neither list nor buffer changes once it is whole. Records are ordered by key, then by sequence number, the newest
//!    first.
//! 4. A list is freed when nothing durable names it and the last handle is gone. A buffer is freed when no list that is
//!    durably named leads into it and the last handle of one that does is gone: after the list, never before.

mod about;
mod buffer;
mod build;
mod check;
mod cursor;
mod layout;
mod lists;
mod open;
mod read;
mod salvage;
mod stage;

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

pub use about::{About, Cover};
pub use build::{ListBuilder, Style};
pub use cursor::PmCursor;
pub use lists::{ListUse, Lists};
pub use read::{Found, Lookup, PmRecord};
pub use salvage::{EachRecord, salvage_buffer};

use buffer::Buffer;
use lists::Owned;

/// The figures of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// Records, tombstones included.
    pub entries: u64,
    /// Tombstones.
    pub deletes: u64,
    /// The smallest sequence number.
    pub min_seq: u64,
    /// The largest.
    pub max_seq: u64,
    /// Bytes of all keys and values.
    pub raw_bytes: u64,
    /// Bytes of the records.
    pub record_bytes: u64,
}

/// A whole list. A copy is a handle of the same.
#[derive(Clone)]
pub struct PmList {
    inner: Arc<Inner>,
}

/// A buffer that a list leads into, with the bytes of the records that it leads to.
#[derive(Debug, Clone)]
struct Part {
    buffer: Arc<Buffer>,
    live: u64,
}

struct Inner {
    extent: Owned,
    id: u64,
    figures: Figures,
    about: About,
    /// By their places.
    parts: Vec<Part>,
    /// The common beginning of all keys.
    common: usize,
    /// Where the blocks lie.
    blocks: u64,
    /// Where towers and filter lie.
    tail: Range<u64>,
    filter_bytes: u64,
    tail_crc: u32,
    towers: OnceLock<Box<[u64]>>,
    /// Something durable names it.
    named: AtomicBool,
}

impl PmList {
    /// The offset under which it is opened again.
    pub fn head(&self) -> u64 {
        self.inner.extent.offset
    }

    /// Its identity, which differs from that of every other list, at the same place or elsewhere.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// Its figures.
    pub fn figures(&self) -> &Figures {
        &self.inner.figures
    }

    /// Its origin.
    pub fn about(&self) -> &About {
        &self.inner.about
    }

    /// Bytes that it takes by itself.
    pub fn list_bytes(&self) -> u64 {
        self.inner.extent.bytes
    }

    /// Bytes of its records in buffers that are worth emptying.
    pub fn sparse_bytes(&self) -> u64 {
        self.inner.parts.iter().filter(|part| part.buffer.is_sparse()).map(|part| part.live).sum()
    }

    /// Bytes of DRAM that finding records takes.
    pub fn dram_bytes(&self) -> u64 {
        self.inner.towers.get().map_or(0, |towers| 8 * towers.len() as u64)
    }

    /// Notes that something durable names it from now on: neither it nor its buffers are freed with the last handle.
    pub fn name(&self) {
        if !self.inner.named.swap(true, Ordering::AcqRel) {
            self.inner.extent.was_named.store(true, Ordering::Relaxed);
            self.inner.parts.iter().for_each(|part| part.buffer.name(part.live));
            self.inner.extent.lists.count_named(self.inner.extent.bytes as i64);
        }
    }

    /// Notes that nothing durable names it any more: it is freed with its last handle.
    pub fn unname(&self) {
        if self.inner.named.swap(false, Ordering::AcqRel) {
            self.inner.parts.iter().for_each(|part| part.buffer.unname(part.live));
            self.inner.extent.lists.count_named(-(self.inner.extent.bytes as i64));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !*self.named.get_mut() {
            // Before the buffers that it leads to.
            self.extent.give_back();
        }
    }
}

impl fmt::Debug for PmList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PmList").field("head", &self.head()).field("figures", self.figures()).finish()
    }
}
