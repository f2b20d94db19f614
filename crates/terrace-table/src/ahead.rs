//! Reads the blocks ahead of a scan by positions; blocks that lie close together are read at once.
//!
//! These blocks do not go into the cache, which is left to point reads: a long scan would displace the blocks that they
//! need.

use bytes::{Bytes, BytesMut};
use terrace_base::Result;

use crate::block::{Block, Held};
use crate::entry::Entry;
use crate::frame::{BlockKind, Handle, Header};
use crate::position::Position;
use crate::table::Table;

/// Bytes between two blocks that are read along rather than by a read of their own: copying them costs less.
const GAP_BYTES: u64 = 4 << 10;

/// Most bytes read at once. Values share what they were read with, so that holding one holds as much.
const WINDOW_BYTES: u64 = 64 << 10;

/// Bytes of buffers that are kept for further reads, at most.
const BUFFERS_BYTES: usize = 128 << 10;

/// Bytes of the smallest of them.
const SMALLEST_BUFFER_BYTES: usize = 4 << 10;

/// The buffers of a scan: one is reused once no value shares it any more. The allocator would return a different one
/// each time, which is not in the processor's cache and has to be cleared.
#[derive(Debug, Default)]
pub struct ReadBuffers {
    used: Vec<Bytes>,
}

impl ReadBuffers {
    /// At least `len` bytes with arbitrary contents.
    fn take(&mut self, len: usize) -> BytesMut {
        let fits = |buffer: &Bytes| buffer.len() >= len && buffer.is_unique();
        let smallest =
            (0..self.used.len()).filter(|i| fits(&self.used[*i])).min_by_key(|i| self.used[*i].len());
        let again = smallest.map(|i| self.used.swap_remove(i));
        let again = again.and_then(|buffer| buffer.try_into_mut().ok());
        again.unwrap_or_else(|| BytesMut::zeroed(len.next_power_of_two().max(SMALLEST_BUFFER_BYTES)))
    }

    /// Bytes that have been read.
    fn share(&mut self, buffer: BytesMut, len: usize) -> Bytes {
        let held = |used: &[Bytes]| used.iter().map(Bytes::len).sum::<usize>();
        while !self.used.is_empty() && held(&self.used) + buffer.len() > BUFFERS_BYTES {
            self.used.remove(0);
        }
        let buffer = buffer.freeze();
        let bytes = buffer.slice(..len);
        self.used.push(buffer);
        bytes
    }
}

/// Blocks next to one another that one read fetches.
struct Window {
    start: u64,
    end: u64,
    bytes: Option<Bytes>,
    /// The block last asked for.
    block: Option<Held>,
}

impl Table {
    /// As [`find_many`](crate::find_many) for positions in ascending order whose entries are wanted soon but perhaps
    /// not at all: entries that cannot be read now are left out, and a later request for them returns the error. Values
    /// share up to 64 KiB that were read with them, in one of `buffers`, or the mapping.
    pub fn get_ahead(
        &self,
        requests: &[(Position, &[u8])],
        max_seq: u64,
        buffers: &mut ReadBuffers,
    ) -> Vec<Option<Entry>> {
        match self.map() {
            Some(map) => self.get_ahead_mapped(map, requests, max_seq),
            None => self.get_ahead_by_calls(requests, max_seq, buffers),
        }
    }

    /// Asks the system to read soon what [`get_ahead`](Self::get_ahead) will read for `requests`, as far as nobody has
    /// read it. A caller that is going to read from several tables lets the disk work on all of them at once.
    pub fn announce_ahead(&self, requests: &[(Position, &[u8])]) {
        let mut rest = requests;
        while let Some(&(position, _)) = rest.first() {
            let Ok(window) = self.check_position(position).and_then(|()| self.window(rest)) else { return };
            self.announce(window.start, window.end - window.start);
            rest = &rest[rest.partition_point(|(position, _)| position.offset() < window.end)..];
        }
    }

    fn get_ahead_by_calls(
        &self,
        requests: &[(Position, &[u8])],
        max_seq: u64,
        buffers: &mut ReadBuffers,
    ) -> Vec<Option<Entry>> {
        let mut out = Vec::with_capacity(requests.len());
        let mut window: Option<Window> = None;
        for (i, &(position, key)) in requests.iter().enumerate() {
            if window.as_ref().is_none_or(|w| position.offset() >= w.end) {
                window = self.check_position(position).and_then(|()| self.window(&requests[i..])).ok();
            }
            let found = window.as_mut().map(|window| {
                let block = self.block_ahead(window, position, buffers)?;
                self.find_or_follow(block, key, max_seq)
            });
            out.push(found.and_then(|found| found.ok().flatten()));
        }
        out
    }

    /// The range to read at once for the first of `requests`, and the requests that it covers.
    fn window(&self, requests: &[(Position, &[u8])]) -> Result<Window> {
        let data_end = self.footer()?.data_end;
        let end_of = |position: Position| (position.offset() + position.read_len() as u64).min(data_end);
        let start = requests[0].0.offset();
        let mut end = end_of(requests[0].0);
        for &(position, _) in &requests[1..] {
            let next = end_of(position);
            if position.is_long() || position.offset() > end + GAP_BYTES || next > start + WINDOW_BYTES {
                break;
            }
            end = end.max(next);
        }
        Ok(Window { start, end, bytes: None, block: None })
    }

    fn block_ahead<'w>(
        &self,
        window: &'w mut Window,
        position: Position,
        buffers: &mut ReadBuffers,
    ) -> Result<&'w Block> {
        let offset = position.offset();
        let block = match (window.block.take(), &window.bytes) {
            (Some(block), _) if block.offset == offset => block,
            (_, Some(bytes)) => self.cut(bytes, window.start, position)?,
            // The neighbours of a cached block are likely to be cached, too; those of another block are not.
            (_, None) => match self.cached(offset) {
                Some(block) => Held::Cached(block),
                None => {
                    let len = (window.end - offset) as usize;
                    let mut buffer = buffers.take(len);
                    self.read_into(offset, &mut buffer[..len])?;
                    window.start = offset;
                    self.cut(window.bytes.insert(buffers.share(buffer, len)), offset, position)?
                }
            },
        };
        Ok(window.block.insert(block))
    }

    /// The block at `position` in `bytes`, which were read from `start` on; by a read of its own if it does not
    /// end in them.
    fn cut(&self, bytes: &Bytes, start: u64, position: Position) -> Result<Held> {
        let offset = position.offset();
        let at = (offset - start) as usize;
        let rest = &bytes[at..];
        let header =
            Header::decode(rest, offset, self.footer()?.origin).map_err(|m| m.at(self.path(), offset))?;
        let handle = Handle { offset, len: header.block_len() };
        if handle.len > rest.len() as u64 {
            return self.load_at(position).map(Held::Cached);
        }
        let block = bytes.slice(at..at + handle.len as usize);
        self.decode_block(block, handle, BlockKind::Data).map(Held::Own)
    }
}
