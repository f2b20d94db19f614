//! Recovers the sound entries of a damaged table.
//!
//! If the index can be read, it leads to the data blocks. Otherwise the file is read block by block: a header tells
//! where the next one is, and behind a damaged header the next sound one is searched for at every multiple of 16 bytes.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_disk::{Access, Fs, ReadFile};

use crate::block::{Block, BlockCursor, Held};
use crate::cache::BlockCache;
use crate::entry::Kind;
use crate::footer::{HEAD_BYTES, may_be_table};
use crate::frame::{BlockKind, HEADER_BYTES, Handle, Header, Malformed, Owner};
use crate::nested::{Handles, Nested};
use crate::position::BLOCK_ALIGN;
use crate::scan::Scanner;
use crate::table::Table;
use crate::tail::{Tail, decode_block};

/// A part of a table that could not be brought back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostRange {
    /// Where the part starts in the file.
    pub offset: u64,
    /// Its length in bytes. 0 at the end of a file whose end is missing.
    pub len: u64,
    /// The last key recovered before it: the lost keys are at or after this key.
    pub after: Option<Vec<u8>>,
    /// The first key recovered behind it: the lost keys are at or before this key.
    pub before: Option<Vec<u8>>,
}

/// The report of [`salvage`]: what was recovered and what is lost.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Salvaged {
    /// The table's number, if the footer or a block of the origin still has it.
    pub number: Option<u64>,
    /// The table's origin, if its footer still has it.
    pub origin: Option<u64>,
    /// Data blocks brought back.
    pub blocks: u64,
    /// Entries brought back.
    pub entries: u64,
    /// Whether the index was sound; if not, blocks were looked for.
    pub index_sound: bool,
    /// The parts of the data that are gone, in order.
    pub lost: Vec<LostRange>,
}

/// Receives the entries that [`salvage`] brings back.
type Take<'a> = &'a mut dyn FnMut(&[u8], u64, Kind, Bytes) -> Result<()>;

/// Gives every entry of the undamaged blocks of the table at `path` to `take`, in order.
///
/// If its footer does not identify the table any more, it is taken for table `number` of `origin`. Blocks of another
/// table or another origin count as lost.
///
/// # Errors
/// `InvalidFormat` if the file is not a table, or holds entries that only a later version knows; errors of `take`;
/// errors of opening the file. Damage and parts that cannot be read are no errors: they are in the report.
pub fn salvage(fs: &dyn Fs, path: &Path, number: u64, origin: u64, take: Take<'_>) -> Result<Salvaged> {
    let file = fs.open(path, Access::Sequential)?;
    let footer = Tail::read(&*file).and_then(|tail| tail.footer(&*file)).ok();
    let expected = Owner { number: u32::try_from(number).unwrap_or(u32::MAX), origin };
    let owner = footer.map_or(expected, |footer| footer.owner());
    let number = footer.map(|footer| u64::from(footer.number));
    let report = Salvaged { number, origin: footer.map(|footer| footer.origin), ..Salvaged::default() };
    let scanner = Scanner::new(&*file);
    let mut work = Work { file: &*file, scanner, owner, report, lost: None, last_key: None, take };
    match footer.and_then(|footer| index(fs, path, footer.number)) {
        Some(handles) => work.by_index(&handles)?,
        None => work.by_scan(footer.map(|footer| footer.data_end))?,
    }
    let (head, report) = (work.scanner.bytes(0, file.len().min(HEAD_BYTES as u64)), work.report);
    if report.number.is_none() && head.is_ok_and(|head| !may_be_table(&head)) {
        let supported = "a table".to_string();
        return Err(Error::foreign(path, "no block of a table", supported));
    }
    Ok(report)
}

/// The data blocks of the table, if the index is sound.
fn index(fs: &dyn Fs, path: &Path, number: u32) -> Option<Vec<Handle>> {
    let cache = Arc::new(BlockCache::new(0));
    let table = Table::open(fs, path, u64::from(number), cache, Access::Sequential).ok()?;
    let mut index = Nested::index(&table, false);
    let mut handles = Vec::new();
    Handles::first(&mut index).ok()?;
    while let Some(handle) = index.handle().ok()? {
        handles.push(handle);
        Handles::next(&mut index).ok()?;
    }
    Some(handles)
}

