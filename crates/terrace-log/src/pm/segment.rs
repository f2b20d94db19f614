//! A segment on a chain of extents.
//!
//! The segment's bytes lie one after another in the extents' bodies, behind a header line each. An extent is filled,
//! activated and drained before the word that links it is published, so the chain is whole at every moment; if a crash
//! comes before the link, the extent has no owner and the pool reclaims it. Bytes beyond the end are arbitrary: records
//! are told from them by the segment's id, which no earlier segment of this pool had.
//!
//! Thread safety: one owner at a time (`&mut`), who may change threads between calls.

use std::path::Path;
use std::thread::ThreadId;

use terrace_base::checksum::hash64;
use terrace_base::{Error, Result};
use terrace_pmem::{Extent, Kind, Marks, POff, Pool};

use super::layout::{EXTENT_HEADER_BYTES, ExtentHeader, NEXT_AT, VERSION, link_word, linked};
use crate::reader::other_version;
use crate::segment::Segment;

/// A segment in a pool.
///
/// Its head's offset is all that is needed to find it again; the caller publishes that, in a root or
/// elsewhere, once `create` has returned.
#[derive(Debug)]
pub struct PmSegment {
    pool: Pool,
    id: u64,
    kind: Kind,
    pieces: Vec<Piece>,
    len: u64,
    unsynced: Option<Unsynced>,
}

/// One extent, and the place of its body in the segment.
#[derive(Debug, Clone, Copy)]
struct Piece {
    offset: u64,
    bytes: u64,
    start: u64,
}

/// Bytes that a drain of `thread` would make durable.
#[derive(Debug, Clone, Copy)]
struct Unsynced {
    from: u64,
    thread: ThreadId,
}

impl Piece {
    fn body(&self) -> u64 {
        self.offset + EXTENT_HEADER_BYTES
    }

    fn capacity(&self) -> u64 {
        self.bytes - EXTENT_HEADER_BYTES
    }

    fn end(&self) -> u64 {
        self.start + self.capacity()
    }
}

impl PmSegment {
    /// An empty segment with room for at least `capacity_hint` bytes before it takes another extent.
    pub fn create(pool: &Pool, kind: Kind, capacity_hint: u64) -> Result<Self> {
        let extent = pool.reserve_extent(kind, capacity_hint.saturating_add(EXTENT_HEADER_BYTES))?;
        let id = fresh_id(pool, extent.offset);
        let mut segment =
            PmSegment { pool: pool.clone(), id, kind, pieces: Vec::new(), len: 0, unsynced: None };
        segment.adopt(&extent);
        Ok(segment)
    }

    /// The segment whose head lies at `head`, as far as its extents reach: [`len`](Segment::len) is
    /// their capacity until the reader of its records says where they end. Everything in it is durable
    /// when this returns.
    pub fn open(pool: &Pool, head: u64) -> Result<Self> {
        let mut segment = Self::outline(pool, head)?;
        // A process that died may have made stores that it did not flush; readers act on them from now on.
        segment.pieces.iter().for_each(|piece| pool.flush(piece.offset, piece.bytes));
        pool.drain();
        segment.len = segment.capacity();
        Ok(segment)
    }

    /// The extents of the segment at `head`, which another may own and append to meanwhile.
    pub(super) fn outline(pool: &Pool, head: u64) -> Result<Self> {
        let first = read_header(pool, head)?;
        let (id, kind) = (first.id, Kind(first.kind));
        let mut segment =
            PmSegment { pool: pool.clone(), id, kind, pieces: Vec::new(), len: 0, unsynced: None };
        let mut next = Some(head);
        while let Some(offset) = next {
            let header = read_header(pool, offset)?;
            let expected =
                ExtentHeader { bytes: header.bytes, index: segment.pieces.len() as u32, offset, ..first };
            if header != expected {
                return Err(pool.corruption(offset, format!("{expected:?}"), format!("{header:?}")));
            }
            segment.pieces.push(Piece { offset, bytes: header.bytes, start: segment.capacity() });
            next = segment.next_of(offset)?;
        }
        Ok(segment)
    }

