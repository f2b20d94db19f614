//! Single-key writes.
//!
//! A change of an existing key is a swap of its record's word, without a lock. A removal swaps it to 0, which takes
//! effect at once, and then sweeps the entry out. A new key is a new record, persisted, then linked by one shift under
//! its leaf's lock.

use std::num::NonZeroU64;

use terrace_base::Result;

use super::FastFair;
use super::build::Fresh;
use super::key::{Target, slice};
use super::lock::Locked;
use super::node::NodeRef;
use super::search::Restarts;
use crate::point::Wish;

/// A locked node.
pub(super) struct Held<'t, const N: usize> {
    pub lock: Locked<'t, N>,
    pub parent: Parent,
}

/// Whether a node's parent, or the root pointer, names it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Parent {
    Aware,
    Unaware,
    /// The node was found past its parent.
    Unknown,
}

/// The outcome of an attempt to insert into a leaf.
enum Inserted {
    /// The key is there now.
    Done,
    /// Another thread's word is there.
    Present,
    /// The leaf had to be rebuilt first.
    Again,
}

impl<const N: usize> FastFair<N> {
    /// [`update`](crate::PointIndex::update), beginning at the leaf that `key` belonged to a moment ago, if that is
    /// known.
    pub(super) fn apply_from(
        &self,
        mut known: Option<NodeRef<'_, N>>,
        key: &[u8],
        wish: &mut dyn FnMut(Option<u64>) -> Wish,
    ) -> Result<Option<u64>> {
        let _writing = self.totals.writing();
        let _here = self.limbo.enter();
        let mut restarts = Restarts::new();
        loop {
            let leaf = match known.take() {
                Some(leaf) => leaf,
                None => match self.leaf_of(key)? {
                    Some(leaf) => leaf,
                    None => return Ok(None),
                },
            };
            let seen = leaf.version();
            let found = self.find(leaf, key)?;
            let now = match found {
                Some((i, record)) => self.cell(record)?.load(leaf.entry_at(i)),
                None => 0,
            };
            let before = (now != 0).then_some(now);
            let Some(new) = wish(before) else { return Ok(before) };
            let new = new.map(NonZeroU64::get);
            let done = match (found, before, new) {
                (Some((i, record)), Some(now), new) => {
                    match self.swap(key, record, leaf.entry_at(i), now, new)? {
                        true => true,
                        // Another thread was faster and has made progress: that is never a sign of damage.
                        false => continue,
                    }
                }
                (None, _, Some(word)) => self.insert_absent(key, word, Some((leaf, seen)))?,
                (Some(_), None, Some(word)) => self.insert_absent(key, word, None)?,
                _ => true,
            };
            if done {
                return Ok(before);
            }
            self.restart(&mut restarts)?;
        }
    }

    /// Swaps the word of a record that is there; false if it is no longer `now`.
    fn swap(&self, key: &[u8], record: u64, link: u64, now: u64, new: Option<u64>) -> Result<bool> {
        if self.cell(record)?.compare_exchange(now, new.unwrap_or(0), link).is_err() {
            return Ok(false);
        }
        if new.is_none() {
            self.totals.add(-1, 0);
            self.sweep(key, record)?;
        }
        Ok(true)
    }

