//! A reader's view of versions merged from memtables and tables: each key's newest version up to its
//! snapshot, unless that is a tombstone. An operand is folded with the versions that it stands on.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_table::{Cursor, Kind, MergeCursor, merge};

use crate::core::Core;
use crate::core::engine::{Direction, EngineIter, Here, Step};

/// Versions that a walk passes one by one before it searches for the next one that it wants: a key that is written all
/// the time has thousands in a memtable.
const WALKED_VERSIONS: usize = 16;

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
    /// Whether the entry that was given last is the cursor's, so that its key is still to be passed.
    is_here: bool,
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
        MergedIter { cursor, at, direction, key, passed: 0, core, is_here: false, failure: None }
    }

    /// [`step`](EngineIter::step) to the next key for which `holds`; the walk has ended at the first one for which it does
    /// not. Nothing of that one is folded.
    pub fn step_in(&mut self, holds: impl Fn(&[u8]) -> bool, entry: &mut Step) -> Result<bool> {
        self.failure = None;
        if std::mem::take(&mut self.is_here) {
            self.cursor.next()?;
            self.leave_forward()?;
        }
        match self.direction {
            Direction::Forward => self.step_forward(holds, entry),
            Direction::Backward => self.step_back(holds, entry),
        }
    }

    fn at_same_key(&self) -> bool {
        self.cursor.head().is_some_and(|head| head.key == self.key)
    }

    fn enter_key(&mut self) {
        self.key.clear();
        self.key.extend_from_slice(self.cursor.key());
    }

    fn step_forward(&mut self, holds: impl Fn(&[u8]) -> bool, entry: &mut Step) -> Result<bool> {
        let mut newer = 0;
        while let Some(head) = self.cursor.head().filter(|head| holds(head.key)) {
            let (seq, kind) = (head.seq, head.kind);
            if seq > self.at {
                newer += 1;
                if newer % WALKED_VERSIONS == 0 {
                    self.enter_key();
                    self.cursor.leap(&self.key, self.at)?;
                } else {
                    self.cursor.next()?;
                }
                self.passed += 1;
                continue;
            }
            self.key.clear();
            self.key.extend_from_slice(head.key);
            match kind {
                Kind::Put => {
                    self.is_here = true;
                    *entry = Step::Here;
                    return Ok(true);
                }
                Kind::Operand => {
                    let (key, value) = self.folded_forward()?;
                    self.leave_forward()?;
                    *entry = Step::Entry(key, value);
                    return Ok(true);
                }
                Kind::Delete => self.leave_forward()?,
            }
            self.passed += 1;
        }
        Ok(false)
    }

    /// Passes what is left of the key that was entered.
    fn leave_forward(&mut self) -> Result<()> {
        let mut walked = 0;
        while self.at_same_key() {
            walked += 1;
            if walked == WALKED_VERSIONS {
                // To its last position, which may have an entry.
                self.cursor.leap(&self.key, 0)?;
            } else {
                self.cursor.next()?;
            }
        }
        Ok(())
    }

    fn step_back(&mut self, holds: impl Fn(&[u8]) -> bool, entry: &mut Step) -> Result<bool> {
        while self.cursor.valid() && holds(self.cursor.key()) {
            self.enter_key();
            if let Some((key, value)) = self.take_back()? {
                *entry = Step::Entry(key, value);
                return Ok(true);
            }
            self.passed += 1;
        }
        Ok(false)
    }

    /// The entry of the key that was entered, whose versions the cursor passes. Backward the oldest comes first, and the
    /// last one that the snapshot sees counts.
    fn take_back(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        let mut stack = Stack::default();
        let mut walked = 0;
        while self.at_same_key() {
            if walked == WALKED_VERSIONS {
                return self.leap_back();
            }
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
            walked += 1;
        }
        Ok(match stack.operands.is_empty() {
            true => stack.base.map(|value| (Bytes::copy_from_slice(&self.key), value)),
            false => {
                stack.operands.reverse();
                Some(self.fold(stack))
            }
        })
    }

    /// The same by searches: for the newest version that the snapshot sees, and for what comes before all of them.
    fn leap_back(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        self.cursor.seek(&self.key, self.at)?;
        let found = match self.at_same_key() {
            true if self.cursor.kind() == Kind::Operand => Some(self.folded_forward()?),
            true => self.take()?,
            false => None,
        };
        self.cursor.seek_back(&self.key, u64::MAX)?;
        while self.at_same_key() {
            self.cursor.prev()?;
        }
        Ok(found)
    }

    /// The entry here, unless it is a tombstone. It is no operand.
    fn take(&self) -> Result<Option<(Bytes, Bytes)>> {
        Ok(match self.cursor.kind() {
            Kind::Put => Some((Bytes::copy_from_slice(self.cursor.key()), self.cursor.value()?)),
            Kind::Delete | Kind::Operand => None,
        })
    }

    /// The entry of the operand here and of what it stands on. The cursor passes these.
    fn folded_forward(&mut self) -> Result<(Bytes, Bytes)> {
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
        Ok(self.fold(stack))
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
        self.is_here = false;
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
        let mut step = Step::default();
        self.step(&mut step)?.then(|| step.into_entry(&self.here())).transpose()
    }

    fn step(&mut self, entry: &mut Step) -> Result<bool> {
        self.step_in(|_| true, entry)
    }

    fn here(&self) -> Here<'_> {
        let cursor: Option<&dyn Cursor> = if self.is_here { Some(&self.cursor) } else { None };
        Here { key: &self.key, cursor }
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
    use crate::memtable::chunks::Chunks;
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
                    let list = MemList::new(&Chunks::new());
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

    /// Must catch versions that a search passes too far, or not far enough, in any child and either direction.
    #[test]
    fn keys_of_many_versions_are_each_given_once() {
        let dir = tempfile::tempdir().unwrap();
        let core = Core::new(dir.path().to_path_buf(), Options::default(), Env::real(1)).unwrap();
        core.merging.set(1, &MergeOperator::append());
        let place = |key: u8| [Prefix::of(1).as_slice(), &[key]].concat();
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            let lists: Vec<MemList> = (0..3).map(|_| MemList::new(&Chunks::new())).collect();
            let mut versions: Vec<(u64, u8, Kind)> = Vec::new();
            for seq in 1..=rng.below(400) {
                let kind = [Kind::Put, Kind::Delete, Kind::Operand][rng.below(3) as usize];
                // Most are of one key.
                let key = [4, 4, 4, rng.below(8) as u8][rng.below(4) as usize];
                lists[rng.below(3) as usize].writer().insert(&place(key), seq, kind, &seq.to_le_bytes());
                versions.push((seq, key, kind));
            }
            let at = rng.below(420);
            let value = |key: u8| {
                versions.iter().filter(|(seq, of, _)| *of == key && *seq <= at).fold(
                    None,
                    |value, (seq, _, kind)| match kind {
                        Kind::Put => Some(seq.to_le_bytes().to_vec()),
                        Kind::Delete => None,
                        Kind::Operand => {
                            Some([value.unwrap_or_default(), seq.to_le_bytes().to_vec()].concat())
                        }
                    },
                )
            };
            let mut wanted: Vec<_> = (0..8).filter_map(|key| Some((place(key), value(key)?))).collect();
            for direction in [Direction::Forward, Direction::Backward] {
                let children = lists.iter().map(|list| Box::new(list.cursor()) as Box<dyn Cursor>).collect();
                let mut walk = MergedIter::new(&core, children, at, direction);
                walk.seek(Bound::Unbounded).unwrap();
                let found = std::iter::from_fn(|| walk.next().unwrap());
                let found: Vec<_> = found.map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
                assert!(found == wanted, "seed {seed} at {at}, {direction:?}");
                wanted.reverse();
            }
        }
    }
}
