//! Moving over a block's entries in both directions.

use std::cmp::Ordering;
use std::ops::Range;

use super::read::{Block, Held, RawEntry};
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
pub(crate) struct BlockCursor {
    block: Option<Held>,
    valid: bool,
    at: usize,
    key: Vec<u8>,
    seq: u64,
    kind: Option<Kind>,
    value: Range<usize>,
    passed: Vec<Passed>,
    passed_keys: Vec<u8>,
}

impl BlockCursor {
    /// Moves to `block`, before any entry.
    pub fn set(&mut self, block: Option<Held>) {
        self.block = block;
        self.leave();
    }

    pub fn block(&self) -> Option<&Block> {
        self.block.as_deref()
    }

    /// Whether the block is a share of a mapping.
    pub fn is_mapped(&self) -> bool {
        matches!(self.block, Some(Held::Mapped(_)))
    }

    pub fn valid(&self) -> bool {
        self.valid
    }

    pub fn key(&self) -> &[u8] {
        if self.valid { &self.key } else { &[] }
    }

    pub fn seq(&self) -> u64 {
        self.seq
    }

    pub fn kind(&self) -> Kind {
        self.kind.unwrap_or(Kind::Delete)
    }

    /// The value as a range of the block's payload.
    pub fn value(&self) -> Range<usize> {
        if self.valid { self.value.clone() } else { 0..0 }
    }

    fn leave(&mut self) {
        self.valid = false;
        self.passed.clear();
        self.passed_keys.clear();
    }

    /// Decodes the entry at `at`, which follows the one whose key is in `self.key`.
    fn load(&mut self, block: &Block, at: usize) -> Result<(), Malformed> {
        self.valid = false;
        let entry = block.entry(at)?;
        self.enter(block, entry)
    }

    /// Moves to `entry`, whose key begins with that of `begin`.
    fn place(&mut self, block: &Block, entry: RawEntry, begin: &[u8]) -> Result<(), Malformed> {
        self.key.clear();
        self.key.extend_from_slice(begin.get(..entry.shared).unwrap_or_default());
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

    /// Calls `act` with the block, if there is one with entries. Lending it out of `self` spares the reference count of
    /// a clone at each step.
    fn lend(
        &mut self,
        act: impl FnOnce(&mut Self, &Block) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        let Some(block) = self.block.take() else { return Ok(()) };
        let done = if block.restarts() > 0 { act(self, &block) } else { Ok(()) };
        self.block = Some(block);
        done
    }

    /// Moves to the first entry.
    pub fn first(&mut self) -> Result<(), Malformed> {
        self.leave();
        self.lend(|this, block| this.load_restart(block, 0))
    }

    /// Moves to the last entry.
    pub fn last(&mut self) -> Result<(), Malformed> {
        self.leave();
        self.lend(|this, block| {
            this.load_restart(block, block.restarts() - 1)?;
            while this.value.end < block.limit() {
                this.pass();
                this.load(block, this.value.end)?;
            }
            Ok(())
        })
    }

    /// Moves to the first entry at or after (`key`, `seq`).
    pub fn seek(&mut self, key: &[u8], seq: u64) -> Result<(), Malformed> {
        self.leave();
        self.lend(|this, block| {
            let found = block.view().at_or_after(key, seq)?;
            found.map_or(Ok(()), |entry| this.place(block, entry, key))
        })
    }

    /// Moves to the last entry at or before (`key`, `seq`).
    pub fn seek_back(&mut self, key: &[u8], seq: u64) -> Result<(), Malformed> {
        self.seek(key, seq)?;
        if !self.valid {
            return self.last();
        }
        match order((&self.key, self.seq), (key, seq)) {
            Ordering::Greater => self.prev(),
            _ => Ok(()),
        }
    }

    fn step(&mut self, block: &Block) -> Result<(), Malformed> {
        if self.value.end < block.limit() {
            self.load(block, self.value.end)
        } else {
            self.valid = false;
            Ok(())
        }
    }

    /// Moves to the following entry.
    pub fn next(&mut self) -> Result<(), Malformed> {
        if !self.valid {
            return Ok(());
        }
        self.passed.clear();
        self.passed_keys.clear();
        self.lend(|this, block| this.step(block))
    }

    /// Moves to the preceding entry.
    pub fn prev(&mut self) -> Result<(), Malformed> {
        if !self.valid {
            return Ok(());
        }
        if self.passed.is_empty() {
            self.lend(Self::fill_passed)?;
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
