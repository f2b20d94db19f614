//! Checks every byte of a table, read from the medium and not from the cache or a mapping.

use std::sync::Arc;

use bytes::Bytes;
use terrace_base::{Error, Result};

use crate::block::{Block, BlockCursor, Held};
use crate::entry::{Kind, order};
use crate::filter::Filter;
use crate::footer::{FOOTER_BYTES, Footer};
use crate::frame::{BlockKind, Handle, Header, Malformed};
use crate::meta::TableMeta;
use crate::nested::{Handles, IndexCursor, Nested};
use crate::scan::walk;
use crate::table::Table;
use crate::tail::{Tail, decode_block, open_payload};

impl Table {
    /// Reads the whole file and checks every byte of it: the checksum of each block, that entries are in order, that
    /// index, filter and figures agree with them, and that nothing lies between. Reads past the page cache if the file
    /// system allows it. Blocks that were verified when they were read through a mapping are verified again at their
    /// next use.
    ///
    /// # Errors
    /// `Corruption` at the first error.
    pub fn verify(self: &Arc<Self>) -> Result<()> {
        if let Some(map) = self.map.get() {
            map.forget_verified();
        }
        let medium = self.file().past_cache()?;
        let file = medium.as_deref().unwrap_or(self.file());
        let tail = Tail::read(file)?;
        let footer = tail.footer(file)?;
        if footer != *self.footer()? || tail.meta(file, &footer)? != *self.meta() {
            return Err(Error::corruption(self.path(), 0, "the table that was opened", "another one"));
        }
        let mut verifier = Verifier::new(self)?;
        walk(file, footer.origin, |handle, header, bytes| verifier.block(handle, header, bytes))?;
        verifier.finish()
    }
}

/// The state of a verification.
///
/// Invariant: `index` is at the entry for the next data block; `low` is the separator before it.
struct Verifier<'a> {
    table: &'a Arc<Table>,
    filter: Option<Filter>,
    index: IndexCursor,
    /// A second cursor, for searches.
    search: IndexCursor,
    low: Option<(Vec<u8>, u64)>,
    last: Option<(Vec<u8>, u64)>,
    seen: TableMeta,
    index_blocks: u64,
    parts: Vec<(BlockKind, Handle)>,
}

impl<'a> Verifier<'a> {
    fn new(table: &'a Arc<Table>) -> Result<Self> {
        let filter = table.footer()?.filter.map(|handle| table.read_filter(handle)).transpose()?;
        let mut index = Nested::index(table, false);
        Handles::first(&mut index)?;
        Ok(Verifier {
            table,
            filter,
            index,
            search: Nested::index(table, false),
            low: None,
            last: None,
            seen: TableMeta {
                number: table.number(),
                file_bytes: table.meta().file_bytes,
                ..Default::default()
            },
            index_blocks: 0,
            parts: Vec::new(),
        })
    }

    fn wrong<T>(&self, handle: Handle, expected: &str, found: impl Into<String>) -> Result<T> {
        Err(Error::corruption(self.table.path(), handle.offset, expected, found))
    }

    fn block(&mut self, handle: Handle, header: &Header, bytes: Bytes) -> Result<()> {
        let (file, footer) = (self.table.file(), self.table.footer()?);
        let decode = |bytes| decode_block(file, bytes, handle, header.kind, footer.owner());
        if (header.kind == BlockKind::Data) != (handle.offset < footer.data_end) {
            return self.wrong(handle, "data blocks first", format!("{:?} block", header.kind));
        }
        match header.kind {
            BlockKind::Data => self.data_block(handle, decode(bytes)?),
            BlockKind::Index => {
                self.index_blocks += 1;
                decode(bytes).map(drop)
            }
            kind => {
                self.parts.push((kind, handle));
                open_payload(file, bytes, handle, kind, footer.owner()).map(drop)
            }
        }
    }

