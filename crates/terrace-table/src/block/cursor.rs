//! Moving over a block's entries in both directions.

use std::cmp::Ordering;
use std::ops::Range;

use super::read::{Block, Held};
use super::view::RawEntry;
use crate::cursor::Head;
use crate::entry::{Kind, order};
use crate::frame::Malformed;

/// An entry of the current restart run that lies before the current entry.
#[derive(Debug)]
struct Passed {
    at: usize,
    /// Where its key starts in `passed_keys`.
    key_start: usize,
    seq: u64,
    kind: Kind,
    value: Range<usize>,
}

/// A place in a block, or none.
///
/// Going back would mean decoding the restart run anew for each step, so the first step back keeps
/// the run's earlier entries in `passed`; they end just before the current entry, or are empty.
#[derive(Debug, Default)]
struct Place {
    valid: bool,
    at: usize,
    key: Vec<u8>,
    seq: u64,
    kind: Option<Kind>,
    value: Range<usize>,
    passed: Vec<Passed>,
    passed_keys: Vec<u8>,
}

/// A block, and a place in it. They are apart so that a move borrows the block: it is not to be copied for each.
#[derive(Debug, Default)]
pub(crate) struct BlockCursor {
    block: Option<Held>,
    place: Place,
}

impl BlockCursor {
    /// Moves to `block`, before any entry.
    pub fn set(&mut self, block: Option<Held>) {
        self.block = block;
        self.place.leave();
    }

    pub fn block(&self) -> Option<&Block> {
        self.block.as_deref()
    }

    /// Whether the block is a share of a mapping.
    pub fn is_mapped(&self) -> bool {
        matches!(self.block, Some(Held::Mapped(_)))
    }

    pub fn valid(&self) -> bool {
        self.place.valid
    }

    #[inline]
    pub fn head(&self) -> Option<Head<'_>> {
        self.valid().then(|| Head { key: &self.place.key, seq: self.place.seq, kind: self.place.kind() })
    }

    pub fn key(&self) -> &[u8] {
        if self.valid() { &self.place.key } else { &[] }
    }

    pub fn seq(&self) -> u64 {
        self.place.seq
    }

    pub fn kind(&self) -> Kind {
        self.place.kind()
    }

    /// The value as a range of the block's payload.
    pub fn value(&self) -> Range<usize> {
        if self.valid() { self.place.value.clone() } else { 0..0 }
    }

    /// Has `moves` move in the block, if there is one with entries.
    fn moved(
        &mut self,
        moves: impl FnOnce(&mut Place, &Block) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        match self.block.as_deref().filter(|block| block.restarts() > 0) {
            Some(block) => moves(&mut self.place, block),
            None => Ok(()),
        }
    }

    /// Moves to the first entry.
    pub fn first(&mut self) -> Result<(), Malformed> {
        self.place.leave();
        self.moved(|place, block| place.load_restart(block, 0))
    }

    /// Moves to the last entry.
    pub fn last(&mut self) -> Result<(), Malformed> {
        self.place.leave();
        self.moved(Place::last)
    }

    /// Moves to the first entry at or after (`key`, `seq`).
    pub fn seek(&mut self, key: &[u8], seq: u64) -> Result<(), Malformed> {
        self.place.leave();
        self.moved(|place, block| place.seek(block, key, seq))
    }

    /// Moves to the last entry at or before (`key`, `seq`).
    pub fn seek_back(&mut self, key: &[u8], seq: u64) -> Result<(), Malformed> {
        self.seek(key, seq)?;
        let here = self.head().map(|head| order((head.key, head.seq), (key, seq)));
        match here {
            None => self.last(),
            Some(Ordering::Greater) => self.prev(),
            Some(_) => Ok(()),
        }
    }

    /// Moves to the following entry.
    pub fn next(&mut self) -> Result<(), Malformed> {
        if !self.valid() {
            return Ok(());
        }
        self.moved(Place::next)
    }

    /// Moves to the preceding entry.
    pub fn prev(&mut self) -> Result<(), Malformed> {
        if !self.valid() {
            return Ok(());
        }
        self.moved(Place::prev)
    }
}

