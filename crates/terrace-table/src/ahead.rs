//! Reading the blocks that a scan by positions will come to, those that lie close together at once.
//!
//! What is read here does not go into the cache, which is left to point reads: a long scan would displace all that
//! they profit from.

use std::sync::Arc;

use bytes::Bytes;
use terrace_base::Result;

use crate::block::Block;
use crate::entry::Entry;
use crate::frame::{BlockKind, Handle, Header};
use crate::position::Position;
use crate::table::Table;

/// Bytes between two blocks that are read along rather than by a read of their own: copying them costs less.
const GAP_BYTES: u64 = 4 << 10;

/// Most bytes read at once. Values share what they were read with, so that holding one holds as much.
const WINDOW_BYTES: u64 = 64 << 10;

/// Blocks next to one another that one read fetches.
struct Window {
    start: u64,
    end: u64,
    bytes: Option<Bytes>,
    /// The block last asked for.
    block: Option<Arc<Block>>,
}

impl Table {
    /// As [`get_many`](Table::get_many), for positions in ascending order whose entries are wanted soon but perhaps
    /// not at all: what cannot be read now is left out, and whoever then asks for it hears why. Values
    /// share up to 64 KiB that were read with them.
    pub fn get_ahead(&self, requests: &[(Position, &[u8])], max_seq: u64) -> Vec<Option<Entry>> {
        let mut out = Vec::with_capacity(requests.len());
        let mut window: Option<Window> = None;
        for (i, &(position, key)) in requests.iter().enumerate() {
            if window.as_ref().is_none_or(|w| position.offset() >= w.end) {
                window = self.check_position(position).ok().map(|()| self.window(&requests[i..]));
            }
            let found = window.as_mut().map(|window| {
                let block = self.block_ahead(window, position)?;
                self.find_or_follow(&block, key, max_seq)
            });
            out.push(found.and_then(|found| found.ok().flatten()));
        }
        out
    }

    /// What to read at once for the first of `requests`, and with it.
    fn window(&self, requests: &[(Position, &[u8])]) -> Window {
        let data_end = self.footer().data_end;
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
        Window { start, end, bytes: None, block: None }
    }

    fn block_ahead(&self, window: &mut Window, position: Position) -> Result<Arc<Block>> {
        let offset = position.offset();
        if let Some(block) = window.block.as_ref().filter(|block| block.offset == offset) {
            return Ok(block.clone());
        }
        let block = match &window.bytes {
            Some(bytes) => self.cut(bytes, window.start, position)?,
            // A block in the cache is likely to have its neighbours there; one that is not, is not.
            None => match self.cached(offset) {
                Some(block) => block,
                None => {
                    let bytes = Bytes::from(self.read(offset, (window.end - offset) as usize)?);
                    window.start = offset;
                    self.cut(window.bytes.insert(bytes), offset, position)?
                }
            },
        };
        Ok(window.block.insert(block).clone())
    }

    /// The block at `position` in `bytes`, which were read from `start` on; by a read of its own if it does not
    /// end in them.
    fn cut(&self, bytes: &Bytes, start: u64, position: Position) -> Result<Arc<Block>> {
        let offset = position.offset();
        let rest = bytes.slice((offset - start) as usize..);
        let header = Header::decode(&rest, offset).map_err(|m| m.at(self.path(), offset))?;
        let handle = Handle { offset, len: header.block_len() };
        if handle.len > rest.len() as u64 {
            return self.load_at(position);
        }
        self.decode_block(rest.slice(..handle.len as usize), handle, BlockKind::Data).map(Arc::new)
    }
}
