//! A cursor over the entries of a row of blocks, which another cursor finds by their handles.
//!
//! A table is two such levels: the root's entries find index blocks, whose entries find data blocks.
//! Each level is the same walk, written once: [`Nested`] over [`RootCursor`], and over that again.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::Result;

use crate::block::{Block, BlockCursor, Held};
use crate::frame::{BlockKind, Handle, Malformed};
use crate::index::decode_handle;
use crate::source::Source;
use crate::table::Table;

/// A cursor over the handles of blocks, ordered by separators.
pub(crate) trait Handles {
    fn first(&mut self) -> Result<()>;
    fn last(&mut self) -> Result<()>;
    /// Moves to the first block whose separator is at or after (`key`, `seq`).
    fn seek(&mut self, key: &[u8], seq: u64) -> Result<()>;
    fn next(&mut self) -> Result<()>;
    fn prev(&mut self) -> Result<()>;
    /// The handle here, if anywhere.
    fn handle(&self) -> Result<Option<Handle>>;
}

/// The handles in the root block, which is read by the first move if the table has not been used before.
#[derive(Debug)]
pub(crate) struct RootCursor {
    table: Arc<Table>,
    inner: BlockCursor,
}

/// The handles of all data blocks.
pub(crate) type IndexCursor = Nested<RootCursor>;

fn located(table: &Table, block: Option<&Block>, moved: Result<(), Malformed>) -> Result<()> {
    moved.map_err(|m| m.at(table.path(), block.map_or(0, |b| b.offset)))
}

fn handle_in(table: &Table, cursor: &BlockCursor, kind: BlockKind) -> Result<Option<Handle>> {
    let Some(block) = cursor.block().filter(|_| cursor.valid()) else { return Ok(None) };
    let (_, limit) = table.region(kind)?;
    let handle = decode_handle(block.bytes(cursor.value()), limit);
    handle.map(Some).map_err(|m| m.at(table.path(), block.offset))
}

impl RootCursor {
    pub fn new(table: &Arc<Table>) -> Self {
        RootCursor { table: table.clone(), inner: BlockCursor::default() }
    }

    fn enter(&mut self) -> Result<()> {
        if self.inner.block().is_none() {
            self.inner.set(Some(Held::Cached(self.table.root()?.clone())));
        }
        Ok(())
    }

    /// The separator here, if anywhere.
    pub fn key(&self) -> Option<&[u8]> {
        self.inner.valid().then(|| self.inner.key())
    }

    fn moved(&self, moved: Result<(), Malformed>) -> Result<()> {
        located(&self.table, self.inner.block(), moved)
    }
}

impl Handles for RootCursor {
    fn first(&mut self) -> Result<()> {
        self.enter()?;
        let moved = self.inner.first();
        self.moved(moved)
    }
    fn last(&mut self) -> Result<()> {
        self.enter()?;
        let moved = self.inner.last();
        self.moved(moved)
    }
    fn seek(&mut self, key: &[u8], seq: u64) -> Result<()> {
        self.enter()?;
        let moved = self.inner.seek(key, seq);
        self.moved(moved)
    }
    fn next(&mut self) -> Result<()> {
        let moved = self.inner.next();
        self.moved(moved)
    }
    fn prev(&mut self) -> Result<()> {
        let moved = self.inner.prev();
        self.moved(moved)
    }
    fn handle(&self) -> Result<Option<Handle>> {
        handle_in(&self.table, &self.inner, BlockKind::Index)
    }
}

/// Blocks, by their offsets, that a cursor goes past as if they were empty.
pub type PassedBlocks = Arc<BTreeSet<u64>>;

/// A cursor over the entries of the blocks that `outer` finds.
///
/// Invariant: the inner cursor is in the block that `outer` is at, or in none; after an error in none. It is in none of
/// `passed`.
#[derive(Debug)]
pub(crate) struct Nested<O> {
    outer: O,
    inner: BlockCursor,
    source: Source,
    passed: Option<PassedBlocks>,
}

impl IndexCursor {
    pub fn index(table: &Arc<Table>, fill_cache: bool) -> Self {
        let source = Source::new(table, BlockKind::Index, fill_cache, 0);
        Nested { outer: RootCursor::new(table), inner: BlockCursor::default(), source, passed: None }
    }
}

impl Nested<IndexCursor> {
    pub fn data(
        table: &Arc<Table>,
        fill_cache: bool,
        readahead: usize,
        passed: Option<PassedBlocks>,
    ) -> Self {
        let source = Source::new(table, BlockKind::Data, fill_cache, readahead);
        Nested { outer: IndexCursor::index(table, fill_cache), inner: BlockCursor::default(), source, passed }
    }
}

/// Which way to go on from the end of a block.
#[derive(Clone, Copy)]
enum Way {
    Forward,
    Back,
}

impl<O: Handles> Nested<O> {
    /// The block that the cursor is in.
    pub fn here(&self) -> Option<Handle> {
        self.inner.block().and_then(|_| self.outer.handle().ok().flatten())
    }

    pub fn inner(&self) -> &BlockCursor {
        &self.inner
    }

    /// Runs `moves`; if that fails, the cursor is nowhere.
    fn guard(&mut self, moves: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        moves(self).inspect_err(|_| self.inner.set(None))
    }

