//! Random histories against a sorted map.

use proptest::prelude::*;
use proptest::test_runner::Config;
use terrace::{Bytes, Db, DbIter, Snapshot, WriteBatch};
use terrace_pmem::Granularity;

use super::ops::{Move, Op, history};
use crate::harness::{
    Background, Contents, Engine, Entries, Machine, Map, Setup, Span, assert_clean, entries, get, in_span,
    setups, stepped,
};

/// A database and the map it must equal, with everything that is held open on it.
struct Run {
    machine: Machine,
    setup: Setup,
    db: Db,
    map: Map,
    /// What a power cut must leave: everything, or on `Page` media what was synced.
    held: Vec<(Snapshot, Map)>,
    iters: Vec<(DbIter, Cursor)>,
    /// The maps since the last sync, oldest first: a power cut on `Page` media leaves one of them.
    unsynced: Vec<Map>,
    /// Answers, to compare runs with.
    transcript: Vec<String>,
}

/// An iterator's model: the entries of its range, and which are still between its ends.
struct Cursor {
    all: Entries,
    next: usize,
    end: usize,
}

impl Cursor {
    fn new(map: &Map, span: &Span) -> Cursor {
        let all: Entries =
            map.iter().filter(|(key, _)| in_span(key, span)).map(|(k, v)| (k.clone(), v.clone())).collect();
        Cursor { next: 0, end: all.len(), all }
    }

    fn step(&mut self, step: &Move) -> Option<Option<(Vec<u8>, Vec<u8>)>> {
        match step {
            Move::Next => {
                let item = (self.next < self.end).then(|| self.all[self.next].clone());
                self.next += usize::from(item.is_some());
                Some(item)
            }
            Move::NextBack => {
                let item = (self.next < self.end).then(|| self.all[self.end - 1].clone());
                self.end -= usize::from(item.is_some());
                Some(item)
            }
            Move::Seek(key) => {
                self.next = self.all.partition_point(|(k, _)| k < key);
                None
            }
            Move::SeekForPrev(key) => {
                self.end = self.all.partition_point(|(k, _)| k <= key);
                None
            }
        }
    }
}

fn pair(item: Option<terrace::Result<(Bytes, Bytes)>>) -> Option<(Vec<u8>, Vec<u8>)> {
    item.map(|entry| entry.map(|(k, v)| (k.to_vec(), v.to_vec())).expect("a readable entry"))
}

fn walk(iter: &mut DbIter, cursor: &mut Cursor, moves: &[Move]) {
    for (i, step) in moves.iter().enumerate() {
        let expected = cursor.step(step);
        let got = match step {
            Move::Next => Some(pair(stepped(iter, false, i.is_multiple_of(2)))),
            Move::NextBack => Some(pair(stepped(iter, true, i.is_multiple_of(2)))),
            Move::Seek(key) => {
                iter.seek(key);
                None
            }
            Move::SeekForPrev(key) => {
                iter.seek_for_prev(key);
                None
            }
        };
        assert_eq!(got, expected, "{step:?} of {moves:?}");
    }
}

impl Run {
    fn new(setup: &Setup) -> Run {
        let machine = Machine::new(setup);
        let db = machine.open().expect("a new database");
        Run {
            machine,
            setup: setup.clone(),
            db,
            map: Map::new(),
            held: Vec::new(),
            iters: Vec::new(),
            unsynced: vec![Map::new()],
            transcript: Vec::new(),
        }
    }

