//! Partitions: ranges of places, each with a buffer, and the map that finds them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::sync::ShardedLock;
use parking_lot::RwLock;
use terrace_base::{Error, Result};

use super::buffer::{AsPlace, Buffer, Place};

/// A range of places. Its lock orders all operations on the keys in it.
#[derive(Debug)]
pub(super) struct Partition {
    /// Where it begins, for good.
    pub low: Place,
    pub body: RwLock<Body>,
}

/// The changing part of a partition.
#[derive(Debug, Default)]
pub(super) struct Body {
    /// Its end: none, or the beginning of the next one. It only moves towards the beginning.
    pub high: Option<Place>,
    pub buffer: Buffer,
    /// The generation of the oldest entry, if there is one.
    pub oldest: Option<u64>,
    /// Entries up to which no merge is tried, since one has found no room.
    pub put_off: usize,
}

impl Body {
    /// Whether a place at or past the partition's beginning lies in it.
    #[inline]
    pub fn holds(&self, head: u64, key: &[u8]) -> bool {
        self.high.as_ref().is_none_or(|high| (head, key) < (high.head, &*high.key))
    }
}

/// All partitions, by where they begin. They cover all places.
#[derive(Debug)]
pub(super) struct Partitions {
    map: ShardedLock<BTreeMap<Place, Arc<Partition>>>,
    count: AtomicUsize,
}

impl Default for Partitions {
    /// One for everything.
    fn default() -> Self {
        let low = Place::new(0, &[]);
        let whole = Arc::new(Partition { low: low.clone(), body: RwLock::default() });
        Partitions { map: ShardedLock::new([(low, whole)].into()), count: AtomicUsize::new(1) }
    }
}

impl Partitions {
    /// The partition that begins last at or before a place.
    pub fn find(&self, head: u64, key: &[u8]) -> Result<Arc<Partition>> {
        self.last(|wanted| Bound::Included(wanted), head, key)
    }

    /// The partition that begins last before a place, or the first.
    pub fn find_before(&self, head: u64, key: &[u8]) -> Result<Arc<Partition>> {
        match self.last(|wanted| Bound::Excluded(wanted), head, key) {
            Err(_) => self.find(0, &[]),
            found => found,
        }
    }

    fn last<'k>(
        &self,
        bound: impl for<'a> Fn(&'a (dyn AsPlace + 'k)) -> Bound<&'a (dyn AsPlace + 'k)>,
        head: u64,
        key: &'k [u8],
    ) -> Result<Arc<Partition>> {
        let map = self.map.read().map_err(|_| poisoned())?;
        let wanted: (u64, &[u8]) = (head, key);
        let found = map.range::<dyn AsPlace + 'k, _>((Bound::Unbounded, bound(&wanted))).next_back();
        found.map(|(_, partition)| partition.clone()).ok_or_else(poisoned)
    }

    /// The last partition.
    pub fn last_of_all(&self) -> Result<Arc<Partition>> {
        let map = self.map.read().map_err(|_| poisoned())?;
        map.values().next_back().cloned().ok_or_else(poisoned)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Every partition there is now, in order.
    pub fn all(&self) -> Result<Vec<Arc<Partition>>> {
        Ok(self.map.read().map_err(|_| poisoned())?.values().cloned().collect())
    }

    /// Cuts the locked, empty partition at `places`, which ascend and lie in it.
    pub fn cut(&self, body: &mut Body, places: Vec<Place>) -> Result<()> {
        if places.is_empty() {
            return Ok(());
        }
        let ends = places.iter().skip(1).cloned().map(Some).chain([body.high.clone()]);
        let new = places.iter().cloned().zip(ends).map(|(low, high)| {
            let body = RwLock::new(Body { high, ..Body::default() });
            (low.clone(), Arc::new(Partition { low, body }))
        });
        // Made before the lock is taken. Their places still belong to the old partition until its end is moved: a
        // thread that finds one of them before, or that waits for the old one, looks again.
        let new: Vec<_> = new.collect();
        self.count.fetch_add(new.len(), Ordering::Relaxed);
        self.map.write().map_err(|_| poisoned())?.extend(new);
        body.high = places.into_iter().next();
        Ok(())
    }
}

/// A thread has panicked in the map.
#[cold]
fn poisoned() -> Error {
    Error::invalid("a thread has panicked while it changed the partitions of write buffers")
}
