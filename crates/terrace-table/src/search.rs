//! The steps of a search by key: the root leads to an index block, that to a data block, and that has the version.
//!
//! A separator is at the last entry of its block, or shorter than the first key of the next one. So one index block and
//! one data block tell: no version of a key up to the separator lies behind it.

use std::sync::Arc;

use bytes::Bytes;
use terrace_base::trail::{self, BlockFrom, Touch};
use terrace_base::{Error, Result};

use crate::block::{Block, Lookup};
use crate::entry::Entry;
use crate::frame::{BlockKind, Handle};
use crate::index::decode_handle;
use crate::mapped::InBlock;
use crate::table::Table;

impl Table {
    /// The newest version of `key` with a sequence number up to `max_seq`, by the index alone: for a caller that has
    /// asked the filter ([`may_contain`](Self::may_contain)).
    pub fn search(&self, key: &[u8], max_seq: u64) -> Result<Option<Entry>> {
        let Some(index) = self.index_handle(key, max_seq)? else { return Ok(None) };
        let data = self.data_handle(index, key, max_seq)?;
        self.prefetch_ends(data);
        self.find_in(data, key, max_seq)
    }

    /// The index block to which the root leads; `None` if the key comes after everything.
    pub(crate) fn index_handle(&self, key: &[u8], max_seq: u64) -> Result<Option<Handle>> {
        self.handle_for(self.root()?, BlockKind::Index, key, max_seq)
    }

    /// The data block to which the index block `index` leads.
    pub(crate) fn data_handle(&self, index: Handle, key: &[u8], max_seq: u64) -> Result<Handle> {
        match self.map().and_then(|map| map.data_handle(index.offset, None, key, max_seq)) {
            Some(handle) => Ok(handle),
            None => self.data_handle_by(&*self.block(index, BlockKind::Index)?, key, max_seq),
        }
    }

    /// The data block to which `index` leads.
    pub(crate) fn data_handle_by(&self, index: &Block, key: &[u8], max_seq: u64) -> Result<Handle> {
        self.handle_for(index, BlockKind::Data, key, max_seq)?.ok_or_else(|| {
            let expected = "an index block that reaches to the separator in the root";
            Error::corruption(self.path(), index.offset, expected, "a shorter one")
        })
    }

    /// Starts loading the header and the end of a block, with which a search in it begins, where the table is mapped.
    #[inline]
    fn prefetch_ends(&self, handle: Handle) {
        let Some(map) = self.map() else { return };
        let end = handle.offset + handle.len;
        map.prefetch(handle.offset, handle.offset + 1);
        map.prefetch(end.saturating_sub(1), end);
    }

    /// The version in the data block `data`, to which the index leads.
    pub(crate) fn find_in(&self, data: Handle, key: &[u8], max_seq: u64) -> Result<Option<Entry>> {
        match self.map().and_then(|map| map.find(data.offset, None, key, max_seq)) {
            Some(InBlock::Entry(entry)) => Ok(Some(entry)),
            Some(InBlock::Nothing | InBlock::Behind) => Ok(None),
            None => self.find_by(&*self.block(data, BlockKind::Data)?, key, max_seq),
        }
    }

    /// The version in `block`, to which the index leads.
    pub(crate) fn find_by(&self, block: &Block, key: &[u8], max_seq: u64) -> Result<Option<Entry>> {
        match block.find(key, max_seq).map_err(|m| m.at(self.path(), block.offset))? {
            Lookup::Found(found) => Ok(Some(block.entry_of(found))),
            Lookup::Absent | Lookup::PastEnd { .. } => Ok(None),
        }
    }

    /// The handle, of a block of `kind`, whose separator in `index` is the first at or after (`key`, `seq`).
    fn handle_for(&self, index: &Block, kind: BlockKind, key: &[u8], seq: u64) -> Result<Option<Handle>> {
        let limit = self.region(kind)?.1;
        let value = index.view().value_at_or_after(None, key, seq);
        let handle = value.and_then(|value| value.map(|value| decode_handle(value, limit)).transpose());
        handle.map_err(|m| m.at(self.path(), index.offset))
    }

    /// The block at `handle` from the cache or the file, kept in the cache.
    pub(crate) fn block(&self, handle: Handle, kind: BlockKind) -> Result<Arc<Block>> {
        if let Some(block) = self.cached(handle.offset) {
            self.touch(&block, BlockFrom::Cache);
            return Ok(block);
        }
        if let Some(block) = self.decompressed(handle.offset, kind) {
            self.touch(&block, BlockFrom::Mapping);
            return Ok(block);
        }
        let bytes = Bytes::from(self.read(handle.offset, handle.len as usize)?);
        let block = Arc::new(self.decode_block(bytes, handle, kind)?);
        self.touch(&block, BlockFrom::File);
        self.keep(&block);
        Ok(block)
    }

    /// Notes that `block` is used, for who follows this operation.
    #[inline]
    pub(crate) fn touch(&self, block: &Block, from: BlockFrom) {
        let (table, offset) = (self.number(), block.offset);
        trail::note(|| Touch::Block { table, offset, bytes: block.len() as u64, from });
    }
}
