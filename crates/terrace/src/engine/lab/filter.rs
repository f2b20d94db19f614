//! The keys that the value tree may hold: a filter in DRAM that also removes keys, so that a get of any other
//! key costs no walk through persistent memory.
//!
//! Two counters for each key, in one cache line. A saturated counter stays saturated: then some keys are
//! searched for in vain, and none is missed.
//!
//! One thread at a time adds and removes. Readers find a key here before its memtable leaves, and until the
//! table that it went to can be read: they must load this after the readable set.

use std::sync::atomic::{AtomicU8, Ordering};

/// Counters of a cache line.
const LINE: u64 = 64;

/// Counters for each key.
const COUNTERS_A_KEY: u64 = 16;

/// The keys' counters.
#[derive(Debug)]
pub(super) struct Filter {
    lines: Box<[[AtomicU8; LINE as usize]]>,
}

impl Filter {
    /// An empty filter that suits this many keys, and takes at most this many bytes or one line.
    pub fn new(keys: u64, most_bytes: u64) -> Filter {
        let bytes = keys.saturating_mul(COUNTERS_A_KEY).min(most_bytes);
        let line = || [const { AtomicU8::new(0) }; LINE as usize];
        Filter { lines: (0..(bytes / LINE).max(1)).map(|_| line()).collect() }
    }

    /// Whether a filter of at most this many bytes would be no larger.
    pub fn is_as_large_as(&self, most_bytes: u64) -> bool {
        self.dram_bytes() + LINE > most_bytes
    }

    /// The number of keys that it suits.
    pub fn capacity(&self) -> u64 {
        self.dram_bytes() / COUNTERS_A_KEY
    }

    /// Whether the key with `hash` may be there: if false, it is not.
    pub fn may_hold(&self, hash: u64) -> bool {
        self.counters(hash).into_iter().all(|counter| counter.load(Ordering::Acquire) > 0)
    }

    /// Counts the key with `hash` in.
    pub fn add(&self, hash: u64) {
        for counter in self.counters(hash) {
            counter.store(counter.load(Ordering::Relaxed).saturating_add(1), Ordering::Release);
        }
    }

    /// Counts the key with `hash`, which was added, out.
    pub fn remove(&self, hash: u64) {
        for counter in self.counters(hash) {
            match counter.load(Ordering::Relaxed) {
                0 | u8::MAX => {}
                count => counter.store(count - 1, Ordering::Release),
            }
        }
    }

    /// Bytes of DRAM held.
    pub fn dram_bytes(&self) -> u64 {
        LINE * self.lines.len() as u64
    }

    fn counters(&self, hash: u64) -> [&AtomicU8; 2] {
        let line = (u128::from(hash) * self.lines.len() as u128) >> 64;
        let (one, step) = (hash % LINE, (hash / LINE) % (LINE - 1) + 1);
        let line = &self.lines[line as usize];
        [&line[one as usize], &line[((one + step) % LINE) as usize]]
    }
}

#[cfg(test)]
mod tests {
    use terrace_base::checksum::hash64;

    use super::*;

    fn hash(key: u64) -> u64 {
        hash64(&key.to_be_bytes())
    }

    #[test]
    fn what_is_there_is_never_missed_and_what_is_not_seldom_found() {
        let filter = Filter::new(10_000, u64::MAX);
        (0..10_000).for_each(|key| filter.add(hash(key)));
        (0..5_000).for_each(|key| filter.remove(hash(key)));
        assert!((5_000..10_000).all(|key| filter.may_hold(hash(key))));
        let wrong = (0..5_000).chain(10_000..20_000).filter(|key| filter.may_hold(hash(*key))).count();
        assert!(wrong < 600, "{wrong} of 15,000");
        (5_000..10_000).for_each(|key| filter.remove(hash(key)));
        assert!((0..20_000).all(|key| !filter.may_hold(hash(key))));
    }

    #[test]
    fn counters_at_their_end_stay_there() {
        let filter = Filter::new(0, 0);
        (0..300).for_each(|_| filter.add(hash(1)));
        (0..300).for_each(|_| filter.remove(hash(1)));
        assert!(filter.may_hold(hash(1)));
        assert_eq!((filter.capacity(), filter.dram_bytes()), (4, 64));
    }
}
