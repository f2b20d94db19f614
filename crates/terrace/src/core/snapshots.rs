//! Which sequence numbers readers may see, and which old ones somebody still needs.
//!
//! 1. `visible` grows only, and only after everything up to it is durable.
//! 2. A registered number is at least `visible` at the moment before its registration, so a flush that reads
//!    the list after its memtable became visible misses no reader that needs an older version than that
//!    memtable's.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// The visible sequence number and the registered snapshots of one database.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    visible: AtomicU64,
    /// The highest registered number; 0 if there is none.
    newest: AtomicU64,
    held: Mutex<Registered>,
}

/// Numbers and how many handles each has. Nearly all come and go at the end, and the list keeps its memory. A number
/// without handles is not at an end, and no more than half of all are such.
#[derive(Debug, Default)]
struct Registered {
    /// Ascending.
    numbers: VecDeque<(u64, usize)>,
    unused: usize,
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
        if held.release(self.seq) {
            self.of.newest.store(held.newest(), Ordering::Release);
        }
    }
}

impl Registered {
    fn find(&self, seq: u64) -> Result<usize, usize> {
        match self.numbers.back() {
            Some((last, _)) if *last < seq => Err(self.numbers.len()),
            _ => self.numbers.binary_search_by_key(&seq, |(seq, _)| *seq),
        }
    }

    fn register(&mut self, seq: u64) {
        match self.find(seq) {
            Ok(at) => {
                self.unused -= usize::from(self.numbers[at].1 == 0);
                self.numbers[at].1 += 1;
            }
            Err(at) => self.numbers.insert(at, (seq, 1)),
        }
    }

    /// Releases one handle of `seq`; returns whether that was the last.
    fn release(&mut self, seq: u64) -> bool {
        let Ok(at) = self.find(seq) else { return false };
        self.numbers[at].1 -= 1;
        if self.numbers[at].1 > 0 {
            return false;
        }
        self.unused += 1;
        while self.numbers.pop_back_if(|(_, count)| *count == 0).is_some()
            || self.numbers.pop_front_if(|(_, count)| *count == 0).is_some()
        {
            self.unused -= 1;
        }
        if self.unused * 2 > self.numbers.len() {
            self.numbers.retain(|(_, count)| *count > 0);
            self.unused = 0;
        }
        true
    }

    /// The highest; 0 if there is none.
    fn newest(&self) -> u64 {
        self.numbers.back().map_or(0, |(seq, _)| *seq)
    }

    /// All that have handles, and how many.
    fn used(&self) -> impl Iterator<Item = (u64, usize)> {
        self.numbers.iter().copied().filter(|(_, count)| *count > 0)
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
        debug_assert!(held.newest() <= seq, "what is visible grows only");
        self.register(&mut held, seq)
    }

    /// Registers `seq`, for an engine with its own numbers.
    pub fn hold_at(self: &Arc<Self>, seq: u64) -> Held {
        self.register(&mut self.held.lock(), seq)
    }

    fn register(self: &Arc<Self>, held: &mut Registered, seq: u64) -> Held {
        held.register(seq);
        self.newest.store(held.newest(), Ordering::Release);
        Held { seq, of: self.clone() }
    }

    /// The highest registered number; 0 if there is none, or if it is 0.
    pub fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// The registered numbers, ascending.
    pub fn list(&self) -> Vec<u64> {
        self.held.lock().used().map(|(seq, _)| seq).collect()
    }

    /// How many handles are registered.
    pub fn count(&self) -> usize {
        self.held.lock().used().map(|(_, count)| count).sum()
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

    /// Against a map, in every order of coming and going; the list stays as short as twice what is registered.
    #[test]
    fn numbers_come_and_go_in_any_order() {
        use std::collections::BTreeMap;

        use terrace_base::rng::Rng;

        let mut rng = Rng::new(5);
        let s = Arc::new(Snapshots::default());
        let (mut handles, mut model) = (Vec::new(), BTreeMap::<u64, usize>::new());
        for step in 0..20_000_u64 {
            // It grows and shrinks by turns.
            if handles.is_empty() || rng.below(100) < if step / 500 % 2 == 0 { 70 } else { 30 } {
                s.advance(rng.below(step + 1));
                let held = if rng.one_in(4) { s.hold_at(rng.below(s.visible() + 1)) } else { s.hold() };
                *model.entry(held.seq()).or_default() += 1;
                handles.push(held);
            } else {
                let gone = handles.swap_remove(rng.below(handles.len() as u64) as usize);
                let count = model.get_mut(&gone.seq()).unwrap();
                *count -= 1;
                if *count == 0 {
                    model.remove(&gone.seq());
                }
            }
            assert_eq!(s.list(), model.keys().copied().collect::<Vec<_>>());
            assert_eq!((s.count(), s.newest()), (handles.len(), model.keys().last().copied().unwrap_or(0)));
            assert!(s.held.lock().numbers.len() <= 2 * model.len());
        }
    }
}