    fn write(&mut self, change: impl FnOnce(&mut Map)) {
        change(&mut self.map);
        if self.setup.granularity != Granularity::Page || self.setup.options().sync {
            self.unsynced.clear();
        }
        self.unsynced.push(self.map.clone());
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Put(key, value) => {
                self.db.put(key, value).expect("a put");
                self.write(|map| drop(map.insert(key.clone(), value.clone())));
            }
            Op::Delete(key) => {
                self.db.delete(key).expect("a delete");
                self.write(|map| drop(map.remove(key)));
            }
            Op::Batch(writes) => self.batch(writes),
            Op::PutIfAbsent(key, value) => {
                let done = self.db.put_if_absent(key, value).expect("a conditional put");
                assert_eq!(done, !self.map.contains_key(key));
                if done {
                    self.write(|map| drop(map.insert(key.clone(), value.clone())));
                }
            }
            Op::UpdateIfExists(key, value) => {
                let done = self.db.update_if_exists(key, value).expect("a conditional put");
                assert_eq!(done, self.map.contains_key(key));
                if done {
                    self.write(|map| drop(map.insert(key.clone(), value.clone())));
                }
            }
            Op::Flush => {
                self.db.flush().expect("a flush");
                self.unsynced = vec![self.map.clone()];
            }
            Op::Compact(span) => {
                self.db.compact_range(span.clone()).expect("a compaction");
                self.unsynced = vec![self.map.clone()];
            }
            Op::Sync => {
                self.db.sync().expect("a sync");
                self.unsynced = vec![self.map.clone()];
            }
            Op::Check => self.check(),
            Op::Reopen => self.reopen(),
            Op::KillAndReopen => self.kill(),
            Op::PowerCutAndReopen(seed) => self.power_cut(*seed),
            read => self.read(read),
        }
    }

    fn batch(&mut self, writes: &[(Vec<u8>, Option<Vec<u8>>)]) {
        let mut batch = WriteBatch::new();
        for (key, value) in writes {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        self.db.write(batch).expect("a batch");
        self.write(|map| {
            for (key, value) in writes {
                match value {
                    Some(value) => drop(map.insert(key.clone(), value.clone())),
                    None => drop(map.remove(key)),
                }
            }
        });
    }

    fn read(&mut self, op: &Op) {
        match op {
            Op::Get(key) => {
                let got = self.db.get(key).expect("a get").map(|v| v.to_vec());
                assert_eq!(got.as_ref(), self.map.get(key), "{key:?}");
                assert_eq!(self.db.contains_key(key).expect("a lookup"), got.is_some());
                assert_eq!(self.db.get_with(key, <[u8]>::to_vec).expect("a look"), got);
                self.transcript.push(format!("{got:?}"));
            }
            Op::MultiGet(keys) => {
                let refs: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
                let got = self.db.multi_get(&refs).expect("a multi-get");
                let got: Vec<Option<Vec<u8>>> = got.into_iter().map(|v| v.map(|v| v.to_vec())).collect();
                let expected: Vec<Option<Vec<u8>>> = keys.iter().map(|k| self.map.get(k).cloned()).collect();
                assert_eq!(got, expected);
            }
            Op::Range(span, moves) => {
                if let Some(mut iter) = self.range(span) {
                    walk(&mut iter, &mut Cursor::new(&self.map, span), moves);
                }
                let forward = self.db.within(span);
                assert_eq!(forward, Cursor::new(&self.map, span).all);
                self.transcript.push(format!("{forward:?}"));
            }
            Op::Prefix(prefix) => {
                let Ok(iter) = self.db.prefix(prefix) else { return assert!(!self.is_ordered()) };
                let got = entries(iter);
                let expected: Entries = self
                    .map
                    .iter()
                    .filter(|(k, _)| k.starts_with(prefix))
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect();
                assert_eq!(got, expected, "{prefix:?}");
            }
            Op::Hold => self.held.push((self.db.snapshot(), self.map.clone())),
            Op::ReadHeld(n, key, span) => {
                if let Some((snapshot, map)) = pick(&self.held, *n) {
                    assert_eq!(get(snapshot, key).as_ref(), map.get(key), "{key:?}");
                    let twice = snapshot.multi_get([key, key]).expect("a multi-get");
                    assert!(twice.iter().all(|value| value.as_deref() == map.get(key).map(|v| &v[..])));
                    let got = snapshot.within(span);
                    assert_eq!(got, Cursor::new(map, span).all);
                }
            }
            Op::LetGo(n) => {
                if !self.held.is_empty() {
                    self.held.swap_remove(n % self.held.len());
                } else if !self.iters.is_empty() {
                    self.iters.swap_remove(n % self.iters.len());
                }
            }
            Op::OpenIter(span) => {
                if let Some(iter) = self.range(span) {
                    self.iters.push((iter, Cursor::new(&self.map, span)));
                }
            }
            Op::Advance(n, moves) => {
                if !self.iters.is_empty() {
                    let n = n % self.iters.len();
                    let (iter, cursor) = &mut self.iters[n];
                    walk(iter, cursor, moves);
                }
            }
            other => unreachable!("{other:?} is no read"),
        }
    }

    fn is_ordered(&self) -> bool {
        self.setup.options().engine.is_ordered()
    }

    /// An iterator, of an engine that has such.
    fn range(&self, span: &Span) -> Option<DbIter> {
        let iter = self.db.range(span.clone());
        assert_eq!(iter.is_ok(), self.is_ordered());
        iter.ok()
    }

    /// Everything, both ways, and the store's own check.
    fn check(&mut self) {
        let all = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
        let expected = Cursor::new(&self.map, &all).all;
        assert_eq!(self.db.all(), expected);
        if let Some(iter) = self.range(&all) {
            let mut backward: Entries = iter.rev().map(|item| pair(Some(item)).expect("some")).collect();
            backward.reverse();
            assert_eq!(backward, expected);
        }
        for (snapshot, map) in &self.held {
            assert_eq!(snapshot.all(), Cursor::new(map, &all).all);
        }
        assert_clean(&self.db);
    }

    fn let_go_of_everything(&mut self) {
        self.held.clear();
        self.iters.clear();
    }

    fn reopen(&mut self) {
        self.let_go_of_everything();
        self.db.close().expect("a clean close");
        self.start(self.machine.kill());
        self.unsynced = vec![self.map.clone()];
        self.check();
    }

    fn kill(&mut self) {
        let after = self.machine.kill();
        self.let_go_of_everything();
        self.start(after);
        self.check();
    }

    fn power_cut(&mut self, seed: u64) {
        let after = self.machine.power_cut(seed);
        self.let_go_of_everything();
        self.start(after);
        let found: Map = self.db.all().into_iter().collect();
        assert!(
            self.unsynced.contains(&found),
            "after a power cut neither the last synced state nor a later one, but {found:?}"
        );
        self.map = found;
        self.unsynced = vec![self.map.clone()];
        self.check();
    }

    /// Has a new process take over on `machine`; the old one is left to end on its own.
    fn start(&mut self, machine: Machine) {
        self.db = machine.open().expect("the database opens again");
        self.machine = machine;
    }
}

