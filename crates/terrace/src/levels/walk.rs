//! A reader's view of versions merged from memtables and tables: each key's newest version up to its
//! snapshot, unless that is a tombstone. An operand is folded with the versions that it stands on.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_table::{Cursor, Kind, MergeCursor, merge};

use crate::core::Core;
use crate::core::engine::{Direction, EngineIter};

/// A walk over the live keys of a snapshot; the cursors keep what they read.
#[derive(Debug)]
pub(crate) struct MergedIter {
    cursor: MergeCursor,
    at: u64,
    direction: Direction,
    /// The key whose versions are being passed.
    key: Vec<u8>,
    /// Versions and keys of which the snapshot saw nothing.
    passed: u64,
    core: Arc<Core>,
    /// Why the value that was given last is not known.
    failure: Option<Error>,
}

/// What the versions of a key that were met so far make of it.
#[derive(Default)]
struct Stack {
    base: Option<Bytes>,
    /// Those above it, in the order in which they were met.
    operands: Vec<Bytes>,
    /// The number of the version that was met last.
    last_seq: Option<u64>,
}

impl MergedIter {
    /// A walk over `children`, not yet positioned.
    pub fn new(core: &Arc<Core>, children: Vec<Box<dyn Cursor>>, at: u64, direction: Direction) -> Self {
        let (core, cursor, key) = (core.clone(), merge(children), Vec::new());
        MergedIter { cursor, at, direction, key, passed: 0, core, failure: None }
    }

    /// The next key for which `holds`, with its value; the walk has ended at the first one for which it does not.
    /// Nothing of that one is folded.
    pub fn next_in(&mut self, holds: impl Fn(&[u8]) -> bool) -> Result<Option<(Bytes, Bytes)>> {
        self.failure = None;
        match self.direction {
            Direction::Forward => self.next_forward(holds),
            Direction::Backward => self.next_back(holds),
        }
    }

    fn at_same_key(&self) -> bool {
        self.cursor.valid() && self.cursor.key() == self.key
    }

    fn enter_key(&mut self) {
        self.key.clear();
        self.key.extend_from_slice(self.cursor.key());
    }

    fn next_forward(&mut self, holds: impl Fn(&[u8]) -> bool) -> Result<Option<(Bytes, Bytes)>> {
        while self.cursor.valid() && holds(self.cursor.key()) {
            if self.cursor.seq() > self.at {
                self.cursor.next()?;
                self.passed += 1;
                continue;
            }
            self.enter_key();
            let found = match self.cursor.kind() {
                Kind::Operand => self.folded_forward()?,
                _ => self.take()?,
            };
            while self.at_same_key() {
                self.cursor.next()?;
            }
            if found.is_some() {
                return Ok(found);
            }
            self.passed += 1;
        }
        Ok(None)
    }

    /// Backward the oldest version of a key comes first, and the last one that the snapshot sees counts.
    fn next_back(&mut self, holds: impl Fn(&[u8]) -> bool) -> Result<Option<(Bytes, Bytes)>> {
        while self.cursor.valid() && holds(self.cursor.key()) {
            self.enter_key();
            let mut stack = Stack::default();
            while self.at_same_key() {
                if self.cursor.seq() <= self.at {
                    match self.cursor.kind() {
                        Kind::Operand => self.push(&mut stack)?,
                        _ => {
                            let base = self.take()?.map(|(_, value)| value);
                            stack = Stack { base, operands: Vec::new(), last_seq: Some(self.cursor.seq()) };
                        }
                    }
                }
                self.cursor.prev()?;
            }
            let found = match stack.operands.is_empty() {
                true => stack.base.map(|value| (Bytes::copy_from_slice(&self.key), value)),
                false => {
                    stack.operands.reverse();
                    Some(self.fold(stack))
                }
            };
            if found.is_some() {
                return Ok(found);
            }
            self.passed += 1;
        }
        Ok(None)
    }

    /// The entry here, unless it is a tombstone. It is no operand.
    fn take(&self) -> Result<Option<(Bytes, Bytes)>> {
        Ok(match self.cursor.kind() {
            Kind::Put => Some((Bytes::copy_from_slice(self.cursor.key()), self.cursor.value()?)),
            Kind::Delete | Kind::Operand => None,
        })
    }

