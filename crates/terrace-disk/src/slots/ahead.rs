//! Items that are read in order, several at once, and the next ones while those are used.
//!
//! The first is read alone, the next two together, then four, and so on, as many as have [`WINDOW_BYTES`] and no more
//! than [`WINDOW_ITEMS`]: a scan that stops early has read little in vain. When a window is read the next one is begun.
//!
//! Memory: two windows, or one item that is larger and a window. An item that is larger than a window is not begun
//! before it is asked for.

use std::collections::VecDeque;
use std::iter::Peekable;
use std::sync::Arc;

use terrace_base::Result;

use super::{Slot, SlotReads, Slots};
use crate::block::BlockBuf;

/// The most bytes that are read at once, unless one item has more.
pub const WINDOW_BYTES: u64 = 4 << 20;
const WINDOW_ITEMS: usize = 64;

/// Items in the order of their slots; it ends with the first that cannot be read.
#[derive(Debug)]
pub struct Ahead<I: Iterator<Item = Slot>> {
    slots: Arc<Slots>,
    left: Peekable<I>,
    ready: VecDeque<BlockBuf>,
    /// The next window, begun, or its error, which is reported when the window is asked for.
    coming: Option<Result<SlotReads>>,
    count: usize,
    has_failed: bool,
}

impl<I: Iterator<Item = Slot>> Ahead<I> {
    pub(super) fn new(slots: Arc<Slots>, left: I) -> Self {
        Ahead {
            slots,
            left: left.peekable(),
            ready: VecDeque::new(),
            coming: None,
            count: 1,
            has_failed: false,
        }
    }

    /// Begins the next window. A large item is begun only where the reader has come to it.
    fn begin(&mut self, is_asked_for: bool) {
        let (mut window, mut bytes) = (Vec::new(), 0);
        while window.len() < self.count {
            let Some(next) = self.left.peek() else { break };
            bytes += next.sectors() * self.slots.sector_bytes;
            if bytes > WINDOW_BYTES && !(window.is_empty() && is_asked_for) {
                break;
            }
            window.extend(self.left.next());
        }
        if !window.is_empty() {
            self.count = (2 * self.count).min(WINDOW_ITEMS);
            self.coming = Some(self.slots.begin_reads(&window));
        }
    }

    fn read(&mut self) -> Result<()> {
        if self.coming.is_none() {
            self.begin(true);
        }
        if let Some(coming) = self.coming.take() {
            self.ready.extend(coming?.finish()?);
            self.begin(false);
        }
        Ok(())
    }
}

impl<I: Iterator<Item = Slot>> Iterator for Ahead<I> {
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
