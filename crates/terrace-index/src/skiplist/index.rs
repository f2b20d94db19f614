//! The skiplist as a general ordered index: one node a key, whose value is a word that changes in place.
//!
//! A removed key keeps its node with the word 0; inserting the key again revives it. Space is not given
//! back, so this suits indexes whose keys come back, and the conformance suite as a second opinion.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_base::{Error, Result};
use terrace_pmem::{Kind, Marks, Pool};

use super::arena::Arena;
use super::layout::value_offset;
use super::write::Linked;
use super::{Inner, SkipList};
use crate::kinds;
use crate::ordered::OrderedIndex;
use crate::point::{PointIndex, Wish, admit_key};
use crate::scan_batch::ScanBatch;
use crate::word_cell::{CELL_BYTES, WordCell};

/// The record kind of index nodes, whose value changes and is not in the checksum.
pub(super) const INDEX_KIND: u8 = 255;

/// Bytes of the first extent.
const ARENA_BYTES: u64 = 1 << 20;

const KIND: Kind = kinds::SKIP_INDEX;

/// A persistent skiplist as an [`OrderedIndex`].
pub struct SkipIndex {
    list: SkipList,
    pub(super) keys: AtomicU64,
    pub(super) generation: u64,
}

impl SkipIndex {
    /// Makes an empty index under the root `root_name`.
    pub fn create(pool: &Pool, root_name: &str) -> Result<Self> {
        let list = SkipList::create(pool, KIND, ARENA_BYTES)?;
        pool.set_root(root_name, list.head_offset())?;
        Ok(SkipIndex { list, keys: AtomicU64::new(0), generation: pool.generation() })
    }

    /// Attaches to the index under the root `root_name`; takes time in proportion to its keys.
    pub fn open(pool: &Pool, root_name: &str) -> Result<Self> {
        let head = pool
            .root(root_name)?
            .ok_or_else(|| Error::corruption(pool.path(), 0, format!("a root {root_name}"), "none"))?;
        let (arena, id) = Arena::open(pool, KIND, head)?;
        let list = SkipList::over(pool, arena, id);
        list.inner.recover(false, &mut |_| {})?;
        let index = SkipIndex { list, keys: AtomicU64::new(0), generation: pool.generation() };
        index.count_keys()?;
        Ok(index)
    }

    fn count_keys(&self) -> Result<()> {
        let list = self.list();
        let mut at = list.after(list.head);
        while at != 0 {
            if list.node(at)?.head.seq != 0 {
                return Err(list.damaged(at, "a node without a sequence number", "one with"));
            }
            let present = self.cell(at)?.load(0) != 0;
            self.keys.fetch_add(u64::from(present), Ordering::Relaxed);
            at = list.after(at);
        }
        Ok(())
    }

    pub(super) fn list(&self) -> &Inner {
        &self.list.inner
    }