    /// The entry of the operand here and of what it stands on. The cursor passes these.
    fn folded_forward(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        let mut stack = Stack::default();
        while self.at_same_key() {
            if self.cursor.kind() != Kind::Operand {
                if stack.last_seq == Some(self.cursor.seq()) {
                    // What a merge has made of this operand, which a repair has left beside it.
                    stack.operands.pop();
                }
                stack.base = self.take()?.map(|(_, value)| value);
                break;
            }
            self.push(&mut stack)?;
            self.cursor.next()?;
        }
        Ok(Some(self.fold(stack)))
    }

    /// Puts the operand here onto `stack`, unless it is a copy of the one before.
    fn push(&self, stack: &mut Stack) -> Result<()> {
        if stack.last_seq.replace(self.cursor.seq()) != Some(self.cursor.seq()) {
            stack.operands.push(self.cursor.value()?);
        }
        Ok(())
    }

    /// The entry of the key that was entered, with `stack`, whose newest operand is the first.
    fn fold(&mut self, Stack { base, operands, .. }: Stack) -> (Bytes, Bytes) {
        let key = Bytes::copy_from_slice(&self.key);
        match self.core.merging.fold(&key, base, &operands) {
            Ok(value) => (key, value),
            Err(why) => {
                // Damage may have kept it from being known.
                self.core.merging.set_any(true);
                self.failure = Some(why);
                (key, Bytes::new())
            }
        }
    }
}

impl EngineIter for MergedIter {
    fn seek(&mut self, bound: Bound<&[u8]>) -> Result<()> {
        match (self.direction, bound) {
            (Direction::Forward, Bound::Unbounded) => self.cursor.seek_first(),
            (Direction::Forward, Bound::Included(key)) => self.cursor.seek(key, u64::MAX),
            (Direction::Forward, Bound::Excluded(key)) => {
                // The last position of a key is that of the lowest sequence number.
                self.cursor.seek(key, 0)?;
                if self.cursor.valid() && self.cursor.key() == key { self.cursor.next() } else { Ok(()) }
            }
            (Direction::Backward, Bound::Unbounded) => self.cursor.seek_last(),
            (Direction::Backward, Bound::Included(key)) => self.cursor.seek_back(key, 0),
            (Direction::Backward, Bound::Excluded(key)) => {
                self.cursor.seek_back(key, u64::MAX)?;
                if self.cursor.valid() && self.cursor.key() == key { self.cursor.prev() } else { Ok(()) }
            }
        }
    }

    fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        self.next_in(|_| true)
    }

    fn passed(&self) -> u64 {
        self.passed
    }
}

#[cfg(test)]
mod tests {
    use terrace_base::rng::Rng;

    use super::*;
    use crate::env::Env;
    use crate::keyspaces::{MergeOperator, Prefix};
    use crate::memtable::MemList;
    use crate::options::Options;

    /// After a repair an operand and what a merge has made of it are both there, under one number.
    #[test]
    fn an_operand_is_folded_once_beside_what_was_made_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let core = Core::new(dir.path().to_path_buf(), Options::default(), Env::real(1)).unwrap();
        core.merging.set(1, &MergeOperator::append());
        let place = [Prefix::of(1).as_slice(), b"k"].concat();
        let versions =
            [(1, Kind::Put, "a"), (2, Kind::Operand, "b"), (2, Kind::Put, "ab"), (3, Kind::Operand, "c")];
        let mut rng = Rng::new(1);
        for _ in 0..40 {
            // In children of any order; one of them may be lost.
            let mut all = versions.to_vec();
            (0..all.len()).for_each(|i| all.swap(i, rng.below(4) as usize));
            let lost = rng.below(3) == 0;
            let children = || {
                let there = all.iter().filter(|(seq, ..)| !(lost && *seq == 1));
                let child = |(seq, kind, value): &(u64, Kind, &str)| {
                    let list = MemList::new(1 << 10);
                    list.writer().insert(&place, *seq, *kind, value.as_bytes());
                    Box::new(list.cursor()) as Box<dyn Cursor>
                };
                there.map(child).collect::<Vec<_>>()
            };
            for (at, wanted) in [(3, "abc"), (2, "ab")] {
                for direction in [Direction::Forward, Direction::Backward] {
                    let mut walk = MergedIter::new(&core, children(), at, direction);
                    walk.seek(Bound::Unbounded).unwrap();
                    let (_, value) = walk.next().unwrap().unwrap();
                    assert_eq!(
                        (&value[..], walk.failure().is_none()),
                        (wanted.as_bytes(), true),
                        "{all:?} at {at}"
                    );
                    assert!(walk.next().unwrap().is_none());
                }
            }
        }
    }
}
