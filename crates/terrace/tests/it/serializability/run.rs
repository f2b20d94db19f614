//! Transactions of many threads, of which each order is checked. `TERRACE_TRANSACTIONS` says how many each
//! thread begins.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace::{Bytes, Db, EngineKind, ErrorKind, Transaction};
use terrace_base::rng::Rng;

use super::graph::{Committed, Held, judge};
use crate::harness::{Engine, Machine, Setup, assert_clean, setups, test_each_engine};

/// Keys that are there at the beginning, and may be removed once; and as many that are not, and then stay.
const FIRST: u8 = 10;
const KEYS: u8 = 2 * FIRST;

const THREADS: u64 = 4;

/// Transactions of each thread.
fn transactions() -> u64 {
    std::env::var("TERRACE_TRANSACTIONS").ok().map_or(120, |text| text.parse().expect("a number"))
}

/// A thread that makes transactions.
struct Actor<'a> {
    db: &'a Db,
    rng: Rng,
    clock: &'a AtomicU64,
    values: &'a AtomicU64,
    committed: Vec<Committed>,
    conflicts: u64,
}

/// A value's bytes: its number over and over, sometimes so many that they lie elsewhere.
fn encode(value: u64) -> Vec<u8> {
    value.to_be_bytes().repeat(if value.is_multiple_of(5) { 60 } else { 3 })
}

fn decode(bytes: &[u8]) -> u64 {
    let value = u64::from_be_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(bytes, encode(value));
    value
}

fn held(value: Option<Bytes>) -> Held {
    value.map(|value| decode(&value))
}

impl Actor<'_> {
    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn key(&mut self) -> u8 {
        self.rng.below(u64::from(KEYS)) as u8
    }

    /// What a key may become that holds `seen`: `None` if it has been removed for good.
    fn next(&mut self, key: u8, seen: Held) -> Option<Held> {
        let value = Some(self.values.fetch_add(1, Ordering::Relaxed));
        match (key < FIRST, seen) {
            (true, None) => None,
            (true, Some(_)) if self.rng.one_in(12) => Some(None),
            _ => Some(value),
        }
    }

    fn act(&mut self) {
        let begin = self.now();
        let outcome = if self.rng.one_in(5) { self.update() } else { self.transact() };
        let end = self.now();
        match outcome {
            Some(committed) => self.committed.push(Committed { begin, end, ..committed }),
            None => self.conflicts += 1,
        }
        if self.rng.one_in(60) {
            // Where snapshots fill the pool with memtables this may be refused.
            let flushed = self.db.flush();
            assert!(flushed.is_ok() || flushed.is_err_and(|e| e.kind() == ErrorKind::PoolFull));
        }
    }

    /// One key, without a transaction.
    fn update(&mut self) -> Option<Committed> {
        let (db, key) = (self.db, self.key());
        let mut new = None;
        let before = db.fetch_update([key], |current| {
            std::thread::yield_now();
            let seen = current.map(decode);
            new = self.next(key, seen);
            new.unwrap_or(seen).map(encode)
        });
        let before = held(before.unwrap());
        let writes = new.map(|new| (key, new)).into_iter().collect();
        Some(Committed { reads: BTreeMap::from([(key, before)]), writes, ..Committed::default() })
    }

    fn transact(&mut self) -> Option<Committed> {
        let tx = self.db.transaction();
        let (mut reads, mut writes) = (BTreeMap::new(), BTreeMap::new());
        for _ in 0..1 + self.rng.below(4) {
            if self.rng.one_in(2) {
                // So that they meet, however few processors there are.
                std::thread::yield_now();
            }
            if self.rng.one_in(3) {
                self.read_range(&tx, &mut reads, &writes);
                continue;
            }
            let key = self.key();
            let seen = held(tx.get([key]).unwrap());
            match writes.get(&key) {
                Some(written) => assert_eq!(seen, *written, "its own write"),
                None => _ = reads.insert(key, seen),
            }
            if self.rng.one_in(2)
                && let Some(new) = self.next(key, seen)
            {
                match new {
                    Some(value) => tx.put([key], encode(value)).unwrap(),
                    None => tx.delete([key]).unwrap(),
                }
                writes.insert(key, new);
            }
        }
        match tx.commit() {
            Ok(()) => Some(Committed { reads, writes, ..Committed::default() }),
            Err(e) if e.kind() == ErrorKind::Conflict => None,
            Err(e) => panic!("{e}"),
        }
    }

    /// Reads some of a range from either end; what is absent there it has read, too.
    fn read_range(&mut self, tx: &Transaction, reads: &mut BTreeMap<u8, Held>, writes: &BTreeMap<u8, Held>) {
        let (from, to) = (self.key(), self.key());
        let Ok(mut iter) = tx.range([from]..=[to]) else { return };
        let (backward, most) = (self.rng.one_in(2), 1 + self.rng.below(6));
        let mut found = BTreeMap::new();
        let (mut first, mut last) = (from, to);
        for i in 0.. {
            if i == most {
                // Up to where it was read.
                let ends = (found.keys().next().copied(), found.keys().last().copied());
                (first, last) =
                    if backward { (ends.0.unwrap_or(from), to) } else { (from, ends.1.unwrap_or(to)) };
                break;
            }
            let Some(entry) = (if backward { iter.next_back() } else { iter.next() }) else { break };
            let (key, value) = entry.unwrap();
            found.insert(key[0], decode(&value));
        }
        for key in first..=last {
            let seen = found.get(&key).copied();
            match writes.get(&key) {
                Some(written) => assert_eq!(seen, *written, "its own write"),
                None => _ = reads.insert(key, seen),
            }
        }
    }
}

fn run(setup: &Setup, seed: u64) -> (usize, u64) {
    let machine = Machine::new(&setup.clone().threaded(2));
    let db = machine.open().unwrap();
    let (clock, values) = (AtomicU64::new(0), AtomicU64::new(1000));
    let first: BTreeMap<u8, u64> = (0..FIRST).map(|key| (key, u64::from(key) + 1)).collect();
    first.iter().for_each(|(key, value)| db.put([*key], encode(*value)).unwrap());
    let (mut history, mut conflicts) = (Vec::new(), 0);
    let start = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (db, clock, values, start) = (&db, &clock, &values, &start);
                scope.spawn(move || {
                    start.wait();
                    let rng = Rng::new(seed ^ (thread + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                    let mut actor = Actor { db, rng, clock, values, committed: Vec::new(), conflicts: 0 };
                    (0..transactions()).for_each(|_| actor.act());
                    (actor.committed, actor.conflicts)
                })
            })
            .collect();
        for thread in threads {
            let (committed, refused) = thread.join().unwrap();
            history.extend(committed);
            conflicts += refused;
        }
    });
    // What is left is what somebody reads last.
    let (begin, end) = (clock.load(Ordering::Relaxed), u64::MAX);
    let reads = (0..KEYS).map(|key| (key, held(db.get([key]).unwrap()))).collect();
    history.push(Committed { begin, end, reads, ..Committed::default() });
    if let Err(why) = judge(&first, &history) {
        panic!("under {}, seed {seed}: {why}", setup.name);
    }
    assert_clean(&db);
    (history.len(), conflicts)
}

fn one_order_explains_transactions(engine: EngineKind) {
    let seed = Rng::fresh_seed();
    for setup in setups(&Engine::of(engine)) {
        let (committed, conflicts) = run(&setup, seed);
        println!("{engine:?}, {}: {committed} committed, {conflicts} conflicts", setup.name);
    }
}

test_each_engine!(one_order_explains_transactions);
