//! Deciding and publishing a key's move in the index when versions arrive, move or are no longer needed.
//!
//! 1. Both happen under the index-writer lock, so that the decision still holds when it is published.
//! 2. A chain made for a move that is not published is freed with the move.

use std::collections::VecDeque;

use terrace_base::Result;
use terrace_index::PointIndex;
use terrace_index::fastfair::{FANOUT, Nearby};
use terrace_table::Position;

use super::Located;
use super::chain::{Chain, Location, Version, move_version, retain};

/// Keys of a chunk, all different: enough to share its drain, few enough not to keep others waiting.
pub(crate) const CHUNK_KEYS: usize = 256;

/// Most bytes of keys whose moves are recorded at once, unless one key has more.
const PART_BYTES: usize = 32 << 10;

/// The parts of a chunk whose moves are recorded one after the other: what a log takes at once is bounded, however long
/// the keys are.
pub(super) fn parts<T>(mut chunk: &[T], key_len: impl Fn(&T) -> usize) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |one: &&T| {
            bytes += key_len(one);
            bytes <= PART_BYTES
        };
        let count = chunk.iter().take_while(fits).count().max(1);
        let (part, rest) = chunk.split_at_checked(count)?;
        chunk = rest;
        Some(part)
    })
}

/// The leaves of a chunk's keys.
type Near<'a> = Nearby<'a, FANOUT>;

/// One key's move, decided and not yet published.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Move<'k> {
    pub key: &'k [u8],
    pub old: u64,
    pub change: MoveTarget,
    /// Tables that gain a live version, and tables that lose one.
    pub born: Numbers,
    pub died: Numbers,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum MoveTarget {
    /// The word becomes this; zero removes the key.
    Location(u64),
    /// Version `index` of the key's chain moves.
    InChain { chain: u64, index: usize, to: Position },
}

/// Table numbers: seldom more than one, which needs no memory of its own.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Numbers {
    first: Option<u64>,
    more: Vec<u64>,
}

impl Numbers {
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.first.into_iter().chain(self.more.iter().copied())
    }

    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.len()
    }
}

impl FromIterator<u64> for Numbers {
    fn from_iter<I: IntoIterator<Item = u64>>(numbers: I) -> Self {
        let mut numbers = numbers.into_iter();
        Numbers { first: numbers.next(), more: numbers.collect() }
    }
}

/// A chunk's moves in order. Those that are not published free the chains made for them.
pub(super) struct Moves<'a, 'k> {
    located: &'a Located,
    pub near: Near<'a>,
    /// Each with its key's position in the chunk.
    pub planned: VecDeque<(usize, Move<'k>)>,
}

impl<'a, 'k> Moves<'a, 'k> {
    /// No moves yet, of the `keys` of a chunk.
    pub fn of(located: &'a Located, keys: impl Iterator<Item = &'k [u8]>) -> Result<Self> {
        Ok(Moves { located, near: located.index.nearby(keys)?, planned: VecDeque::with_capacity(CHUNK_KEYS) })
    }

    /// The index word of the `i`-th key; zero is none.
    pub fn word(&self, i: usize, key: &[u8]) -> Result<u64> {
        Ok(self.near.get(i, key)?.unwrap_or(0))
    }

    pub fn push(&mut self, i: usize, one: Move<'k>) {
        self.planned.push_back((i, one));
    }
}

impl Drop for Moves<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The first one may have been made by now.
            return self.located.pool.leave_unreclaimed();
        }
        for (_, one) in &self.planned {
            if let MoveTarget::Location(word) = one.change
                && let Some(Location::Chain(offset)) = Location::decode(word)
            {
                // Nothing leads to it, but a walk over all chains may be reading it.
                self.located.limbo.retire(offset);
            }
        }
    }
}

/// Where a compaction found a version.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    /// The table.
    pub table: u64,
    /// The next newer version of its key there, by sequence number.
    pub newer: Option<u64>,
}

impl Origin {
    /// Whether a plain word, which means the newest version of its key in a table, means the one from here.
    pub(super) fn is_behind(self, position: Position) -> bool {
        position.number() == self.table && self.newer.is_none()
    }
}

/// A version moved by a compaction.
#[derive(Debug, Clone)]
pub(crate) struct Relocation {
    pub key: Vec<u8>,
    pub seq: u64,
    pub from: Origin,
    pub to: Position,
}

