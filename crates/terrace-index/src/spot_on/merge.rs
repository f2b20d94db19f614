//! Writing: into the log and a buffer, and from buffers into the base.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::Result;

use super::buffer::Place;
use super::log::Replayed;
use super::partition::{Body, Partition};
use super::{Base, Change, SpotOn};
use crate::ordered::Wish;

/// Buffers with entries of the previous generation that a write merges.
const HELPED: usize = 2;

impl<B: Base> SpotOn<B> {
    /// The primitive under insert, compare_exchange and remove; see `ordered::single_key_writes`.
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
            if place.is_err() && body.buffer.len() >= self.capacity {
                self.merge_partition(&partition, &mut body)?;
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
                self.dirty.lock().push((generation, partition.clone()));
            }
        })
    }

    /// Merges a locked partition's buffer into the base, and cuts the partition where nodes begin.
    fn merge_partition(&self, partition: &Partition, body: &mut Body) -> Result<()> {
        let changes: Vec<Change<'_>> = body.buffer.changes().collect();
        let mut edges = Vec::new();
        self.base.merge(&changes, self.merge, &mut |head, key| {
            let low = (partition.low.head, &*partition.low.key);
            if low < (head, key) && body.holds(head, key) {
                edges.push(Place::new(head, key));
            }
        })?;
        self.surplus.fetch_sub(body.buffer.surplus(), Ordering::Relaxed);
        body.buffer.clear(false);
        body.oldest = None;
        edges.sort_unstable();
        edges.dedup();
        if edges.is_empty() {
            return Ok(());
        }
        self.partitions.cut(body, edges)?;
        // A generation that all buffers fit into: most are merged because they are full, few because it is old.
        self.log.make_room_for(self.partitions.count() * self.capacity);
        Ok(())
    }

    /// Turns the log to a new generation if it is time, and merges a few buffers that hold up the old one. What
    /// fails here is tried again by the next write: this one's change is durable already.
    fn look_after_log(&self) {
        if self.log.is_due() && self.stale_left.load(Ordering::Acquire) == 0 {
            let _ = self.turn_log();
        }
        if self.stale_left.load(Ordering::Acquire) > 0 {
            let _ = self.help_stale(HELPED);
        }
    }

    fn turn_log(&self) -> Result<()> {
        let Some(old) = self.log.turn()? else { return Ok(()) };
        // Whoever appended to the old generation has noted it by now; only the thread that has turned is here.
        let mut dirty = self.dirty.lock();
        let (stale, kept): (Vec<_>, Vec<_>) = dirty.drain(..).partition(|(generation, _)| *generation <= old);
        *dirty = kept;
        drop(dirty);
        if stale.is_empty() {
            return self.log.cut();
        }
        self.stale_generation.store(old, Ordering::Release);
        let mut queue = self.stale.lock();
        self.stale_left.store(stale.len(), Ordering::Release);
        *queue = stale.into_iter().map(|(_, partition)| partition).collect();
        Ok(())
    }

    /// Merges up to `count` buffers with entries of the previous generation; the last lets that go.
    fn help_stale(&self, count: usize) -> Result<()> {
        for _ in 0..count {
            let Some(partition) = self.stale.lock().pop() else { return Ok(()) };
            let old = self.stale_generation.load(Ordering::Acquire);
            let mut body = partition.body.write();
            if body.oldest.is_some_and(|oldest| oldest <= old)
                && let Err(e) = self.merge_partition(&partition, &mut body)
            {
                drop(body);
                self.stale.lock().push(partition);
                return Err(e);
            }
            drop(body);
            if self.stale_left.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.log.cut()?;
            }
        }
        Ok(())
    }

    /// Merges everything that is buffered when it is called.
    pub fn flush(&self) -> Result<()> {
        while !self.stale.lock().is_empty() {
            self.help_stale(usize::MAX)?;
        }
        for partition in self.partitions.all()? {
            let mut body = partition.body.write();
            if !body.buffer.is_empty() {
                self.merge_partition(&partition, &mut body)?;
            }
        }
        self.log.reset(|| {
            // Who writes meanwhile has locked its partition, or is in `dirty` with what it has written.
            let mut dirty = self.dirty.lock();
            let clean = self.stale_left.load(Ordering::Acquire) == 0
                && dirty.iter().all(|(_, p)| p.body.try_read().is_some_and(|body| body.oldest.is_none()));
            if clean {
                dirty.clear();
            }
            clean
        })
    }

    /// Merges what the log held when it was opened, and empties it.
    pub(super) fn replay(&self, replayed: &Replayed) -> Result<()> {
        let head = |key: &[u8]| self.base.head(key);
        let change = |(key, word): (&'_ Vec<u8>, &Option<u64>)| (head(key), key.clone(), *word);
        let mut all: Vec<_> = replayed.iter().map(change).collect();
        all.sort_unstable();
        let changes: Vec<Change<'_>> = all
            .iter()
            .map(|(head, key, word)| Change { head: *head, key, word: *word, is_new: false })
            .collect();
        self.base.merge(&changes, self.merge, &mut |_, _| {})?;
        self.log.reset(|| true)
    }
}
