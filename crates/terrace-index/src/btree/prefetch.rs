//! Loading what searches for many keys will read.

use std::sync::atomic::Ordering;

use terrace_base::prefetch;

use super::BTree;
use super::entry::{LookUp, Target};
use super::node::NodeRef;

/// Keys whose nodes are loaded together.
const TOGETHER: usize = 16;

impl BTree {
    /// Loads what is read to find the places of `keys`: level by level for some keys at a time, so that the nodes of a
    /// level come at once instead of one after the other. It is a hint: where a node is being changed it ends.
    pub fn prefetch(&self, keys: &[&[u8]], look_up: LookUp<'_>) {
        for keys in keys.chunks(TOGETHER) {
            let root = NodeRef::at(&self.arena, self.root.load(Ordering::Acquire));
            let mut nodes = [root; TOGETHER];
            for _ in 0..root.level() {
                for (node, key) in nodes.iter_mut().zip(keys).filter(|(node, _)| node.level() > 0) {
                    if let Some(child) = read(node, key, look_up, |at| node.child(at - 1)) {
                        *node = NodeRef::at(&self.arena, child);
                        node.prefetch();
                    }
                }
            }
            for (node, key) in nodes.iter().zip(keys).filter(|(node, _)| node.level() == 0) {
                if let Some(entry) = read(node, key, look_up, |at| node.entry(at - 1)) {
                    prefetch::line(self.arena.words(entry).as_ptr());
                }
            }
        }
    }
}

/// What `get` returns for the slots of `node` before `key`, if all that it reads is of one moment: otherwise it may
/// lead nowhere.
#[inline]
fn read(node: &NodeRef<'_>, key: &[u8], look_up: LookUp<'_>, get: impl FnOnce(usize) -> u64) -> Option<u64> {
    let version = node.version()?;
    let found = get(node.position(Target { key, seq: 0 }, look_up).ok()?);
    node.is_at(version).then_some(found)
}