    fn in_block(&mut self, moves: impl FnOnce(&mut BlockCursor) -> Result<(), Malformed>) -> Result<()> {
        let moved = moves(&mut self.inner);
        self.check_map()?;
        located(self.source.table(), self.inner.block(), moved)
    }

    /// An error if the bytes read so far come from a mapping that has failed.
    fn check_map(&self) -> Result<()> {
        if self.inner.is_mapped() { self.source.table().check_map() } else { Ok(()) }
    }

    /// The value of the entry here; empty where there is none.
    pub fn value(&self) -> Result<Bytes> {
        match self.inner.block() {
            Some(block) if self.inner.is_mapped() => {
                self.source.table().value_of_mapped(block, self.inner.value())
            }
            Some(block) => Ok(block.share(self.inner.value())),
            None => Ok(Bytes::new()),
        }
    }

    /// The same in its place, until the cursor moves.
    pub fn value_in_place(&self) -> Result<&[u8]> {
        match self.inner.block() {
            Some(block) if self.inner.is_mapped() => {
                self.source.table().look_at_mapped(block, self.inner.value())
            }
            Some(block) => Ok(block.bytes(self.inner.value())),
            None => Ok(&[]),
        }
    }

    /// Moves `outer` on while it is at a block that is to be passed.
    fn pass(&mut self, way: Way) -> Result<()> {
        let Some(passed) = self.passed.clone() else { return Ok(()) };
        while let Some(handle) = self.outer.handle()?.filter(|handle| passed.contains(&handle.offset)) {
            self.source.pass(handle);
            self.step(way)?;
        }
        Ok(())
    }

    fn step(&mut self, way: Way) -> Result<()> {
        match way {
            Way::Forward => self.outer.next(),
            Way::Back => self.outer.prev(),
        }
    }

    /// Enters the block that `outer` is at; false if it is at none.
    fn enter(&mut self) -> Result<bool> {
        self.inner.set(None);
        let Some(handle) = self.outer.handle()? else { return Ok(false) };
        let block = self.source.fetch(handle)?;
        self.inner.set(Some(block));
        Ok(true)
    }

    /// Goes on to the next block with an entry while there is none here.
    fn skip_empty(&mut self, way: Way) -> Result<()> {
        while !self.inner.valid() && self.inner.block().is_some() {
            self.step(way)?;
            self.pass(way)?;
            if self.enter()? {
                match way {
                    Way::Forward => self.in_block(BlockCursor::first)?,
                    Way::Back => self.in_block(BlockCursor::last)?,
                }
            }
        }
        Ok(())
    }

    fn enter_last(&mut self) -> Result<()> {
        self.outer.last()?;
        self.pass(Way::Back)?;
        if self.enter()? {
            self.in_block(BlockCursor::last)?;
        }
        self.skip_empty(Way::Back)
    }

    pub fn seek_first(&mut self) -> Result<()> {
        self.guard(|this| {
            this.source.begin_scan();
            this.outer.first()?;
            this.pass(Way::Forward)?;
            if this.enter()? {
                this.in_block(BlockCursor::first)?;
            }
            this.skip_empty(Way::Forward)
        })
    }

    pub fn seek_last(&mut self) -> Result<()> {
        self.guard(|this| {
            this.source.jump();
            this.enter_last()
        })
    }

    pub fn seek(&mut self, key: &[u8], seq: u64) -> Result<()> {
        self.guard(|this| {
            this.source.jump();
            this.outer.seek(key, seq)?;
            this.pass(Way::Forward)?;
            if this.enter()? {
                this.in_block(|inner| inner.seek(key, seq))?;
            }
            this.skip_empty(Way::Forward)
        })
    }

    pub fn seek_back(&mut self, key: &[u8], seq: u64) -> Result<()> {
        self.guard(|this| {
            this.source.jump();
            this.inner.set(None);
            this.outer.seek(key, seq)?;
            if this.outer.handle()?.is_none() {
                return this.enter_last();
            }
            this.pass(Way::Back)?;
            if this.enter()? {
                this.in_block(|inner| inner.seek_back(key, seq))?;
            }
            this.skip_empty(Way::Back)
        })
    }

    pub fn next(&mut self) -> Result<()> {
        if !self.inner.valid() {
            return Ok(());
        }
        self.source.go_on();
        self.guard(|this| {
            this.in_block(BlockCursor::next)?;
            this.skip_empty(Way::Forward)
        })
    }

    pub fn prev(&mut self) -> Result<()> {
        if !self.inner.valid() {
            return Ok(());
        }
        self.source.go_back();
        self.guard(|this| {
            this.in_block(BlockCursor::prev)?;
            this.skip_empty(Way::Back)
        })
    }
}

impl Handles for IndexCursor {
    fn first(&mut self) -> Result<()> {
        self.seek_first()
    }
    fn last(&mut self) -> Result<()> {
        self.seek_last()
    }
    fn seek(&mut self, key: &[u8], seq: u64) -> Result<()> {
        Nested::seek(self, key, seq)
    }
    fn next(&mut self) -> Result<()> {
        Nested::next(self)
    }
    fn prev(&mut self) -> Result<()> {
        Nested::prev(self)
    }
    fn handle(&self) -> Result<Option<Handle>> {
        let handle = handle_in(self.source.table(), &self.inner, BlockKind::Data);
        self.check_map()?;
        handle
    }
}
