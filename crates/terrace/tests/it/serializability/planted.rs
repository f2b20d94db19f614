//! Anomalies that are there: the checker finds each, and a serializable store none.

use std::collections::BTreeMap;

use terrace::{Db, EngineKind, Isolation, Result, Transaction, TransactionOptions};

use super::graph::{Committed, Held, judge};
use crate::harness::{Engine, Machine, Setup, test_each_engine};

/// One that has read and written so, between two moments.
fn transaction(moments: (u64, u64), reads: &[(u8, Held)], writes: &[(u8, Held)]) -> Committed {
    let (reads, writes) = (reads.iter().copied().collect(), writes.iter().copied().collect());
    Committed { begin: moments.0, end: moments.1, reads, writes }
}

/// Keys 1 and 2 are there at the beginning.
fn told(history: &[Committed]) -> String {
    judge(&BTreeMap::from([(1, 10), (2, 20)]), history).err().unwrap_or_default()
}

#[test]
fn what_has_an_order_passes() {
    let history = [
        transaction((0, 9), &[(1, Some(10)), (3, None)], &[(1, Some(11)), (3, Some(30))]),
        transaction((1, 8), &[(1, Some(11)), (2, Some(20))], &[(2, None)]),
        transaction((2, 7), &[(1, Some(10)), (2, Some(20)), (3, None)], &[]),
        transaction((10, 11), &[(1, Some(11)), (2, None), (3, Some(30))], &[]),
    ];
    assert_eq!(told(&history), "");
}

#[test]
fn a_lost_update_is_found() {
    let history = [
        transaction((0, 2), &[(1, Some(10))], &[(1, Some(11))]),
        transaction((1, 3), &[(1, Some(10))], &[(1, Some(12))]),
    ];
    assert!(told(&history).starts_with("lost update: transactions 0 and 1"), "{}", told(&history));
    // Of a key that both have found absent, and of one that both have removed.
    let history = [
        transaction((0, 2), &[(3, None)], &[(3, Some(30))]),
        transaction((1, 3), &[(3, None)], &[(3, Some(31))]),
    ];
    assert!(told(&history).starts_with("lost update"));
}

#[test]
fn write_skew_is_found() {
    let both = [(1, Some(10)), (2, Some(20))];
    let history =
        [transaction((0, 2), &both, &[(1, Some(11))]), transaction((1, 3), &both, &[(2, Some(21))])];
    let told = told(&history);
    assert!(told.contains("0 before 1 (ReadBefore(2)), 1 before 0 (ReadBefore(1))"), "{told}");
}

#[test]
fn a_phantom_is_found() {
    // Each has read keys 3 and 4 as a range with nothing in it, and puts one there.
    let nothing = [(3, None), (4, None)];
    let history =
        [transaction((0, 2), &nothing, &[(3, Some(30))]), transaction((1, 3), &nothing, &[(4, Some(40))])];
    assert!(told(&history).contains("0 before 1 (ReadBefore(4)), 1 before 0 (ReadBefore(3))"));
}

#[test]
fn other_anomalies_are_found() {
    // What nobody has committed.
    assert!(told(&[transaction((0, 1), &[(1, Some(99))], &[])]).contains("which nobody committed"));
    // Half of a transaction.
    let half = [
        transaction((0, 2), &[(1, Some(10)), (2, Some(20))], &[(1, Some(11)), (2, Some(21))]),
        transaction((1, 3), &[(1, Some(11)), (2, Some(20))], &[]),
    ];
    assert!(told(&half).contains("(Read(1))") && told(&half).contains("(ReadBefore(2))"));
    // What was over when it began.
    let stale =
        [transaction((0, 1), &[(1, Some(10))], &[(1, Some(11))]), transaction((2, 3), &[(1, Some(10))], &[])];
    assert!(told(&stale).contains("(Time)"));
    // One that only reads, between two of which each could come first.
    let seen = [
        transaction((0, 8), &[(1, Some(10)), (2, Some(20))], &[(1, Some(11))]),
        transaction((1, 2), &[(2, Some(20))], &[(2, Some(21))]),
        transaction((3, 4), &[(1, Some(10)), (2, Some(21))], &[]),
    ];
    assert!(told(&seen).contains("no order explains"), "{}", told(&seen));
}

/// A transaction of a store, and what it has read and written.
struct Noted {
    tx: Transaction,
    committed: Committed,
}

