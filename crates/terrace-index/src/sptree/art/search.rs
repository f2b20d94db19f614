//! Finding the greatest key at or below another.

use std::cmp::Ordering as Order;
use std::sync::atomic::Ordering;

use super::Art;
use super::node::{Node, is_value, value_of};

/// Ancestors remembered on the way down. Deeper searches that have to go back look again from the root.
const TRAIL: usize = 16;

impl Art {
    /// The value of the greatest key at most `key`, or below it if `strict`.
    pub fn floor(&self, key: &[u8], strict: bool) -> Option<usize> {
        let mut trail: [Option<(Node, u8)>; TRAIL] = [None; TRAIL];
        let mut passed = 0;
        let mut at = self.root.load(Ordering::Acquire);
        let mut depth = 0;
        loop {
            let Some(node) = Node::of(at) else {
                // The key of a value consists of the bytes matched so far.
                if is_value(at) && !(strict && depth == key.len()) {
                    return Some(value_of(at));
                }
                break;
            };
            match against_prefix(&node, &key[depth..]) {
                Order::Less => return greatest(at),
                Order::Greater => break,
                Order::Equal => depth += node.prefix().len(),
            }
            let Some(&byte) = key.get(depth) else {
                let here = node.here().load(Ordering::Acquire);
                if here != 0 && !strict {
                    return Some(here);
                }
                break;
            };
            trail[passed % TRAIL] = Some((node, byte));
            passed += 1;
            depth += 1;
            at = node.slot(byte).map_or(0, |slot| slot.load(Ordering::Acquire));
        }
        let reach = passed.min(TRAIL);
        for i in 1..=reach {
            let Some((node, byte)) = trail[(passed - i) % TRAIL] else { break };
            if let Some(found) = before(&node, byte) {
                return Some(found);
            }
        }
        if passed > TRAIL { self.floor_from_above(key, strict) } else { None }
    }

    /// The value of the greatest key at most `key`, while nothing changes: exact.
    pub fn floor_at_rest(&self, key: &[u8]) -> Option<usize> {
        let _alone = self.change.lock();
        self.floor(key, false)
    }

    /// The value of the greatest key.
    pub fn last(&self) -> Option<usize> {
        greatest(self.root.load(Ordering::Acquire))
    }

    /// [`floor`](Self::floor), noting on the way down the nodes to return to.
    fn floor_from_above(&self, key: &[u8], strict: bool) -> Option<usize> {
        let mut best = 0;
        let mut at = self.root.load(Ordering::Acquire);
        let mut depth = 0;
        loop {
            let Some(node) = Node::of(at) else {
                let fits = is_value(at) && !(strict && depth == key.len());
                return if fits { Some(value_of(at)) } else { greatest(best) };
            };
            match against_prefix(&node, &key[depth..]) {
                Order::Less => return greatest(at),
                Order::Greater => return greatest(best),
                Order::Equal => depth += node.prefix().len(),
            }
            let here = node.here().load(Ordering::Acquire);
            let Some(&byte) = key.get(depth) else {
                return if here != 0 && !strict { Some(here) } else { greatest(best) };
            };
            match node.below(byte) {
                0 if here != 0 => best = super::node::of_value(here),
                0 => {}
                below => best = below,
            }
            depth += 1;
            at = node.slot(byte).map_or(0, |slot| slot.load(Ordering::Acquire));
        }
    }
}

/// How the keys below `node` compare with the rest of a key: less or greater for all, or equal as far as the
/// prefix goes.
fn against_prefix(node: &Node, rest: &[u8]) -> Order {
    let prefix = node.prefix();
    if prefix.is_empty() {
        return Order::Equal;
    }
    match rest.get(..prefix.len()) {
        Some(start) => prefix.cmp(start),
        None => prefix.cmp(rest),
    }
}

/// The greatest value under `node` that comes before its child for `byte`.
fn before(node: &Node, byte: u8) -> Option<usize> {
    match node.below(byte) {
        0 => Some(node.here().load(Ordering::Acquire)).filter(|here| *here != 0),
        child => greatest(child),
    }
}

/// The greatest value under a child.
fn greatest(mut at: usize) -> Option<usize> {
    while let Some(node) = Node::of(at) {
        at = match node.greatest() {
            0 => return Some(node.here().load(Ordering::Acquire)).filter(|here| *here != 0),
            child => child,
        };
    }
    is_value(at).then(|| value_of(at))
}
