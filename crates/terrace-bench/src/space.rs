//! Which key numbers exist while several threads insert.
//!
//! Invariants:
//! 1. A number is handed out once, in ascending order.
//! 2. Every number below [`KeySpace::visible`] has been inserted and acknowledged.

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
}
