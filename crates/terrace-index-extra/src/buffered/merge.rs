//! Writing: into the log and a buffer, and from buffers into the base.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_index::{Change, Wish};

use super::buffer::Place;
use super::log::{OPENED_GENERATION, Replayed};
use super::partition::{Body, Partition};
use super::{Base, BufferedIndex};

/// Buffers with entries of the previous generation that a write merges.
const HELPED: usize = 2;

impl<B: Base> BufferedIndex<B> {
    /// The primitive under insert, compare_exchange and remove; see `PointIndex::update`.
    pub(super) fn apply(&self, key: &[u8], wish: &mut dyn FnMut(Option<u64>) -> Wish) -> Result<Option<u64>> {
        let head = self.base.head(key);
        loop {
            let partition = self.partitions.find(head, key)?;
            let mut body = partition.body.write();
            if !body.holds(head, key) {
                continue;
            }
            let place = body.buffer.search(head, key);
            let (before, below) = match place.ok().and_then(|at| body.buffer.get(at)) {
                Some(entry) => (entry.word(), false),
                None => {
                    let word = self.base.get(key)?;
                    (word, word.is_some())
                }
            };
            let Some(new) = wish(before) else { return Ok(before) };
            let new = new.map(NonZeroU64::get);
            if place.is_err() && body.buffer.len() >= self.capacity.max(body.put_off) {
                match self.merge_partition(&partition, &mut body) {
                    // As long as the log has room writes go on, and so do removals, which make room.
                    Err(e) if e.is_out_of_space() => body.put_off = body.buffer.len() + self.capacity,
                    done => done?,
                }
                continue;
            }
            self.log_change(&partition, &mut body, key, new)?;
            let more = body.buffer.put(place, (head, key), new, below);
            drop(body);
            if more != 0 {
                self.surplus.fetch_add(more, Ordering::Relaxed);
            }
            self.look_after_log();
            return Ok(before);
        }
    }

    /// Makes a change durable in the log, before it is visible in the buffer.
    fn log_change(
        &self,
        partition: &Arc<Partition>,
        body: &mut Body,
        key: &[u8],
        word: Option<u64>,
    ) -> Result<()> {
        let oldest = &mut body.oldest;
        self.log.append(key, word, |generation| {
            if oldest.is_none() {
                *oldest = Some(generation);
                self.backlog.note(generation, partition.clone());
            }
        })
    }

    /// Merges a locked partition's buffer into the base, and cuts the partition where nodes begin.
    fn merge_partition(&self, partition: &Partition, body: &mut Body) -> Result<()> {
        let mut edges = match self.merge_buffer(partition, body) {
            Ok(edges) => edges,
            Err(e) => {
                self.look_below(body);
                return Err(e);
            }
        };
        self.surplus.fetch_sub(body.buffer.surplus(), Ordering::Relaxed);
        body.buffer.clear(false);
        (body.oldest, body.put_off) = (None, 0);
        edges.sort_unstable();
        edges.dedup();
        if edges.is_empty() {
            return Ok(());
        }
        self.partitions.cut(body, edges)?;
        // A generation that all buffers fit into: then most are merged because they are full, and few because it is
        // old.
        self.log.make_room_for(self.partitions.count() * self.capacity);
        Ok(())
    }

    /// Merges a buffer into the base; returns where nodes begin within the partition.
    fn merge_buffer(&self, partition: &Partition, body: &Body) -> Result<Vec<Place>> {
        let changes: Vec<Change<'_>> = body.buffer.changes().collect();
        let mut edges = Vec::new();
        self.base.merge(&changes, self.merge, &mut |head, key| {
            let low = (partition.low.head, &*partition.low.key);
            if low < (head, key) && body.holds(head, key) {
                edges.push(Place::new(head, key));
            }
        })?;
        Ok(edges)
    }

    /// Looks up again which keys of a buffer the base has: a failed merge may have put any of them there. A key that
    /// cannot be looked up counts as present.
    fn look_below(&self, body: &mut Body) {
        let before = body.buffer.surplus();
        body.buffer.look_below(|key| self.base.get(key).map_or(true, |word| word.is_some()));
        self.surplus.fetch_add(body.buffer.surplus() - before, Ordering::Relaxed);
    }

    /// Rotates the log to a new generation if it is time, and shortly before merges buffers that hold up the old one, a
    /// few at a time. The next write repeats failed attempts: this one's change is durable already.
    fn look_after_log(&self) {
        if self.log.is_due() && self.backlog.left() == 0 {
            let _ = self.rotate_log();
        }
        if self.backlog.left() > 0 && self.log.is_soon_due() {
            let _ = self.help_stale(HELPED);
        }
    }

    fn rotate_log(&self) -> Result<()> {
        let mut waits = false;
        match self.log.rotate(|old| waits = self.backlog.rotate(old))? {
            Some(old) if !waits => self.log.cut(old),
            _ => Ok(()),
        }
    }

    /// Merges up to `count` buffers with entries of the previous generation; the last lets that go.
    fn help_stale(&self, count: usize) -> Result<()> {
        for _ in 0..count {
            let Some((old, partition)) = self.backlog.take() else { return Ok(()) };
            let mut body = partition.body.write();
            if body.oldest.is_some_and(|oldest| oldest <= old)
                && let Err(e) = self.merge_partition(&partition, &mut body)
            {
                drop(body);
                self.backlog.put_back(partition);
                return Err(e);
            }
            drop(body);
            if self.backlog.merged() {
                self.log.cut(old)?;
            }
        }
        Ok(())
    }

    /// Merges everything that is buffered when it is called.
    pub fn flush(&self) -> Result<()> {
        self.help_stale(usize::MAX)?;
        for partition in self.partitions.all()? {
            let mut body = partition.body.write();
            if !body.buffer.is_empty() {
                self.merge_partition(&partition, &mut body)?;
            }
        }
        self.log.reset(|| self.backlog.clear_if_clean())
    }

    /// Merges the log's entries of the opening, and empties it. In a full pool they stay in the log and in the buffer
    /// of one partition.
    pub(super) fn replay(&self, replayed: &Replayed) -> Result<()> {
        let change = |(key, word): (&'_ Vec<u8>, &Option<u64>)| (self.base.head(key), key.clone(), *word);
        let mut all: Vec<_> = replayed.iter().map(change).collect();
        all.sort_unstable();
        let changes: Vec<Change<'_>> = all
            .iter()
            .map(|(head, key, word)| Change { head: *head, key, word: *word, is_new: false })
            .collect();
        match self.base.merge(&changes, self.merge, &mut |_, _| {}) {
            Ok(()) => self.log.reset(|| true),
            Err(e) if e.is_out_of_space() => self.hold(&changes),
            Err(e) => Err(e),
        }
    }

    /// Takes replayed changes, which the log keeps, into the buffer of the only partition.
    fn hold(&self, changes: &[Change<'_>]) -> Result<()> {
        let whole = self.partitions.find(0, &[])?;
        let mut body = whole.body.write();
        for &Change { head, key, word, .. } in changes {
            let below = self.base.get(key)?.is_some();
            let place = body.buffer.search(head, key);
            let more = body.buffer.put(place, (head, key), word, below);
            self.surplus.fetch_add(more, Ordering::Relaxed);
        }
        body.oldest = Some(OPENED_GENERATION);
        body.put_off = body.buffer.len() + self.capacity;
        self.backlog.note(OPENED_GENERATION, whole.clone());
        if self.log.has_previous() {
            self.backlog.rotate(OPENED_GENERATION);
        }
        Ok(())
    }
}
