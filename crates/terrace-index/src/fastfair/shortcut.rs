//! Shortcuts: straight to a leaf, past the inner nodes, by a volatile index of leaves in DRAM.
//!
//! An entry has the place and the high fence of the leaf with a low fence. Fences never change, so an entry can only be
//! wrong because its leaf has died. Entries come from descents that had to go through the tree; a key whose leaf has
//! none is found that way.
//!
//! 1. An entry is made under the lock of a living leaf. A leaf's entry is cleared after the leaf has died and before it
//!    is retired. So a thread that is present in limbo may read a leaf that it finds here.
//! 2. Shortcuts take a bounded amount of DRAM. A leaf for which there is no room has no shortcut.

use std::cmp::Ordering as Order;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_base::{Error, Result};

use super::FastFair;
use super::node::NodeRef;
use crate::btree::{BTree, Target, WHOLE_KEY_BYTES, words_of};

/// Default of the most DRAM that shortcuts take.
const LIMIT_BYTES: u64 = 32 << 20;

/// Entries have sequence number 1, so that a search with 0 comes after the entry of the same key.
const ENTRY: u64 = 1;

/// The shortcuts of a tree.
pub(super) struct Shortcuts {
    map: BTree,
    limit: AtomicU64,
}

impl Default for Shortcuts {
    fn default() -> Self {
        Shortcuts { map: BTree::new(), limit: AtomicU64::new(LIMIT_BYTES) }
    }
}

/// Keys longer than a B-tree holds have no entries, so none is ever looked up.
fn no_look_up(_: u64, _: &[u8]) -> Result<Order> {
    Err(Error::invalid("a shortcut under a key that is too long for one"))
}

impl Shortcuts {
    /// Bytes of DRAM taken.
    pub fn bytes(&self) -> u64 {
        self.map.bytes()
    }

    /// Sets the most bytes of DRAM to take.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Loads what is read to find the leaves of `keys`.
    pub fn prefetch(&self, keys: &[&[u8]]) {
        self.map.prefetch(keys, &no_look_up);
    }

    /// The leaf that `key` belongs to, which may have died.
    pub fn find(&self, key: &[u8]) -> Result<Option<u64>> {
        let prev = self.map.prev(&self.map.find(Target { key, seq: 0 }, &no_look_up)?);
        if prev == 0 {
            return Ok(None);
        }
        let mut kept = self.map.kept(prev);
        let (leaf, len) = (kept.next().unwrap_or(0), kept.next().unwrap_or(0) as usize);
        // A length one over that of the high fence: 0 says that there is none.
        let Some(len) = len.checked_sub(1) else { return Ok(Some(leaf)) };
        let own = kept.take(len.div_ceil(8));
        let order = own.cmp(words_of(key).take(len.div_ceil(8))).then(len.cmp(&key.len()));
        Ok(order.is_gt().then_some(leaf))
    }

    fn note(&self, low: &[u8], high: Option<&[u8]>, leaf: u64) -> Result<()> {
        let longest = low.len().max(high.map_or(0, <[u8]>::len));
        if longest > WHOLE_KEY_BYTES || self.bytes() >= self.limit.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut words = vec![leaf, high.map_or(0, |high| high.len() as u64 + 1)];
        words.extend(words_of(high.unwrap_or_default()));
        let target = Target { key: low, seq: ENTRY };
        let trail = self.map.find(target, &no_look_up)?;
        let place = self.map.place(&trail);
        match place.exact {
            // The leaf's lock keeps others from noting the same low fence, not from clearing the entry.
            true if place.next != 0 && self.leaf(place.next) == leaf => {}
            true => {
                let new = self.map.keep(&words);
                if !self.map.replace(&trail, place.next, new) {
                    self.map.replace(&trail, 0, new);
                }
            }
            false => self.map.insert(&trail, target, self.map.keep(&words), &no_look_up)?,
        }
        Ok(())
    }

    fn clear(&self, low: &[u8], leaf: u64) -> Result<()> {
        if low.len() <= WHOLE_KEY_BYTES {
            let trail = self.map.find(Target { key: low, seq: ENTRY }, &no_look_up)?;
            let place = self.map.place(&trail);
            if place.exact && place.next != 0 && self.leaf(place.next) == leaf {
                self.map.replace(&trail, place.next, 0);
            }
        }
        Ok(())
    }

