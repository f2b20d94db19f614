//! Working on a few keys at a time: their leaves are looked up first, and come into the caches together instead of
//! one after the other.

use terrace_base::Result;

use super::FastFair;
use super::node::NodeRef;
use crate::limbo::Presence;
use crate::point::{admit_key, admit_word};

/// The leaves that some keys belonged to a moment ago. While this value lives none of them is freed.
///
/// A leaf's fences never change: as long as it has not died it is the one that its keys belong to.
pub struct Nearby<'t, const N: usize> {
    tree: &'t FastFair<N>,
    _here: Presence<'t>,
    /// By the keys' order; 0 for one whose leaf has no shortcut.
    leaves: Vec<u64>,
}

impl<const N: usize> FastFair<N> {
    /// Looks up the leaves of `keys`.
    pub fn nearby<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> Result<Nearby<'_, N>> {
        let here = self.limbo.enter();
        let leaves = keys.map(|key| self.start_leaf(key)).collect::<Result<Vec<u64>>>()?;
        let started = leaves.iter().filter(|leaf| **leaf != 0);
        self.pool.charge_reads(started.map(|leaf| (*leaf, Self::NODE_BYTES)));
        Ok(Nearby { tree: self, _here: here, leaves })
    }

    /// The leaf that there is a shortcut to for `key`, on its way into the caches; 0 if there is none.
    fn start_leaf(&self, key: &[u8]) -> Result<u64> {
        let Some(off) = self.shortcuts.find(key)? else { return Ok(0) };
        self.pool.prefetch(off, Self::NODE_BYTES);
        Ok(off)
    }
}

impl<'t, const N: usize> Nearby<'t, N> {
    /// [`get`](crate::PointIndex::get) for the `i`-th of the keys.
    pub fn get(&self, i: usize, key: &[u8]) -> Result<Option<u64>> {
        admit_key(key)?;
        match self.leaf(i)? {
            Some(leaf) => self.tree.get_in(leaf, key),
            None => match self.tree.leaf_of(key)? {
                Some(leaf) => self.tree.get_in(leaf, key),
                None => Ok(None),
            },
        }
    }

    /// [`insert`](crate::PointIndex::insert) for the `i`-th of the keys.
    pub fn insert(&self, i: usize, key: &[u8], word: u64) -> Result<Option<u64>> {
        admit_key(key)?;
        let word = admit_word(word)?;
        self.tree.apply_from(self.leaf(i)?, key, &mut |_| Some(Some(word)))
    }

    /// The leaf that was looked up, unless it has died.
    fn leaf(&self, i: usize) -> Result<Option<NodeRef<'t, N>>> {
        let Some(&off @ 1..) = self.leaves.get(i) else { return Ok(None) };
        let leaf = self.tree.node(off)?;
        Ok((self.tree.forward(leaf)? == 0).then_some(leaf))
    }
}
