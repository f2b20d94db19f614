//! The engine `wip`, crashed at every event of a split and of a join of buckets, and of an ingest that divides one.

use terrace::{BucketStats, EngineKind};
use terrace_pmem::Granularity;
use terrace_sim::{PmOptions, World, WorldOptions};

use super::env::runs_on;
use super::judge::{Shared, options};
use super::moments::{Every, Moment, at_every_event, judge_all, judge_openings};
use super::ops::{Op, Write, key};
use super::run::{Errors, Session};

/// Keys that fill more than one bucket.
const KEYS: u16 = 120;

/// Crashes at every event of `ops`, after `before`; what changed meanwhile.
fn crash_in(
    what: &str,
    granularity: Granularity,
    before: &[Op],
    ops: &[Op],
) -> (Vec<Moment>, [BucketStats; 2]) {
    let options = options(EngineKind::Wip);
    let pm = PmOptions { bytes: 1280 << 10, capacity: 4 << 20, granularity };
    let world = World::new(7, WorldOptions { pm });
    let mut session = Session::open(&world, &options, Errors::Fail).unwrap();
    let mut ledger = Shared::over(Default::default());
    before.iter().for_each(|op| session.carry_out(op, &mut ledger).unwrap());
    let first = session.db().stats().buckets;
    let moments = at_every_event(&mut session, &world, ops, &ledger);
    let then = session.db().stats().buckets;
    println!("{what}, {granularity:?}: {} events; from {first:?}\n  to {then:?}", moments.len());
    judge_all(&options, &moments, what);
    (moments, [first, then])
}

fn media() -> impl Iterator<Item = Granularity> {
    [Granularity::CacheLine, Granularity::Page].into_iter().filter(|g| runs_on(EngineKind::Wip, *g))
}

/// Fills a bucket up to where it is full, with writes in its memtable that nobody has flushed.
fn fill() -> Vec<Op> {
    let put = |key| Op::Put { key, len: 150 };
    (0..KEYS).map(put).chain([Op::Flush]).chain((0..KEYS).step_by(9).map(put)).collect()
}

fn merge() -> Vec<Op> {
    vec![Op::Snapshot, Op::CompactAll, Op::Background, Op::Background]
}

/// Must catch keys that are in no bucket or in two, and tables that go before those that take their place are named.
#[test]
fn crashes_in_a_split() {
    for granularity in media() {
        let (moments, [first, then]) = crash_in("split", granularity, &fill(), &merge());
        assert!(then.splits > first.splits, "nothing was split: {then:?}");
        let options = options(EngineKind::Wip);
        let looks = judge_openings(&options, &moments, Every(9), "split");
        println!("{looks} openings that were cut short");
        assert!(looks > 10);
    }
}

/// Must catch keys that are in no bucket or in two, and writes that are lost with the memtables of joined buckets: one
/// has gone to tables, and those of the others hold older writes.
#[test]
fn crashes_in_a_join() {
    let deletes = (0..KEYS).filter(|key| key % 30 != 0).map(|key| Op::Delete { key });
    let rest = || std::iter::repeat_n(Op::Background, 12);
    for granularity in media() {
        let mut before: Vec<Op> = fill().into_iter().chain(merge()).chain([Op::Release]).collect();
        before.extend(deletes.clone().chain([Op::Flush, Op::CompactAll]));
        let mut ops: Vec<Op> = (0..KEYS).step_by(10).map(|key| Op::Put { key, len: 20 }).collect();
        // The middle one of three.
        ops.extend((0..40).map(|_| Op::Put { key: KEYS / 2, len: 150 }));
        ops.extend(rest().chain([Op::Flush]).chain(rest()));
        let (_, [first, then]) = crash_in("join", granularity, &before, &ops);
        assert!(then.joins > first.joins, "nothing was joined: {then:?}");
    }
}

/// An ingest of all keys, each with so many bytes.
fn stream(len: u32) -> Op {
    let mut keys: Vec<u16> = (1..KEYS).collect();
    keys.sort_by_key(|number| key(*number));
    Op::Ingest(keys.into_iter().map(|key| Write::Put { key, len }).collect())
}

/// Must catch an ingest that is there in some buckets alone, and one that lies below what others have in the log.
#[test]
fn crashes_in_an_ingest_into_several_buckets() {
    for granularity in media() {
        let put = |key| Op::Put { key, len: 40 };
        let mut before: Vec<Op> = fill().into_iter().chain(merge()).collect();
        before.extend((0..KEYS).step_by(7).map(put));
        let ops =
            [Op::Snapshot, put(1), put(2), stream(30), put(3), Op::ReadSnapshots, Op::Delete { key: 4 }];
        let (moments, [first, _]) = crash_in("ingest into several", granularity, &before, &ops);
        assert!(first.buckets > 3, "nothing was split before: {first:?}");
        assert!(judge_openings(&options(EngineKind::Wip), &moments, Every(9), "ingest") > 10);
    }
}

/// Must catch an ingest of which a part is there, a bucket that is divided without it, and keys that are lost with the
/// tables that were in the way, or with the memtables of other buckets.
#[test]
fn crashes_in_an_ingest_that_divides_a_bucket() {
    for granularity in media() {
        let put = |key| Op::Put { key, len: 40 };
        let few = || (0..KEYS).step_by(17);
        let before: Vec<Op> = few().map(put).chain([Op::Flush]).chain(few().map(put)).collect();
        let ops =
            [Op::Snapshot, put(1), put(2), stream(300), put(3), Op::ReadSnapshots, Op::Delete { key: 4 }];
        let (moments, [first, then]) = crash_in("ingest", granularity, &before, &ops);
        assert!(first.buckets == 1 && then.buckets > 3, "it was not divided: {then:?}");
        let looks = judge_openings(&options(EngineKind::Wip), &moments, Every(9), "ingest");
        println!("{looks} openings that were cut short");
        assert!(looks > 10);
    }
}
