//! Scans: partition by partition, buffered entries override those of the base.

use std::ops::Bound;

use terrace_base::Result;
use terrace_index::{HashIndex, OrderedIndex, ScanBatch, ScanPosition};

use super::buffer::Entry;
use super::partition::Body;
use super::{Base, BufferedIndex};

/// Most keys that are read from the base at once: a partition has few, and keys beyond it would be read again.
const CHUNK: usize = 64;

type Owned = Bound<Vec<u8>>;

fn owned(bound: Bound<&[u8]>) -> Owned {
    bound.map(<[u8]>::to_vec)
}

fn borrowed(bound: &Owned) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &key[..])
}

impl<B: Base + OrderedIndex> BufferedIndex<B> {
    pub(super) fn scan_up(&self, from: Bound<&[u8]>, end: usize, out: &mut ScanBatch) -> Result<()> {
        let mut from = owned(from);
        let mut chunk = ScanBatch::new();
        while out.len() < end {
            let key = match &from {
                Bound::Included(key) | Bound::Excluded(key) => &key[..],
                Bound::Unbounded => &[],
            };
            let head = Base::head(&self.base, key);
            let partition = self.partitions.find(head, key)?;
            let body = partition.body.read();
            if !body.holds(head, key) {
                continue;
            }
            let first = match body.buffer.search(head, key) {
                Ok(at) => at + usize::from(matches!(from, Bound::Excluded(_))),
                Err(at) => at,
            };
            let entries = &body.buffer.entries()[first..];
            let limit = wanted(entries, end - out.len());
            chunk.clear();
            self.base.scan(borrowed(&from), false, limit, &mut chunk)?;
            let last = (chunk.len() == limit).then(|| chunk.key(limit - 1).to_vec());
            let last = last.filter(|last| body.holds(Base::head(&self.base, last), last));
            let shown = chunk.iter().filter(|(key, _)| body.holds(Base::head(&self.base, key), key));
            let covered = |key: &[u8]| last.as_deref().is_none_or(|last| key <= last);
            lay_over(shown, entries.iter().take_while(|e| covered(e.key())), false, end, out);
            from = match (last, &body.high) {
                (Some(last), _) => Bound::Excluded(last),
                (None, Some(high)) => Bound::Included(high.key.to_vec()),
                (None, None) => return Ok(()),
            };
        }
        Ok(())
    }

    pub(super) fn scan_down(&self, from: Bound<&[u8]>, end: usize, out: &mut ScanBatch) -> Result<()> {
        let mut from = owned(from);
        let mut chunk = ScanBatch::new();
        while out.len() < end {
            let head = |key: &[u8]| Base::head(&self.base, key);
            let partition = match &from {
                Bound::Included(key) => self.partitions.find(head(key), key)?,
                Bound::Excluded(key) => self.partitions.find_before(head(key), key)?,
                Bound::Unbounded => self.partitions.last_of_all()?,
            };
            let body = partition.body.read();
            if !reaches(&body, &from, &head) {
                continue;
            }
            let first = match &from {
                Bound::Unbounded => body.buffer.len(),
                Bound::Included(key) => body.buffer.search(head(key), key).map_or_else(|at| at, |at| at + 1),
                Bound::Excluded(key) => body.buffer.search(head(key), key).unwrap_or_else(|at| at),
            };
            let entries = &body.buffer.entries()[..first];
            let limit = wanted(entries, end - out.len());
            chunk.clear();
            self.base.scan(borrowed(&from), true, limit, &mut chunk)?;
            let low = &partition.low;
            let inside = |key: &[u8]| (head(key), key) >= (low.head, &*low.key);
            let last = (chunk.len() == limit).then(|| chunk.key(limit - 1).to_vec());
            let last = last.filter(|last| inside(last));
            let covered = |key: &[u8]| last.as_deref().is_none_or(|last| key >= last);
            let shown = chunk.iter().filter(|(key, _)| inside(key));
            lay_over(shown, entries.iter().rev().take_while(|e| covered(e.key())), true, end, out);
            from = match last {
                Some(last) => Bound::Excluded(last),
                None if low.head == 0 && low.key.is_empty() => return Ok(()),
                None => Bound::Excluded(low.key.to_vec()),
            };
        }
        Ok(())
    }
}

