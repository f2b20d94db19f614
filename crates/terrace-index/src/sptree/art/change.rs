//! Entering and removing keys. Replaced nodes are returned, and the caller retires them.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::Art;
use super::node::{Node, PREFIX_BYTES, SPARSE_MAX, is_value, of_value, value_of};

/// Children below which a full node becomes sparse again.
const FULL_MIN: usize = 36;

impl Art {
    /// Enters `key`, or returns the value that it has. Replaced nodes go to `old`.
    pub fn insert(&self, key: &[u8], value: usize, old: &mut Vec<Node>) -> Result<(), usize> {
        let _alone = self.change.lock();
        let mut slot = &self.root;
        let mut depth = 0;
        loop {
            let at = slot.load(Ordering::Acquire);
            let Some(node) = Node::of(at) else {
                return self.insert_at_value(slot, at, &key[depth..], value);
            };
            let rest = &key[depth..];
            let common = node.prefix().iter().zip(rest).take_while(|(a, b)| a == b).count();
            if common < node.prefix().len() {
                self.split_prefix(slot, node, common, rest, value, old);
                return Ok(());
            }
            depth += common;
            let Some(&byte) = key.get(depth) else {
                let here = node.here().load(Ordering::Acquire);
                if here != 0 {
                    return Err(here);
                }
                node.here().store(value, Ordering::Release);
                return Ok(());
            };
            depth += 1;
            // SAFETY: the node stays in the tree while changes are excluded.
            let next = node.slot(byte).map(|slot| unsafe { &*std::ptr::from_ref(slot) });
            match next {
                Some(next) if next.load(Ordering::Acquire) != 0 => slot = next,
                _ => {
                    let child = self.tail(&key[depth..], value);
                    self.add_child(slot, node, byte, child, old);
                    return Ok(());
                }
            }
        }
    }

    /// Removes `key`; returns its value. Replaced nodes go to `old`.
    pub fn remove(&self, key: &[u8], old: &mut Vec<Node>) -> Option<usize> {
        let _alone = self.change.lock();
        let mut path: Vec<(&AtomicUsize, u8)> = Vec::new();
        let mut slot = &self.root;
        let mut depth = 0;
        loop {
            let at = slot.load(Ordering::Acquire);
            let Some(node) = Node::of(at) else {
                let found = is_value(at) && depth == key.len();
                if found {
                    self.detach(slot, path, old);
                }
                return found.then(|| value_of(at));
            };
            if !key[depth..].starts_with(node.prefix()) {
                return None;
            }
            depth += node.prefix().len();
            let Some(&byte) = key.get(depth) else {
                let here = node.here().swap(0, Ordering::AcqRel);
                if self.tidy(slot, old) {
                    self.detach(slot, path, old);
                }
                return Some(here).filter(|here| *here != 0);
            };
            depth += 1;
            path.push((slot, byte));
            // SAFETY: the node stays in the tree while changes are excluded.
            slot = unsafe { &*std::ptr::from_ref(node.slot(byte)?) };
        }
    }

    /// Enters the rest of a key in place of a value, or of nothing.
    fn insert_at_value(&self, slot: &AtomicUsize, at: usize, rest: &[u8], value: usize) -> Result<(), usize> {
        let child = match (at, rest.split_first()) {
            (0, _) => self.tail(rest, value),
            (at, None) => return Err(value_of(at)),
            (at, Some((byte, rest))) => {
                let tail = self.tail(rest, value);
                self.node(&[], value_of(at), &[(*byte, tail)])
            }
        };
        slot.store(child, Ordering::Release);
        Ok(())
    }

    /// Puts a node before `node` that ends where `rest` and its prefix part.
    fn split_prefix(
        &self,
        slot: &AtomicUsize,
        node: Node,
        common: usize,
        rest: &[u8],
        value: usize,
        old: &mut Vec<Node>,
    ) {
        let prefix = node.prefix();
        let here = node.here().load(Ordering::Acquire);
        let lower = self.node(&prefix[common + 1..], here, &node.entries());
        let mut entries = vec![(prefix[common], lower)];
        let mut upper_here = 0;
        match rest[common..].split_first() {
            None => upper_here = value,
            Some((byte, rest)) => {
                let tail = self.tail(rest, value);
                entries.insert(usize::from(*byte > prefix[common]), (*byte, tail));
            }
        }
        slot.store(self.node(&prefix[..common], upper_here, &entries), Ordering::Release);
        self.drop_node(node, old);
    }

