//! Cursors over the value tree, a batch of keys at a time.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::Result;
use terrace_index::{OrderedIndex, ScanBatch};
use terrace_table::{Cursor, Head, Kind};

use super::layout::ValueLocation;
use super::tree::{ValueTree, kind};
use crate::leveled::Moment;

/// Keys of a batch.
const KEYS: usize = 64;

/// Bytes of values after which a batch ends.
const BATCH_BYTES: usize = 256 << 10;

/// A version, copied.
#[derive(Debug)]
struct Item {
    key: Vec<u8>,
    seq: u64,
    kind: Kind,
    value: Bytes,
    value_len: usize,
}

/// The purpose of a cursor over the tree.
#[derive(Debug, Clone)]
pub(super) enum Purpose {
    /// To read it, together with the rest that is readable at a moment.
    Reading(Arc<Moment>),
    /// To know what is here up to a sequence number; without values.
    Hiding(u64),
}

/// A cursor. Invariant: items are in order, and the cursor is at the item `at`; without an item there it is
/// not positioned.
#[derive(Debug)]
pub(super) struct TreeCursor {
    tree: Arc<ValueTree>,
    purpose: Purpose,
    items: Vec<Item>,
    at: usize,
    /// Whether there may be more before and after the items.
    more: (bool, bool),
}

impl TreeCursor {
    /// A cursor that is not yet positioned.
    pub fn new(tree: &Arc<ValueTree>, purpose: Purpose) -> TreeCursor {
        TreeCursor { tree: tree.clone(), purpose, items: Vec::new(), at: 0, more: (false, false) }
    }

    fn item(&self) -> Option<&Item> {
        self.items.get(self.at)
    }

    /// Loads the items from `from` on, in the given direction, and goes to the first of them.
    fn load(&mut self, mut from: Bound<Vec<u8>>, reverse: bool) -> Result<()> {
        self.items.clear();
        let mut more = true;
        while more && self.items.is_empty() {
            (more, from) = self.load_batch(from, reverse)?;
        }
        self.more = if reverse { (more, true) } else { (true, more) };
        self.at = 0;
        if reverse {
            self.items.reverse();
            self.at = self.items.len().saturating_sub(1);
        }
        if !self.is_current() {
            self.items.clear();
            self.more = (false, false);
        }
        Ok(())
    }

    /// Whether what was loaded is what a reader is to see.
    fn is_current(&self) -> bool {
        match &self.purpose {
            Purpose::Reading(moment) => moment.lasts(),
            Purpose::Hiding(_) => true,
        }
    }

    /// Loads the items of one batch of keys; returns whether there may be more, and from where on.
    fn load_batch(&mut self, from: Bound<Vec<u8>>, reverse: bool) -> Result<(bool, Bound<Vec<u8>>)> {
        let tree = self.tree.clone();
        let _here = tree.limbo.enter();
        let mut batch = ScanBatch::new();
        tree.index.scan(from.as_ref().map(Vec::as_slice), reverse, KEYS, &mut batch)?;
        let mut bytes = 0;
        for i in 0..batch.len() {
            bytes += self.take(batch.key(i), batch.word(i))?;
            if bytes > BATCH_BYTES {
                return Ok((true, Bound::Excluded(batch.key(i).to_vec())));
            }
        }
        match batch.len().checked_sub(1) {
            Some(last) => Ok((batch.len() == KEYS, Bound::Excluded(batch.key(last).to_vec()))),
            None => Ok((false, from)),
        }
    }

    /// Whether the items that are loaded reach from before `key` to behind it, or to it.
    fn loaded_around(&self, key: &[u8]) -> bool {
        let ends = self.items.first().zip(self.items.last());
        self.is_current() && ends.is_some_and(|(first, last)| *first.key <= *key && *key <= *last.key)
    }

    /// Loads the version of `key`, if there is one to show; returns the bytes copied. The caller has been
    /// present since before the word was loaded.
    fn take(&mut self, key: &[u8], bits: u64) -> Result<usize> {
        let ValueLocation::Here(word) = self.tree.decode(bits)? else { return Ok(0) };
        let record = self.tree.record(word, key)?;
        let value = match self.purpose {
            Purpose::Hiding(last) if record.number > last => return Ok(0),
            Purpose::Hiding(_) => Bytes::new(),
            Purpose::Reading(_) => Bytes::copy_from_slice(record.value),
        };
        let (seq, value_len) = (record.number, record.value.len());
        let copied = key.len() + value.len();
        self.items.push(Item { key: key.to_vec(), seq, kind: kind(word), value, value_len });
        Ok(copied)
    }
}

impl Cursor for TreeCursor {
    fn head(&self) -> Option<Head<'_>> {
        self.item().map(|item| Head { key: &item.key, seq: item.seq, kind: item.kind })
    }

    fn seek_first(&mut self) -> Result<()> {
        self.load(Bound::Unbounded, false)
    }

    fn seek_last(&mut self) -> Result<()> {
        self.load(Bound::Unbounded, true)
    }

    fn seek(&mut self, key: &[u8], seq: u64) -> Result<()> {
        match self.loaded_around(key) {
            true => self.at = self.items.partition_point(|item| *item.key < *key),
            false => self.load(Bound::Included(key.to_vec()), false)?,
        }
        match self.item() {
            // A newer version precedes the requested position.
            Some(item) if item.key == key && item.seq > seq => self.next(),
            _ => Ok(()),
        }
    }

    fn seek_back(&mut self, key: &[u8], seq: u64) -> Result<()> {
        match self.loaded_around(key) {
            true => self.at = self.items.partition_point(|item| *item.key <= *key) - 1,
            false => self.load(Bound::Included(key.to_vec()), true)?,
        }
        match self.item() {
            Some(item) if item.key == key && item.seq < seq => self.prev(),
            _ => Ok(()),
        }
    }

    fn next(&mut self) -> Result<()> {
        let Some(item) = self.item() else { return Ok(()) };
        if self.at + 1 < self.items.len() {
            self.at += 1;
            return Ok(());
        }
        match self.more.1 {
            true => self.load(Bound::Excluded(item.key.clone()), false),
            false => self.leave(),
        }
    }

    fn prev(&mut self) -> Result<()> {
        let Some(item) = self.item() else { return Ok(()) };
        if self.at > 0 {
            self.at -= 1;
            return Ok(());
        }
        match self.more.0 {
            true => self.load(Bound::Excluded(item.key.clone()), true),
            false => self.leave(),
        }
    }

    fn value(&self) -> Result<Bytes> {
        Ok(self.item().map_or_else(Bytes::new, |item| item.value.clone()))
    }

    fn value_in_place(&self) -> Result<&[u8]> {
        Ok(self.item().map_or(&[], |item| &item.value))
    }

    fn value_len(&self) -> usize {
        self.item().map_or(0, |item| item.value_len)
    }
}

impl TreeCursor {
    /// Leaves every position.
    fn leave(&mut self) -> Result<()> {
        self.items.clear();
        Ok(())
    }
}