    /// The word cell of the node at `offset`.
    fn cell(&self, offset: u64) -> Result<WordCell<'_>> {
        let head = self.list().node(offset)?.head;
        if head.kind != INDEX_KIND || u64::from(head.vlen) != CELL_BYTES {
            return Err(self.list().damaged(offset, "an index node", "another record"));
        }
        WordCell::at(&self.list().pool, self.generation, offset + value_offset(head.klen))
    }

    /// The node of `key`, durably linked; 0 if there is none.
    pub(super) fn lookup(&self, key: &[u8]) -> Result<u64> {
        let list = self.list();
        let at = list.first_from(key, 0)?;
        if at == 0 || list.node(at)?.key != key {
            return Ok(0);
        }
        self.ensure_durable(at)?;
        Ok(at)
    }

    fn ensure_durable(&self, at: u64) -> Result<()> {
        match self.list().is_durable(at)? {
            true => Ok(()),
            false => self.list().make_durable(at),
        }
    }

    /// Applies `wish` to the node at `at`; `None` if another thread changed it meanwhile.
    fn apply_at(&self, at: u64, wish: &mut dyn FnMut(Option<u64>) -> Wish) -> Result<Option<Option<u64>>> {
        let cell = self.cell(at)?;
        let now = cell.load(0);
        let before = (now != 0).then_some(now);
        let Some(new) = wish(before) else { return Ok(Some(before)) };
        if cell.compare_exchange(now, new.map_or(0, NonZeroU64::get), 0).is_err() {
            return Ok(None);
        }
        match (before, new) {
            (None, Some(_)) => self.keys.fetch_add(1, Ordering::Relaxed),
            (Some(_), None) => self.keys.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
        Ok(Some(before))
    }

    fn apply_absent(
        &self,
        key: &[u8],
        wish: &mut dyn FnMut(Option<u64>) -> Wish,
    ) -> Result<Option<Option<u64>>> {
        let Some(Some(word)) = wish(None) else { return Ok(Some(None)) };
        let list = self.list();
        let staged = self.stage_new(key, word.get(), |record| list.stage(key, record))?;
        let at = staged.offset();
        list.pool.drain();
        match list.link(staged)? {
            Linked::Exists(_) => Ok(None),
            Linked::New => {
                list.pool.drain();
                list.mark_durable(at);
                self.keys.fetch_add(1, Ordering::Relaxed);
                Ok(Some(None))
            }
        }
    }

    /// The first node in scan order from `from` on, 0 if none.
    fn start(&self, from: Bound<&[u8]>, reverse: bool) -> Result<u64> {
        let list = self.list();
        // Nodes have sequence number 0: (key, 0) is the node's own place, and the place after it is that of
        // the key's smallest extension.
        let after = |key: &[u8]| [key, &[0]].concat();
        match (from, reverse) {
            (Bound::Unbounded, false) => Ok(list.after(list.head)),
            (Bound::Unbounded, true) => list.last(),
            (Bound::Included(key), false) => list.first_from(key, 0),
            (Bound::Excluded(key), false) => list.first_from(&after(key), 0),
            (Bound::Included(key), true) => list.last_before(&after(key), 0),
            (Bound::Excluded(key), true) => list.last_before(key, 0),
        }
    }
}

impl PointIndex for SkipIndex {
    fn get(&self, key: &[u8]) -> Result<Option<u64>> {
        admit_key(key)?;
        let at = self.lookup(key)?;
        if at == 0 {
            return Ok(None);
        }
        let word = self.cell(at)?.load(0);
        Ok((word != 0).then_some(word))
    }

    fn update(&self, key: &[u8], wish: &mut dyn FnMut(Option<u64>) -> Wish) -> Result<Option<u64>> {
        admit_key(key)?;
        loop {
            let at = self.lookup(key)?;
            let done = if at == 0 { self.apply_absent(key, wish)? } else { self.apply_at(at, wish)? };
            if let Some(before) = done {
                return Ok(before);
            }
        }
    }

    fn len(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    fn mark(&self, marks: &mut Marks) -> Result<()> {
        self.list.mark(marks)
    }

    fn check(&self) -> Result<Vec<String>> {
        self.list.check()
    }

    fn dram_bytes(&self) -> u64 {
        size_of::<Inner>() as u64 + self.list.dram_bytes()
    }

    fn pm_bytes(&self) -> u64 {
        self.list.extents_bytes()
    }
}

impl OrderedIndex for SkipIndex {
    fn scan(&self, from: Bound<&[u8]>, reverse: bool, limit: usize, out: &mut ScanBatch) -> Result<()> {
        let list = self.list();
        let end = out.len().saturating_add(limit);
        let mut at = self.start(from, reverse)?;
        while at != 0 && out.len() < end {
            self.ensure_durable(at)?;
            let key = list.node(at)?.key;
            let word = self.cell(at)?.load(0);
            if word != 0 {
                out.push(key, word);
            }
            at = if reverse { list.last_before(key, 0)? } else { list.after(at) };
        }
        Ok(())
    }
}

impl fmt::Debug for SkipIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SkipIndex").field("keys", &self.len()).finish()
    }
}