impl Place {
    fn kind(&self) -> Kind {
        self.kind.unwrap_or(Kind::Delete)
    }

    fn leave(&mut self) {
        self.valid = false;
        self.forget_passed();
    }

    fn forget_passed(&mut self) {
        self.passed.clear();
        self.passed_keys.clear();
    }

    /// Decodes the entry at `at`, which follows the one whose key is in `self.key`.
    fn load(&mut self, block: &Block, at: usize) -> Result<(), Malformed> {
        self.valid = false;
        let entry = block.entry(at)?;
        self.enter(block, entry)
    }

    /// Moves to `entry`; the bytes that its key shares are in `self.key`.
    fn enter(&mut self, block: &Block, entry: RawEntry) -> Result<(), Malformed> {
        if entry.shared > self.key.len() {
            return Err(Malformed::new("a prefix shared with the entry before", "a longer one"));
        }
        self.key.truncate(entry.shared);
        self.key.extend_from_slice(block.bytes(entry.suffix.clone()));
        self.at = entry.at;
        self.seq = entry.seq;
        self.kind = Some(entry.kind);
        self.value = entry.value;
        self.valid = true;
        Ok(())
    }

    fn load_restart(&mut self, block: &Block, restart: usize) -> Result<(), Malformed> {
        self.leave();
        self.key.clear();
        self.load(block, block.restart(restart)?)
    }

    fn last(&mut self, block: &Block) -> Result<(), Malformed> {
        self.load_restart(block, block.restarts() - 1)?;
        while self.value.end < block.limit() {
            self.pass();
            self.load(block, self.value.end)?;
        }
        Ok(())
    }

    fn seek(&mut self, block: &Block, key: &[u8], seq: u64) -> Result<(), Malformed> {
        let Some(entry) = block.view().at_or_after(key, seq)? else { return Ok(()) };
        self.key.clear();
        self.key.extend_from_slice(key.get(..entry.shared).unwrap_or_default());
        self.enter(block, entry)
    }

    fn next(&mut self, block: &Block) -> Result<(), Malformed> {
        self.forget_passed();
        if self.value.end < block.limit() {
            self.load(block, self.value.end)
        } else {
            self.valid = false;
            Ok(())
        }
    }

    fn prev(&mut self, block: &Block) -> Result<(), Malformed> {
        if self.passed.is_empty() {
            self.fill_passed(block)?;
        }
        let Some(back) = self.passed.pop() else {
            self.valid = false;
            return Ok(());
        };
        self.key.clear();
        self.key.extend_from_slice(&self.passed_keys[back.key_start..]);
        self.passed_keys.truncate(back.key_start);
        (self.at, self.seq, self.kind, self.value) = (back.at, back.seq, Some(back.kind), back.value);
        self.valid = true;
        Ok(())
    }

    /// Appends the current entry to `passed`.
    fn pass(&mut self) {
        let key_start = self.passed_keys.len();
        self.passed_keys.extend_from_slice(&self.key);
        let (at, seq, kind, value) = (self.at, self.seq, self.kind(), self.value.clone());
        self.passed.push(Passed { at, key_start, seq, kind, value });
    }

    /// Decodes the run that ends just before the current entry.
    fn fill_passed(&mut self, block: &Block) -> Result<(), Malformed> {
        let here = self.at;
        if here == 0 {
            return Ok(());
        }
        let (mut low, mut high) = (0, block.restarts());
        while low + 1 < high {
            let mid = low + (high - low) / 2;
            if block.restart(mid)? < here { low = mid } else { high = mid }
        }
        self.load_restart(block, low)?;
        while self.at < here {
            self.pass();
            if self.value.end >= here {
                break;
            }
            self.load(block, self.value.end)?;
        }
        Ok(())
    }
}
