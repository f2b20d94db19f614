//! Many cursors as one.
//!
//! Going forward, every child stands at its first entry after the merged cursor's place (the current
//! one at the place itself), and a heap holds the valid children with the least entry on top. Going
//! back is the mirror image. A change of direction moves every other child across the place. Entries
//! that are equal in key and sequence number come in the order of the children, each of them.

use std::cmp::Ordering;

use bytes::Bytes;
use terrace_base::Result;

use crate::cursor::{Cursor, Head};
use crate::entry::order;
use crate::heads::Heads;
use crate::position::Position;

/// A cursor over all entries of `children`, in order.
pub fn merge(children: Vec<Box<dyn Cursor>>) -> MergeCursor {
    let heap = Vec::with_capacity(children.len());
    MergeCursor { children, heap, heads: Heads::default(), second: None, back: false }
}

/// See [`merge`].
pub struct MergeCursor {
    children: Vec<Box<dyn Cursor>>,
    /// Valid children by number, as a binary heap: in the direction of travel no child comes before its parent.
    heap: Vec<usize>,
    /// Of the children in the heap, while there are several.
    heads: Heads,
    /// Where in the heap the second child is, if that is known. As a rule the first one goes on before it.
    second: Option<usize>,
    back: bool,
}

impl std::fmt::Debug for MergeCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MergeCursor")
            .field("children", &self.children.len())
            .field("heap", &self.heap)
            .finish()
    }
}

impl MergeCursor {
    /// Whether child `a` comes before child `b` in the direction of travel.
    fn before(&self, a: usize, b: usize) -> bool {
        let wanted = if self.back { Ordering::Greater } else { Ordering::Less };
        match self.heads.order(a, b) {
            Ordering::Equal => self.entry_order(a, b) == wanted,
            order => order == wanted,
        }
    }

    /// The order of the entries of two children.
    fn entry_order(&self, a: usize, b: usize) -> Ordering {
        let (Some(x), Some(y)) = (self.children[a].head(), self.children[b].head()) else {
            return Ordering::Equal;
        };
        order((x.key, x.seq), (y.key, y.seq)).then(a.cmp(&b))
    }

    fn take_heads(&mut self) {
        let MergeCursor { children, heap, heads, .. } = self;
        heads.take(heap.iter().map(|&child| (child, children[child].key())));
    }

    fn second(&mut self) -> Option<usize> {
        if self.second.is_none() {
            self.second = match *self.heap {
                [] | [_] => None,
                [_, a, b, ..] if self.before(b, a) => Some(2),
                _ => Some(1),
            };
        }
        self.second
    }