impl Noted {
    fn begin(db: &Db, isolation: Isolation, moment: u64) -> Noted {
        let options = TransactionOptions { isolation, ..TransactionOptions::default() };
        let committed = Committed { begin: moment, end: moment + 100, ..Committed::default() };
        Noted { tx: db.transaction_with(options), committed }
    }

    fn get(&mut self, key: u8) {
        let value = self.tx.get([key]).unwrap().map(|value| number(&value));
        self.committed.reads.insert(key, value);
    }

    fn range(&mut self, from: u8, to: u8) {
        let found = self.tx.range([from]..=[to]).unwrap().map(|entry| {
            let (key, value) = entry.unwrap();
            (key[0], number(&value))
        });
        let found: BTreeMap<u8, u64> = found.collect();
        self.committed.reads.extend((from..=to).map(|key| (key, found.get(&key).copied())));
    }

    fn put(&mut self, key: u8, value: u64) {
        self.tx.put([key], value.to_be_bytes()).unwrap();
        self.committed.writes.insert(key, Some(value));
    }

    fn commit(self, history: &mut Vec<Committed>) -> Result<()> {
        self.tx.commit()?;
        history.push(self.committed);
        Ok(())
    }
}

/// What a transaction does.
type Act<'a> = &'a dyn Fn(&mut Noted);

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().unwrap())
}

/// Two transactions at once, of which each does as it is told; what came of it.
fn two_at_once(engine: EngineKind, isolation: Isolation, each: [Act<'_>; 2]) -> Result<Vec<Committed>> {
    let machine = Machine::new(&Setup::tiny("two at once", &Engine::of(engine)));
    let db = machine.open().unwrap();
    [(1, 10u64), (2, 20)].into_iter().for_each(|(key, value)| db.put([key], value.to_be_bytes()).unwrap());
    let mut both = [0, 1].map(|moment| Noted::begin(&db, isolation, moment));
    both.iter_mut().zip(each).for_each(|(noted, act)| act(noted));
    let mut history = Vec::new();
    both.into_iter().try_for_each(|noted| noted.commit(&mut history)).map(|()| history)
}

/// The store makes each anomaly where it is allowed to, and the checker finds it; and it makes none where it is not.
fn anomalies_are_found_and_refused(engine: EngineKind) {
    let skew = |written: u8| {
        move |noted: &mut Noted| {
            noted.get(1);
            noted.get(2);
            noted.put(written, 100 + u64::from(written));
        }
    };
    let phantom = |written: u8| {
        move |noted: &mut Noted| {
            noted.range(3, 9);
            noted.put(written, 100 + u64::from(written));
        }
    };
    let (skews, phantoms) = ([skew(1), skew(2)], [phantom(4), phantom(5)]);
    let mut planted: Vec<[Act<'_>; 2]> = vec![[&skews[0], &skews[1]]];
    if engine.is_ordered() {
        planted.push([&phantoms[0], &phantoms[1]]);
    }
    for each in planted {
        let history = two_at_once(engine, Isolation::Snapshot, each).unwrap();
        assert!(told(&history).contains("no order explains this: 0 before 1"), "{}", told(&history));
        assert!(two_at_once(engine, Isolation::Serializable, each).unwrap_err().is_retryable());
    }
    // No update is lost in either; by reads and writes without a transaction one is.
    let update: [Act<'_>; 2] = [
        &|noted| {
            noted.get(1);
            noted.put(1, 11)
        },
        &|noted| {
            noted.get(1);
            noted.put(1, 12)
        },
    ];
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        assert!(two_at_once(engine, isolation, update).unwrap_err().is_retryable());
    }
    let machine = Machine::new(&Setup::tiny("no transactions", &Engine::of(engine)));
    let db = machine.open().unwrap();
    db.put([1], 10u64.to_be_bytes()).unwrap();
    let seen = [0, 1].map(|_| db.get([1]).unwrap().map(|value| number(&value)));
    let history = [0u8, 1].map(|i| {
        let new = 11 + u64::from(i);
        db.put([1], new.to_be_bytes()).unwrap();
        transaction((u64::from(i), 9), &[(1, seen[usize::from(i)])], &[(1, Some(new))])
    });
    assert!(told(&history).starts_with("lost update"));
}

test_each_engine!(anomalies_are_found_and_refused);
