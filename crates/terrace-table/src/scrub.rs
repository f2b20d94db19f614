//! Compares the checksums of a table's blocks with its file, a piece at a time: what nobody reads is looked at, too.
//!
//! 1. Everything is read from the file, past the page cache where the file system allows it. Neither the block cache
//!    nor a mapping is asked or filled.
//! 2. A piece costs memory and time in proportion to its bytes, however long a block is: the checksum of a block is
//!    carried from one piece to the next.
//! 3. A place is behind everything that was compared, so that nothing but a few bytes of a header is read twice.
//! 4. Behind a damaged header the next sound one is searched for, at every multiple of 16 bytes. What lies between is
//!    one damage.
//! 5. A table with damage is no longer read through its mapping, which believes a block that it has verified once. By
//!    calls a block is verified whenever it is read from the file.

use terrace_base::checksum::crc32c_append;
use terrace_base::{Error, Result};
use terrace_disk::ReadFile;

use crate::footer::{FOOTER_BYTES, HEAD_BYTES};
use crate::frame::{HEADER_BYTES, Handle, Header};
use crate::position::BLOCK_ALIGN;
use crate::table::Table;
use crate::tail::Tail;

/// How far the checksums of a table are compared; the default is its start.
#[derive(Debug, Clone, Default)]
pub struct ScrubPlace {
    /// The next byte; 0 while the ends have not been looked at.
    at: u64,
    /// The block that was begun.
    block: Option<Begun>,
    /// Whether damage was told behind which no sound header was found yet.
    is_lost: bool,
    is_done: bool,
}

/// A block of which a part was read.
#[derive(Debug, Clone, Copy)]
struct Begun {
    offset: u64,
    /// Bytes of its payload that were not read, and the checksum of those that were.
    left: u64,
    crc: u32,
    expected: u32,
}

impl ScrubPlace {
    /// Whether all of the table is compared.
    pub fn is_done(&self) -> bool {
        self.is_done
    }
}

/// Receives what a scrub has found damaged.
pub type Damaged<'a> = dyn FnMut(Error) + 'a;

/// The fewest bytes of a piece: the zeros between two blocks and a header.
const LEAST_BYTES: usize = BLOCK_ALIGN as usize + HEADER_BYTES;

impl Table {
    /// Compares the next `most` bytes from `place` on with their checksums, and moves it. What is `damaged` is told,
    /// and is no error. Returns the bytes that were read.
    ///
    /// # Errors
    /// `Io` if the file cannot be read. The place stays.
    pub fn scrub(&self, place: &mut ScrubPlace, most: usize, damaged: &mut Damaged<'_>) -> Result<u64> {
        let mut is_damaged = false;
        let mut tell = |error| {
            is_damaged = true;
            damaged(error);
        };
        let outcome = self.scrub_piece(place, most.max(LEAST_BYTES), &mut tell);
        let outcome = match outcome {
            // It is cut short, or not there: nothing more of it can be compared.
            Err(error) if !error.is_system_failure() => {
                tell(error);
                place.is_done = true;
                Ok(0)
            }
            outcome => outcome,
        };
        if is_damaged {
            self.leave_map();
        }
        outcome
    }

    fn scrub_piece(&self, place: &mut ScrubPlace, most: usize, tell: &mut Damaged<'_>) -> Result<u64> {
        let medium = self.file().past_cache()?;
        let file = medium.as_deref().unwrap_or(self.file());
        let limit = file.len().saturating_sub(FOOTER_BYTES as u64);
        let mut bytes = 0;
        if place.at == 0 {
            let tail = Tail::read(file)?;
            let found = tail.footer(file).and_then(|footer| self.refuse_other(footer.number, footer.origin));
            found.unwrap_or_else(&mut *tell);
            place.at = HEAD_BYTES as u64;
            bytes += (HEAD_BYTES + FOOTER_BYTES) as u64;
        }
        let len = limit.saturating_sub(place.at).min(most as u64);
        let mut piece = vec![0; len as usize];
        file.read_at(place.at, &mut piece)?;
        let before = place.at;
        let mut walk = Walk { table: self, file, place, piece: &piece, limit, tell };
        walk.run();
        place.is_done = place.at >= limit;
        Ok(bytes + place.at - before)
    }

