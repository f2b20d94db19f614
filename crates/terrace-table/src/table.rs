//! A table: lookups by position and by key.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use terrace_base::trail::{self, BlockFrom, Touch};
use terrace_base::{Error, Result};
use terrace_disk::{Access, Fs, Maps, ReadFile};

use crate::block::{Block, Lookup};
use crate::cache::BlockCache;
use crate::cursor::TableCursor;
use crate::ends::Ends;
use crate::entry::Entry;
use crate::filter::Filter;
use crate::footer::{FOOTER_BYTES, Footer, HEAD_BYTES};
use crate::frame::{BlockKind, Handle, Header, Malformed};
use crate::mapped::TableMap;
use crate::meta::TableMeta;
use crate::nested::PassedBlocks;
use crate::position::Position;
use crate::scratch::with_scratch;
use crate::tail::{Tail, decode_block, open_payload};

/// A table. Thread-safe; keeps its root index and its filter in memory once they were used.
#[derive(Debug)]
pub struct Table {
    file: Arc<dyn ReadFile>,
    cache: Arc<BlockCache>,
    meta: TableMeta,
    /// The origin that it must have, if its ends are read later.
    origin: u64,
    ends: OnceLock<Ends>,
    filter: OnceLock<Filter>,
    /// Decides whether it is read through a mapping; without this it never is.
    pub(crate) maps: Option<Arc<Maps>>,
    pub(crate) map: OnceLock<TableMap>,
    /// Reads while it could not be mapped.
    pub(crate) reads_unmapped: AtomicU64,
    /// Whether its file was found damaged, so that it is read by calls.
    pub(crate) is_left: AtomicBool,
    /// Whether it only stands for a missing table.
    missing: bool,
}

impl Table {
    /// Opens the table `number` at `path`, checking both ends, its figures and its root index.
    ///
    /// # Errors
    /// `InvalidFormat` for a file that is not a table or of another version, `Corruption` for a damaged one and for one
    /// with another number.
    pub fn open(
        fs: &dyn Fs,
        path: &Path,
        number: u64,
        cache: Arc<BlockCache>,
        access: Access,
    ) -> Result<Arc<Table>> {
        let file = fs.open(path, access)?;
        let (ends, meta) = Ends::read(&*file, number)?;
        Ok(Arc::new(Table::of_parts(file, cache, meta, Ok(ends))))
    }

    /// The table in `file`, with known figures `meta` and origin `origin`. It is read only on first use, and then
    /// checked as by [`open`](Self::open); it must be that very table. If that fails the request fails, and the next
    /// one tries again.
    pub fn lazy(file: Arc<dyn ReadFile>, meta: TableMeta, origin: u64, cache: Arc<BlockCache>) -> Arc<Table> {
        Arc::new(Table::of_parts(file, cache, meta, Err(origin)))
    }

    /// The same, read through one of `maps` while these are wanted.
    pub fn mapped(
        file: Arc<dyn ReadFile>,
        meta: TableMeta,
        origin: u64,
        cache: Arc<BlockCache>,
        maps: &Arc<Maps>,
    ) -> Arc<Table> {
        let mut table = Table::of_parts(file, cache, meta, Err(origin));
        table.maps = Some(maps.clone());
        Arc::new(table)
    }

    /// A table with its ends, or with the origin that they must have.
    fn of_parts(
        file: Arc<dyn ReadFile>,
        cache: Arc<BlockCache>,
        meta: TableMeta,
        ends: std::result::Result<Ends, u64>,
    ) -> Table {
        let (origin, ends) = match ends {
            Ok(ends) => (ends.footer.origin, OnceLock::from(ends)),
            Err(origin) => (origin, OnceLock::new()),
        };
        let (filter, map, reads_unmapped) = (OnceLock::new(), OnceLock::new(), AtomicU64::new(0));
        let (maps, is_left, missing) = (None, AtomicBool::new(false), false);
        let table =
            Table { file, cache, meta, origin, ends, filter, maps, map, reads_unmapped, is_left, missing };
        table.cache.table_grew(table.memory_bytes());
        table
    }

