//! Which sequence numbers readers may see, and which old ones somebody still needs.
//!
//! 1. `visible` grows only, and only after everything up to it is durable.
//! 2. A registered number is at least `visible` at the moment before its registration, so a flush that reads
//!    the list after its memtable became visible misses no reader that needs an older version than that
//!    memtable's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// The visible sequence number and the registered snapshots of one database.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    visible: AtomicU64,
    /// The highest registered number; 0 if there is none.
    newest: AtomicU64,
    /// Registered numbers, ascending, and by how many handles. A list keeps its memory: transactions come and go.
    held: Mutex<Vec<(u64, usize)>>,
}

/// A registered sequence number; dropping it releases it.
#[derive(Debug)]
pub(crate) struct Held {
    seq: u64,
    of: Arc<Snapshots>,
}

impl Held {
    pub fn seq(&self) -> u64 {
        self.seq
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = self.of.held.lock();
        if let Ok(at) = find(&held, self.seq) {
            held[at].1 -= 1;
            if held[at].1 == 0 {
                held.remove(at);
                self.of.note_newest(&held);
            }
        }
    }
}

impl Snapshots {
    /// The last sequence number that readers see.
    pub fn visible(&self) -> u64 {
        self.visible.load(Ordering::Acquire)
    }

    /// Lets readers see everything up to `seq`.
    pub fn advance(&self, seq: u64) {
        self.visible.fetch_max(seq, Ordering::AcqRel);
    }

    /// Registers the present.
    pub fn hold(self: &Arc<Self>) -> Held {
        let mut held = self.held.lock();
        // Read under the lock: a flush that lists the held numbers either sees this one or ran before it.
        let seq = self.visible();
        debug_assert!(held.iter().all(|(earlier, _)| *earlier <= seq), "what is visible grows only");
        self.register(&mut held, seq)
    }

    /// Registers `seq`, for an engine with its own numbers.
    pub fn hold_at(self: &Arc<Self>, seq: u64) -> Held {
        self.register(&mut self.held.lock(), seq)
    }

    fn register(self: &Arc<Self>, held: &mut Vec<(u64, usize)>, seq: u64) -> Held {
        match find(held, seq) {
            Ok(at) => held[at].1 += 1,
            Err(at) => held.insert(at, (seq, 1)),
        }
        self.note_newest(held);
        Held { seq, of: self.clone() }
    }

    fn note_newest(&self, held: &[(u64, usize)]) {
        let newest = held.last().map_or(0, |(seq, _)| *seq);
        self.newest.store(newest, Ordering::Release);
    }

    /// The highest registered number; 0 if there is none, or if it is 0.
    pub fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// The registered numbers, ascending.
    pub fn list(&self) -> Vec<u64> {
        self.held.lock().iter().map(|(seq, _)| *seq).collect()
    }

    /// How many handles are registered.
    pub fn count(&self) -> usize {
        self.held.lock().iter().map(|(_, count)| *count).sum()
    }
}

/// Where `seq` is among registered numbers, or belongs. Nearly always that is the end.
fn find(held: &[(u64, usize)], seq: u64) -> Result<usize, usize> {
    match held.last() {
        Some((last, _)) if *last < seq => Err(held.len()),
        _ => held.binary_search_by_key(&seq, |(seq, _)| *seq),
    }
}

/// Whether some snapshot in `held` (ascending) sees the version `from` and not its successor `until`.
pub(crate) fn is_needed(held: &[u64], from: u64, until: u64) -> bool {
    let first = held.partition_point(|&s| s < from);
    held.get(first).is_some_and(|&s| s < until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_needed_between_its_number_and_its_successors() {
        let held = [10, 20];
        assert!(is_needed(&held, 10, 11));
        assert!(is_needed(&held, 5, 11));
        assert!(!is_needed(&held, 11, 20));
        assert!(is_needed(&held, 11, 21));
        assert!(!is_needed(&held, 21, 99));
        assert!(!is_needed(&[], 0, 99));
    }

    #[test]
    fn handles_count() {
        let s = Arc::new(Snapshots::default());
        s.advance(7);
        let (a, b) = (s.hold(), s.hold());
        s.advance(9);
        assert_eq!((a.seq(), s.list(), s.count()), (7, vec![7], 2));
        drop(a);
        assert_eq!(s.list(), vec![7]);
        drop(b);
        assert!(s.list().is_empty());
    }
}