    /// Restores the order after the first child has moved on.
    fn settle(&mut self) {
        if let Some(second) = self.second().filter(|&second| self.before(self.heap[second], self.heap[0])) {
            self.heap.swap(0, second);
            self.sift_down(second);
            self.second = None;
        }
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let mut least = at;
            for child in [2 * at + 1, 2 * at + 2] {
                if child < self.heap.len() && self.before(self.heap[child], self.heap[least]) {
                    least = child;
                }
            }
            if least == at {
                return;
            }
            self.heap.swap(at, least);
            at = least;
        }
    }

    fn rebuild(&mut self) {
        self.leave();
        self.heap.extend((0..self.children.len()).filter(|&i| self.children[i].valid()));
        self.take_heads();
        for at in (0..self.heap.len() / 2).rev() {
            self.sift_down(at);
        }
    }

    /// Goes nowhere.
    fn leave(&mut self) {
        self.heap.clear();
        self.second = None;
    }

    /// Moves every child, then sets the direction. A failure leaves the cursor nowhere.
    fn seek_all(&mut self, back: bool, mut seek: impl FnMut(&mut dyn Cursor) -> Result<()>) -> Result<()> {
        self.leave();
        self.back = back;
        self.children.iter_mut().try_for_each(|child| seek(&mut **child))?;
        self.rebuild();
        Ok(())
    }

    /// Turns round: moves every child but the current across the current entry.
    fn turn(&mut self, back: bool) -> Result<()> {
        let Some(&here) = self.heap.first() else { return Ok(()) };
        self.leave();
        self.back = back;
        let (key, seq) = (self.children[here].key().to_vec(), self.children[here].seq());
        for (i, child) in self.children.iter_mut().enumerate().filter(|(i, _)| *i != here) {
            if back {
                child.seek_back(&key, seq)?
            } else {
                child.seek(&key, seq)?
            }
            let equal = child.valid() && child.seq() == seq && child.key() == key;
            // Equal entries come in the order of their children.
            if equal && back && i > here {
                child.prev()?;
            }
            if equal && !back && i < here {
                child.next()?;
            }
        }
        self.rebuild();
        Ok(())
    }

    /// Moves the current child on, after a change of direction if necessary.
    fn advance(&mut self, back: bool) -> Result<()> {
        if self.back != back {
            self.turn(back)?;
        }
        self.move_current(|child| if back { child.prev() } else { child.next() })
    }

    /// Moves the current child in the direction of travel. A failure leaves the cursor nowhere.
    fn move_current(&mut self, moves: impl FnOnce(&mut dyn Cursor) -> Result<()>) -> Result<()> {
        let Some(&top) = self.heap.first() else { return Ok(()) };
        let child = &mut self.children[top];
        if let Err(e) = moves(&mut **child) {
            self.leave();
            return Err(e);
        }
        if let Some(head) = child.head() {
            if self.heap.len() > 1 && !self.heads.moved(top, head.key) {
                self.take_heads();
            }
            self.settle();
        } else {
            self.heap.swap_remove(0);
            self.second = None;
            self.sift_down(0);
        }
        Ok(())
    }

    /// Moves forward to the first entry at or after (`key`, `seq`), unless it is there or behind. It searches where
    /// [`next`](Cursor::next) would pass one entry after the other, once in each child: damaged ones that are out of order
    /// must not be searched for ever.
    pub fn leap(&mut self, key: &[u8], seq: u64) -> Result<()> {
        if self.back {
            self.turn(false)?;
        }
        let mut searches = self.children.len();
        while self.valid() && order((self.key(), self.seq()), (key, seq)) == Ordering::Less {
            let is_search = searches > 0;
            searches -= usize::from(is_search);
            self.move_current(|child| if is_search { child.seek(key, seq) } else { child.next() })?;
        }
        Ok(())
    }

    fn current(&self) -> Option<&dyn Cursor> {
        self.heap.first().map(|&top| &*self.children[top])
    }

    /// The number of the merged cursor that has the current entry.
    pub fn child(&self) -> Option<usize> {
        self.heap.first().copied()
    }
}

impl Cursor for MergeCursor {
    fn head(&self) -> Option<Head<'_>> {
        self.current()?.head()
    }
    fn valid(&self) -> bool {
        !self.heap.is_empty()
    }
    fn seek_first(&mut self) -> Result<()> {
        self.seek_all(false, |child| child.seek_first())
    }
    fn seek_last(&mut self) -> Result<()> {
        self.seek_all(true, |child| child.seek_last())
    }
    fn seek(&mut self, key: &[u8], seq: u64) -> Result<()> {
        self.seek_all(false, |child| child.seek(key, seq))
    }
    fn seek_back(&mut self, key: &[u8], seq: u64) -> Result<()> {
        self.seek_all(true, |child| child.seek_back(key, seq))
    }
    fn next(&mut self) -> Result<()> {
        self.advance(false)
    }
    fn prev(&mut self) -> Result<()> {
        self.advance(true)
    }
    fn value(&self) -> Result<Bytes> {
        self.current().map_or(Ok(Bytes::new()), |c| c.value())
    }
    fn value_in_place(&self) -> Result<&[u8]> {
        self.current().map_or(Ok(&[]), |c| c.value_in_place())
    }
    fn value_len(&self) -> usize {
        self.current().map_or(0, |c| c.value_len())
    }
    fn position(&self) -> Option<Position> {
        self.current().and_then(|c| c.position())
    }
    fn record(&self) -> Option<u64> {
        self.current().and_then(|c| c.record())
    }
}