    /// The leaf of the entry whose word is `kept`.
    fn leaf(&self, kept: u64) -> u64 {
        self.map.kept(kept).next().unwrap_or(0)
    }
}

impl<const N: usize> FastFair<N> {
    /// The living leaf that `key` belongs to, if there is a shortcut to it.
    pub(super) fn shortcut(&self, key: &[u8]) -> Result<Option<NodeRef<'_, N>>> {
        let Some(off) = self.shortcuts.find(key)? else { return Ok(None) };
        self.pool.prefetch(off, Self::NODE_BYTES);
        self.pool.charge_read(off, Self::NODE_BYTES);
        self.living(off)
    }

    /// The leaf at `off`, which a shortcut has led to, unless it has died. Its reading has been charged.
    pub(super) fn living(&self, off: u64) -> Result<Option<NodeRef<'_, N>>> {
        let leaf = self.node(off)?;
        Ok((self.forward(leaf)? == 0).then_some(leaf))
    }

    /// Makes a shortcut to `leaf`, unless somebody is changing it at the moment.
    pub(super) fn note_shortcut(&self, leaf: NodeRef<'_, N>) -> Result<()> {
        let Some(locked) = self.try_lock_sound(leaf) else { return Ok(()) };
        if self.is_dead(leaf)? {
            return Ok(());
        }
        self.shortcuts.note(self.low_key(leaf)?.unwrap_or_default(), self.high_key(leaf)?, leaf.off)?;
        drop(locked);
        Ok(())
    }

    /// Takes back the shortcut to a dead leaf; it may be retired afterwards.
    pub(super) fn clear_shortcut(&self, leaf: NodeRef<'_, N>) -> Result<()> {
        self.shortcuts.clear(self.low_key(leaf)?.unwrap_or_default(), leaf.off)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_is_found_by_the_keys_between_its_fences() {
        let shortcuts = Shortcuts::default();
        assert_eq!(shortcuts.find(b"m").unwrap(), None);
        shortcuts.note(b"k", Some(b"p"), 64).unwrap();
        shortcuts.note(b"", Some(b"k"), 128).unwrap();
        shortcuts.note(b"zebra-tail", None, 192).unwrap();
        let cases: [(&[u8], Option<u64>); 9] = [
            (b"", Some(128)),
            (b"j\xff", Some(128)),
            (b"k", Some(64)),
            (b"o\xff\xff\xff\xff\xff\xff\xff\xff\xff", Some(64)),
            (b"p", None),
            (b"p\0", None),
            (b"zebra", None),
            (b"zebra-tail", Some(192)),
            (b"zebra-tail-end", Some(192)),
        ];
        for (key, leaf) in cases {
            assert_eq!(shortcuts.find(key).unwrap(), leaf, "{key:?}");
        }
        shortcuts.clear(b"k", 65).unwrap();
        assert_eq!(shortcuts.find(b"m").unwrap(), Some(64), "another leaf's entry stays");
        shortcuts.clear(b"k", 64).unwrap();
        assert_eq!(shortcuts.find(b"m").unwrap(), None);
        shortcuts.note(b"k", Some(b"l"), 256).unwrap();
        assert_eq!(shortcuts.find(b"k").unwrap(), Some(256));
        assert_eq!(shortcuts.find(b"m").unwrap(), None);
    }

    #[test]
    fn long_fences_and_a_full_map_have_no_shortcuts() {
        let shortcuts = Shortcuts::default();
        let long = vec![7; WHOLE_KEY_BYTES + 1];
        shortcuts.note(&long, None, 64).unwrap();
        shortcuts.note(b"a", Some(&long), 64).unwrap();
        assert_eq!(shortcuts.find(&long).unwrap(), None);
        shortcuts.set_limit(0);
        shortcuts.note(b"a", None, 64).unwrap();
        assert_eq!(shortcuts.find(b"a").unwrap(), None);
        shortcuts.clear(&long, 64).unwrap();
    }
}