    /// A missing table, whose ends are made up; see [`missing`](Self::missing).
    pub(crate) fn made_up(
        file: Arc<dyn ReadFile>,
        cache: Arc<BlockCache>,
        meta: TableMeta,
        ends: Ends,
    ) -> Table {
        let mut table = Table::of_parts(file, cache, meta, Ok(ends));
        table.missing = true;
        table
    }

    /// The table's ends, read now unless they were read before.
    #[inline]
    fn ends(&self) -> Result<&Ends> {
        match self.ends.get() {
            Some(ends) => Ok(ends),
            None => self.read_ends(),
        }
    }

    #[cold]
    fn read_ends(&self) -> Result<&Ends> {
        trail::note(|| Touch::Ends { table: self.number() });
        let ends = Ends::read_named(&*self.file, &self.meta, self.origin)?;
        Ok(self.ends.get_or_init(|| {
            self.cache.table_grew(ends.root.held_bytes());
            ends
        }))
    }

    /// Reads and checks the parts that every lookup needs, unless that was done before.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and `Corruption` if it is another table than expected.
    pub fn load(&self) -> Result<()> {
        self.ends().map(drop)
    }

    /// The number and the origin in the two ends of the table at `path`.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn identify(fs: &dyn Fs, path: &Path) -> Result<(u64, u64)> {
        let file = fs.open(path, Access::Random)?;
        let footer = Tail::read(&*file)?.footer(&*file)?;
        Ok((u64::from(footer.number), footer.origin))
    }

    /// The table's figures.
    pub fn meta(&self) -> &TableMeta {
        &self.meta
    }

    /// The table's number.
    pub fn number(&self) -> u64 {
        self.meta.number
    }

    /// The table's file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Bytes of DRAM that this table holds beside the block cache.
    pub fn memory_bytes(&self) -> usize {
        let keys = self.meta.smallest.len() + self.meta.largest.len();
        let root = self.ends.get().map_or(0, |ends| ends.root.held_bytes());
        let map = self.map.get().map_or(0, TableMap::memory_bytes);
        size_of::<Self>() + keys + root + map + self.filter.get().map_or(0, Filter::memory_bytes)
    }

    /// The newest version of `key` with a sequence number up to `max_seq`, given the position of a block
    /// that holds a version of it. Versions that spill into following blocks are followed. `None` if
    /// there is no such version, or if the block holds nothing of `key`.
    ///
    /// Costs one read where the block is not in the cache, two if it is over 127 KiB.
    pub fn get_at(&self, position: Position, key: &[u8], max_seq: u64) -> Result<Option<Entry>> {
        if let Some(map) = self.map()
            && let Some(found) = self.get_at_mapped(map, position, None, key, max_seq)
        {
            return found;
        }
        self.get_at_by_calls(position, key, max_seq)
    }

    pub(crate) fn get_at_by_calls(
        &self,
        position: Position,
        key: &[u8],
        max_seq: u64,
    ) -> Result<Option<Entry>> {
        self.find_or_follow(&*self.block_at(position)?, key, max_seq)
    }

    /// The data block at `position`, from the cache or read.
    pub(crate) fn block_at(&self, position: Position) -> Result<Arc<Block>> {
        self.check_position(position)?;
        match self.cached(position.offset()) {
            Some(block) => {
                self.touch(&block, BlockFrom::Cache);
                Ok(block)
            }
            None => self.load_at(position),
        }
    }

    /// The newest version of `key` with a sequence number up to `max_seq`, by filter and index.
    pub fn get(&self, key: &[u8], max_seq: u64) -> Result<Option<Entry>> {
        if self.missing && (*key < *self.meta.smallest || *key > *self.meta.largest) {
            return Ok(None);
        }
        match self.filter()? {
            Some(filter) if !filter.may_contain(key) => Ok(None),
            _ => self.search(key, max_seq),
        }
    }

    /// Whether the table may hold `key`; false is certain. Reads the filter if it was not read yet.
    pub fn may_contain(&self, key: &[u8]) -> Result<bool> {
        let Some(filter) = self.filter()? else { return Ok(true) };
        let may = filter.may_contain(key);
        trail::note(|| Touch::Filter { number: Some(self.number()), may });
        Ok(may)
    }

    /// Starts loading what [`may_contain`](Self::may_contain) reads, if it is in memory.
    #[inline]
    pub fn prefetch_filter(&self, key: &[u8]) {
        if let Some(filter) = self.filter.get() {
            filter.prefetch(key);
        }
    }

    /// A cursor over the table, at no entry yet.
    ///
    /// With `fill_cache` the blocks it reads are kept in the cache; without, values share the window
    /// they were read in, so holding one holds up to `readahead` bytes. A scan reads ahead up to
    /// `readahead` bytes at once, more the longer it goes on; 0 reads block by block.
    pub fn cursor(self: &Arc<Self>, fill_cache: bool, readahead: usize) -> TableCursor {
        TableCursor::new(self, fill_cache, readahead, None)
    }

    /// A [`cursor`](Self::cursor) that goes past some blocks as if they were empty. No read begins with one of them;
    /// those between others may be read along with these, which costs less than one more read.
    pub fn cursor_past(
        self: &Arc<Self>,
        passed: Option<PassedBlocks>,
        fill_cache: bool,
        readahead: usize,
    ) -> TableCursor {
        TableCursor::new(self, fill_cache, readahead, passed)
    }

    pub(crate) fn check_position(&self, position: Position) -> Result<()> {
        if position.number() != self.number() {
            return Err(Error::invalid(format!("{position:?} is not of table {}", self.number())));
        }
        if position.offset() >= self.footer()?.data_end {
            let found = format!("position {:#018x}", position.word());
            return Err(Error::corruption(
                self.path(),
                position.offset(),
                "a position within the data",
                found,
            ));
        }
        Ok(())
    }

    pub(crate) fn find_or_follow(&self, block: &Block, key: &[u8], max_seq: u64) -> Result<Option<Entry>> {
        match block.find(key, max_seq).map_err(|m| m.at(self.path(), block.offset))? {
            Lookup::Found(found) => Ok(Some(block.entry_of(found))),
            Lookup::PastEnd { same_key: true } => self.search(key, max_seq),
            Lookup::PastEnd { same_key: false } | Lookup::Absent => Ok(None),
        }
    }

    fn filter(&self) -> Result<Option<&Filter>> {
        if let Some(filter) = self.filter.get() {
            return Ok(Some(filter));
        }
        let Some(handle) = self.footer()?.filter else { return Ok(None) };
        let filter = self.read_filter(handle)?;
        trail::note(|| {
            let (table, bytes) = (self.number(), filter.memory_bytes() as u64);
            Touch::Block { table, offset: handle.offset, bytes, from: BlockFrom::File }
        });
        Ok(Some(self.filter.get_or_init(|| {
            self.cache.table_grew(filter.memory_bytes());
            filter
        })))
    }

    pub(crate) fn read_filter(&self, handle: Handle) -> Result<Filter> {
        let bytes = Bytes::from(self.read(handle.offset, handle.len as usize)?);
        let payload = open_payload(&*self.file, bytes, handle, BlockKind::Filter, self.footer()?.owner())?;
        Filter::new(payload).map_err(|m| m.at(self.path(), handle.offset))
    }

    pub(crate) fn footer(&self) -> Result<&Footer> {
        Ok(&self.ends()?.footer)
    }

    pub(crate) fn origin(&self) -> u64 {
        self.origin
    }

    pub(crate) fn file(&self) -> &dyn ReadFile {
        &*self.file
    }

    pub(crate) fn cache(&self) -> &BlockCache {
        &self.cache
    }

    pub(crate) fn root(&self) -> Result<&Arc<Block>> {
        Ok(&self.ends()?.root)
    }

    /// The bytes within which blocks of `kind` lie.
    pub(crate) fn region(&self, kind: BlockKind) -> Result<(u64, u64)> {
        let footer = self.footer()?;
        Ok(match kind {
            BlockKind::Data => (HEAD_BYTES as u64, footer.data_end),
            _ => (footer.data_end, footer.file_bytes - FOOTER_BYTES as u64),
        })
    }

    pub(crate) fn cached(&self, offset: u64) -> Option<Arc<Block>> {
        self.cache.get(self.number(), offset)
    }

    pub(crate) fn peek(&self, offset: u64) -> Option<Arc<Block>> {
        self.cache.peek(self.number(), offset)
    }

    pub(crate) fn keep(&self, block: &Arc<Block>) {
        self.cache.insert(self.number(), block);
    }

    /// Reads `len` bytes; the caller has bounded them by the file's length.
    pub(crate) fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut buf = vec![0; len];
        self.read_into(offset, &mut buf)?;
        Ok(buf)
    }

    /// Fills `buf`; the caller has bounded it by the file's length.
    pub(crate) fn read_into(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.file.read_at(offset, buf)
    }

    /// Checks the bytes of the block at `handle`.
    pub(crate) fn decode_block(&self, bytes: Bytes, handle: Handle, kind: BlockKind) -> Result<Block> {
        decode_block(&*self.file, bytes, handle, kind, self.footer()?.owner())
    }

    /// Bytes of the first read for a block at `position`, which is within the data.
    pub(crate) fn first_read(&self, position: Position) -> Result<usize> {
        let rest = self.footer()?.data_end - position.offset();
        Ok((position.read_len() as u64).min(rest) as usize)
    }

    /// A compressed block of a table that is mapped, kept in the cache.
    pub(crate) fn decompressed(&self, offset: u64, kind: BlockKind) -> Option<Arc<Block>> {
        let block = Arc::new(self.decompress_mapped(offset, kind)?);
        self.keep(&block);
        Some(block)
    }

    pub(crate) fn load_at(&self, position: Position) -> Result<Arc<Block>> {
        if let Some(block) = self.decompressed(position.offset(), BlockKind::Data) {
            self.touch(&block, BlockFrom::Mapping);
            return Ok(block);
        }
        let block = with_scratch(self.first_read(position)?, |first| {
            self.file.read_at(position.offset(), first)?;
            self.complete(position, first)
        })?;
        self.touch(&block, BlockFrom::File);
        Ok(block)
    }

    /// The block of which `first` is the first read: reads the rest of a long one, checks and keeps it.
    pub(crate) fn complete(&self, position: Position, first: &[u8]) -> Result<Arc<Block>> {
        let (offset, footer) = (position.offset(), self.footer()?);
        let at = |m: Malformed| m.at(self.path(), offset);
        let header = Header::decode(first, offset, footer.origin).map_err(at)?;
        let len = header.block_len();
        if len > footer.data_end - offset || (len > first.len() as u64 && !position.is_long()) {
            return Err(at(Malformed::new("a block as long as its position says", format!("{len} bytes"))));
        }
        // Copied to as many bytes as it has: the length code rounds up, and a buffer that was shrunk would leave a gap
        // behind it that no other block fits into.
        let bytes = match first.get(..len as usize) {
            Some(whole) => Bytes::copy_from_slice(whole),
            None => {
                let mut whole = vec![0; len as usize];
                let (front, rest) = whole.split_at_mut(first.len());
                front.copy_from_slice(first);
                self.file.read_at(offset + first.len() as u64, rest)?;
                Bytes::from(whole)
            }
        };
        let block = self.decode_block(bytes, Handle { offset, len }, BlockKind::Data)?;
        let block = Arc::new(block);
        self.keep(&block);
        Ok(block)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.cache.table_shrank(self.memory_bytes());
    }
}
