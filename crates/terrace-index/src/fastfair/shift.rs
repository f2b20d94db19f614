//! FAST: inserting into and deleting from a node by shifting entries with ordered 8-byte stores.
//!
//! After a crash the stores to one line are there up to some point, and a line is drained before the next one is
//! touched. So after a power cut at any moment every entry that was in the node is in it at least once; an entry whose
//! pointer equals its left neighbour's is void. See the table in `docs/formats/fastfair.md`.

use terrace_pmem::{LINE_BYTES, POff};

use super::FastFair;
use super::layout::ENTRY_BYTES;
use super::lock::Locked;
use super::node::NodeRef;

impl<const N: usize> FastFair<N> {
    /// Inserts (`slice`, `ptr`) at `at` into a locked node with `count` < `N` entries; durable on return.
    ///
    /// This thread has flushed the object that `ptr` refers to; it is drained here before it is linked.
    pub(super) fn shift_in(&self, locked: &Locked<'_, N>, count: usize, at: usize, slice: u64, ptr: u64) {
        debug_assert!(at <= count && count < N);
        let node = locked.node;
        locked.shift_leftward(false);
        let mut drained = false;
        for i in (at + 1..=count).rev() {
            let (slice, ptr) = node.own_entry(i - 1);
            if i == count {
                // The slice past the end is arbitrary; it must be right when the pointer makes the entry valid.
                self.store_slice(node, i, slice);
                self.store_ptr(node, i, ptr);
            } else {
                // Pointer first: until the slice has followed, the entry repeats its left neighbour and is void.
                self.store_ptr(node, i, ptr);
                self.store_slice(node, i, slice);
            }
            if begins_line(node, i) {
                // The copy must be durable before its original, in the line before, is overwritten.
                self.pool.persist(node.entry_at(i), ENTRY_BYTES);
                drained = true;
            }
        }
        if at > 0 && at < count {
            // Void the entry before its slice changes, so that nobody finds the old pointer under the new slice.
            self.store_ptr(node, at, node.own_entry(at - 1).1);
        }
        self.store_slice(node, at, slice);
        if !drained {
            self.pool.drain();
        }
        self.store_ptr(node, at, ptr);
        self.pool.persist(node.entry_at(at), ENTRY_BYTES);
    }

    /// Removes entry `at` from a locked node; durable on return.
    pub(super) fn shift_out(&self, locked: &Locked<'_, N>, at: usize) {
        let node = locked.node;
        locked.shift_leftward(true);
        let mut i = at;
        while i + 1 < N {
            let (slice, ptr) = node.own_entry(i + 1);
            if ptr == 0 {
                break;
            }
            self.store_slice(node, i, slice);
            self.store_ptr(node, i, ptr);
            if begins_line(node, i + 1) {
                self.pool.persist(node.entry_at(i), ENTRY_BYTES);
            }
            i += 1;
        }
        self.store_ptr(node, i, 0);
        self.pool.persist(node.entry_at(i), ENTRY_BYTES);
    }

    fn store_slice(&self, node: NodeRef<'_, N>, i: usize, slice: u64) {
        self.pool.store_ordered(POff::new(node.entry_at(i)), slice);
    }

    fn store_ptr(&self, node: NodeRef<'_, N>, i: usize, ptr: u64) {
        self.pool.store_ordered(POff::new(node.entry_at(i) + 8), node.sealed(i, ptr));
    }
}

fn begins_line<const N: usize>(node: NodeRef<'_, N>, i: usize) -> bool {
    node.entry_at(i).is_multiple_of(LINE_BYTES)
}