    fn refuse_other(&self, number: u32, origin: u64) -> Result<()> {
        if (u64::from(number), origin) == (self.number(), self.origin()) {
            return Ok(());
        }
        let expected = format!("table {} of origin {:#018x}", self.number(), self.origin());
        let found = format!("table {number} of origin {origin:#018x}");
        Err(Error::corruption(self.path(), 0, expected, found))
    }
}

/// The blocks of a piece, which begins at `place`.
struct Walk<'a, 'b> {
    table: &'a Table,
    file: &'a dyn ReadFile,
    place: &'a mut ScrubPlace,
    /// What was not walked over yet.
    piece: &'a [u8],
    /// Where the footer begins.
    limit: u64,
    tell: &'a mut Damaged<'b>,
}

impl Walk<'_, '_> {
    fn run(&mut self) {
        while !self.piece.is_empty() {
            match self.place.block {
                Some(block) => self.go_on(block),
                None => {
                    if !self.begin() {
                        return;
                    }
                }
            }
        }
    }

    fn pass(&mut self, bytes: usize) {
        self.place.at += bytes as u64;
        self.piece = &self.piece[bytes..];
    }

    fn wrong(&mut self, offset: u64, expected: &str, found: impl Into<String>) {
        (self.tell)(Error::corruption(self.file.path(), offset, expected, found));
    }

    /// Reads on in the payload of `block`.
    fn go_on(&mut self, mut block: Begun) {
        let part = self.piece.len().min(usize::try_from(block.left).unwrap_or(usize::MAX));
        block.crc = crc32c_append(block.crc, &self.piece[..part]);
        block.left -= part as u64;
        self.pass(part);
        self.place.block = (block.left > 0).then_some(block);
        if block.left == 0 && block.crc != block.expected {
            let found = format!("checksum {:#010x} instead of {:#010x}", block.crc, block.expected);
            self.wrong(block.offset, "a payload with its checksum", found);
        }
    }

    /// Begins with the next block, or goes past what is none; false if its header is not all in the piece.
    fn begin(&mut self) -> bool {
        let zeros = (self.place.at.next_multiple_of(BLOCK_ALIGN) - self.place.at) as usize;
        let is_last = self.place.at + self.piece.len() as u64 == self.limit;
        if self.piece.len() < zeros + HEADER_BYTES {
            if is_last {
                self.end(zeros);
            }
            return is_last;
        }
        if !self.place.is_lost && self.piece[..zeros].iter().any(|&byte| byte != 0) {
            self.wrong(self.place.at, "zeros up to the next block", "other bytes");
        }
        self.pass(zeros);
        match self.header() {
            Ok(header) => {
                let (offset, left) = (self.place.at, u64::from(header.stored));
                self.place.block = Some(Begun { offset, left, crc: 0, expected: header.payload_crc });
                self.place.is_lost = false;
                self.pass(HEADER_BYTES);
            }
            Err(error) => {
                self.lose(error);
                self.pass(BLOCK_ALIGN as usize);
            }
        }
        true
    }

    /// Less than a header is left before the footer: there are at most the zeros behind the last block.
    fn end(&mut self, zeros: usize) {
        if !self.place.is_lost && (self.piece.len() > zeros || self.piece.iter().any(|&byte| byte != 0)) {
            self.wrong(self.place.at, "zeros up to the footer", "other bytes");
        }
        self.pass(self.piece.len());
    }

    fn lose(&mut self, error: Option<Error>) {
        if !std::mem::replace(&mut self.place.is_lost, true) {
            error.into_iter().for_each(&mut *self.tell);
        }
    }

    /// The header at the place. The error is there unless damage was told already.
    fn header(&self) -> std::result::Result<Header, Option<Error>> {
        let (path, offset) = (self.file.path(), self.place.at);
        if self.place.is_lost && !Header::starts_at(self.piece) {
            return Err(None);
        }
        let header =
            Header::decode(self.piece, offset, self.table.origin()).map_err(|m| m.at(path, offset))?;
        let handle = Handle { offset, len: header.block_len() };
        if u64::from(header.number) != self.table.number() {
            let expected = format!("a block of table {}", self.table.number());
            return Err(Some(Error::corruption(path, offset, expected, format!("of {}", header.number))));
        }
        if handle.end() > self.limit {
            let found = format!("{} bytes", handle.len);
            return Err(Some(Error::corruption(path, offset, "a block before the footer", found)));
        }
        Ok(header)
    }
}
