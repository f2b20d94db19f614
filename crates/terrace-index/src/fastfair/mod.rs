//! A persistent B+-tree for byte strings: FAST and FAIR (Hwang et al., FAST '18), with out-of-place structure
//! changes and without its published bugs.
//!
//! ```text
//! leaf entry  (slice, record)      record = word, state, key           one slab object a key
//! inner entry (slice, child)       the child's `low` key object is its separator
//! ```
//!
//! A node skips the bytes that its keys share and keeps the next eight beside each pointer; full keys are looked at
//! only where those tie. Updating a key swaps the word in its record and touches no node. Inserting and deleting shift
//! entries in place with ordered 8-byte stores (`shift`). Everything else - splits, merges, other skips, new roots -
//! builds new nodes and switches to them by one publish of `forward` in the old one; parents and left siblings follow,
//! completed by any writer that comes by, also after a crash (`parent`).
//!
//! Thread safety: every method may be called from any thread at any time. Readers take no locks. Writers lock
//! single nodes, or, to merge, a parent and then two children from left to right; splits hold one lock at a
//! time. Locks are words that die with the process.
//!
//! Invariants:
//!
//! 1. A node's level, fences, skip and prefix never change. Nodes of one level partition the keys.
//! 2. An entry is in its node at every moment, also after a power cut; a void copy has the pointer of its left
//!    neighbour.
//! 3. A node dies by the durable publish of its `forward` (or, with a `merge` hint, that of its left sibling's) and
//!    never changes again. A thread that follows `forward` makes it durable first.
//! 4. A parent names a living child only if the parent's next separator is not past the child's high fence.
//! 5. A node changes its structure only while its parent, or the root pointer, names it directly. So forward chains
//!    have one link. The left sibling's link is changed first, the parent's entry last, and the thread that changes the
//!    entry retires the node.
//! 6. A separator is the low fence of exactly one leaf, which owns the key object; nodes above share it.
//! 7. A shortcut leads to a living leaf or is noticed to be out of date (`shortcut`).
//! 8. A record's word 0 says "absent". A record is taken out of its leaf only then and under the leaf's lock,
//!    and revived only under that lock.

mod build;
mod check;
mod key;
mod layout;
mod lock;
mod mark;
mod merge;
mod nearby;
mod node;
mod parent;
mod restructure;
mod run;
mod scan;
mod search;
mod shift;
mod shortcut;
#[cfg(test)]
mod tests;
mod together;
mod totals;
mod write;

use std::fmt;
use std::ops::Bound;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use terrace_base::{Error, Result};
use terrace_pmem::{Kind, Marks, Opened, POff, Pool};

use crate::kinds;
use crate::limbo::Limbo;
use crate::ordered::{OrderedIndex, leads_on};
use crate::point::{PointIndex, Wish, admit_key};
use crate::reserved::Reserved;
use crate::scan_batch::ScanBatch;
use crate::totals::Totals;

pub use nearby::Nearby;
use node::NodeRef;

use layout::{NodeFields, TREE_HEADER_BYTES, TreeHeader};
use shortcut::Shortcuts;

/// Entries of a node by default: 512 bytes.
pub const FANOUT: usize = 28;

/// Something unlinked: its kind, offset and bytes.
type Garbage = (Kind, u64, u64);

/// A FAST&FAIR tree of nodes with `N` entries, at least 4.
pub struct FastFair<const N: usize = FANOUT> {
    pool: Pool,
    header_off: u64,
    generation: u64,
    /// Generation of the last open after an unclean end, 0 if there was none: nodes that were last locked before it may
    /// need repair.
    unclean: u64,
    limbo: Limbo<Garbage>,
    /// Held to replace the root.
    root_lock: Mutex<()>,
    totals: Totals,
    shortcuts: Shortcuts,
}

impl<const N: usize> FastFair<N> {
    /// Makes an empty tree under the root `root_name`.
    pub fn create(pool: &Pool, root_name: &str) -> Result<Self> {
        let mut reserved = Reserved::new(pool);
        let tree = Self::make(pool, &mut reserved)?;
        reserved.activate();
        tree.name(&mut reserved, root_name)?;
        reserved.keep();
        Ok(tree)
    }

    /// Makes an empty tree of slots that are `reserved`, and flushes it. They are to be activated, and the tree to be
    /// named.
    pub(crate) fn make(pool: &Pool, reserved: &mut Reserved<'_>) -> Result<Self> {
        const { assert!(N >= 4, "a node that splits leaves two entries on each side") };
        let header = reserved.take(kinds::FASTFAIR_NODE, TREE_HEADER_BYTES)?;
        let root = reserved.take(kinds::FASTFAIR_NODE, Self::NODE_BYTES)?;
        let fields = NodeFields { level: 0, skip: 0, low: 0, high: 0, prefix: 0 };
        pool.write(root, &fields.encode(pool.place(root), 0, pool.generation() << 32, &[], N));
        pool.flush(root, Self::NODE_BYTES);
        pool.write(header, &layout::encode_header(pool.place(header), root, N as u32));
        pool.flush(header, TREE_HEADER_BYTES);
        let tree = Self::over(pool, header);
        tree.totals.set(0, TREE_HEADER_BYTES + Self::NODE_BYTES);
        Ok(tree)
    }

    /// Lets the root `root_name` lead to a tree of slots that are `reserved`, durably.
    pub(crate) fn name(&self, reserved: &mut Reserved<'_>, root_name: &str) -> Result<()> {
        reserved.name(root_name, self.header_off)
    }

