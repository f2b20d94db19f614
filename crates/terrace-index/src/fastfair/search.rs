//! Descending without locks, and looking into nodes that are being changed.
//!
//! A reader need not compare keys to know that a node is the right one if its parent's entry led there directly and the
//! parent did not change meanwhile: parents point to living nodes only where their own next separator is not past the
//! child's high fence. In every other case (through a forward link, from a parent that is changing or was left by a
//! crash) the fences decide: a reader too far left moves along the siblings, one too far right starts over.

use std::cmp::Ordering as Order;
use std::sync::atomic::Ordering;

use terrace_base::Result;

use super::FastFair;
use super::key::{Target, slice};
use super::layout::{RECORD_LINE, STRAY, value_of};
use super::lock;
use super::node::NodeRef;

/// Where a descent ended.
#[derive(Clone, Copy)]
pub(super) struct Arrival<'t, const N: usize> {
    pub node: NodeRef<'t, N>,
    /// Whether the parent (or the root pointer) names this very node.
    pub direct: bool,
}

/// A descent that passes more siblings than this is lost in damaged nodes.
const MAX_SIBLINGS: usize = 10_000;

/// How often an operation may begin again because another thread was faster. More often means damaged nodes, since each
/// time the other thread has changed the tree's structure.
const MAX_RESTARTS: usize = 1_000;

/// The fresh starts that an operation has left.
pub(super) struct Restarts(usize);

impl Restarts {
    pub fn new() -> Restarts {
        Restarts(MAX_RESTARTS)
    }
}