    /// The offset under which the segment is opened again.
    pub fn head(&self) -> u64 {
        self.pieces[0].offset
    }

    /// A number that no other segment of this pool has or had: the id to create its log with.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The kind of its extents.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Bytes of PM that it holds.
    pub fn pm_bytes(&self) -> u64 {
        self.pieces.iter().map(|p| p.bytes).sum()
    }

    /// A copy of its bytes.
    pub fn read(&self) -> Result<Vec<u8>> {
        self.read_from(0)
    }

    fn read_from(&self, from: u64) -> Result<Vec<u8>> {
        let mut data = Vec::with_capacity(self.len.saturating_sub(from) as usize);
        for piece in self.pieces.iter().filter(|p| p.start < self.len && p.end() > from) {
            let skip = from.saturating_sub(piece.start);
            let len = piece.capacity().min(self.len - piece.start) - skip;
            self.pool.charge_read(piece.body() + skip, len);
            // SAFETY: the extent belongs to this segment, whose bytes change only under `&mut self`, and
            // is freed only by consuming it.
            data.extend_from_slice(unsafe { self.pool.bytes(piece.body() + skip, len)? });
        }
        Ok(data)
    }

    /// Marks its extents as owned.
    pub fn mark(&self, marks: &mut Marks) -> Result<()> {
        self.extents().try_for_each(|extent| marks.extent(extent))
    }

    /// Where its extents begin.
    pub fn extents(&self) -> impl Iterator<Item = u64> {
        self.pieces.iter().map(|piece| piece.offset)
    }

    /// Gives its extents back. The caller has durably unlinked the head.
    pub fn free(self) -> Result<()> {
        self.pieces.iter().try_for_each(|piece| self.pool.free_extent(piece.offset, self.kind))
    }

    /// Makes room for `bytes` more, so that appending them cannot fail for want of it.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Result<()> {
        self.grow(self.len.checked_add(bytes).ok_or_else(|| Error::invalid("a log this long"))?)
    }

    /// Ends the segment at `len`, durably: bytes behind that are never read as part of it. In a read-only pool nothing
    /// is stored, and nobody will write behind `len` either.
    pub(crate) fn truncate(&mut self, len: u64) -> Result<()> {
        if self.pool.is_read_only() {
            self.len = len;
            return Ok(());
        }
        let tail = self.read_from(len.min(self.len))?;
        if let Some(last) = tail.iter().rposition(|&b| b != 0) {
            self.store(len, &vec![0; last + 1]);
            self.pool.drain();
        }
        self.len = len;
        Ok(())
    }

    fn capacity(&self) -> u64 {
        self.pieces.last().map_or(0, Piece::end)
    }

    /// Writes the extent's header, makes it the segment's, durably, and puts it last. Not linked yet.
    fn adopt(&mut self, extent: &Extent) {
        let header = ExtentHeader {
            id: self.id,
            offset: extent.offset,
            bytes: extent.bytes,
            index: self.pieces.len() as u32,
            kind: self.kind.0,
        };
        self.pool.copy_flush(extent.offset, &header.encode());
        self.pool.activate(extent);
        self.pool.drain();
        self.pieces.push(Piece { offset: extent.offset, bytes: extent.bytes, start: self.capacity() });
    }

    /// Makes room for `len` bytes in all. Nothing is taken where all extents that are free would not do.
    fn grow(&mut self, len: u64) -> Result<()> {
        let missing = len.saturating_sub(self.capacity());
        if missing > 0 && !self.pool.has_extents(missing + EXTENT_HEADER_BYTES) {
            return Err(self.pool.refusal(missing));
        }
        while let Some(last) = self.pieces.last().copied().filter(|last| last.end() < len) {
            let wanted = len - last.end() + EXTENT_HEADER_BYTES;
            let smallest = self.pool.extent_bytes();
            let extent = match self.pool.reserve_extent(self.kind, wanted) {
                // Scattered ones will do.
                Err(e) if e.is_out_of_space() && wanted > smallest => {
                    self.pool.reserve_extent(self.kind, smallest)?
                }
                outcome => outcome?,
            };
            self.adopt(&extent);
            self.pool.publish(POff::new(last.offset + NEXT_AT), link_word(self.id, extent.offset));
        }
        Ok(())
    }

    fn next_of(&self, offset: u64) -> Result<Option<u64>> {
        let at = offset + NEXT_AT;
        let word = self.pool.atomic_checked(POff::new(at))?.load(std::sync::atomic::Ordering::Acquire);
        linked(self.id, word)
            .map_err(|()| self.pool.corruption(at, "a link to the next extent", format!("{word:#018x}")))
    }

    /// Stores and flushes `data` at byte `at` of the segment, where there is room.
    fn store(&self, mut at: u64, mut data: &[u8]) {
        let first = self.pieces.partition_point(|p| p.end() <= at);
        for piece in &self.pieces[first..] {
            if data.is_empty() {
                return;
            }
            let take = data.len().min((piece.end() - at) as usize);
            let target = piece.body() + (at - piece.start);
            // Through the caches, not past them: another thread may have to flush these bytes again.
            self.pool.write(target, &data[..take]);
            self.pool.flush(target, take as u64);
            data = &data[take..];
            at += take as u64;
        }
    }

    /// Flushes everything from byte `from` on from this thread.
    fn flush_again(&self, from: u64) {
        for piece in self.pieces.iter().filter(|p| p.end() > from && p.start < self.len) {
            let skip = from.saturating_sub(piece.start);
            let end = piece.capacity().min(self.len - piece.start);
            self.pool.flush(piece.body() + skip, end - skip);
        }
    }
}

