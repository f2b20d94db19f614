//! Which key numbers exist while several threads insert, and which of them a read must find.
//!
//! Invariants:
//! 1. A number is handed out once, in ascending order.
//! 2. Every number below [`KeySpace::visible`] has been inserted and acknowledged, unless numbers are [`Marks`]ed: then
//!    those below the marks' length are there that are marked as written.
//! 3. A number is taken away at most once, in ascending order, and only when it is visible.
//! 4. A number that [`KeySpace::must_hold`] before and after a read was there all the time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::keys::{KeyMaker, KeyOrder};

/// Which of the first numbers were written, where they are written by choice and not in order.
#[derive(Debug)]
pub struct Marks {
    begun: Box<[AtomicU64]>,
    written: Box<[AtomicU64]>,
    len: u64,
}

impl Marks {
    /// None of the first `len` numbers.
    fn new(len: u64) -> Self {
        let none = || (0..len.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Marks { begun: none(), written: none(), len }
    }

    fn set(bits: &[AtomicU64], number: u64) {
        bits[(number / 64) as usize].fetch_or(1 << (number % 64), Ordering::AcqRel);
    }

    fn has(bits: &[AtomicU64], number: u64) -> bool {
        bits[(number / 64) as usize].load(Ordering::Acquire) >> (number % 64) & 1 == 1
    }

    fn count(bits: &[AtomicU64]) -> u64 {
        bits.iter().map(|word| u64::from(word.load(Ordering::Acquire).count_ones())).sum()
    }
}

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
    /// Which of the first numbers were written; without marks all of them.
    marks: Option<Arc<Marks>>,
    /// Whether this object knows the database's contents.
    is_known: AtomicBool,
    /// See [`numbers_in_key_order`](Self::numbers_in_key_order).
    ordered: Mutex<Option<Ordered>>,
}

/// The numbers that were there when numbers below `visible` were, in the order of their keys.
#[derive(Debug)]
struct Ordered {
    visible: u64,
    numbers: Arc<[u64]>,
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
            marks: None,
            is_known: AtomicBool::new(true),
            ordered: Mutex::default(),
        }
    }

    /// An empty database of whose first `len` numbers any may be written.
    pub fn marked(len: u64, order: KeyOrder) -> Self {
        KeySpace { marks: Some(Arc::new(Marks::new(len))), ..KeySpace::new(0, order) }
    }

    /// A database that holds the numbers below `records` or only some of them; which is not known.
    pub fn unknown(records: u64, order: KeyOrder) -> Self {
        KeySpace { is_known: AtomicBool::new(false), ..KeySpace::new(records, order) }
    }

    /// The same database, now with the numbers below `records`, for the next workload.
    pub fn grown(&self, records: u64) -> Self {
        KeySpace {
            oldest: AtomicU64::new(self.oldest()),
            marks: self.marks.clone(),
            is_known: AtomicBool::new(self.is_known()),
            ..KeySpace::new(records, self.order)
        }
    }

    /// From now on the contents are not known.
    pub fn forget(&self) {
        self.is_known.store(false, Ordering::Release);
    }

    /// Whether the contents are known.
    pub fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Acquire)
    }

    /// Says that `number` is about to be written.
    pub fn begin(&self, number: u64) {
        if let Some(marks) = self.marks.as_ref().filter(|marks| number < marks.len) {
            Marks::set(&marks.begun, number);
        }
    }

    /// Says that the write of `number` was acknowledged.
    pub fn written(&self, number: u64) {
        if let Some(marks) = self.marks.as_ref().filter(|marks| number < marks.len) {
            Marks::set(&marks.written, number);
        }
    }

    /// Whether a read of `number` must find it, as long as it is not taken away meanwhile.
    pub fn must_hold(&self, number: u64) -> bool {
        let there = match &self.marks {
            Some(marks) if number < marks.len => Marks::has(&marks.written, number),
            _ => number < self.visible(),
        };
        there && number >= self.oldest() && self.is_known()
    }

    /// Whether a read of `number` may find it: not if it was never written.
    pub fn may_hold(&self, number: u64) -> bool {
        let begun = match &self.marks {
            Some(marks) if number < marks.len => Marks::has(&marks.begun, number),
            _ => number < self.next.load(Ordering::Acquire),
        };
        begun || !self.is_known()
    }

    /// How many numbers must be there, while none is taken away.
    pub fn count(&self) -> u64 {
        match &self.marks {
            Some(marks) => Marks::count(&marks.written) + self.visible().saturating_sub(marks.len),
            None => self.visible().saturating_sub(self.oldest()),
        }
    }

    /// All numbers that must be there in the order of their keys, each behind its [`place`](KeyMaker::place).
    pub fn in_key_order(&self, keys: &KeyMaker) -> Vec<(u64, u64)> {
        let there = (0..self.visible()).filter(|&number| self.must_hold(number));
        let mut pairs: Vec<(u64, u64)> = there.map(|number| (keys.place(number), number)).collect();
        pairs.sort_unstable();
        pairs
    }

    /// The numbers of [`in_key_order`](Self::in_key_order), sorted once for as long as none is added.
    pub fn numbers_in_key_order(&self, keys: &KeyMaker) -> Arc<[u64]> {
        let visible = self.visible();
        let mut ordered = self.ordered.lock();
        if let Some(known) = ordered.as_ref().filter(|known| known.visible == visible) {
            return known.numbers.clone();
        }
        let numbers: Arc<[u64]> = self.in_key_order(keys).into_iter().map(|(_, number)| number).collect();
        *ordered = Some(Ordered { visible, numbers: numbers.clone() });
        numbers
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
    fn what_must_be_there_is_what_was_acknowledged() {
        let all = KeySpace::new(3, KeyOrder::Hashed);
        let inserted = all.reserve();
        assert!(all.must_hold(2) && !all.must_hold(inserted) && all.may_hold(inserted) && !all.may_hold(4));
        all.acknowledge(inserted);
        assert_eq!((all.must_hold(inserted), all.count()), (true, 4));
        all.take_oldest(0);
        assert!(!all.must_hold(0) && all.must_hold(1) && all.grown(4).count() == 3);
        all.forget();
        assert!(!all.must_hold(1) && all.may_hold(9) && !all.grown(4).must_hold(1));
    }

    #[test]
    fn marked_numbers_are_there_when_they_were_written() {
        let some = KeySpace::marked(100, KeyOrder::Ordered);
        some.begin(70);
        assert!(!some.must_hold(70) && some.may_hold(70) && !some.may_hold(71));
        some.written(70);
        some.written(3);
        let later = some.grown(100);
        let inserted = later.reserve();
        later.acknowledge(inserted);
        assert!(later.must_hold(70) && later.must_hold(inserted) && !later.must_hold(69));
        assert_eq!((later.count(), inserted), (3, 100));
        assert_eq!(later.in_key_order(&KeyMaker::new(16, KeyOrder::Ordered)), [(3, 3), (70, 70), (100, 100)]);
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