    /// Attaches to the tree under the root `root_name`, after a crash as after a clean close, in constant time: writers
    /// complete changes that a crash left half done when they come by.
    pub fn open(pool: &Pool, root_name: &str) -> Result<Self> {
        let header = pool
            .root(root_name)?
            .ok_or_else(|| Error::corruption(pool.path(), 0, format!("a root {root_name}"), "none"))?;
        let mut tree = Self::over(pool, header);
        let head = tree.header()?;
        let place = pool.place(header);
        if let Some(version) = layout::other_version(head, place) {
            return Err(Error::other_version(
                pool.path(),
                format!("a FAST&FAIR tree of version {version}"),
                format!("version {}", layout::VERSION),
            ));
        }
        if head.magic != layout::MAGIC || head.crc != layout::header_crc(head.magic, place, head.fanout) {
            return Err(tree.damaged(header, "a FAST&FAIR tree's header", "other bytes"));
        }
        if head.fanout as usize != N {
            return Err(Error::foreign(
                pool.path(),
                format!("a tree of fanout {}", head.fanout),
                format!("fanout {N}"),
            ));
        }
        if !matches!(pool.opened(), Opened::Created | Opened::Clean) {
            head.unclean.store(tree.generation, Ordering::Release);
        }
        let unclean = head.unclean.load(Ordering::Acquire);
        // The root pointer, too, may have been stored by a process that was killed before it was durable.
        pool.persist(header, TREE_HEADER_BYTES);
        tree.node(head.root.load(Ordering::Acquire))?;
        tree.totals.load(&tree.pool, &tree.saved_totals()?);
        tree.unclean = unclean;
        Ok(tree)
    }

    /// Gives back unlinked memory, as far as present readers allow; returns whether that is everything.
    pub fn drain(&self) -> bool {
        self.limbo.drain();
        self.limbo.is_empty()
    }

    /// Sets the most bytes of DRAM that shortcuts to leaves take; 32 MiB by default. Twenty keys take about 80 to 100
    /// bytes, more if they are long.
    pub fn set_shortcut_limit(&self, bytes: u64) {
        self.shortcuts.set_limit(bytes);
    }

    fn over(pool: &Pool, header_off: u64) -> Self {
        let free = pool.clone();
        FastFair {
            pool: pool.clone(),
            header_off,
            generation: pool.generation(),
            unclean: 0,
            // Memory that cannot be freed is unreachable, and the pool's check finds it.
            limbo: Limbo::new(move |(kind, off, _)| drop(free.free(off, kind))),
            root_lock: Mutex::new(()),
            totals: Totals::default(),
            shortcuts: Shortcuts::default(),
        }
    }

    fn header(&self) -> Result<&TreeHeader> {
        self.pool.get::<TreeHeader>(POff::new(self.header_off))
    }

    /// The word of `key`, which belongs to `leaf`.
    fn get_in(&self, leaf: NodeRef<'_, N>, key: &[u8]) -> Result<Option<u64>> {
        let Some((i, record)) = self.find(leaf, key)? else { return Ok(None) };
        let word = self.cell(record)?.load(leaf.entry_at(i));
        Ok((word != 0).then_some(word))
    }
}

impl<const N: usize> PointIndex for FastFair<N> {
    fn get(&self, key: &[u8]) -> Result<Option<u64>> {
        admit_key(key)?;
        let _here = self.limbo.enter();
        let Some(leaf) = self.leaf_of(key)? else { return Ok(None) };
        self.get_in(leaf, key)
    }

    fn get_many(&self, keys: &[&[u8]], words: &mut Vec<Option<u64>>) -> Result<()> {
        keys.iter().try_for_each(|key| admit_key(key))?;
        let _here = self.limbo.enter();
        self.get_together(keys, words)
    }

    fn update(&self, key: &[u8], wish: &mut dyn FnMut(Option<u64>) -> Wish) -> Result<Option<u64>> {
        admit_key(key)?;
        self.apply_from(None, key, wish)
    }

    /// Exact whenever writers are at rest. After an unclean end the first call counts, while writers wait.
    fn len(&self) -> u64 {
        self.counted().0
    }

    fn mark(&self, marks: &mut Marks) -> Result<()> {
        self.mark_all(marks)
    }

    fn check(&self) -> Result<Vec<String>> {
        self.check_all()
    }

    fn dram_bytes(&self) -> u64 {
        let limbo = self.limbo.len() * size_of::<(u64, Garbage)>();
        (size_of::<Self>() + limbo) as u64 + self.shortcuts.bytes()
    }

    fn pm_bytes(&self) -> u64 {
        self.counted().1
    }

    fn close(&self) -> Result<()> {
        self.limbo.drain();
        self.totals.save(&self.pool, &self.saved_totals()?);
        Ok(())
    }
}

impl<const N: usize> OrderedIndex for FastFair<N> {
    fn scan(&self, from: Bound<&[u8]>, reverse: bool, limit: usize, out: &mut ScanBatch) -> Result<()> {
        let (before, end) = (out.len(), out.len().saturating_add(limit));
        if reverse {
            self.scan_down(from, end, out)?
        } else {
            self.scan_up(from, end, out)?
        }
        if leads_on(from, reverse, before, out) {
            return Ok(());
        }
        Err(self.damaged(self.header_off, "leaves with keys of their own", "others' keys"))
    }
}

impl<const N: usize> fmt::Debug for FastFair<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FastFair").field("fanout", &N).field("header", &self.header_off).finish()
    }
}
