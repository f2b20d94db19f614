//! Node locks, and the repair of nodes after a crash.
//!
//! The lock word holds the pool's generation (upper 32 bits), a counter (30), the direction that entries are being
//! shifted in (1: left, deleting) and the lock bit. A lock of an older generation died with its process. Every lock and
//! every change of direction moves the counter on, so that between two equal looks a reader has seen shifts in that one
//! direction or none.

use std::sync::atomic::Ordering;

use crossbeam_utils::Backoff;
use terrace_base::Result;
use terrace_pmem::{POff, Touching};

use super::FastFair;
use super::layout::{FORWARD_AT, Node};
use super::node::NodeRef;

const LOCKED: u64 = 1;
const LEFTWARD: u64 = 2;
const COUNTER: u64 = 4;
const COUNTER_MASK: u64 = 0xffff_fffc;

/// The bits of a pool's generation that a lock word keeps.
pub(super) const GENERATION_MASK: u64 = 0xffff_ffff;

/// Whether a lock word says that a writer is at work, or was when its process died.
pub(super) fn is_locked(word: u64) -> bool {
    word & LOCKED != 0
}

/// Whether a lock word says that entries are being shifted left.
pub(super) fn is_leftward(word: u64) -> bool {
    word & (LOCKED | LEFTWARD) == LOCKED | LEFTWARD
}

/// The generation in a lock word.
pub(super) fn generation(word: u64) -> u64 {
    word >> 32
}

/// A locked node; unlocks when dropped.
pub(super) struct Locked<'t, const N: usize> {
    pub node: NodeRef<'t, N>,
    /// The lock word that was replaced.
    pub before: u64,
    /// A reader's guard: the pool is not closed meanwhile.
    _touching: Option<Touching<'t>>,
}

impl<const N: usize> Drop for Locked<'_, N> {
    fn drop(&mut self) {
        let lock = &self.node.n.lock;
        lock.store(lock.load(Ordering::Relaxed) & !(LOCKED | LEFTWARD), Ordering::Release);
    }
}

impl<const N: usize> Locked<'_, N> {
    /// Announces the direction of the shifts to come.
    pub fn shift_leftward(&self, leftward: bool) {
        let lock = &self.node.n.lock;
        let word = lock.load(Ordering::Relaxed);
        if is_leftward(word) != leftward {
            let direction = if leftward { LEFTWARD } else { 0 };
            lock.store(bump(word) | LOCKED | direction, Ordering::Release);
        }
    }
}

/// The word with the counter moved on, unlocked.
fn bump(word: u64) -> u64 {
    word & !0xffff_ffff | (word & COUNTER_MASK).wrapping_add(COUNTER) & COUNTER_MASK
}

impl<const N: usize> FastFair<N> {
    /// Locks `node`. The first lock after an unclean end repairs the node.
    pub(super) fn lock<'t>(&'t self, node: NodeRef<'t, N>) -> Result<Locked<'t, N>> {
        let mine = self.generation << 32;
        let backoff = Backoff::new();
        self.touch_lock(node);
        loop {
            let word = node.version();
            let fresh = word & !0xffff_ffff != mine;
            if is_locked(word) && !fresh {
                backoff.snooze();
                continue;
            }
            let next = bump(word & 0xffff_ffff | mine) | LOCKED;
            if node.n.lock.compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                let locked = Locked { node, before: word, _touching: None };
                if !node.has_own_entries() {
                    return Err(self.stray(node));
                }
                if self.may_need_repair(word) {
                    self.repair(&locked)?;
                }
                return Ok(locked);
            }
        }
    }

    /// Locks `node` if it is free and needs no repair after a crash. In a read-only or closed pool nobody locks: a lock
    /// left there would be taken for the next session's.
    pub(super) fn try_lock_sound<'t>(&'t self, node: NodeRef<'t, N>) -> Option<Locked<'t, N>> {
        let word = node.version();
        if is_locked(word) || self.may_need_repair(word) {
            return None;
        }
        let touching = self.pool.touching(node.off, size_of::<Node<N>>() as u64)?;
        let next = bump(word & 0xffff_ffff | self.generation << 32) | LOCKED;
        let taken = node.n.lock.compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        // Lazily: a guard made for a lock that another holds would release it when dropped.
        taken.then(|| Locked { node, before: word, _touching: Some(touching) })
    }

    /// The lock word has changed and is never flushed.
    fn touch_lock(&self, node: NodeRef<'_, N>) {
        self.pool.touched(node.off, size_of::<Node<N>>() as u64);
    }

    /// Whether `node` has been replaced.
    pub(super) fn is_dead(&self, node: NodeRef<'_, N>) -> Result<bool> {
        Ok(self.forward(node)? != 0)
    }

    /// Repairs a node that a crash may have left in the middle of a shift or a merge.
    fn repair(&self, locked: &Locked<'_, N>) -> Result<()> {
        let node = locked.node;
        // Stores of a killed process are there, but may not have been written back.
        self.pool.persist(node.off, Self::NODE_BYTES);
        if self.is_dead(node)? {
            return Ok(());
        }
        self.remove_duplicates(locked)?;
        if node.level() == 0 { self.repair_slices(node) } else { self.finish_merges(locked) }
    }

    /// An interrupted shift leaves neighbours with the same pointer: the right one is void.
    fn remove_duplicates(&self, locked: &Locked<'_, N>) -> Result<()> {
        let node = locked.node;
        let mut i = 1;
        while node.ptr(i) != 0 {
            if node.ptr(i) == node.ptr(i - 1) {
                // At most one of the two slices is the pointer's own; it is needed on the left.
                let slice = self.slice_of(node, node.ptr(i))?;
                self.set_slice(node, i - 1, slice);
                self.shift_out(locked, i);
            } else {
                i += 1;
            }
        }
        Ok(())
    }

    /// An interrupted delete may have left the slice of the next record with the deleted one.
    fn repair_slices(&self, node: NodeRef<'_, N>) -> Result<()> {
        for i in 0..node.count() {
            let slice = self.slice_of(node, node.ptr(i))?;
            self.set_slice(node, i, slice);
        }
        Ok(())
    }

    fn slice_of(&self, node: NodeRef<'_, N>, ptr: u64) -> Result<u64> {
        let key = if node.level() == 0 {
            self.record_key(ptr)?
        } else {
            self.low_key(self.node(ptr)?)?.unwrap_or_default()
        };
        Ok(super::key::slice(key, node.skip()))
    }

    fn set_slice(&self, node: NodeRef<'_, N>, i: usize, slice: u64) {
        if node.entry(i).0 != slice {
            self.pool.publish(POff::new(node.entry_at(i)), slice);
        }
    }

    /// Takes out the children that have been merged into their left siblings, where the crash came before the
    /// parent knew.
    fn finish_merges(&self, locked: &Locked<'_, N>) -> Result<()> {
        let node = locked.node;
        let mut i = 1;
        while node.ptr(i) != 0 {
            let child = self.node(node.ptr(i))?;
            let target = self.live(child.off)?;
            if target.off == child.off || target.n.low == child.n.low {
                i += 1;
                continue;
            }
            if child.n.forward.load(Ordering::Acquire) == 0 {
                self.pool.publish(POff::new(child.off + FORWARD_AT), target.off);
            }
            self.shift_out(locked, i);
            self.retire_node(child, true)?;
        }
        Ok(())
    }
}
