//! Where a cursor gets its blocks: a mapping, the cache, or the file with read-ahead.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::Result;

use crate::block::{Block, Held};
use crate::frame::{BlockKind, Handle};
use crate::table::Table;

/// The first read-ahead once a scan is seen to be one; it doubles up to the cursor's limit.
const FIRST_WINDOW_BYTES: usize = 32 << 10;

/// Bytes that are loaded into the processor's caches ahead of a scan, at most.
const MOST_LOADED_BYTES: u64 = 8 << 10;

/// Fetches blocks for one cursor and notices when it reads in sequence, in either direction.
///
/// Invariant: `window` holds the file's bytes from `window_start`.
#[derive(Debug)]
pub(crate) struct Source {
    table: Arc<Table>,
    kind: BlockKind,
    fill_cache: bool,
    max_window: usize,
    next_window: usize,
    window: Bytes,
    window_start: u64,
    last: Option<Handle>,
    /// The cursor went on since its last seek.
    goes_on: bool,
    /// The range of the mapping that the system was asked to read.
    announced: Range<u64>,
}

impl Source {
    pub fn new(table: &Arc<Table>, kind: BlockKind, fill_cache: bool, readahead: usize) -> Self {
        Source {
            table: table.clone(),
            kind,
            fill_cache,
            max_window: readahead,
            next_window: 0,
            window: Bytes::new(),
            window_start: 0,
            last: None,
            goes_on: false,
            announced: 0..0,
        }
    }

    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Notes that a scan starts at an end of the table. One that does not fill the cache is a compaction or the like,
    /// which will read everything.
    pub fn begin_scan(&mut self) {
        (self.last, self.goes_on) = (None, false);
        self.next_window = if self.fill_cache { 0 } else { self.max_window };
    }

    /// Notes that the cursor jumped.
    pub fn jump(&mut self) {
        (self.last, self.goes_on) = (None, false);
        self.next_window = 0;
    }

    /// Notes that the block at `handle` is skipped: a read behind it still counts as sequential.
    pub fn pass(&mut self, handle: Handle) {
        if self.last.is_some() {
            self.last = Some(handle);
        }
    }

    /// The block at `handle`. A scan that does not fill the cache, such as a compaction's, reads by calls: it verifies
    /// every block, so that damage since the last verification is not copied.
    pub fn fetch(&mut self, handle: Handle) -> Result<Held> {
        let before = self.last.replace(handle);
        if let Some(block) = self.mapped(handle, before)? {
            if self.goes_on {
                self.load_behind(handle);
            }
            return Ok(Held::Mapped(block));
        }
        if let Some(block) = self.cached(handle) {
            return Ok(Held::Cached(block));
        }
        if !self.in_window(handle) {
            self.read_window(handle, before)?;
        }
        let start = (handle.offset - self.window_start) as usize;
        let bytes = self.window.slice(start..start + handle.len as usize);
        if !self.fill_cache {
            return self.table.decode_block(bytes, handle, self.kind).map(Held::Own);
        }
        // A cached block must not keep the whole window in memory.
        let own = if bytes.len() == self.window.len() { bytes } else { Bytes::copy_from_slice(&bytes) };
        let block = Arc::new(self.table.decode_block(own, handle, self.kind)?);
        self.table.keep(&block);
        Ok(Held::Cached(block))
    }

    /// The block from the table's mapping, if it is read through one. A block that was not read before is announced to
    /// the system together with the following ones.
    fn mapped(&mut self, handle: Handle, before: Option<Handle>) -> Result<Option<Block>> {
        let Some(map) = self.table.map().filter(|_| self.fill_cache) else { return Ok(None) };
        if !self.goes_on {
            // The header, and where a search begins.
            map.prefetch(handle.offset, handle.offset + 1);
            map.prefetch(handle.end() - 1, handle.end());
        }
        let is_announced = self.announced.contains(&handle.offset) || map.is_verified(handle.offset);
        if before.is_some() && !is_announced {
            let (from, to) = self.range_to_read(handle, before)?;
            let next = self.next_range(handle, before, from..to)?;
            self.table.map().into_iter().for_each(|map| {
                map.will_need(from, to);
                map.will_need(next.start, next.end);
            });
            self.announced = from..to;
        }
        Ok(self.table.map().and_then(|map| map.block(handle.offset, self.kind)))
    }

    /// Notes that the cursor went on within a block. What lies behind it is loaded into the processor's caches from then
    /// on, one block ahead. The processor does not do that by itself: it foresees no more than the rest of a page.
    #[inline]
    pub fn go_on(&mut self) {
        if !self.goes_on {
            self.goes_on = true;
            self.last.into_iter().for_each(|handle| self.load_behind(handle));
        }
    }

    /// Notes that the cursor goes back.
    pub fn go_back(&mut self) {
        self.goes_on = false;
    }

    fn load_behind(&self, handle: Handle) {
        if let Some(map) = self.table.map().filter(|_| self.fill_cache && self.kind == BlockKind::Data) {
            map.prefetch(handle.end(), handle.end() + handle.len.min(MOST_LOADED_BYTES));
        }
    }

    fn cached(&self, handle: Handle) -> Option<Arc<Block>> {
        if self.fill_cache { self.table.cached(handle.offset) } else { self.table.peek(handle.offset) }
    }

    fn in_window(&self, handle: Handle) -> bool {
        let end = self.window_start + self.window.len() as u64;
        handle.offset >= self.window_start && handle.offset + handle.len <= end
    }

    /// Reads `handle`, and also the following blocks if the fetches are sequential. What a scan reads after these is
    /// announced, so that the disk works while the scan does.
    fn read_window(&mut self, handle: Handle, before: Option<Handle>) -> Result<()> {
        let (from, to) = self.range_to_read(handle, before)?;
        self.window = Bytes::new();
        self.window = Bytes::from(self.table.read(from, (to - from) as usize)?);
        self.window_start = from;
        let next = self.next_range(handle, before, from..to)?;
        if !next.is_empty() {
            self.table.file().will_need(next.start, next.end - next.start);
        }
        Ok(())
    }

    /// What comes after the range `read` for `handle`, as long again. Empty unless the scan has gone on for a while: a
    /// short one is left alone.
    fn next_range(&self, handle: Handle, before: Option<Handle>, read: Range<u64>) -> Result<Range<u64>> {
        if self.next_window <= FIRST_WINDOW_BYTES {
            return Ok(0..0);
        }
        let (low, high) = self.table.region(self.kind)?;
        let len = read.end - read.start;
        Ok(match before.is_some_and(|b| handle.end() == b.offset) {
            true => read.start.saturating_sub(len).max(low)..read.start,
            false => read.end..(read.end + len).min(high),
        })
    }

    /// The range to read for `handle`.
    fn range_to_read(&mut self, handle: Handle, before: Option<Handle>) -> Result<(u64, u64)> {
        let forward = before.is_none_or(|b| b.end() == handle.offset);
        let backward = before.is_some_and(|b| handle.end() == b.offset);
        if before.is_some() {
            let doubled = (2 * self.next_window).max(FIRST_WINDOW_BYTES).min(self.max_window);
            self.next_window = if forward || backward { doubled } else { 0 };
        }
        let end = handle.offset + handle.len;
        let window = (self.next_window as u64).max(handle.len);
        let (low, high) = self.table.region(self.kind)?;
        Ok(if backward {
            (end.saturating_sub(window).max(low), end)
        } else {
            (handle.offset, (handle.offset + window).min(high).max(end))
        })
    }
}
