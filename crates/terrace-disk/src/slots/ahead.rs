//! Items that are read in order, several at once.
//!
//! The first is read alone, the next two together, then four, and so on, as many as have [`WINDOW_BYTES`] and no more than
//! [`WINDOW_ITEMS`]: whoever stops early has had little read for nothing.

use std::collections::VecDeque;
use std::iter::Peekable;

use terrace_base::Result;

use super::{Slot, Slots};
use crate::block::BlockBuf;

/// What is read at once, at most, unless one item has more.
const WINDOW_BYTES: u64 = 8 << 20;
const WINDOW_ITEMS: usize = 64;

/// Items in the order of their slots; it ends with the first that cannot be read.
#[derive(Debug)]
pub struct Ahead<'a, I: Iterator<Item = Slot>> {
    slots: &'a Slots,
    left: Peekable<I>,
    ready: VecDeque<BlockBuf>,
    count: usize,
    has_failed: bool,
}

impl<'a, I: Iterator<Item = Slot>> Ahead<'a, I> {
    pub(super) fn new(slots: &'a Slots, left: I) -> Self {
        Ahead { slots, left: left.peekable(), ready: VecDeque::new(), count: 1, has_failed: false }
    }

    fn read(&mut self) -> Result<()> {
        let (mut window, mut bytes) = (Vec::new(), 0);
        while window.len() < self.count {
            let Some(next) = self.left.peek() else { break };
            bytes += next.sectors() * self.slots.sector_bytes;
            if bytes > WINDOW_BYTES && !window.is_empty() {
                break;
            }
            window.extend(self.left.next());
        }
        self.count = (2 * self.count).min(WINDOW_ITEMS);
        self.ready.extend(self.slots.read_many(&window)?);
        Ok(())
    }
}

impl<I: Iterator<Item = Slot>> Iterator for Ahead<'_, I> {
    type Item = Result<BlockBuf>;

    fn next(&mut self) -> Option<Result<BlockBuf>> {
        if self.ready.is_empty()
            && !self.has_failed
            && let Err(e) = self.read()
        {
            self.has_failed = true;
            return Some(Err(e));
        }
        self.ready.pop_front().map(Ok)
    }
}