    /// Puts in a key that was absent; false if it no longer is. `looked` is the leaf that had no entry for it and
    /// its lock word before that was found out.
    fn insert_absent(&self, key: &[u8], word: u64, looked: Option<(NodeRef<'_, N>, u64)>) -> Result<bool> {
        // Reserved and written before the lock is taken; given back if it is not needed.
        let mut fresh = Fresh::new(&self.pool);
        let record = fresh.record(key, word, self.generation)?;
        let mut fresh = Some(fresh);
        let (mut held, mut seen) = match looked {
            Some((leaf, seen)) => (self.hold_this(leaf, key)?, Some((leaf.off, seen))),
            None => (self.hold_leaf(key)?, None),
        };
        let mut restarts = Restarts::new();
        loop {
            // The first lock after a crash repairs the leaf: what was not found before may be found now.
            let missing = seen.take() == Some((held.lock.node.off, held.lock.before))
                && !self.may_need_repair(held.lock.before);
            match self.insert_into(held, missing, key, word, record, &mut fresh)? {
                Inserted::Done => break,
                Inserted::Present => return Ok(false),
                Inserted::Again => held = self.hold(key, 0)?,
            }
            self.restart(&mut restarts)?;
        }
        self.totals.add(1, 0);
        Ok(true)
    }

    /// Puts the record into the held leaf, which is known to have no entry for `key` if it is `missing`.
    fn insert_into(
        &self,
        held: Held<'_, N>,
        missing: bool,
        key: &[u8],
        word: u64,
        record: u64,
        fresh: &mut Option<Fresh<'_>>,
    ) -> Result<Inserted> {
        let leaf = held.lock.node;
        if !missing && let Some((i, old)) = self.find(leaf, key)? {
            let link = leaf.entry_at(i);
            let cell = self.cell(old)?;
            if cell.load(link) != 0 {
                return Ok(Inserted::Present);
            }
            // A dead record not swept out yet: nobody else revives it while the leaf is locked.
            let revived = cell.compare_exchange(0, word, link).is_ok();
            return Ok(if revived { Inserted::Done } else { Inserted::Present });
        }
        let count = leaf.own_count();
        let is_full = count == N || !self.suits(leaf, key)?;
        if is_full || (held.parent != Parent::Unaware && self.would_gain(leaf, count, key)?) {
            self.make_room(held, key)?;
            return Ok(Inserted::Again);
        }
        let at = self.rank(leaf, count, key)?;
        if let Some(fresh) = fresh.take() {
            self.totals.add(0, fresh.keep() as i64);
        }
        self.shift_in(&held.lock, count, at, slice(key, leaf.skip()), record);
        drop(held);
        self.cell(record)?.end();
        Ok(Inserted::Done)
    }

    /// Whether `node` may hold `key`: it has the prefix that the node relies on.
    pub(super) fn suits(&self, node: NodeRef<'_, N>, key: &[u8]) -> Result<bool> {
        Ok(node.n.prefix == 0 || key.starts_with(self.key_bytes(node.n.prefix)?))
    }

    /// Whether a leaf about to take `key` has too many slices that do not tell its keys apart, and another skip
    /// would. Asked at few fill levels only, since it looks at all keys.
    fn would_gain(&self, leaf: NodeRef<'_, N>, count: usize, key: &[u8]) -> Result<bool> {
        if count != N / 4 && count != N / 2 {
            return Ok(false);
        }
        let own = slice(key, leaf.skip());
        if !(0..count).any(|i| leaf.own_entry(i).0 == own) {
            return Ok(false);
        }
        // The same choice that rebuilding makes: it happens once.
        let mut keys: Vec<_> = self.gather(leaf)?.items.iter().map(|i| i.key).collect();
        keys.insert(keys.partition_point(|k| *k < key), key);
        let better = super::key::choose_skip(self.low_key(leaf)?, self.high_key(leaf)?, &keys);
        Ok(better.bytes > leaf.skip())
    }

    /// Restructures a full or unsuitable node so that `key` finds room; releases it.
    fn make_room(&self, held: Held<'_, N>, key: &[u8]) -> Result<()> {
        let level = held.lock.node.level();
        match held.parent {
            Parent::Aware => self.restructure(held.lock, key),
            // The next holder of the lock retries.
            Parent::Unknown => Ok(()),
            // Its parent must know it before its structure changes again (invariant 5).
            Parent::Unaware => {
                drop(held);
                self.repair_parent(key, level)
            }
        }
    }

    /// Takes the dead record out of its leaf, unless it has been revived or swept out by another.
    fn sweep(&self, key: &[u8], record: u64) -> Result<()> {
        let held = self.hold_leaf(key)?;
        let leaf = held.lock.node;
        let at = (0..leaf.own_count()).find(|&i| leaf.own_entry(i).1 == record);
        let Some(at) = at else { return Ok(()) };
        if self.cell(record)?.load(leaf.entry_at(at)) != 0 {
            return Ok(());
        }
        self.shift_out(&held.lock, at);
        let left = leaf.own_count();
        drop(held);
        self.retire_record(record)?;
        if left < N / 4 || left == 0 { self.try_merge(key, 0) } else { Ok(()) }
    }

    /// Locks the living node of `level` that `key` belongs to; the level exists.
    ///
    /// If its parent does not name it, the parent is updated on the way, as far as the pool has room.
    pub(super) fn hold(&self, key: &[u8], level: u8) -> Result<Held<'_, N>> {
        match self.try_hold(key, level)? {
            Some(held) => Ok(held),
            None => Err(self.damaged(self.header_off, "a tree with leaves", "none")),
        }
    }

    /// Locks the living leaf that `key` belongs to, by a shortcut if there is one.
    fn hold_leaf(&self, key: &[u8]) -> Result<Held<'_, N>> {
        match self.shortcut(key)? {
            Some(leaf) => self.hold_this(leaf, key),
            None => self.hold(key, 0),
        }
    }

    /// Locks `leaf`, to which `key` belonged a moment ago, or its replacement.
    fn hold_this<'t>(&'t self, leaf: NodeRef<'t, N>, key: &[u8]) -> Result<Held<'t, N>> {
        let lock = self.lock(leaf)?;
        if !self.is_dead(leaf)? {
            return Ok(Held { lock, parent: Parent::Unknown });
        }
        drop(lock);
        self.hold(key, 0)
    }

    /// [`hold`](Self::hold), `None` if the tree is not that high.
    pub(super) fn try_hold(&self, key: &[u8], level: u8) -> Result<Option<Held<'_, N>>> {
        let mut helped = false;
        let mut restarts = Restarts::new();
        loop {
            self.restart(&mut restarts)?;
            let Some(arrival) = self.descend(Target::At(key), level)? else { return Ok(None) };
            let lock = self.lock(arrival.node)?;
            if self.is_dead(arrival.node)? {
                continue;
            }
            if arrival.direct || helped {
                let parent = if arrival.direct { Parent::Aware } else { Parent::Unaware };
                return Ok(Some(Held { lock, parent }));
            }
            drop(lock);
            helped = true;
            match self.repair_parent(key, level) {
                Err(e) if !e.is_out_of_space() => return Err(e),
                _ => {}
            }
        }
    }
}
