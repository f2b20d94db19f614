//! A block in memory and who holds it.

use std::ops::{Deref, Range};
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::prefetch;

use super::view::{Found, Lookup, RawEntry, View};
use crate::entry::Entry;
use crate::frame::Malformed;

/// Bytes that a cached block costs beside its data: itself, its counts and the cache's slot.
const BLOCK_OVERHEAD_BYTES: usize = 256;

/// A checked block in memory. Immutable; values are shares of its bytes.
#[derive(Debug)]
pub(crate) struct Block {
    /// The payload.
    data: Bytes,
    /// Where the block lies in its file, for messages.
    pub offset: u64,
    /// End of the entries, start of the restart array.
    limit: usize,
    restarts: usize,
    held_bytes: usize,
}

/// A block, and its owner.
#[derive(Debug)]
pub(crate) enum Held {
    /// Shared with the cache.
    Cached(Arc<Block>),
    /// Not shared.
    Own(Block),
    /// A share of a mapping; the mapping is asked whether it is sound.
    Mapped(Block),
}

impl Deref for Held {
    type Target = Block;

    fn deref(&self) -> &Block {
        match self {
            Held::Cached(block) => block,
            Held::Own(block) | Held::Mapped(block) => block,
        }
    }
}

impl Block {
    /// The block whose payload is `data`. `held_bytes` is the memory that it takes.
    pub fn new(data: Bytes, offset: u64, held_bytes: usize) -> Result<Block, Malformed> {
        let (limit, restarts) = View::new(&data).map(|view| (view.limit, view.restarts))?;
        Ok(Block { data, offset, limit, restarts, held_bytes })
    }

    /// The payload, to be searched.
    #[inline]
    pub fn view(&self) -> View<'_> {
        View { data: &self.data, limit: self.limit, restarts: self.restarts }
    }

    /// Bytes of the payload.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Starts loading the end of the payload, where a search begins.
    #[inline]
    pub fn prefetch_end(&self) {
        prefetch::line(self.data.as_ptr().wrapping_add(self.data.len().saturating_sub(1)));
    }

    /// Bytes of memory that the block takes.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes + BLOCK_OVERHEAD_BYTES
    }

    /// The end of the entries.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Restart entries.
    pub fn restarts(&self) -> usize {
        self.restarts
    }

    /// Bytes `range` of the payload.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.data.get(range).unwrap_or_default()
    }

    /// A share of bytes `range` of the payload.
    pub fn share(&self, range: Range<usize>) -> Bytes {
        if range.is_empty() { Bytes::new() } else { self.data.slice(range) }
    }

    /// The found version with its value.
    pub fn entry_of(&self, found: Found) -> Entry {
        Entry { seq: found.seq, kind: found.kind, value: self.share(found.value) }
    }

    /// The offset of restart `i`.
    pub fn restart(&self, i: usize) -> Result<usize, Malformed> {
        self.view().restart(i)
    }

    /// The entry at `at`, which must be below [`limit`](Self::limit).
    #[inline]
    pub fn entry(&self, at: usize) -> Result<RawEntry, Malformed> {
        self.view().entry(at)
    }

    /// The newest version of `key` with a sequence number up to `max_seq`.
    pub fn find(&self, key: &[u8], max_seq: u64) -> Result<Lookup, Malformed> {
        self.view().find(key, max_seq)
    }
}
