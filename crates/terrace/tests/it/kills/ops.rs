//! What the threads of a killed process write: a stream of operations that follows from the seed alone.
//!
//! Every thread has keys of its own, so that what must be there is known exactly. Keys that all threads
//! write are always written together in one batch, with a value that names the operation: whatever the
//! order of the threads was, all of them must hold the same.

use terrace::{Db, Result, WriteBatch, WriteOptions};
use terrace_base::rng::Rng;

use crate::harness::Map;

/// Threads that write.
pub const THREADS: usize = 2;

/// Prefix of the keys that all threads write.
pub const SHARED: &str = "everybody/";

/// Keys that all threads write, always together.
const SHARED_KEYS: u64 = 5;

/// Keys of each thread.
const OWN_KEYS: u64 = 250;

/// When an operation on one key happens at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Always,
    IfAbsent,
    IfPresent,
}

/// One operation: the keys it sets or removes, all or none of them.
#[derive(Debug, Clone)]
pub struct Op {
    changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    condition: Condition,
    sync: bool,
}

/// The operations of one thread of one process.
#[derive(Debug)]
pub struct Ops {
    rng: Rng,
    thread: usize,
    name: String,
    number: u64,
}

/// The prefix of the keys that belong to `thread`.
pub fn own_prefix(thread: usize) -> String {
    format!("thread {thread} of a process that is killed/")
}

impl Ops {
    /// The stream of `thread` in process number `session`.
    pub fn new(seed: u64, session: u64, thread: usize) -> Ops {
        let mut mixer = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (session * THREADS as u64));
        let seeds: [u64; THREADS] = std::array::from_fn(|_| mixer.next_u64());
        Ops { rng: Rng::new(seeds[thread]), thread, name: format!("{session}.{thread}"), number: 0 }
    }

    fn own_key(&mut self) -> Vec<u8> {
        let number = self.rng.below(OWN_KEYS);
        // Some keys are long, and some are a prefix of another.
        let tail = "/and its tail".repeat(if number.is_multiple_of(7) { number as usize % 40 } else { 0 });
        format!("{}{:03}{tail}", own_prefix(self.thread), number / 2 * 2).into_bytes()
    }

    /// A value that no other operation writes.
    fn value(&mut self) -> Vec<u8> {
        let mut value = format!("{}.{}.{};", self.name, self.number, self.rng.below(1000)).into_bytes();
        let length = match self.rng.below(60) {
            // More than a whole memtable holds.
            0 => 5000 + self.rng.below(3000),
            1..10 => 0,
            _ => self.rng.below(300),
        };
        value.resize(value.len() + length as usize, self.rng.below(256) as u8);
        value
    }

    fn put(&mut self) -> (Vec<u8>, Option<Vec<u8>>) {
        (self.own_key(), Some(self.value()))
    }

    fn batch(&mut self) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let mut changes = Vec::new();
        for _ in 0..2 + self.rng.below(8) {
            let change = if self.rng.one_in(4) { (self.own_key(), None) } else { self.put() };
            changes.push(change);
        }
        changes
    }

    /// A key of the thread's own comes along: it tells whether this operation was carried out.
    fn together(&mut self) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let value = self.value();
        let mut changes = vec![(self.own_key(), Some(value.clone()))];
        let shared = (0..SHARED_KEYS).map(|i| (format!("{SHARED}{i}").into_bytes(), Some(value.clone())));
        changes.extend(shared);
        changes
    }
}

impl Iterator for Ops {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        let mut condition = Condition::Always;
        let changes = match self.rng.below(20) {
            0..9 => vec![self.put()],
            9..12 => vec![(self.own_key(), None)],
            12..16 => self.batch(),
            16..18 => self.together(),
            conditional => {
                condition = if conditional == 18 { Condition::IfAbsent } else { Condition::IfPresent };
                vec![self.put()]
            }
        };
        self.number += 1;
        Some(Op { changes, condition, sync: self.rng.one_in(50) })
    }
}

impl Op {
    /// Does it to a database.
    pub fn run(&self, db: &Db) -> Result<()> {
        let options = WriteOptions { sync: self.sync };
        match (self.condition, &self.changes[..]) {
            (Condition::IfAbsent, [(key, Some(value))]) => {
                db.put_if_absent_with(key, value, options).map(drop)
            }
            (Condition::IfPresent, [(key, Some(value))]) => {
                db.update_if_exists_with(key, value, options).map(drop)
            }
            (_, changes) => db.write_with(batch_of(changes), options),
        }
    }

    /// Does it to a map.
    pub fn apply(&self, map: &mut Map) {
        let wanted = match self.condition {
            Condition::Always => true,
            Condition::IfAbsent => !map.contains_key(&self.changes[0].0),
            Condition::IfPresent => map.contains_key(&self.changes[0].0),
        };
        for (key, value) in self.changes.iter().filter(|_| wanted) {
            match value {
                Some(value) => drop(map.insert(key.clone(), value.clone())),
                None => drop(map.remove(key)),
            }
        }
    }
}

fn batch_of(changes: &[(Vec<u8>, Option<Vec<u8>>)]) -> WriteBatch {
    let mut batch = WriteBatch::new();
    for (key, value) in changes {
        match value {
            Some(value) => batch.put(key, value),
            None => batch.delete(key),
        }
    }
    batch
}