impl<const N: usize> FastFair<N> {
    /// The living leaf that `key` belongs to.
    pub(super) fn leaf_of(&self, key: &[u8]) -> Result<Option<NodeRef<'_, N>>> {
        if let Some(leaf) = self.shortcut(key)? {
            return Ok(Some(leaf));
        }
        let Some(Arrival { node, .. }) = self.descend(Target::At(key), 0)? else { return Ok(None) };
        self.note_shortcut(node)?;
        Ok(Some(node))
    }

    /// The living node of `level` that `target` belongs to; `None` if the tree is not that high.
    pub(super) fn descend(&self, target: Target<'_>, level: u8) -> Result<Option<Arrival<'_, N>>> {
        let mut restarts = Restarts::new();
        loop {
            if let Some(found) = self.try_descend(target, level)? {
                return Ok(found);
            }
            self.restart(&mut restarts)?;
        }
    }

    /// Takes one of the fresh starts that are left.
    pub(super) fn restart(&self, left: &mut Restarts) -> Result<()> {
        match left.0.checked_sub(1) {
            Some(fewer) => left.0 = fewer,
            None => return Err(self.damaged(self.header_off, "a tree", "nodes that lead in circles")),
        }
        Ok(())
    }

    /// One attempt; `None` if it went too far right.
    fn try_descend(&self, target: Target<'_>, level: u8) -> Result<Option<Option<Arrival<'_, N>>>> {
        let mut off = self.header()?.root.load(Ordering::Acquire);
        let mut above = u8::MAX;
        let mut sure = true;
        loop {
            let Some(node) = self.covering(off, target, sure)? else { return Ok(None) };
            if node.level() >= above {
                return Err(self.damaged(node.off, "a node of a lower level", "one as high as its parent"));
            }
            if node.level() <= level {
                let direct = node.off == off;
                return Ok(Some((node.level() == level).then_some(Arrival { node, direct })));
            }
            above = node.level();
            let before = node.version();
            off = self.route(node, target)?.1;
            sure = self.is_steady(before, node.version());
        }
    }

    /// The node at `off`; all of its lines are loaded at once.
    fn load_node(&self, off: u64) -> Result<NodeRef<'_, N>> {
        self.pool.prefetch(off, Self::NODE_BYTES);
        let node = self.node(off)?;
        self.pool.charge_read(off, Self::NODE_BYTES);
        Ok(node)
    }

    /// From the node at `off` to the living one of its level that `target` belongs to; `None` if that lies to the
    /// left. Fences are compared unless it is `sure`.
    pub(super) fn covering(
        &self,
        off: u64,
        target: Target<'_>,
        sure: bool,
    ) -> Result<Option<NodeRef<'_, N>>> {
        self.covering_from(self.load_node(off)?, target, sure)
    }

    /// As [`covering`](Self::covering), from a node that has been loaded.
    pub(super) fn covering_from<'t>(
        &'t self,
        first: NodeRef<'t, N>,
        target: Target<'_>,
        sure: bool,
    ) -> Result<Option<NodeRef<'t, N>>> {
        let mut node = first;
        let mut check = !sure;
        for _ in 0..MAX_SIBLINGS {
            let forward = self.forward(node)?;
            if forward != 0 {
                node = self.load_node(forward)?;
                check = true;
                continue;
            }
            if !check {
                return Ok(Some(node));
            }
            if self.low_key(node)?.is_some_and(|low| !target.reaches(low)) {
                return Ok(None);
            }
            if !self.high_key(node)?.is_some_and(|high| target.reaches(high)) {
                return Ok(Some(node));
            }
            node = self.load_node(node.next())?;
        }
        Err(self.damaged(first.off, "a node among its siblings", "siblings that lead in circles"))
    }

    /// The entry of an inner node that leads to `target`: its index and child.
    pub(super) fn route(&self, node: NodeRef<'_, N>, target: Target<'_>) -> Result<(usize, u64)> {
        let at = match self.against_prefix(node, target)? {
            Order::Less => 0,
            Order::Greater => node.count().saturating_sub(1),
            Order::Equal => self.route_by_slice(node, target)?,
        };
        match node.ptr(at) {
            STRAY => Err(self.stray(node)),
            // A delete has shortened the node meanwhile; its first entry is always there and never too far right.
            0 if node.ptr(0) != 0 => Ok((0, node.ptr(0))),
            0 => Err(self.damaged(node.off, "an inner node with children", "none")),
            child => Ok((at, child)),
        }
    }

    pub(super) fn against_prefix(&self, node: NodeRef<'_, N>, target: Target<'_>) -> Result<Order> {
        match node.n.prefix {
            0 => Ok(Order::Equal),
            prefix => Ok(target.against(self.key_bytes(prefix)?)),
        }
    }

    fn route_by_slice(&self, node: NodeRef<'_, N>, target: Target<'_>) -> Result<usize> {
        let wanted = target.slice(node.skip());
        let mut i = 1;
        let mut ties = 0;
        while i < N {
            let (slice, word) = node.sealed_entry(i);
            if value_of(word) == 0 || slice > wanted {
                // As in `find_upward`, this one and the one before decide; that one is looked at when its child is
                // taken.
                self.own(node, i, word)?;
                break;
            }
            ties = if slice == wanted { ties + 1 } else { 0 };
            i += 1;
        }
        // Entries [i - ties, i) have the wanted slice; those before lie before the target for sure.
        let (mut from, mut to) = (i - ties, i);
        while from < to {
            let middle = (from + to) / 2;
            if self.child_reached(node, middle, target)? { from = middle + 1 } else { to = middle }
        }
        Ok(from - 1)
    }

    fn child_reached(&self, node: NodeRef<'_, N>, i: usize, target: Target<'_>) -> Result<bool> {
        match node.ptr(i) {
            0 => Ok(false),
            child => Ok(self.low_key(self.node(child)?)?.is_none_or(|low| target.reaches(low))),
        }
    }

    /// The entry of a leaf with `key`: its index and record. Exact even beside writers.
    pub(super) fn find(&self, leaf: NodeRef<'_, N>, key: &[u8]) -> Result<Option<(usize, u64)>> {
        if self.against_prefix(leaf, Target::At(key))? != Order::Equal {
            return Ok(None);
        }
        let wanted = slice(key, leaf.skip());
        loop {
            let before = leaf.version();
            // Against the shift: an entry on the move is passed twice or once, never not at all.
            let found = match lock::is_leftward(before) {
                true => self.find_downward(leaf, key, wanted)?,
                false => self.find_upward(leaf, key, wanted)?,
            };
            if found.is_some() || leaf.version() == before {
                return Ok(found);
            }
        }
    }

    /// An entry that is found is verified by its record. A missing key is verified by two neighbouring entries of this
    /// node, whose slices enclose the wanted one. Entries passed before need no check: slices ascend, so an entry that
    /// was written elsewhere does not change the answer, or is one of the two.
    fn find_upward(&self, leaf: NodeRef<'_, N>, key: &[u8], wanted: u64) -> Result<Option<(usize, u64)>> {
        let mut passed = None;
        for i in 0..N {
            let (slice, word) = leaf.sealed_entry(i);
            if slice < wanted && value_of(word) != 0 {
                passed = Some((i, word));
                continue;
            }
            let ptr = self.own(leaf, i, word)?;
            if ptr == 0 || slice > wanted {
                break;
            }
            if self.has_key(ptr, key)? {
                return Ok(Some((i, ptr)));
            }
            passed = None;
        }
        if let Some((i, word)) = passed {
            self.own(leaf, i, word)?;
        }
        Ok(None)
    }

    fn find_downward(&self, leaf: NodeRef<'_, N>, key: &[u8], wanted: u64) -> Result<Option<(usize, u64)>> {
        for i in (0..N).rev() {
            let (slice, word) = leaf.sealed_entry(i);
            let ptr = self.own(leaf, i, word)?;
            if ptr != 0 && slice == wanted && self.has_key(ptr, key)? {
                return Ok(Some((i, ptr)));
            }
        }
        Ok(None)
    }

    /// Where `word`, read from entry `i`, leads.
    fn own(&self, node: NodeRef<'_, N>, i: usize, word: u64) -> Result<u64> {
        match node.unsealed(i, word) {
            STRAY => Err(self.stray(node)),
            ptr => Ok(ptr),
        }
    }

    fn has_key(&self, record: u64, key: &[u8]) -> Result<bool> {
        let found = self.record_key(record)?;
        self.pool.charge_read(record, RECORD_LINE);
        Ok(found == key)
    }

    /// How many entries of a locked leaf have keys less than `key`, which has the node's prefix.
    pub(super) fn rank(&self, leaf: NodeRef<'_, N>, count: usize, key: &[u8]) -> Result<usize> {
        let wanted = slice(key, leaf.skip());
        let (mut from, mut to) = (0, count);
        while from < to {
            let middle = (from + to) / 2;
            let (slice, ptr) = leaf.own_entry(middle);
            let before = match slice.cmp(&wanted) {
                Order::Less => true,
                Order::Greater => false,
                Order::Equal => self.record_key(ptr)? < key,
            };
            if before { from = middle + 1 } else { to = middle }
        }
        Ok(from)
    }
}