impl Segment for PmSegment {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        let end = self.len.checked_add(data.len() as u64).ok_or_else(|| Error::invalid("a log this long"))?;
        self.grow(end)?;
        self.store(self.len, data);
        let thread = std::thread::current().id();
        let from = self.unsynced.map_or(self.len, |u| u.from);
        self.len = end;
        if self.unsynced.is_some_and(|u| u.thread != thread) {
            // A drain covers the flushes of its own thread only.
            self.flush_again(from);
        }
        self.unsynced = Some(Unsynced { from, thread });
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        if let Some(unsynced) = self.unsynced.take() {
            if unsynced.thread != std::thread::current().id() {
                self.flush_again(unsynced.from);
            }
            self.pool.drain();
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn path(&self) -> &Path {
        self.pool.path()
    }
}

/// Creating a segment drains, so between two at one place the count of drains moves; between two runs
/// the pool's generation does.
fn fresh_id(pool: &Pool, head: u64) -> u64 {
    let mut seed = [0; 40];
    seed[24..].copy_from_slice(&pool.uuid());
    seed[..8].copy_from_slice(&pool.generation().to_le_bytes());
    seed[8..16].copy_from_slice(&head.to_le_bytes());
    seed[16..24].copy_from_slice(&pool.stats().drains.to_le_bytes());
    hash64(&seed)
}

fn read_header(pool: &Pool, offset: u64) -> Result<ExtentHeader> {
    // SAFETY: the line is immutable but for the link, which is not among the bytes read.
    let front = unsafe { pool.bytes(offset, NEXT_AT)? };
    pool.charge_read(offset, EXTENT_HEADER_BYTES);
    let found = match ExtentHeader::decode(front) {
        Some((version, _)) if version != VERSION => return Err(other_version(pool.path(), version, VERSION)),
        found => found.map(|(_, header)| header),
    };
    found
        .filter(|h| h.offset == offset && h.bytes > EXTENT_HEADER_BYTES && h.bytes <= pool.size())
        .filter(|h| h.offset.checked_add(h.bytes).is_some_and(|end| end <= pool.size()))
        .ok_or_else(|| pool.corruption(offset, "an extent of a log", format!("{found:?}")))
}
