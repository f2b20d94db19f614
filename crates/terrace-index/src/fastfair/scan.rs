//! Scans in both directions: each leaf is copied consistently, the next place is found by its fences.

use std::ops::Bound;

use terrace_base::Result;

use super::FastFair;
use super::key::Target;
use super::lock;
use super::node::NodeRef;
use crate::ordered::ScanBatch;

/// What a record with a short key takes.
const RECORD_LINE: u64 = 64;

impl<const N: usize> FastFair<N> {
    /// Appends keys upward from `from` on until `out` holds `end`.
    pub(super) fn scan_up(&self, from: Bound<&[u8]>, end: usize, out: &mut ScanBatch) -> Result<()> {
        let _here = self.limbo.enter();
        let start = match from {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => &[],
        };
        let wanted = |key: &[u8]| match from {
            Bound::Included(from) => key >= from,
            Bound::Excluded(from) => key > from,
            Bound::Unbounded => true,
        };
        let Some(mut leaf) = self.leaf_of(start)? else { return Ok(()) };
        // A merge meanwhile may lead to a leaf that holds keys from before the last one's end again.
        let mut from: Option<&[u8]> = None;
        while out.len() < end {
            let records = self.copy_leaf(leaf)?;
            let first =
                self.split_at(&records, |key| !from.map_or_else(|| wanted(key), |from| key >= from))?;
            self.push_all(&records[first..], end, out)?;
            let Some(high) = self.high_key(leaf)? else { return Ok(()) };
            if from.is_some_and(|from| high <= from) {
                return Err(self.damaged(leaf.off, "leaves that ascend", "leaves that lead in circles"));
            }
            leaf = match self.settle(leaf.next(), Target::At(high), false)? {
                Some(next) => next,
                // Cannot be: what is right of this leaf never begins after its high fence. Start over there.
                None => match self.descend(Target::At(high), 0)? {
                    Some(arrival) => arrival.node,
                    None => return Ok(()),
                },
            };
            from = Some(high);
        }
        Ok(())
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
            // Nothing comes before the empty key; there is no leaf to find.
            if matches!(target, Target::Before([])) {
                return Ok(());
            }
            let Some(arrival) = self.descend(target, 0)? else { return Ok(()) };
            let mut records = self.copy_leaf(arrival.node)?;
            records.truncate(self.split_at(&records, |key| target.reaches(key))?);
            records.reverse();
            self.push_all(&records, end, out)?;
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

    /// Appends `records` as long as `out` holds less than `end`.
    fn push_all(&self, records: &[(u64, u64)], end: usize, out: &mut ScanBatch) -> Result<()> {
        let mut rest = records;
        // Dead records do not count; most often there are none, and this is done once.
        while out.len() < end && !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(end - out.len()));
            self.load_records(now);
            for &(link, record) in now {
                let word = self.cell(record)?.load(link);
                if word != 0 {
                    out.push(self.record_key(record)?, word);
                }
            }
            rest = later;
        }
        Ok(())
    }

    /// How many of the `records`, which are in order, have keys that are `before`.
    fn split_at(&self, records: &[(u64, u64)], before: impl Fn(&[u8]) -> bool) -> Result<usize> {
        let is_before = |i: usize| -> Result<bool> {
            self.pool.charge_read(records[i].1, RECORD_LINE);
            Ok(before(self.record_key(records[i].1)?))
        };
        let (mut from, mut to) = (0, records.len());
        // Most leaves are wanted as a whole.
        if to == 0 || !is_before(0)? {
            return Ok(0);
        }
        if is_before(to - 1)? {
            return Ok(to);
        }
        while from < to {
            let middle = from.midpoint(to);
            match is_before(middle)? {
                true => from = middle + 1,
                false => to = middle,
            }
        }
        Ok(from)
    }

    /// Loads the records: they come at once instead of one after the other.
    fn load_records(&self, records: &[(u64, u64)]) {
        records.iter().for_each(|&(_, record)| self.pool.prefetch(record, RECORD_LINE));
        self.pool.charge_reads(records.iter().map(|&(_, record)| (record, RECORD_LINE)));
    }

    /// The records of a leaf in order, as of one moment, with the places of their entries.
    pub(super) fn copy_leaf(&self, leaf: NodeRef<'_, N>) -> Result<Vec<(u64, u64)>> {
        let mut out = Vec::with_capacity(N);
        loop {
            out.clear();
            let before = leaf.version();
            let mut take = |i: usize| {
                let ptr = leaf.ptr(i);
                // A shift repeats the entry that it moves.
                if ptr != 0 && out.last().is_none_or(|&(_, last)| last != ptr) {
                    out.push((leaf.entry_at(i), ptr));
                }
                ptr != 0
            };
            if lock::is_leftward(before) {
                (0..N).rev().for_each(|i| {
                    take(i);
                });
                out.reverse();
            } else {
                let _ = (0..N).try_for_each(|i| if take(i) { Ok(()) } else { Err(()) });
            }
            if leaf.version() == before {
                self.pool.charge_read(leaf.off, Self::NODE_BYTES);
                return Ok(out);
            }
        }
    }
}
