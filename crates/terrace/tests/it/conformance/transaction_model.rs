//! Random transactions, several at a time, against a map.
//!
//! A transaction that commits must have read what is there at that moment; one that does not names a key that
//! has changed since it began, and that it has read.

use proptest::prelude::*;
use terrace::{Db, Error, Isolation, Savepoint, Transaction, TransactionOptions};

use super::model::config;
use super::ops::{key, span, value};
use crate::harness::{
    Background, Contents, Engine, Entries, Machine, Map, Setup, Span, assert_clean, in_span, setups,
};

/// Transactions at a time.
const MOST: usize = 3;

/// One step. Numbers are taken modulo how many there are of what they choose.
#[derive(Debug, Clone)]
enum Step {
    Begin(bool),
    Get(usize, Vec<u8>),
    Contains(usize, Vec<u8>),
    /// So many entries from the front, and from the back.
    Range(usize, Span, usize, usize),
    Write(usize, Vec<u8>, Option<Vec<u8>>),
    Savepoint(usize),
    RollBack(usize, usize),
    Commit(usize),
    Drop(usize),
    /// Without a transaction.
    Put(Vec<u8>, Option<Vec<u8>>),
    Swap(Vec<u8>, bool, Option<Vec<u8>>),
    Flush,
    Compact,
}

fn step() -> impl Strategy<Value = Step> {
    let n = any::<usize>;
    let written = || prop::option::weighted(0.7, value());
    prop_oneof![
        8 => prop::bool::weighted(0.2).prop_map(Step::Begin),
        10 => (n(), key()).prop_map(|(n, k)| Step::Get(n, k)),
        3 => (n(), key()).prop_map(|(n, k)| Step::Contains(n, k)),
        8 => (n(), span(), 0usize..12, 0usize..12).prop_map(|(n, s, f, b)| Step::Range(n, s, f, b)),
        12 => (n(), key(), written()).prop_map(|(n, k, v)| Step::Write(n, k, v)),
        3 => n().prop_map(Step::Savepoint),
        2 => (n(), n()).prop_map(|(n, s)| Step::RollBack(n, s)),
        6 => n().prop_map(Step::Commit),
        1 => n().prop_map(Step::Drop),
        10 => (key(), written()).prop_map(|(k, v)| Step::Put(k, v)),
        4 => (key(), any::<bool>(), written()).prop_map(|(k, e, v)| Step::Swap(k, e, v)),
        2 => Just(Step::Flush),
        1 => Just(Step::Compact),
    ]
}

/// A transaction, and what it must answer.
struct Open {
    tx: Transaction,
    of_snapshot: bool,
    /// What there was when it began.
    then: Map,
    /// That, with its own writes.
    now: Map,
    written: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    savepoints: Vec<(Savepoint, usize)>,
    keys: Vec<Vec<u8>>,
    /// Keys of which it knows that they are there.
    present: Vec<Vec<u8>>,
    spans: Vec<Span>,
}

impl Open {
    fn begin(db: &Db, map: &Map, of_snapshot: bool) -> Open {
        let isolation = if of_snapshot { Isolation::Snapshot } else { Isolation::Serializable };
        let tx = db.transaction_with(TransactionOptions { isolation, ..TransactionOptions::default() });
        let (then, now) = (map.clone(), map.clone());
        let (written, savepoints, keys, present, spans) = Default::default();
        Open { tx, of_snapshot, then, now, written, savepoints, keys, present, spans }
    }

    fn has_written(&self, key: &[u8]) -> bool {
        self.written.iter().any(|(written, _)| written == key)
    }

    fn replay(&mut self) {
        self.now = self.then.clone();
        for (key, value) in &self.written {
            set(&mut self.now, key, value.clone());
        }
    }

    fn range(&mut self, span: &Span, front: usize, back: usize) {
        let Ok(mut iter) = self.tx.range(span.clone()) else { return };
        let owned = |(k, v): (terrace::Bytes, terrace::Bytes)| (k.to_vec(), v.to_vec());
        let expected: Entries = self
            .now
            .iter()
            .filter(|(key, _)| in_span(key, span))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        let first: Entries = iter.by_ref().take(front).map(|item| owned(item.unwrap())).collect();
        let last: Entries = iter.by_ref().rev().take(back).map(|item| owned(item.unwrap())).collect();
        let fronts = front.min(expected.len());
        let backs = back.min(expected.len() - fronts);
        assert_eq!(first, expected[..fronts], "from the front of {span:?}");
        let from_behind: Entries = expected[expected.len() - backs..].iter().rev().cloned().collect();
        assert_eq!(last, from_behind, "from the back of {span:?}");
        if fronts < front || backs < back {
            return self.spans.push(span.clone());
        }
        if let Some((key, _)) = first.last() {
            self.spans.push((span.0.clone(), std::ops::Bound::Included(key.clone())));
        }
        if let Some((key, _)) = last.last() {
            self.spans.push((std::ops::Bound::Included(key.clone()), span.1.clone()));
        }
    }

    /// Whether `key`, if it has changed, spoils the transaction.
    fn depends_on(&self, key: &[u8], map: &Map) -> bool {
        match self.of_snapshot {
            true => self.has_written(key),
            false => {
                let was_read = self.keys.iter().any(|read| read == key);
                let came_or_went = map.contains_key(key) != self.then.contains_key(key);
                was_read
                    || self.spans.iter().any(|span| in_span(key, span))
                    || (came_or_went && self.present.iter().any(|read| read == key))
            }
        }
    }

