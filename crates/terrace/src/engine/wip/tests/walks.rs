//! Walks over data that is split, joined, flushed and merged during the walks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;

use terrace_base::rng::Rng;

use super::*;
use crate::core::engine::EngineIter;
use crate::core::snapshots::Held;
use crate::options::BucketMemtableKind;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A walk over a held moment, and the entries that it has still to return.
struct Walk {
    entries: Box<dyn EngineIter>,
    seen: Map,
    direction: Direction,
    left: VecDeque<(Vec<u8>, Vec<u8>)>,
    _held: Held,
}

impl Walk {
    fn begin(wip: &Arc<Wip>, seen: Map, rng: &mut Rng) -> Walk {
        let held = wip.core.snapshots.hold();
        let direction = if rng.one_in(2) { Direction::Forward } else { Direction::Backward };
        let entries = wip.clone().walk(held.seq(), direction).unwrap();
        let mut walk = Walk { entries, seen, direction, left: VecDeque::new(), _held: held };
        walk.seek(rng);
        walk
    }

    fn seek(&mut self, rng: &mut Rng) {
        let key = some_key(rng);
        let bound = match rng.below(3) {
            0 => Bound::Unbounded,
            1 => Bound::Included(&key[..]),
            _ => Bound::Excluded(&key[..]),
        };
        self.entries.seek(bound).unwrap();
        let owned = |(key, value): (&Vec<u8>, &Vec<u8>)| (key.clone(), value.clone());
        self.left = match self.direction {
            Direction::Forward => self.seen.range::<[u8], _>((bound, Bound::Unbounded)).map(owned).collect(),
            Direction::Backward => {
                self.seen.range::<[u8], _>((Bound::Unbounded, bound)).rev().map(owned).collect()
            }
        };
    }

    /// Takes a few entries, which must be the expected ones.
    fn go_on(&mut self, entries: u64, told: &str) {
        for _ in 0..entries {
            let next = self.entries.next().unwrap().map(|(key, value)| (key.to_vec(), value.to_vec()));
            let (is_end, expected) = (next.is_none(), self.left.pop_front());
            assert!(next == expected, "{told}, {:?}: {next:?} in place of {expected:?}", self.direction);
            if is_end {
                return;
            }
        }
    }
}

/// Short keys, the empty one, and some with a common beginning.
fn some_key(rng: &mut Rng) -> Vec<u8> {
    match rng.below(30) {
        0 => Vec::new(),
        1 => vec![0xff; rng.below(9) as usize],
        2..8 => format!("common-prefix-{:02}", rng.below(20)).into_bytes(),
        _ => format!("{:02}", rng.below(90)).into_bytes(),
    }
}

pub(super) fn tiny(rng: &mut Rng) -> Options {
    let kinds = [BucketMemtableKind::Hash, BucketMemtableKind::Skiplist, BucketMemtableKind::Adaptive];
    let mut options = options();
    options.wip.memtable = kinds[rng.below(3) as usize];
    options.wip.freeze_on_overflow = rng.one_in(4);
    (options.wip.memtable_bytes, options.wip.most_memtable_bytes) = (1 << 10, 2 << 10);
    (options.wip.bucket_bytes, options.wip.split_into) = (4 << 10, 2 + rng.below(4) as usize);
    (options.wip.sublevels, options.wip.min_sublevels, options.wip.jitter) = (2, 2, 1);
    options.wip.read_aware = rng.one_in(2);
    options.wip.block_bytes = 128;
    options
}

/// Joins two neighbours, whatever they hold.
pub(super) fn join_some(wip: &Wip, rng: &mut Rng) {
    let buckets = wip.buckets();
    if buckets.len() > 1 {
        let left = rng.below(buckets.len() as u64 - 1) as usize;
        assert!(wip.join(buckets.at(left), buckets.at(left + 1)).unwrap());
    }
}

#[test]
fn they_give_what_was_there_whatever_becomes_of_buckets() {
    let (mut splits, mut joins) = (0, 0);
    for seed in 0..30 {
        let (world, mut rng) = (world(), Rng::new(seed));
        let wip = open_on(Arc::new(world.fs()), tiny(&mut rng));
        let (mut map, mut walks): (Map, Vec<Walk>) = Default::default();
        for step in 0..600u32 {
            let told = format!("seed {seed}, step {step}");
            match rng.below(40) {
                0..18 => {
                    let (key, value) = (some_key(&mut rng), vec![step as u8; rng.below(200) as usize]);
                    put(&wip, &key, &value);
                    map.insert(key, value);
                }
                18..22 => {
                    let key = some_key(&mut rng);
                    delete(&wip, &key);
                    map.remove(&key);
                }
                22..24 => wip.freeze(&[bucket(&wip, &some_key(&mut rng))]),
                24 => flush(&wip),
                25..30 => drop(wip.compact_next().unwrap()),
                30 => join_some(&wip, &mut rng),
                31 => {
                    let key = some_key(&mut rng);
                    wip.compact(Bound::Included(&key), Bound::Included(&key)).unwrap();
                }
                32 => while wip.core.env.executor.help() {},
                33 if walks.len() < 6 => walks.push(Walk::begin(&wip, map.clone(), &mut rng)),
                34 if !walks.is_empty() => {
                    drop(walks.swap_remove(rng.below(walks.len() as u64) as usize));
                    wip.released();
                }
                35 => walks.iter_mut().for_each(|walk| walk.seek(&mut rng)),
                _ => walks.iter_mut().for_each(|walk| walk.go_on(rng.below(12), &told)),
            }
        }
        walks.iter_mut().for_each(|walk| walk.go_on(u64::MAX, &format!("seed {seed}, at the end")));
        walks.clear();
        let mut all = Walk::begin(&wip, map, &mut rng);
        all.go_on(u64::MAX, &format!("seed {seed}, the present"));
        assert_eq!(wip.check().unwrap().problems, Vec::<String>::new(), "seed {seed}");
        splits += wip.reshaped.splits.load(Ordering::Relaxed);
        joins += wip.reshaped.joins.load(Ordering::Relaxed);
    }
    assert!(splits > 100 && joins > 100, "{splits} splits, {joins} joins");
}