    fn add_child(&self, slot: &AtomicUsize, node: Node, byte: u8, child: usize, old: &mut Vec<Node>) {
        if node.is_full() {
            node.put(byte, child);
            return;
        }
        let mut entries = node.entries();
        entries.insert(entries.partition_point(|e| e.0 < byte), (byte, child));
        self.replace(slot, node, &entries, old);
    }

    /// Takes out the child that `slot` holds, and every node above it that is left without any; `path` leads to it. The
    /// path of a long key is long, so this does not recurse.
    fn detach<'t>(
        &self,
        mut slot: &'t AtomicUsize,
        mut path: Vec<(&'t AtomicUsize, u8)>,
        old: &mut Vec<Node>,
    ) {
        while let Some((parent_slot, byte)) = path.pop() {
            let Some(parent) = Node::of(parent_slot.load(Ordering::Acquire)) else { return };
            if parent.is_full() {
                parent.take(byte);
                if parent.count() < FULL_MIN {
                    self.replace(parent_slot, parent, &parent.entries(), old);
                }
                return;
            }
            let mut entries = parent.entries();
            entries.retain(|e| e.0 != byte);
            self.replace(parent_slot, parent, &entries, old);
            if !self.tidy(parent_slot, old) {
                return;
            }
            slot = parent_slot;
        }
        slot.store(0, Ordering::Release);
    }

    /// Removes a node that has become superfluous; returns whether its slot is to be taken out of the node above.
    fn tidy(&self, slot: &AtomicUsize, old: &mut Vec<Node>) -> bool {
        let Some(node) = Node::of(slot.load(Ordering::Acquire)) else { return false };
        let here = node.here().load(Ordering::Acquire);
        match (&node.entries()[..], here) {
            ([], 0) => {
                self.drop_node(node, old);
                return true;
            }
            ([], here) if node.prefix().is_empty() => {
                slot.store(of_value(here), Ordering::Release);
                self.drop_node(node, old);
            }
            ([(byte, child)], 0) => self.join(slot, node, *byte, *child, old),
            _ => {}
        }
        false
    }

    /// Joins a node with its only child, if their prefixes fit into one.
    fn join(&self, slot: &AtomicUsize, node: Node, byte: u8, child: usize, old: &mut Vec<Node>) {
        let lower = Node::of(child);
        let tail = lower.as_ref().map_or(&[][..], Node::prefix);
        let prefix = [node.prefix(), &[byte], tail].concat();
        if prefix.len() > PREFIX_BYTES {
            return;
        }
        let joined = match lower {
            Some(lower) => self.node(&prefix, lower.here().load(Ordering::Acquire), &lower.entries()),
            None => self.node(&prefix, value_of(child), &[]),
        };
        slot.store(joined, Ordering::Release);
        self.drop_node(node, old);
        if let Some(lower) = lower {
            self.drop_node(lower, old);
        }
    }

    fn replace(&self, slot: &AtomicUsize, node: Node, entries: &[(u8, usize)], old: &mut Vec<Node>) {
        debug_assert!(entries.len() <= SPARSE_MAX + 1);
        let here = node.here().load(Ordering::Acquire);
        slot.store(self.node(node.prefix(), here, entries), Ordering::Release);
        self.drop_node(node, old);
    }

    /// The child for the rest `rest` of a key.
    fn tail(&self, rest: &[u8], value: usize) -> usize {
        if rest.is_empty() {
            return of_value(value);
        }
        // From the end: pieces of a prefix and the byte that leads on, the last piece without one.
        let step = PREFIX_BYTES + 1;
        let last = (rest.len() - 1) / step * step;
        let mut child = match rest.len() - last {
            // All of a step: the last byte leads to the value itself.
            len if len == step => {
                let (byte, prefix) = (rest[rest.len() - 1], &rest[last..rest.len() - 1]);
                self.node(prefix, 0, &[(byte, of_value(value))])
            }
            _ => self.node(&rest[last..], value, &[]),
        };
        for start in (0..last).step_by(step).rev() {
            let piece = &rest[start..start + step];
            child = self.node(&piece[..PREFIX_BYTES], 0, &[(piece[PREFIX_BYTES], child)]);
        }
        child
    }

    fn node(&self, prefix: &[u8], here: usize, entries: &[(u8, usize)]) -> usize {
        let node = Node::build(prefix, here, entries);
        self.bytes.fetch_add(node.bytes(), Ordering::Relaxed);
        node.child()
    }

    fn drop_node(&self, node: Node, old: &mut Vec<Node>) {
        self.bytes.fetch_sub(node.bytes(), Ordering::Relaxed);
        old.push(node);
    }
}