    fn commit(self, map: &mut Map) {
        let changed = self.then.keys().chain(map.keys()).filter(|key| self.then.get(*key) != map.get(*key));
        let spoilt: Vec<Vec<u8>> = changed.filter(|key| self.depends_on(key, map)).cloned().collect();
        let (reads_matter, writes) = (!self.now.is_empty() || !spoilt.is_empty(), self.written.clone());
        match self.tx.commit() {
            Ok(()) => {
                assert!(spoilt.is_empty() || writes.is_empty(), "committed, although {spoilt:?} has changed");
                writes.into_iter().for_each(|(key, value)| set(map, &key, value));
            }
            Err(Error::Conflict { key }) => {
                assert!(reads_matter && spoilt.contains(&key), "{key:?} is none of {spoilt:?}");
            }
            Err(e) => panic!("{e}"),
        }
    }
}

fn set(map: &mut Map, key: &[u8], value: Option<Vec<u8>>) {
    match value {
        Some(value) => drop(map.insert(key.to_vec(), value)),
        None => drop(map.remove(key)),
    }
}

struct Run {
    db: Db,
    map: Map,
    open: Vec<Open>,
}

impl Run {
    fn one(&mut self, n: usize) -> Option<&mut Open> {
        let count = self.open.len();
        self.open.get_mut(n.checked_rem(count)?)
    }

    fn carry_out(&mut self, step: &Step) {
        match step {
            Step::Begin(of_snapshot) => {
                if self.open.len() == MOST {
                    self.open.remove(0);
                }
                self.open.push(Open::begin(&self.db, &self.map, *of_snapshot));
            }
            Step::Commit(n) if !self.open.is_empty() => {
                let open = self.open.remove(n % self.open.len());
                open.commit(&mut self.map);
            }
            Step::Drop(n) if !self.open.is_empty() => drop(self.open.remove(n % self.open.len())),
            Step::Commit(_) | Step::Drop(_) => {}
            Step::Put(key, value) => {
                match value {
                    Some(value) => self.db.put(key, value).unwrap(),
                    None => self.db.delete(key).unwrap(),
                }
                set(&mut self.map, key, value.clone());
            }
            Step::Swap(key, expects, new) => {
                let current = self.map.get(key).map(|value| &value[..]);
                let expected = if *expects { current } else { Some(&b"something else"[..]) };
                let outcome = self.db.compare_and_swap(key, expected, new.as_deref()).unwrap();
                match outcome {
                    Ok(()) => assert!(*expects),
                    Err(mismatch) => {
                        return assert_eq!((mismatch.current.as_deref(), *expects), (current, false));
                    }
                }
                set(&mut self.map, key, new.clone());
            }
            Step::Flush => self.db.flush().unwrap(),
            Step::Compact => self.db.compact_range(..).unwrap(),
            of_one => self.within(of_one),
        }
    }

    fn within(&mut self, step: &Step) {
        let (Step::Get(n, _)
        | Step::Contains(n, _)
        | Step::Range(n, ..)
        | Step::Write(n, ..)
        | Step::Savepoint(n)
        | Step::RollBack(n, _)) = step
        else {
            return;
        };
        let Some(open) = self.one(*n) else { return };
        match step {
            Step::Get(_, key) => {
                let got = open.tx.get(key).unwrap().map(|value| value.to_vec());
                assert_eq!(got.as_ref(), open.now.get(key), "{key:?}");
                if !open.has_written(key) {
                    open.keys.push(key.clone());
                }
            }
            Step::Contains(_, key) => {
                assert_eq!(open.tx.contains_key(key).unwrap(), open.now.contains_key(key));
                if !open.has_written(key) {
                    open.present.push(key.clone());
                }
            }
            Step::Range(_, span, front, back) => open.range(span, *front, *back),
            Step::Write(_, key, value) => {
                match value {
                    Some(value) => open.tx.put(key, value).unwrap(),
                    None => open.tx.delete(key).unwrap(),
                }
                open.written.push((key.clone(), value.clone()));
                set(&mut open.now, key, value.clone());
            }
            Step::Savepoint(_) => {
                open.savepoints.push((open.tx.savepoint(), open.written.len()));
            }
            Step::RollBack(_, s) if !open.savepoints.is_empty() => {
                let s = s % open.savepoints.len();
                let (savepoint, length) = open.savepoints[s];
                open.tx.rollback_to(savepoint).unwrap();
                open.savepoints.truncate(s + 1);
                open.written.truncate(length);
                open.replay();
            }
            _ => {}
        }
    }
}

pub fn random_transactions_match_a_map(engine: &Engine) {
    let inline: Vec<Setup> =
        setups(engine).into_iter().filter(|s| s.background == Background::Inline).collect();
    let steps = prop::collection::vec(step(), 1..120);
    proptest!(config(60), |(setup in prop::sample::select(inline), steps in steps)| {
        let machine = Machine::new(&setup);
        let mut run = Run { db: machine.open().unwrap(), map: Map::new(), open: Vec::new() };
        for step in &steps {
            run.carry_out(step);
        }
        let found: Map = run.db.all().into_iter().collect();
        prop_assert_eq!(found, run.map);
        drop(run.open);
        assert_clean(&run.db);
    });
}
