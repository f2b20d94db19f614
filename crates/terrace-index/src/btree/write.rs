//! Entering words: one writer at a time, beside readers.

use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use terrace_base::Result;

use super::arena::HEAD;
use super::node::{NodeRef, SLOTS};
use super::{BTree, LookUp, Target, Trail, entry, node};

impl BTree {
    /// Enters `word` under `target`, whose place `trail` was when it was found.
    pub fn insert(&self, trail: &Trail, target: Target<'_>, word: u64, look_up: LookUp<'_>) -> Result<()> {
        let _writer = self.writer.lock();
        self.admit(target.key);
        let leaf = NodeRef::at(&self.arena, trail.leaf);
        if leaf.is_at(trail.version) && leaf.len() < SLOTS {
            self.insert_into(leaf, trail.position as usize, entry::create(&self.arena, target, word), 0);
            return Ok(());
        }
        let path = self.path(target, look_up)?;
        self.insert_along(&path, entry::create(&self.arena, target, word));
        Ok(())
    }

    /// Enters many, one after the other.
    pub fn appender(&self) -> Appender<'_> {
        Appender { tree: self, last: HEAD, _writer: self.writer.lock() }
    }

    /// Makes `key` one that begins like all others.
    fn admit(&self, key: &[u8]) {
        let shared = self.shared.load(Ordering::Relaxed) as usize;
        let witness = self.witness.load(Ordering::Relaxed);
        if witness != HEAD && entry::common_with(&self.arena, witness, key) >= shared {
            return;
        }
        let root = NodeRef::at(&self.arena, self.root.load(Ordering::Relaxed));
        let open = self.open_nodes(root);
        open.iter().for_each(NodeRef::begin);
        let shared = match witness {
            HEAD => {
                let first = entry::create(&self.arena, Target { key, seq: 0 }, 0);
                self.witness.store(first, Ordering::Release);
                key.len().min(entry::MOST_SHARED)
            }
            witness => entry::common_with(&self.arena, witness, key),
        };
        self.shared.store(shared as u64, Ordering::Release);
        open.iter().for_each(|node| node.set_skip(shared));
        open.iter().for_each(NodeRef::end);
    }

    /// The first and the last nodes of all levels.
    fn open_nodes<'a>(&'a self, root: NodeRef<'a>) -> Vec<NodeRef<'a>> {
        let mut nodes = vec![root];
        let (mut first, mut last) = (root, root);
        while first.level() > 0 {
            first = NodeRef::at(&self.arena, first.child(0));
            last = NodeRef::at(&self.arena, last.child(last.len() - 1));
            nodes.push(first);
            if last.at != first.at {
                nodes.push(last);
            }
        }
        nodes
    }

    /// The nodes from the root to the leaf that `target` belongs to, and in each how many slots are before it.
    fn path<'a>(&'a self, target: Target<'_>, look_up: LookUp<'_>) -> Result<Vec<(NodeRef<'a>, usize)>> {
        self.path_by(|node| node.position(target, look_up))
    }

    fn path_by<'a>(
        &'a self,
        mut position: impl FnMut(NodeRef<'a>) -> Result<usize>,
    ) -> Result<Vec<(NodeRef<'a>, usize)>> {
        let mut node = NodeRef::at(&self.arena, self.root.load(Ordering::Relaxed));
        let mut path = Vec::with_capacity(node.level() as usize + 1);
        loop {
            let at = position(node)?;
            path.push((node, at));
            if node.level() == 0 {
                return Ok(path);
            }
            node = NodeRef::at(&self.arena, node.child(at - 1));
        }
    }

    /// Puts `entry` into the leaf at the end of `path`, and makes room for it.
    fn insert_along(&self, path: &[(NodeRef<'_>, usize)], entry: u64) {
        let roomy = path.iter().rposition(|(node, _)| node.len() < SLOTS);
        let changing = &path[roomy.unwrap_or(0)..];
        changing.iter().for_each(|(node, _)| node.begin());
        let (mut entry, mut child) = (entry, 0);
        let mut full = changing.iter().rev();
        let above = loop {
            match full.next() {
                None => break None,
                Some((node, position)) if node.len() < SLOTS => break Some((node, *position)),
                Some((node, position)) => {
                    child = self.split(node, *position, entry, child);
                    entry = NodeRef::at(&self.arena, child).entry(0);
                }
            }
        };
        match above {
            Some((node, position)) => node.insert(position, entry, child),
            None => self.grow(path[0].0, entry, child),
        }
        changing.iter().for_each(|(node, _)| node.end());
    }

    /// Puts a slot into a node with room.
    fn insert_into(&self, node: NodeRef<'_>, position: usize, entry: u64, child: u64) {
        node.begin();
        node.insert(position, entry, child);
        node.end();
    }

    /// Splits a full node, which is being changed, and puts a slot into the half where it belongs; returns the
    /// new half.
    fn split(&self, left: &NodeRef<'_>, position: usize, entry: u64, child: u64) -> u64 {
        let right = NodeRef::at(&self.arena, node::create(&self.arena, left.level()));
        // A tree that only grows at its end keeps its nodes full.
        let is_end = left.high() == HEAD && position == SLOTS;
        let from = if is_end { SLOTS } else { SLOTS / 2 };
        left.move_slots(from, &right);
        match position.checked_sub(from) {
            // The first slot of the right half, or the entry after it.
            Some(0) if is_end => right.push(entry::head_of(&self.arena, entry, left.skip()), entry, child),
            Some(after @ 1..) => {
                left.join(&right);
                right.insert(after, entry, child);
                return self.sharpen(left, &right);
            }
            _ => left.insert(position, entry, child),
        }
        left.join(&right);
        self.sharpen(left, &right)
    }

    /// Makes both halves of a node skip the common beginnings of their keys.
    fn sharpen(&self, left: &NodeRef<'_>, right: &NodeRef<'_>) -> u64 {
        for node in [left, right] {
            if !node.is_open() {
                node.set_skip(entry::common(&self.arena, node.entry(0), node.high()));
            }
        }
        right.at
    }

    /// Puts a new root above the old one, which has split and is still being changed.
    fn grow(&self, old: NodeRef<'_>, entry: u64, child: u64) {
        let root = NodeRef::at(&self.arena, node::create(&self.arena, old.level() + 1));
        let shared = self.shared.load(Ordering::Relaxed) as usize;
        root.set_skip(shared);
        root.push(0, HEAD, old.at);
        root.push(entry::head_of(&self.arena, entry, shared), entry, child);
        self.root.store(root.at, Ordering::Release);
    }

    /// Compares the tree with the words of all records in order; returns differences.
    pub fn check(&self, entries: &[u64]) -> Option<String> {
        let _writer = self.writer.lock();
        let mut node = NodeRef::at(&self.arena, self.root.load(Ordering::Relaxed));
        let mut found = Vec::new();
        loop {
            if let Some(problem) = self.check_level(node, &mut found) {
                return Some(problem);
            }
            if node.level() == 0 {
                break;
            }
            node = NodeRef::at(&self.arena, node.child(0));
        }
        let found: Vec<u64> = found[1..].iter().map(|&at| entry::word(&self.arena, at)).collect();
        (found != entries).then(|| {
            format!("the {} entries of the B-tree in DRAM are not the {} records", found.len(), entries.len())
        })
    }

    /// Checks the nodes of a level from `first` on; `entries` becomes their entries.
    fn check_level(&self, first: NodeRef<'_>, entries: &mut Vec<u64>) -> Option<String> {
        let above = std::mem::take(entries);
        let (mut firsts, mut next) = (Vec::new(), Some(first));
        while let Some(node) = next {
            let slots = 0..node.len();
            let heads_right =
                |slot| node.head(slot) == entry::head_of(&self.arena, node.entry(slot), node.skip());
            if !(1..=SLOTS).contains(&node.len()) || !slots.clone().skip(1).all(heads_right) {
                return Some(format!(
                    "heads of a node of level {} of the B-tree are not its keys'",
                    node.level()
                ));
            }
            next = node.right();
            if node.high() != next.map_or(HEAD, |next| next.entry(0)) {
                return Some(format!(
                    "a node of level {} of the B-tree does not end at the next",
                    node.level()
                ));
            }
            firsts.push(node.entry(0));
            entries.extend(slots.map(|slot| node.entry(slot)));
        }
        let root = self.root.load(Ordering::Relaxed) == first.at;
        (!root && firsts != above)
            .then(|| format!("level {} of the B-tree is not below the next", first.level()))
    }
}

/// Enters words in ascending order; nobody else writes meanwhile.
pub(crate) struct Appender<'a> {
    tree: &'a BTree,
    /// The last leaf, or [`HEAD`].
    last: u64,
    _writer: MutexGuard<'a, ()>,
}

impl Appender<'_> {
    /// Enters `word` under `target`, which comes after all others.
    pub fn append(&mut self, target: Target<'_>, word: u64) -> Result<()> {
        let arena = &self.tree.arena;
        self.tree.admit(target.key);
        let entry = entry::create(arena, target, word);
        if self.last != HEAD {
            let leaf = NodeRef::at(arena, self.last);
            if leaf.len() < SLOTS {
                self.tree.insert_into(leaf, leaf.len(), entry, 0);
                return Ok(());
            }
        }
        let path = self.tree.path_by(|node| Ok(node.len()))?;
        self.tree.insert_along(&path, entry);
        if let Some((leaf, _)) = path.last() {
            self.last = leaf.right().map_or(leaf.at, |right| right.at);
        }
        Ok(())
    }
}
