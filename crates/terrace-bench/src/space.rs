//! Which key numbers exist while several threads insert.
//!
//! Invariants:
//! 1. A number is handed out once, in ascending order.
//! 2. Every number below [`KeySpace::visible`] has been inserted and acknowledged.
//! 3. A number is taken away at most once, in ascending order, and only when it is visible.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::keys::KeyOrder;

/// The key numbers of one database, shared by the threads that work on it.
#[derive(Debug)]
pub struct KeySpace {
    order: KeyOrder,
    next: AtomicU64,
    visible: AtomicU64,
    /// Numbers below this one have been taken away.
    oldest: AtomicU64,
    /// Numbers inserted out of turn, above `visible`.
    early: Mutex<BinaryHeap<Reverse<u64>>>,
}

impl KeySpace {
    /// A database that holds the numbers below `records`.
    pub fn new(records: u64, order: KeyOrder) -> Self {
        KeySpace {
            order,
            next: AtomicU64::new(records),
            visible: AtomicU64::new(records),
            oldest: AtomicU64::new(0),
            early: Mutex::default(),
        }
    }

    /// How this database's numbers relate to its keys.
    pub fn order(&self) -> KeyOrder {
        self.order
    }

    /// The number to insert next.
    pub fn reserve(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Says that `number`, which was reserved, has been acknowledged.
    pub fn acknowledge(&self, number: u64) {
        let mut early = self.early.lock();
        early.push(Reverse(number));
        let mut visible = self.visible.load(Ordering::Relaxed);
        while early.peek() == Some(&Reverse(visible)) {
            early.pop();
            visible += 1;
        }
        self.visible.store(visible, Ordering::Release);
    }

    /// Numbers below this one exist.
    pub fn visible(&self) -> u64 {
        self.visible.load(Ordering::Acquire)
    }

    /// Numbers below this one were taken away.
    pub fn oldest(&self) -> u64 {
        self.oldest.load(Ordering::Acquire)
    }

    /// Takes the oldest number away, if more than `keep` are there.
    pub fn take_oldest(&self, keep: u64) -> Option<u64> {
        let more = |oldest: u64| (self.visible().saturating_sub(oldest) > keep).then_some(oldest + 1);
        self.oldest.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_visible_when_all_below_it_are() {
        let space = KeySpace::new(10, KeyOrder::Hashed);
        let (a, b, c) = (space.reserve(), space.reserve(), space.reserve());
        assert_eq!((a, b, c), (10, 11, 12));
        space.acknowledge(c);
        space.acknowledge(b);
        assert_eq!(space.visible(), 10);
        space.acknowledge(a);
        assert_eq!(space.visible(), 13);
    }

    #[test]
    fn the_oldest_goes_first_and_only_above_what_is_kept() {
        let space = KeySpace::new(3, KeyOrder::Ordered);
        assert_eq!(
            [space.take_oldest(1), space.take_oldest(1), space.take_oldest(1)],
            [Some(0), Some(1), None]
        );
        space.acknowledge(space.reserve());
        assert_eq!((space.take_oldest(1), space.oldest()), (Some(2), 3));
    }
}
