//! Scans in both directions: each leaf is copied consistently, the next place is found by its fences.

use std::cmp::Ordering as Order;
use std::ops::Bound;

use terrace_base::Result;

use super::FastFair;
use super::key::Target;
use super::layout::{RECORD_LINE, STRAY};
use super::lock;
use super::node::NodeRef;
use crate::scan_batch::ScanBatch;

/// The entries of a leaf in order, as of one moment.
pub(super) struct Copied {
    pub entries: Vec<CopiedEntry>,
    /// Whether there was no writer and no trace of a crash: only then are slices reliable.
    steady: bool,
}

/// An entry of a leaf.
pub(super) struct CopiedEntry {
    slice: u64,
    /// Where the entry lies in the pool.
    link: u64,
    pub record: u64,
}

impl<const N: usize> FastFair<N> {
    /// Appends keys upward from `from` on until `out` holds `end`.
    pub(super) fn scan_up(&self, from: Bound<&[u8]>, end: usize, out: &mut ScanBatch) -> Result<()> {
        let _here = self.limbo.enter();
        let (start, mut passed) = match from {
            Bound::Included(key) => (key, Some(Target::Before(key))),
            Bound::Excluded(key) => (key, Some(Target::At(key))),
            Bound::Unbounded => (&[][..], None),
        };
        let Some(mut leaf) = self.leaf_of(start)? else { return Ok(()) };
        let mut low: Option<&[u8]> = None;
        loop {
            let copied = self.copy_leaf(leaf)?;
            let first = passed.map_or(Ok(0), |passed| self.reached(leaf, &copied, passed))?;
            let wanted = &copied.entries[first..];
            let next = if wanted.len() < end - out.len() { leaf.next() } else { 0 };
            self.push_all(wanted, end, next, out)?;
            if out.len() >= end {
                return Ok(());
            }
            let Some(high) = self.high_key(leaf)? else { return Ok(()) };
            if low.is_some_and(|low| high <= low) {
                return Err(self.damaged(leaf.off, "leaves that ascend", "leaves that lead in circles"));
            }
            let target = Target::At(high);
            let beside = match next {
                0 => self.covering(leaf.next(), target, false)?,
                next => self.covering_from(self.node(next)?, target, false)?,
            };
            leaf = match beside {
                Some(next) => next,
                // Impossible in a sound tree, since the right neighbour never begins after this leaf's high fence.
                // Start over there.
                None => match self.descend(target, 0)? {
                    Some(arrival) => arrival.node,
                    None => return Ok(()),
                },
            };
            // A merge meanwhile may have led to a leaf that holds keys from before the last one's end again.
            (low, passed) = (Some(high), Some(Target::Before(high)));
        }
    }

    /// Appends keys downward from `from` on until `out` holds `end`.
    pub(super) fn scan_down(&self, from: Bound<&[u8]>, end: usize, out: &mut ScanBatch) -> Result<()> {
        let _here = self.limbo.enter();
        let mut target = match from {
            Bound::Included(key) => Target::At(key),
            Bound::Excluded(key) => Target::Before(key),
            Bound::Unbounded => Target::Last,
        };
        while out.len() < end {
            // No key comes before the empty one; there is no leaf to find.
            if matches!(target, Target::Before([])) {
                return Ok(());
            }
            let Some(arrival) = self.descend(target, 0)? else { return Ok(()) };
            let mut copied = self.copy_leaf(arrival.node)?;
            copied.entries.truncate(self.reached(arrival.node, &copied, target)?);
            copied.entries.reverse();
            self.push_all(&copied.entries, end, 0, out)?;
            match self.low_key(arrival.node)? {
                Some(low) if target.reaches(low) => target = Target::Before(low),
                Some(_) => {
                    return Err(self.damaged(
                        arrival.node.off,
                        "a leaf that reaches down to the key",
                        "none",
                    ));
                }
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Appends the records of `entries` as long as `out` has less than `end`, and loads the node at `next` with them
    /// (0: none).
    fn push_all(&self, entries: &[CopiedEntry], end: usize, next: u64, out: &mut ScanBatch) -> Result<()> {
        let (mut rest, mut next) = (entries, next);
        // Dead records do not count; most often there are none, and this is done once.
        while out.len() < end && (!rest.is_empty() || next != 0) {
            let (now, later) = rest.split_at(rest.len().min(end - out.len()));
            self.load(now, std::mem::take(&mut next));
            for entry in now {
                // Verified before the word is used: a word from elsewhere may say that the key is absent.
                let (key, cell) = self.record(entry.record)?;
                let word = cell.load(entry.link);
                if word != 0 {
                    out.push(key, word);
                }
            }
            rest = later;
        }
        Ok(())
    }

    /// How many entries of `leaf`, the one that `target` belongs to, have keys that `target` reaches.
    fn reached(&self, leaf: NodeRef<'_, N>, copied: &Copied, target: Target<'_>) -> Result<usize> {
        let entries = &copied.entries;
        let (mut from, mut to) = match self.against_prefix(leaf, target)? {
            _ if !copied.steady => (0, entries.len()),
            Order::Less => (0, 0),
            Order::Greater => (entries.len(), entries.len()),
            Order::Equal => {
                let wanted = target.slice(leaf.skip());
                let before = entries.partition_point(|entry| entry.slice < wanted);
                (before, before + entries[before..].partition_point(|entry| entry.slice == wanted))
            }
        };
        while from < to {
            let middle = from.midpoint(to);
            self.pool.charge_read(entries[middle].record, RECORD_LINE);
            match target.reaches(self.record_key(entries[middle].record)?) {
                true => from = middle + 1,
                false => to = middle,
            }
        }
        Ok(from)
    }

    /// Loads records, and the node at `next` (0: none): they come at once instead of one after the other.
    fn load(&self, entries: &[CopiedEntry], next: u64) {
        let node = (next, if next == 0 { 0 } else { Self::NODE_BYTES });
        let ranges = || entries.iter().map(|entry| (entry.record, RECORD_LINE)).chain([node]);
        ranges().for_each(|(off, len)| self.pool.prefetch(off, len));
        self.pool.charge_reads(ranges());
    }

    /// The entries of a leaf, which has been loaded.
    pub(super) fn copy_leaf(&self, leaf: NodeRef<'_, N>) -> Result<Copied> {
        let mut entries: Vec<CopiedEntry> = Vec::with_capacity(N);
        loop {
            entries.clear();
            let before = leaf.version();
            let mut take = |i: usize| {
                let (slice, record) = leaf.entry(i);
                // A shift repeats the entry that it moves.
                if record != 0 && entries.last().is_none_or(|last| last.record != record) {
                    entries.push(CopiedEntry { slice, link: leaf.entry_at(i), record });
                }
                record != 0
            };
            if lock::is_leftward(before) {
                (0..N).rev().for_each(|i| {
                    take(i);
                });
                entries.reverse();
            } else {
                let _ = (0..N).try_for_each(|i| if take(i) { Ok(()) } else { Err(()) });
            }
            let after = leaf.version();
            if entries.iter().any(|entry| entry.record == STRAY) {
                return Err(self.stray(leaf));
            }
            if after == before {
                return Ok(Copied { entries, steady: self.is_steady(before, after) });
            }
        }
    }
}