impl Located {
    /// Decides the move of a key for which `new` versions arrive, newest first.
    pub(super) fn plan_insert<'k>(
        &self,
        key: &'k [u8],
        old: u64,
        new: &[Version],
        held: &[u64],
    ) -> Result<Move<'k>> {
        if let Some(one) = plan_replacement(key, old, new, held) {
            return Ok(one);
        }
        let mut before = self.versions_of(old)?;
        if let (Some(last), [.., oldest]) = (before.first_mut().filter(|v| !v.exact), new) {
            last.seq = last.seq.min(oldest.seq - 1);
        }
        self.plan(key, old, new.len(), &[new, &before].concat(), held)
    }

    /// The move of the key's chain now that only `held` are left; `None` if it does not change.
    pub(super) fn plan_collapse<'k>(
        &self,
        key: &'k [u8],
        old: u64,
        held: &[u64],
    ) -> Result<Option<Move<'k>>> {
        if !matches!(Location::decode(old), Some(Location::Chain(_))) {
            return Ok(None);
        }
        let versions = self.versions_of(old)?;
        if retain(&versions, held).len() == versions.len() {
            return Ok(None);
        }
        self.plan(key, old, 0, &versions, held).map(Some)
    }

    /// Decides the move of a key with `versions`, of which the first `new` are not in the index yet.
    fn plan<'k>(
        &self,
        key: &'k [u8],
        old: u64,
        new: usize,
        versions: &[Version],
        held: &[u64],
    ) -> Result<Move<'k>> {
        let kept = retain(versions, held);
        let word = match kept.as_slice() {
            [] => 0,
            [Version { position: Some(position), .. }] => Location::Position(*position).encode(),
            _ => {
                let chain = Chain { key: key.to_vec(), versions: kept.clone() };
                Location::Chain(chain.store(&self.pool)?).encode()
            }
        };
        let died = versions
            .iter()
            .filter(|v| !kept.contains(v))
            .filter_map(|v| v.position.map(Position::number))
            .collect();
        let born = versions[..new].iter().filter_map(|v| v.position.map(Position::number)).collect();
        Ok(Move { key, old, change: MoveTarget::Location(word), born, died })
    }

    /// Decides the move of the key of a version that a compaction moved; `None` if the version has been
    /// replaced.
    pub(super) fn plan_relocation<'k>(&self, r: &'k Relocation, old: u64) -> Result<Option<Move<'k>>> {
        if old == 0 {
            return Ok(None);
        }
        let change = match self.decode_word(old)? {
            Location::Position(position) if r.from.is_behind(position) => {
                MoveTarget::Location(Location::Position(r.to).encode())
            }
            Location::Position(_) => return Ok(None),
            Location::Chain(chain) => {
                let loaded = Chain::load(&self.pool, chain)?;
                match loaded.find(r.seq, r.from) {
                    Some(index) => MoveTarget::InChain { chain, index, to: r.to },
                    None => return Ok(None),
                }
            }
        };
        Ok(Some(Move {
            key: &r.key,
            old,
            change,
            born: Numbers::from_iter([r.to.number()]),
            died: Numbers::from_iter([r.from.table]),
        }))
    }

    /// Publishes a move that is in the log.
    pub(super) fn publish_move(&self, near: &Near<'_>, i: usize, one: &Move<'_>) -> Result<()> {
        debug_assert!(self.writer.is_locked(), "words change under the writer's lock alone");
        // Of what arrives; the older versions may be damaged.
        debug_assert!(
            one.born.iter().all(|number| self.manifest.state().tables.contains_key(&number)),
            "tables are in the manifest before any word names them"
        );
        match one.change {
            MoveTarget::InChain { chain, index, to } => {
                move_version(&self.pool, chain, index, to);
                return Ok(());
            }
            MoveTarget::Location(0) => {
                self.index.remove(one.key)?;
            }
            MoveTarget::Location(word) => {
                near.insert(i, one.key, word)?;
                self.count_chain(word, 1);
            }
        }
        if let Some(Location::Chain(offset)) = Location::decode(one.old) {
            self.count_chain(one.old, -1);
            self.limbo.retire(offset);
        }
        Ok(())
    }
}

/// The decision of [`plan_insert`](Located::plan_insert) in the usual case, which reads nothing: one version
/// replaces another, or none, and no snapshot needs the older one.
fn plan_replacement<'k>(key: &'k [u8], old: u64, new: &[Version], held: &[u64]) -> Option<Move<'k>> {
    let ([version], []) = (new, held) else { return None };
    let before = match old {
        0 => None,
        _ => match Location::decode(old)? {
            Location::Position(position) => Some(position),
            Location::Chain(_) => return None,
        },
    };
    Some(Move {
        key,
        old,
        change: MoveTarget::Location(
            version.position.map_or(0, |position| Location::Position(position).encode()),
        ),
        born: version.position.map(Position::number).into_iter().collect(),
        died: before.map(Position::number).into_iter().collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: u64) -> Option<Position> {
        Position::new(number, 16, 512)
    }

    #[test]
    fn the_usual_replacement_is_what_the_versions_say() {
        let version = |position| Version { seq: 9, exact: true, position };
        let word = |position: Option<Position>| position.map_or(0, |p| Location::Position(p).encode());
        for new in [version(at(7)), version(None)] {
            for old in [None, at(3)] {
                let one = plan_replacement(b"k", word(old), &[new], &[]).unwrap();
                let before = old.map(|_| Version { seq: 8, exact: false, position: old });
                let versions: Vec<Version> = [Some(new), before].into_iter().flatten().collect();
                let kept = retain(&versions, &[]);
                assert_eq!(one.change, MoveTarget::Location(word(kept.first().and_then(|v| v.position))));
                assert!(one.born.iter().eq(new.position.map(Position::number)));
                assert!(one.died.iter().eq(old.map(Position::number)));
            }
            let chain = Location::Chain(4096).encode();
            assert!(plan_replacement(b"k", chain, &[new], &[]).is_none(), "a chain must be read");
            assert!(
                plan_replacement(b"k", 0, &[new], &[5]).is_none(),
                "a snapshot may need the older version"
            );
            assert!(plan_replacement(b"k", 0, &[new, new], &[]).is_none());
        }
    }

    #[test]
    fn numbers_come_back_in_order() {
        for count in 0..4 {
            let numbers: Numbers = (10..10 + count).collect();
            assert!(numbers.iter().eq(10..10 + count) && numbers.len() as u64 == count);
        }
    }
}
