//! Reads a table through a mapping of its file: without a system call, a copy of the block, or the cache.
//!
//! 1. A block's checksums are verified before its first use, and not again as long as the table is mapped
//!    ([`Table::verify`] makes all of them be verified again). Threads that verify the same block side by side find the
//!    same.
//! 2. A mismatch here is not an error yet. The caller goes on by system calls, which find the right bytes or report the
//!    error. So everything here is an `Option`.
//! 3. Bytes that were read from the mapping are returned only after [`is_sound`](TableMap::is_sound) was asked.
//! 4. Every length is checked before it is used: pages may turn to zeros at any time.
//!
//! This does not detect bytes that change on the medium after they were verified, and that are read again because the
//! page cache has dropped them. `Table::verify` detects them, and so do compactions, which read by calls, and
//! `Table::scrub`, after which a damaged table is read by calls.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use terrace_base::checksum::crc32c;
use terrace_base::trail::{self, BlockFrom, Touch};
use terrace_base::{Error, Result, prefetch};
use terrace_disk::Mapping;

use crate::block::{Block, Found, Lookup, View};
use crate::entry::Entry;
use crate::footer::{FOOTER_BYTES, Footer};
use crate::frame::{BlockKind, HEADER_BYTES, Handle, Header};
use crate::index::decode_handle;
use crate::options::Compression;
use crate::position::Position;
use crate::table::Table;

/// No two blocks begin within so many bytes: none has fewer, its header included.
const UNIT_BYTES: usize = 32;

/// Values from this length on are given as shares of the mapping. Shorter ones are copied: that costs no more than to
/// count one more that shares it, and pins nothing.
const SHARED_VALUE_BYTES: usize = 256;

/// Bytes from one to the next of which at least one lies in each page.
const STRIDE_BYTES: usize = 4096;

/// So many reads go by calls before a table that could not be mapped is tried again.
const READS_BETWEEN_TRIES: u64 = 4096;

/// The state for reading a table through its mapping.
#[derive(Debug)]
pub(crate) struct TableMap {
    mapping: Mapping,
    /// A bit for each `UNIT_BYTES`: the block that begins there was verified.
    verified: Box<[AtomicU64]>,
    number: u32,
    origin: u64,
    /// Where data blocks end, and where all blocks do.
    data_end: usize,
    end: usize,
    /// A compressed block was met; from then on the cache is asked first.
    has_compressed: AtomicBool,
}

impl TableMap {
    fn new(mapping: Mapping, footer: &Footer) -> TableMap {
        let words = mapping.bytes().len().div_ceil(UNIT_BYTES * 64);
        TableMap {
            verified: zeroed(words),
            number: footer.number,
            origin: footer.origin,
            data_end: footer.data_end as usize,
            end: footer.file_bytes as usize - FOOTER_BYTES,
            mapping,
            has_compressed: AtomicBool::new(false),
        }
    }