/// Whether a partition ends no earlier than where a downward scan goes on.
fn reaches(body: &Body, from: &Owned, head: &dyn Fn(&[u8]) -> u64) -> bool {
    match (from, &body.high) {
        (_, None) => true,
        (Bound::Unbounded, Some(_)) => false,
        (Bound::Included(key), Some(_)) => body.holds(head(key), key),
        (Bound::Excluded(key), Some(high)) => (high.head, &*high.key) >= (head(key), &key[..]),
    }
}

/// How many keys to ask the base for, of which some may turn out to be removed.
fn wanted(entries: &[Entry], left: usize) -> usize {
    let removed = entries.iter().filter(|e| e.word().is_none()).count();
    left.saturating_add(removed).min(CHUNK)
}

/// Appends both, in scan order, up to `end` keys; of a key that both have, the buffer's word.
fn lay_over<'a>(
    base: impl Iterator<Item = (&'a [u8], u64)>,
    buffer: impl Iterator<Item = &'a Entry>,
    reverse: bool,
    end: usize,
    out: &mut ScanBatch,
) {
    let (mut base, mut buffer) = (base.peekable(), buffer.peekable());
    while out.len() < end {
        let order = match (base.peek(), buffer.peek()) {
            (None, None) => return,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some((key, _)), Some(entry)) if reverse => entry.key().cmp(key),
            (Some((key, _)), Some(entry)) => (*key).cmp(entry.key()),
        };
        let below = if order.is_le() { base.next() } else { None };
        let above = if order.is_ge() { buffer.next() } else { None };
        match (above, below) {
            (Some(entry), _) => entry.word().into_iter().for_each(|word| out.push(entry.key(), word)),
            (None, Some((key, word))) => out.push(key, word),
            (None, None) => {}
        }
    }
}

impl<B: Base + HashIndex> BufferedIndex<B> {
    /// As [`HashIndex::scan_unordered`]: heads are hashes, and partitions begin at hashes.
    pub(super) fn scan_hashes(
        &self,
        cursor: &mut ScanPosition,
        limit: usize,
        out: &mut ScanBatch,
    ) -> Result<()> {
        let (mut left, mut any) = (limit.max(1), false);
        let mut chunk = ScanBatch::new();
        while let Some(from) = cursor.hash() {
            if any && left == 0 {
                return Ok(());
            }
            let partition = self.partitions.find(from, &[])?;
            let body = partition.body.read();
            if !body.holds(from, &[]) {
                continue;
            }
            chunk.clear();
            let mut below = from.checked_sub(1).map_or(ScanPosition::START, ScanPosition::after);
            self.base.scan_unordered(&mut below, left.min(CHUNK), &mut chunk)?;
            let ends = [below.hash(), body.high.as_ref().map(|high| high.head)];
            let end = ends.into_iter().flatten().min();
            let mut last = None;
            for (hash, key, word) in self.overlaid(&body, &chunk, from, end) {
                if left == 0 && last != Some(hash) {
                    *cursor = last.map_or(*cursor, ScanPosition::after);
                    return Ok(());
                }
                out.push(&key, word);
                (left, any, last) = (left.saturating_sub(1), true, Some(hash));
            }
            // The last hash that was covered: the one before the end, or the greatest if there is no end.
            *cursor = ScanPosition::after(end.map_or(u64::MAX, |end| end - 1));
        }
        Ok(())
    }

    /// Hash, key and word of everything from `from` to before `end`, in that order.
    fn overlaid(
        &self,
        body: &Body,
        chunk: &ScanBatch,
        from: u64,
        end: Option<u64>,
    ) -> Vec<(u64, Vec<u8>, u64)> {
        let inside = |hash: u64| hash >= from && end.is_none_or(|end| hash < end);
        let below = chunk.iter().filter_map(|(key, word)| {
            let hash = Base::head(&self.base, key);
            (inside(hash) && body.buffer.search(hash, key).is_err()).then(|| (hash, key.to_vec(), word))
        });
        let above = body.buffer.entries().iter().filter(|e| inside(e.head));
        let above = above.filter_map(|e| Some((e.head, e.key().to_vec(), e.word()?)));
        let mut all: Vec<_> = below.chain(above).collect();
        all.sort_unstable();
        all
    }
}