struct Work<'a> {
    file: &'a dyn ReadFile,
    scanner: Scanner<'a>,
    /// The identity that a block must be bound to.
    owner: Owner,
    report: Salvaged,
    /// The lost range that is not over yet, without its length.
    lost: Option<LostRange>,
    last_key: Option<Vec<u8>>,
    take: Take<'a>,
}

impl Work<'_> {
    fn by_index(&mut self, handles: &[Handle]) -> Result<()> {
        self.report.index_sound = true;
        let mut end = HEAD_BYTES as u64;
        for &handle in handles {
            match self.load(handle) {
                Ok(block) => self.give(block)?,
                Err(e) if e.is_of_another_version() => return Err(e),
                Err(_) => self.lose(handle.offset),
            }
            end = handle.end();
        }
        self.found(end, None);
        Ok(())
    }

    /// Searches for data blocks up to `data_end`, or if that is not known up to a block of another kind.
    fn by_scan(&mut self, data_end: Option<u64>) -> Result<()> {
        let end = data_end.unwrap_or(self.file.len());
        let mut at = HEAD_BYTES as u64;
        let mut data_over = data_end.is_some();
        while at + HEADER_BYTES as u64 <= end {
            let Some(header) = self.header(at) else {
                self.lose(at);
                at += BLOCK_ALIGN;
                continue;
            };
            if header.kind != BlockKind::Data {
                data_over = true;
                break;
            }
            let handle = Handle { offset: at, len: header.block_len() };
            match self.load(handle) {
                Ok(block) => self.give(block)?,
                Err(e) if e.is_of_another_version() => return Err(e),
                Err(_) => self.lose(at),
            }
            at = if handle.end() <= end { handle.end() } else { at + BLOCK_ALIGN };
        }
        if !data_over {
            at = end;
            self.lose(at);
        }
        self.found(at, None);
        Ok(())
    }

    /// The sound header at `at`, if it is this table's.
    fn header(&mut self, at: u64) -> Option<Header> {
        let bytes = self.scanner.bytes(at, HEADER_BYTES as u64).ok()?;
        let header =
            Header::starts_at(&bytes).then(|| Header::decode(&bytes, at, self.owner.origin).ok())??;
        let is_own = header.number == self.owner.number;
        if is_own || self.report.number.is_none() {
            self.report.number = Some(u64::from(header.number));
        }
        is_own.then_some(header)
    }

    fn load(&mut self, handle: Handle) -> Result<Arc<Block>> {
        let bytes = self.scanner.bytes(handle.offset, handle.len)?;
        let block = Arc::new(decode_block(self.file, bytes, handle, BlockKind::Data, self.owner)?);
        // A block is given as a whole or not at all, so all of it is decoded first.
        let mut cursor = BlockCursor::default();
        cursor.set(Some(Held::Cached(block.clone())));
        let mut moved = cursor.first();
        while moved.is_ok() && cursor.valid() {
            moved = cursor.next();
        }
        moved.map_err(|m| m.at(self.file.path(), handle.offset))?;
        Ok(block)
    }

    /// Gives the entries of a sound block.
    fn give(&mut self, block: Arc<Block>) -> Result<()> {
        let mut cursor = BlockCursor::default();
        cursor.set(Some(Held::Cached(block.clone())));
        let at = |m: Malformed| m.at(self.file.path(), block.offset);
        cursor.first().map_err(at)?;
        self.found(block.offset, cursor.valid().then(|| cursor.key().to_vec()));
        self.report.blocks += 1;
        while cursor.valid() {
            (self.take)(cursor.key(), cursor.seq(), cursor.kind(), block.share(cursor.value()))?;
            self.report.entries += 1;
            let key = self.last_key.get_or_insert_default();
            key.clear();
            key.extend_from_slice(cursor.key());
            cursor.next().map_err(|m| m.at(self.file.path(), block.offset))?;
        }
        Ok(())
    }

    /// The bytes from `offset` on are lost, up to the next sound block.
    fn lose(&mut self, offset: u64) {
        let range = || LostRange { offset, len: 0, after: self.last_key.clone(), before: None };
        self.lost.get_or_insert_with(range);
    }

    /// Something sound starts at `offset`, with `key` if it is data.
    fn found(&mut self, offset: u64, key: Option<Vec<u8>>) {
        if let Some(lost) = self.lost.take() {
            self.report.lost.push(LostRange { len: offset.saturating_sub(lost.offset), before: key, ..lost });
        }
    }
}
