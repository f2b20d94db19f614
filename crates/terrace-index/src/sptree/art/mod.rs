//! An adaptive radix tree in DRAM from byte strings to addresses: which is the greatest key not above this one?
//!
//! ```text
//! node = up to 12 bytes of prefix, the value of the key that ends here, children by their next byte
//! sparse: 0 to 48 children, allocated to measure, sorted bytes      full: 256 children by index
//! child = nothing | a value (odd): the key ends with this byte, and none goes on | a node (even)
//! ```
//!
//! Longer prefixes are chains of nodes; a common prefix of all keys is a few nodes that are always in the caches. The
//! tree has whole keys: a search needs no other structure.
//!
//! Thread safety: searches take no locks, and run under a presence in the limbo to which the owner retires replaced
//! nodes. Changes exclude each other by a mutex.
//!
//! Invariants:
//!
//! 1. A sparse node's bytes never change, nor does any node's prefix: a change of these makes a new node, and one store
//!    of the pointer to it makes it part of the tree. Children and the value are single words.
//! 2. A node that has been replaced keeps leading to living or retired nodes; it is retired, not freed.
//! 3. At rest, a search is exact. Beside changes it may miss keys that come and go meanwhile: the tree only suggests a
//!    node, and the node decides whether that was right.

mod change;
mod node;
mod search;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

pub(super) use node::Node;

/// The tree. Values are even addresses other than 0.
pub(super) struct Art {
    root: AtomicUsize,
    change: Mutex<()>,
    bytes: AtomicU64,
}

impl Art {
    pub fn new() -> Art {
        Art { root: AtomicUsize::new(0), change: Mutex::new(()), bytes: AtomicU64::new(0) }
    }

    /// Bytes of the living nodes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Art {
    fn drop(&mut self) {
        let mut left = vec![*self.root.get_mut()];
        while let Some(at) = left.pop() {
            if let Some(node) = Node::of(at) {
                left.extend(node.entries().iter().map(|(_, child)| *child));
                // SAFETY: nobody else has the tree any more; every node has one parent.
                unsafe { node.free() };
            }
        }
    }
}
