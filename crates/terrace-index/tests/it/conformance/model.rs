//! Random operations against a `BTreeMap`, through clean and unclean reopening.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use terrace_base::ErrorKind;
use terrace_index::{PointIndex, ScanBatch};
use terrace_pmem::{Granularity, MemMedia, Pool, PoolOptions};

use super::{Case, Subject};
use crate::bed::{assert_marked, options};

type Map = BTreeMap<Vec<u8>, u64>;

#[derive(Debug, Clone)]
enum Op {
    Insert(Vec<u8>, u64),
    Remove(Vec<u8>),
    /// Expects what is there if the flag is set, else the word.
    Exchange(Vec<u8>, bool, Option<u64>, Option<u64>),
    /// Leaves the word as it is, or makes it another, or removes the key.
    Update(Vec<u8>, Option<Option<u64>>),
    Get(Vec<u8>),
    GetMany(Vec<Vec<u8>>),
    /// From, kind of bound, reverse, limit.
    Scan(Vec<u8>, u8, bool, usize),
    /// Whether in order.
    Reopen(bool),
    Check,
}

/// Keys of four shapes: dense, with long common prefixes, any bytes, and huge.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::collection::vec(0u8..3, 0..5),
        4 => (0u32..200).prop_map(|i| format!("user{i:016}").into_bytes()),
        4 => (0u32..60, any::<bool>()).prop_map(|(i, s)| {
            let mut key = vec![b'p'; 100];
            key.extend(i.to_be_bytes());
            if s { key.extend(b"/suffix"); }
            key
        }),
        2 => prop::collection::vec(any::<u8>(), 0..30),
        1 => (0u8..4, prop::sample::select(vec![300usize, 5000, 65_535])).prop_map(|(b, n)| vec![b; n]),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let word = 1u64..1000;
    prop_oneof![
        10 => (key(), word.clone()).prop_map(|(k, w)| Op::Insert(k, w)),
        5 => key().prop_map(Op::Remove),
        4 => (key(), any::<bool>(), prop::option::of(word.clone()), prop::option::of(word))
            .prop_map(|(k, right, e, n)| Op::Exchange(k, right, e, n)),
        2 => (key(), prop::option::of(prop::option::of(1u64..1000))).prop_map(|(k, w)| Op::Update(k, w)),
        3 => key().prop_map(Op::Get),
        2 => prop::collection::vec(key(), 0..40).prop_map(Op::GetMany),
        3 => (key(), 0u8..3, any::<bool>(), 0usize..40).prop_map(|(k, b, r, l)| Op::Scan(k, b, r, l)),
        1 => any::<bool>().prop_map(Op::Reopen),
        1 => Just(Op::Check),
    ]
}

struct Bench<C: Case> {
    media: Arc<MemMedia>,
    /// Dropped before the pool it lies in is reopened.
    open: Option<(Pool, C::Index)>,
    map: Map,
}

fn pool_options() -> PoolOptions {
    PoolOptions { max_size: 256 << 20, ..options() }
}

impl<C: Case> Bench<C> {
    fn new() -> Self {
        let media = Arc::new(MemMedia::new(1 << 20, 256 << 20, Granularity::CacheLine).unwrap());
        let pool = Pool::create_on(media.clone(), Path::new("memory"), &pool_options()).unwrap();
        let index = C::create(&pool).unwrap();
        Bench { media, open: Some((pool, index)), map: Map::new() }
    }

    fn index(&self) -> &C::Index {
        &self.open.as_ref().unwrap().1
    }

    fn reopen(&mut self, in_order: bool) {
        let (pool, index) = self.open.take().unwrap();
        if in_order {
            index.close().unwrap();
        }
        drop(index);
        if in_order {
            pool.close().unwrap();
        }
        drop(pool);
        let pool = Pool::open_on(self.media.clone(), Path::new("memory"), &pool_options()).unwrap();
        let index = C::open(&pool).unwrap();
        self.open = Some((pool, index));
    }

    fn check(&self) {
        let (pool, index) = self.open.as_ref().unwrap();
        assert_eq!(index.check().unwrap(), Vec::<String>::new());
        assert_eq!(index.len(), self.map.len() as u64);
        assert!(index.pm_bytes() > 0 && index.dram_bytes() > 0);
        index.check_figures();
        // Empties limbo.
        index.close().unwrap();
        assert_marked(pool, |marks| index.mark(marks));
    }

    fn scan(&self, key: &[u8], bound: u8, reverse: bool, limit: usize) {
        let Some(index) = self.index().ordered() else {
            let all: Vec<_> = self.map.iter().map(|(k, w)| (k.clone(), *w)).collect();
            return assert_eq!(self.index().contents(limit), all);
        };
        let from = match bound {
            0 => Bound::Included(key),
            1 => Bound::Excluded(key),
            _ => Bound::Unbounded,
        };
        let mut batch = ScanBatch::new();
        index.scan(from, reverse, limit, &mut batch).unwrap();
        let got: Vec<_> = batch.iter().map(|(k, w)| (k.to_vec(), w)).collect();
        assert_eq!(got, expected_scan(&self.map, from, reverse, limit));
    }