    /// Bytes of DRAM beside the mapping.
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.verified) + size_of::<Self>()
    }

    /// Whether all bytes that were read from the mapping until now are the file's.
    #[inline]
    pub fn is_sound(&self) -> bool {
        !self.mapping.has_failed()
    }

    /// Whether the block at `offset` was verified, and so was read not long ago.
    #[inline]
    pub fn is_verified(&self, offset: u64) -> bool {
        let (word, bit) = place(offset);
        self.verified.get(word).is_some_and(|word| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// Every block is to be verified again.
    pub fn forget_verified(&self) {
        self.verified.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Asks the system to read the bytes of the file from `from` to `to` soon.
    pub fn will_need(&self, from: u64, to: u64) {
        self.mapping.will_need(from as usize..to as usize);
    }

    /// How the header of an uncompressed block of `kind` begins.
    #[inline]
    fn first_word(&self, kind: BlockKind) -> u64 {
        Header::first_word(kind, Compression::None, self.number)
    }

    /// The payload of the block of `kind` at `offset`, and where it begins.
    #[inline]
    fn payload(&self, offset: u64, kind: BlockKind) -> Option<(usize, &[u8])> {
        let limit = if kind == BlockKind::Data { self.data_end } else { self.end };
        let (bytes, at) = (self.mapping.bytes().get(..limit)?, usize::try_from(offset).ok()?);
        let head = bytes.get(at..)?.first_chunk::<HEADER_BYTES>()?;
        if Header::word_of(head) != self.first_word(kind) {
            self.note_compressed(head, offset, kind);
            return None;
        }
        let start = at + HEADER_BYTES;
        let payload = bytes.get(start..start + Header::stored_of(head))?;
        self.mapping.touch(at..start + payload.len());
        if !self.is_verified(offset) {
            self.verify(head, payload, offset)?;
        }
        trail::note(|| {
            let (table, bytes) = (u64::from(self.number), payload.len() as u64);
            Touch::Block { table, offset, bytes, from: BlockFrom::Mapping }
        });
        Some((start, payload))
    }

    /// The first bytes of the block at `offset`, unless none can be there.
    #[inline]
    fn head(&self, offset: u64) -> Option<&[u8; HEADER_BYTES]> {
        self.mapping.bytes().get(..self.end)?.get(offset as usize..)?.first_chunk()
    }

    /// Starts loading the header of the block at `offset`.
    #[inline]
    pub fn prefetch_header(&self, offset: u64) {
        if let Some(head) = self.head(offset) {
            prefetch::line(head.as_ptr());
        }
    }

    /// Starts loading the end of the block at `offset`, where a search begins. The header, which is read here, says
    /// where that is.
    #[inline]
    pub fn prefetch_end(&self, offset: u64) {
        if let Some(head) = self.head(offset) {
            let last = Header::stored_of(head).wrapping_add(HEADER_BYTES - 1);
            prefetch::line(head.as_ptr().wrapping_add(last));
        }
    }

    /// Starts loading the bytes of the file from `from` to `to`.
    #[inline]
    pub fn prefetch(&self, from: u64, to: u64) {
        if let Some(bytes) = self.mapping.bytes().get(from as usize..(to as usize).min(self.end)) {
            prefetch::lines(bytes.as_ptr(), bytes.len());
        }
    }

    /// The block of `kind` at `offset`, if it was verified and so is probably in memory.
    #[inline]
    pub fn verified_view(&self, offset: u64, kind: BlockKind) -> Option<View<'_>> {
        self.is_verified(offset).then(|| self.view(offset, kind))?.map(|(_, view)| view)
    }

    #[cold]
    fn note_compressed(&self, head: &[u8], offset: u64, kind: BlockKind) {
        let header = Header::decode(head, offset, self.origin);
        if header.is_ok_and(|header| header.kind == kind && header.compression != Compression::None) {
            self.has_compressed.store(true, Ordering::Relaxed);
        }
    }

    #[cold]
    fn verify(&self, head: &[u8], payload: &[u8], offset: u64) -> Option<()> {
        let at = offset as usize;
        if at / STRIDE_BYTES != (at + HEADER_BYTES + payload.len()) / STRIDE_BYTES {
            // A block of several pages: one read for all of them, if they are not in memory.
            self.mapping.will_need(at..at + HEADER_BYTES + payload.len());
        }
        let header = Header::decode(head, offset, self.origin).ok()?;
        let is_whole = header.stored as usize == payload.len() && crc32c(payload) == header.payload_crc;
        if !is_whole || !self.is_sound() {
            return None;
        }
        let (word, bit) = place(offset);
        self.verified.get(word)?.fetch_or(bit, Ordering::Relaxed);
        Some(())
    }

    /// The block of `kind` at `offset`, to be searched, and where its payload begins.
    #[inline]
    pub fn view(&self, offset: u64, kind: BlockKind) -> Option<(usize, View<'_>)> {
        let (start, payload) = self.payload(offset, kind)?;
        Some((start, View::new(payload).ok()?))
    }

    /// The block of `kind` at `offset`, which shares the mapping. Its reader asks whether the mapping is sound.
    pub fn block(&self, offset: u64, kind: BlockKind) -> Option<Block> {
        let (start, payload) = self.payload(offset, kind)?;
        let shared = self.mapping.bytes().slice(start..start + payload.len());
        Block::new(shared, offset, 0).ok()
    }

    /// The stored bytes of the compressed block of `kind` at `offset`, header included; not verified.
    fn compressed(&self, offset: u64, kind: BlockKind) -> Option<Bytes> {
        let limit = if kind == BlockKind::Data { self.data_end } else { self.end };
        let (bytes, at) = (self.mapping.bytes().get(..limit)?, usize::try_from(offset).ok()?);
        let head = bytes.get(at..)?.first_chunk::<HEADER_BYTES>()?;
        if Header::word_of(head) != Header::first_word(kind, Compression::Lz4, self.number) {
            return None;
        }
        let end = at + HEADER_BYTES + Header::stored_of(head);
        self.mapping.touch(at..end);
        (end <= limit).then(|| self.mapping.bytes().slice(at..end))
    }

    /// Whether `position` is one of this table.
    #[inline]
    pub fn has_number(&self, position: Position) -> bool {
        position.number() == u64::from(self.number)
    }

    /// The version that was found in the payload that begins at `start`.
    #[inline]
    pub fn entry(&self, start: usize, found: Found) -> Entry {
        let value = start + found.value.start..start + found.value.end;
        Entry { seq: found.seq, kind: found.kind, value: self.value(value) }
    }

    /// Bytes `range` of the file, which were read or are read now; the mapping knows whether that succeeded.
    #[inline]
    fn value(&self, range: Range<usize>) -> Bytes {
        let all = self.mapping.bytes();
        if range.len() < SHARED_VALUE_BYTES {
            return Bytes::copy_from_slice(all.get(range).unwrap_or_default());
        }
        let value = all.slice(range);
        read_pages(&value);
        value
    }

    /// The answer of the data block at `offset` about the version of `key` up to `max_seq`; `None` if system calls have
    /// to find it.
    #[inline]
    pub fn find(&self, offset: u64, restart: Option<usize>, key: &[u8], max_seq: u64) -> Option<InBlock> {
        let (start, view) = self.view(offset, BlockKind::Data)?;
        let found = match view.find_from(restart, key, max_seq).ok()? {
            Lookup::Found(found) => InBlock::Entry(self.entry(start, found)),
            Lookup::PastEnd { same_key: true } => InBlock::Behind,
            Lookup::PastEnd { same_key: false } | Lookup::Absent => InBlock::Nothing,
        };
        self.is_sound().then_some(found)
    }

    /// The data block to which the index block at `offset` leads `key`; `None` if system calls have to find it.
    #[inline]
    pub fn data_handle(
        &self,
        offset: u64,
        restart: Option<usize>,
        key: &[u8],
        max_seq: u64,
    ) -> Option<Handle> {
        let (_, index) = self.view(offset, BlockKind::Index)?;
        // An index block that the root leads to must have one; otherwise it is damaged.
        let value = index.value_at_or_after(restart, key, max_seq).ok()??;
        let handle = decode_handle(value, self.data_end as u64).ok()?;
        self.is_sound().then_some(handle)
    }
}

/// The answer of a block about a key.
pub(crate) enum InBlock {
    Entry(Entry),
    Nothing,
    /// It has versions that are too new; others may follow in later blocks.
    Behind,
}

/// Words of zeros. They are not touched here: the system provides memory when they are used.
fn zeroed(words: usize) -> Box<[AtomicU64]> {
    // SAFETY: an atomic word may hold whatever bits a `u64` may, so zeros are a value of each.
    unsafe { Box::new_zeroed_slice(words).assume_init() }
}

/// Where the bit of the block at `offset` is.
#[inline]
fn place(offset: u64) -> (usize, u64) {
    let unit = offset as usize / UNIT_BYTES;
    (unit / 64, 1 << (unit % 64))
}

/// Reads a byte of each page of `value`: a page that cannot be read must be found before the value is returned.
#[inline]
fn read_pages(value: &[u8]) {
    let mut seen = 0;
    for byte in value.iter().step_by(STRIDE_BYTES).chain(value.last()) {
        seen |= byte;
    }
    std::hint::black_box(seen);
}

impl Table {
    /// The mapping, where the table is read through one now.
    #[inline]
    pub(crate) fn map(&self) -> Option<&TableMap> {
        let map = self.any_map()?;
        (!map.has_compressed.load(Ordering::Relaxed)).then_some(map)
    }

    /// The same, regardless of whether the cache is to be asked first.
    #[inline]
    fn any_map(&self) -> Option<&TableMap> {
        if !self.maps.as_ref()?.is_wanted() || self.is_left.load(Ordering::Relaxed) {
            return None;
        }
        match self.map.get() {
            Some(map) => map.is_sound().then_some(map),
            None => self.make_map(),
        }
    }

    #[cold]
    fn make_map(&self) -> Option<&TableMap> {
        if !self.reads_unmapped.fetch_add(1, Ordering::Relaxed).is_multiple_of(READS_BETWEEN_TRIES) {
            return None;
        }
        // System calls find out what is wrong with the ends.
        let footer = self.footer().ok()?;
        let mapping = self.maps.as_ref()?.map(self.file())?;
        if mapping.bytes().len() as u64 != footer.file_bytes {
            return None;
        }
        let map = TableMap::new(mapping, footer);
        Some(self.map.get_or_init(|| {
            self.cache().table_grew(map.memory_bytes());
            map
        }))
    }

    /// No reader begins to read through the mapping any more. Who does so now has verified what it reads.
    pub(crate) fn leave_map(&self) {
        self.is_left.store(true, Ordering::Relaxed);
    }

    /// The error for bytes from a mapping that turned out to be unreadable.
    #[cold]
    pub(crate) fn unreadable(&self) -> Error {
        let why = "a mapped table could not be read: an I/O error, or the file was cut";
        Error::io(self.path(), "read", std::io::Error::other(why))
    }

    /// An error if the mapping has failed, so that bytes read from it are not used.
    #[inline]
    pub(crate) fn check_map(&self) -> Result<()> {
        match self.map.get() {
            Some(map) if !map.is_sound() => Err(self.unreadable()),
            _ => Ok(()),
        }
    }

    /// [`get_at`](Table::get_at) through the mapping; `None` if calls have to tell.
    #[inline]
    pub(crate) fn get_at_mapped(
        &self,
        map: &TableMap,
        position: Position,
        restart: Option<usize>,
        key: &[u8],
        max_seq: u64,
    ) -> Option<Result<Option<Entry>>> {
        if !map.has_number(position) {
            return None;
        }
        Some(match map.find(position.offset(), restart, key, max_seq)? {
            InBlock::Entry(entry) => Ok(Some(entry)),
            InBlock::Nothing => Ok(None),
            InBlock::Behind => self.search(key, max_seq),
        })
    }

    /// Asks the system to read the block of `len` bytes at `offset` soon, unless it has been read before or is in the
    /// cache, from which it is taken then.
    pub(crate) fn announce(&self, offset: u64, len: u64) -> Option<Arc<Block>> {
        let map = self.any_map();
        if map.is_none_or(|map| map.has_compressed.load(Ordering::Relaxed))
            && let Some(block) = self.cached(offset)
        {
            return Some(block);
        }
        match map {
            Some(map) if map.is_verified(offset) => {}
            Some(map) => map.will_need(offset, offset + len),
            None => self.file().will_need(offset, len),
        }
        None
    }

    /// The compressed block of `kind` at `offset`, decompressed from the mapping; `None` if calls have to tell.
    pub(crate) fn decompress_mapped(&self, offset: u64, kind: BlockKind) -> Option<Block> {
        let map = self.any_map()?;
        let stored = map.compressed(offset, kind)?;
        let handle = Handle { offset, len: stored.len() as u64 };
        let block = self.decode_block(stored, handle, kind).ok()?;
        map.is_sound().then_some(block)
    }

    /// The value at `range` of `block`, which shares the mapping.
    pub(crate) fn value_of_mapped(&self, block: &Block, range: Range<usize>) -> Result<Bytes> {
        let value = match range.len() < SHARED_VALUE_BYTES {
            true => Bytes::copy_from_slice(block.bytes(range)),
            false => block.share(range),
        };
        read_pages(&value);
        self.check_map()?;
        Ok(value)
    }

    /// The value at `range` of `block`, in the mapping.
    pub(crate) fn look_at_mapped<'a>(&self, block: &'a Block, range: Range<usize>) -> Result<&'a [u8]> {
        let value = block.bytes(range);
        read_pages(value);
        self.check_map()?;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use terrace_disk::{Fs, RealFs};

    use super::*;

    #[test]
    fn bits_of_what_was_not_read_take_no_memory() {
        let resident = || RealFs.resident_memory().unwrap();
        let before = resident();
        let words = zeroed(32 << 20);
        words[5].store(7, Ordering::Relaxed);
        assert!(resident() < before + (128 << 20), "{} before, {} now", before, resident());
        assert_eq!([0, 5, words.len() - 1].map(|at| words[at].load(Ordering::Relaxed)), [0, 7, 0]);
    }
}