    fn data_block(&mut self, handle: Handle, block: Block) -> Result<()> {
        let indexed = self.index.handle()?;
        if indexed != Some(handle) {
            return self.wrong(
                handle,
                "the block that the index gives next",
                format!("{indexed:?} in the index"),
            );
        }
        let mut cursor = BlockCursor::default();
        cursor.set(Some(Held::Own(block)));
        let at = |m: Malformed| m.at(self.table.path(), handle.offset);
        cursor.first().map_err(at)?;
        if let Some((key, seq)) = &self.low
            && !order((key, *seq), (cursor.key(), cursor.seq())).is_lt()
        {
            return self.wrong(
                handle,
                "entries after the separator in the index",
                cursor.key().escape_ascii().to_string(),
            );
        }
        if !cursor.valid() {
            return self.wrong(handle, "a data block with entries", "none");
        }
        self.found_by_search(handle, &cursor)?;
        while cursor.valid() {
            self.entry(handle, &cursor)?;
            cursor.next().map_err(at)?;
        }
        cursor.last().map_err(at)?;
        self.found_by_search(handle, &cursor)?;
        self.step_index(handle)
    }

    /// Whether a search from the root leads to the block with the entry at `cursor`.
    fn found_by_search(&mut self, handle: Handle, cursor: &BlockCursor) -> Result<()> {
        Handles::seek(&mut self.search, cursor.key(), cursor.seq())?;
        match self.search.handle()? {
            Some(found) if found == handle => Ok(()),
            other => self.wrong(handle, "a block that a search leads to", format!("{other:?} instead")),
        }
    }

    fn entry(&mut self, handle: Handle, cursor: &BlockCursor) -> Result<()> {
        let (key, seq) = (cursor.key(), cursor.seq());
        let in_order = self.last.as_ref().is_none_or(|(k, s)| order((k, *s), (key, seq)).is_lt());
        if !in_order {
            return self.wrong(handle, "entries in order", format!("{} @ {seq}", key.escape_ascii()));
        }
        if self.filter.as_ref().is_some_and(|filter| !filter.may_contain(key)) {
            return self.wrong(handle, "every key in the filter", key.escape_ascii().to_string());
        }
        self.seen.count(key, seq, cursor.kind() == Kind::Delete, cursor.value().len());
        let (last_key, last_seq) = self.last.get_or_insert_default();
        last_key.clear();
        last_key.extend_from_slice(key);
        *last_seq = seq;
        Ok(())
    }

    /// Checks the separator behind the data block just read, and moves on to the next.
    fn step_index(&mut self, handle: Handle) -> Result<()> {
        let separator = (self.index.inner().key().to_vec(), self.index.inner().seq());
        let after =
            self.last.as_ref().is_none_or(|(k, s)| order((k, *s), (&separator.0, separator.1)).is_le());
        if !after {
            return self.wrong(handle, "entries up to the separator in the index", "later ones");
        }
        self.low = Some(separator);
        Handles::next(&mut self.index)
    }

    fn finish(mut self) -> Result<()> {
        let footer = *self.table.footer()?;
        let end = Handle { offset: footer.data_end, len: 0 };
        if let Some(handle) = self.index.handle()? {
            return self.wrong(handle, "a data block that the index gives", "none");
        }
        let roots = self.root_entries()?;
        if roots != self.index_blocks {
            return self.wrong(
                end,
                "index blocks that the root gives",
                format!("{} of {roots}", self.index_blocks),
            );
        }
        if self.parts != expected_parts(&footer) {
            return self.wrong(end, "the parts that the footer gives", format!("{:?}", self.parts));
        }
        self.seen.largest = self.last.take().map(|(key, _)| key).unwrap_or_default();
        if self.seen != *self.table.meta() || end_of_parts(&footer) != footer.file_bytes {
            return self.wrong(
                footer.meta,
                "figures that agree with the entries",
                format!("{:?}", self.seen),
            );
        }
        Ok(())
    }

    fn root_entries(&self) -> Result<u64> {
        let mut root = BlockCursor::default();
        let block = self.table.root()?;
        root.set(Some(Held::Cached(block.clone())));
        let at = |m: Malformed| m.at(self.table.path(), block.offset);
        root.first().map_err(at)?;
        let mut count = 0;
        while root.valid() {
            count += 1;
            root.next().map_err(at)?;
        }
        Ok(count)
    }
}

fn expected_parts(footer: &Footer) -> Vec<(BlockKind, Handle)> {
    let filter = footer.filter.map(|handle| (BlockKind::Filter, handle));
    let parts = [Some((BlockKind::Root, footer.root)), filter, Some((BlockKind::Meta, footer.meta))];
    parts.into_iter().flatten().collect()
}

fn end_of_parts(footer: &Footer) -> u64 {
    footer.meta.end() + FOOTER_BYTES as u64
}