    fn update(&mut self, key: &[u8], wish: Option<Option<u64>>) {
        let before = self.index().update(key, &mut |_| wish.map(|word| word.and_then(NonZeroU64::new)));
        assert_eq!(before.unwrap(), self.map.get(key).copied());
        match wish {
            None => {}
            Some(None) => drop(self.map.remove(key)),
            Some(Some(word)) => drop(self.map.insert(key.to_vec(), word)),
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Insert(k, w) => {
                assert_eq!(self.index().insert(k, *w).unwrap(), self.map.insert(k.clone(), *w));
            }
            Op::Remove(k) => assert_eq!(self.index().remove(k).unwrap(), self.map.remove(k)),
            Op::Exchange(k, right, expected, new) => {
                let now = self.map.get(k).copied();
                let expected = if *right { now } else { *expected };
                let got = self.index().compare_exchange(k, expected, *new).unwrap();
                assert_eq!(got, if expected == now { Ok(()) } else { Err(now) });
                match new {
                    Some(new) if expected == now => drop(self.map.insert(k.clone(), *new)),
                    None if expected == now => drop(self.map.remove(k)),
                    _ => {}
                }
            }
            Op::Update(k, wish) => self.update(k, *wish),
            Op::Get(k) => assert_eq!(self.index().get(k).unwrap(), self.map.get(k).copied()),
            Op::GetMany(keys) => {
                let (keys, mut words): (Vec<&[u8]>, _) =
                    (keys.iter().map(|k| &k[..]).collect(), vec![Some(0)]);
                self.index().get_many(&keys, &mut words).unwrap();
                let there = keys.iter().map(|k| self.map.get(*k).copied());
                assert!(words.into_iter().eq([Some(0)].into_iter().chain(there)), "appended in their order");
            }
            Op::Scan(k, bound, reverse, limit) => self.scan(k, *bound, *reverse, *limit),
            Op::Reopen(in_order) => self.reopen(*in_order),
            Op::Check => self.check(),
        }
    }
}

/// What may not be stored is refused by every operation that would.
fn refuses_what_may_not_be_stored<C: Case>() {
    let media = Arc::new(MemMedia::new(1 << 20, 64 << 20, Granularity::CacheLine).unwrap());
    let pool = Pool::create_on(media, Path::new("memory"), &pool_options()).unwrap();
    let index = C::create(&pool).unwrap();
    let (key, long) = (&b"key"[..], &[0; 65_536][..]);
    let one = NonZeroU64::new(1);
    let refused = [
        index.insert(key, 0).map(drop),
        index.compare_exchange(key, None, Some(0)).map(drop),
        index.insert(long, 1).map(drop),
        index.compare_exchange(long, None, Some(1)).map(drop),
        index.compare_exchange(long, Some(1), None).map(drop),
        index.update(long, &mut |_| Some(one)).map(drop),
        index.remove(long).map(drop),
        index.get(long).map(drop),
        index.get_many(&[key, long], &mut Vec::new()),
    ];
    for (i, refused) in refused.into_iter().enumerate() {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument, "operation {i}");
    }
    assert!(index.is_empty());
}

/// What a scan must give.
pub fn expected_scan(map: &Map, from: Bound<&[u8]>, reverse: bool, limit: usize) -> Vec<(Vec<u8>, u64)> {
    let own = |(k, w): (&Vec<u8>, &u64)| (k.clone(), *w);
    if reverse {
        map.range::<[u8], _>((Bound::Unbounded, from)).rev().take(limit).map(own).collect()
    } else {
        map.range::<[u8], _>((from, Bound::Unbounded)).take(limit).map(own).collect()
    }
}

/// The model test.
pub fn agrees_with_a_map<C: Case>() {
    refuses_what_may_not_be_stored::<C>();
    let mut runner = TestRunner::new(Config { cases: 48, failure_persistence: None, ..Config::default() });
    // Few operations shrink well; many reach deep trees.
    let ops = prop_oneof![prop::collection::vec(op(), 1..60), prop::collection::vec(op(), 300..900)];
    runner
        .run(&ops, |ops| {
            let mut bench = Bench::<C>::new();
            ops.iter().for_each(|op| bench.apply(op));
            bench.check();
            let all: Vec<_> = bench.map.keys().cloned().collect();
            all.iter().for_each(|k| bench.apply(&Op::Remove(k.clone())));
            bench.check();
            Ok(())
        })
        .unwrap();
}
