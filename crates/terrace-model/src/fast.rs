//! FAST: a reader without a lock finds what is in a node throughout, while a writer shifts.
//!
//! The stores are in the order of `fastfair/shift.rs`, the loads in that of `fastfair/search.rs`; records are their
//! own keys, as full keys are compared there. Keys come in pairs that share a slice.

use std::sync::Arc;

use shuttle::thread;

use crate::check;
use crate::sync::{AtomicU64, Ordering};

const N: usize = 6;
const LOCKED: u64 = 1;
const LEFTWARD: u64 = 2;
const COUNTER: u64 = 4;

#[derive(Default)]
struct Node {
    lock: AtomicU64,
    slices: [AtomicU64; N],
    ptrs: [AtomicU64; N],
}

/// What tells keys apart only half the time.
fn slice(key: u64) -> u64 {
    key / 2
}

impl Node {
    fn with(keys: &[u64]) -> Node {
        let node = Node::default();
        for (i, key) in keys.iter().enumerate() {
            node.set(i, *key);
        }
        node
    }

    fn set(&self, i: usize, key: u64) {
        self.slices[i].store(slice(key), Ordering::Release);
        self.ptrs[i].store(key, Ordering::Release);
    }

    fn entry(&self, i: usize) -> (u64, u64) {
        (self.slices[i].load(Ordering::Acquire), self.ptrs[i].load(Ordering::Acquire))
    }

    fn count(&self) -> usize {
        (0..N).take_while(|&i| self.entry(i).1 != 0).count()
    }

    fn lock(&self) {
        let word = self.lock.load(Ordering::Acquire);
        self.lock.store(((word & !3) + COUNTER) | LOCKED, Ordering::Release);
    }

    fn unlock(&self) {
        self.lock.store(self.lock.load(Ordering::Relaxed) & !3, Ordering::Release);
    }

    fn turn(&self, leftward: bool) {
        let word = self.lock.load(Ordering::Relaxed);
        if (word & LEFTWARD != 0) != leftward {
            let direction = if leftward { LEFTWARD } else { 0 };
            self.lock.store(((word & !3) + COUNTER) | LOCKED | direction, Ordering::Release);
        }
    }

    fn insert(&self, key: u64) {
        let count = self.count();
        let at = (0..count).take_while(|&i| self.entry(i).1 < key).count();
        self.turn(false);
        for i in (at + 1..=count).rev() {
            let (slice, ptr) = self.entry(i - 1);
            if i == count {
                self.slices[i].store(slice, Ordering::Release);
                self.ptrs[i].store(ptr, Ordering::Release);
            } else {
                self.ptrs[i].store(ptr, Ordering::Release);
                self.slices[i].store(slice, Ordering::Release);
            }
        }
        if at > 0 && at < count {
            self.ptrs[at].store(self.entry(at - 1).1, Ordering::Release);
        }
        self.slices[at].store(slice(key), Ordering::Release);
        self.ptrs[at].store(key, Ordering::Release);
    }

    fn remove(&self, key: u64) {
        let Some(mut i) = (0..self.count()).find(|&i| self.entry(i).1 == key) else { return };
        self.turn(true);
        while i + 1 < N && self.entry(i + 1).1 != 0 {
            let (slice, ptr) = self.entry(i + 1);
            self.slices[i].store(slice, Ordering::Release);
            self.ptrs[i].store(ptr, Ordering::Release);
            i += 1;
        }
        self.ptrs[i].store(0, Ordering::Release);
    }

    fn find(&self, key: u64) -> bool {
        loop {
            let before = self.lock.load(Ordering::Acquire);
            let leftward = before & (LOCKED | LEFTWARD) == LOCKED | LEFTWARD;
            let found =
                if leftward { self.among(key, (0..N).rev(), false) } else { self.among(key, 0..N, true) };
            if found || self.lock.load(Ordering::Acquire) == before {
                return found;
            }
            thread::yield_now();
        }
    }

    fn among(&self, key: u64, order: impl Iterator<Item = usize>, upward: bool) -> bool {
        for i in order {
            let (found, ptr) = self.entry(i);
            if upward && (ptr == 0 || found > slice(key)) {
                return false;
            }
            if ptr == key && found == slice(key) {
                return true;
            }
        }
        false
    }
}

/// Keys that are there throughout are found, and keys that never are, are not.
fn readers_beside(keys: &'static [u64], stay: &'static [u64], change: fn(&Node)) {
    check(move || {
        let node = Arc::new(Node::with(keys));
        let writer = {
            let node = node.clone();
            thread::spawn(move || {
                node.lock();
                change(&node);
                node.unlock();
            })
        };
        let readers: Vec<_> = stay
            .iter()
            .map(|key| {
                let node = node.clone();
                thread::spawn(move || {
                    assert!(node.find(*key), "{key} was not found");
                    assert!(!node.find(5), "5 was found");
                })
            })
            .collect();
        writer.join().unwrap();
        readers.into_iter().for_each(|r| r.join().unwrap());
    });
}

#[test]
fn beside_an_insert_at_the_front() {
    readers_beside(&[2, 3, 4, 8], &[2, 3, 8], |node| node.insert(1));
}

#[test]
fn beside_an_insert_in_the_middle() {
    readers_beside(&[2, 4, 8, 9], &[4, 8, 9], |node| node.insert(3));
}

#[test]
fn beside_a_removal() {
    readers_beside(&[2, 3, 4, 8], &[3, 4, 8], |node| node.remove(2));
}

#[test]
fn beside_inserts_and_removals_under_one_lock() {
    readers_beside(&[2, 3, 4, 8], &[3, 8], |node| {
        node.remove(2);
        node.insert(1);
        node.remove(4);
    });
}