fn pick<T>(all: &[T], n: usize) -> Option<&T> {
    (!all.is_empty()).then(|| &all[n % all.len()])
}

fn run(setup: &Setup, ops: &[Op]) -> Vec<String> {
    let mut run = Run::new(setup);
    ops.iter().for_each(|op| run.apply(op));
    run.check();
    run.reopen();
    run.transcript
}

/// A quick run; `CONFORMANCE_FACTOR` in the environment multiplies the number of cases.
pub fn config(cases: u32) -> Config {
    let factor = std::env::var("CONFORMANCE_FACTOR").ok().and_then(|f| f.parse().ok()).unwrap_or(1);
    Config { cases: cases * factor, max_shrink_iters: 400, failure_persistence: None, ..Config::default() }
}

/// One thread does everything, processes die and the power goes.
pub fn random_operations_match_a_map(engine: &Engine) {
    let inline: Vec<Setup> =
        setups(engine).into_iter().filter(|s| s.background == Background::Inline).collect();
    proptest!(config(150), |(setup in prop::sample::select(inline), ops in history(true, 120))| {
        run(&setup, &ops);
    });
}

/// Background threads do flushes and compactions at moments of their own.
pub fn random_operations_match_under_threads(engine: &Engine) {
    let threaded: Vec<Setup> = setups(engine).into_iter().map(|s| s.threaded(2)).collect();
    proptest!(config(40), |(setup in prop::sample::select(threaded), ops in history(false, 160))| {
        run(&setup, &ops);
    });
}

/// The answers do not depend on the options.
pub fn the_same_operations_give_the_same_everywhere(engine: &Engine) {
    let setups = setups(engine);
    proptest!(config(8), |(ops in history(false, 200))| {
        let transcripts: Vec<_> = setups.iter().map(|setup| run(setup, &ops)).collect();
        prop_assert!(transcripts.windows(2).all(|pair| pair[0] == pair[1]));
    });
}
