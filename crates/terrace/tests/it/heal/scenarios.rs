//! What a store does while something is refused.

use terrace::EngineKind;

use super::cases::{everywhere, explore, stats_after};
use crate::crash::ops::{Mix, Op, draw};

fn explore_everywhere(seed: u64, ops: &[Op]) {
    let failures: Vec<String> =
        everywhere(seed).filter_map(|subject| explore(&subject, seed, ops).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn creation() {
    explore_everywhere(1, &[Op::Put(1, 10)]);
}

/// Versions that snapshots hold come into memtables, and these into several tables each.
#[test]
fn flushes_under_snapshots() {
    let mix = Mix {
        put: 16,
        delete: 3,
        batch: 1,
        background: 3,
        flush: 2,
        snapshot: 2,
        read: 1,
        release: 1,
        keys: 24,
        len: 500,
        ..Mix::default()
    };
    explore_everywhere(2, &draw(2, 70, mix));
}

#[test]
fn compactions_under_snapshots() {
    let mix = Mix {
        put: 10,
        delete: 4,
        batch: 2,
        flush: 3,
        compact: 2,
        background: 4,
        snapshot: 2,
        read: 1,
        release: 2,
        keys: 30,
        len: 300,
        ..Mix::default()
    };
    explore_everywhere(3, &draw(3, 70, mix));
}

#[test]
fn logs_and_syncs() {
    let mix = Mix {
        put: 8,
        synced: 5,
        sync: 2,
        delete: 1,
        background: 1,
        flush: 1,
        snapshot: 1,
        read: 1,
        keys: 20,
        len: 500,
        ..Mix::default()
    };
    explore_everywhere(4, &draw(4, 40, mix));
}

#[test]
fn opening_and_closing() {
    let mix = Mix {
        put: 10,
        delete: 2,
        synced: 1,
        background: 2,
        flush: 1,
        reopen: 2,
        kill: 2,
        snapshot: 1,
        read: 1,
        keys: 20,
        len: 300,
        ..Mix::default()
    };
    explore_everywhere(5, &draw(5, 40, mix));
}

/// Values so large that the pool has to grow.
#[test]
fn growth() {
    let mix = Mix {
        put: 8,
        delete: 1,
        batch: 1,
        background: 1,
        reopen: 1,
        snapshot: 1,
        read: 1,
        keys: 6,
        len: 90_000,
        ..Mix::default()
    };
    explore_everywhere(6, &draw(6, 24, mix));
}

/// Batches of several keys with values that extents of their own hold, over versions that snapshots hold: what is refused
/// on the way is taken back.
#[test]
fn groups_under_snapshots() {
    let mix = Mix {
        put: 2,
        delete: 1,
        batch: 14,
        background: 3,
        flush: 1,
        snapshot: 3,
        read: 2,
        release: 1,
        reopen: 1,
        keys: 16,
        len: 12_000,
        ..Mix::default()
    };
    for seed in 20..22 {
        explore_everywhere(seed, &draw(seed, 40, mix));
    }
}

/// Buckets are split, emptied, joined and filled again, under snapshots and under walks in both directions.
#[test]
fn buckets_split_and_joined() {
    let fill = Mix {
        put: 12,
        batch: 1,
        delete: 1,
        background: 3,
        flush: 1,
        snapshot: 1,
        read: 1,
        keys: 60,
        len: 900,
        ..Mix::default()
    };
    let all =
        || [Op::Flush, Op::Compact(0, u16::MAX)].into_iter().chain(std::iter::repeat_n(Op::Background, 12));
    for seed in 30..33 {
        let mut ops: Vec<Op> = draw(seed, 90, fill).into_iter().chain(all()).collect();
        ops.extend([Op::Snapshot, Op::ReadSnapshots]);
        ops.extend((0..60).filter(|key| key % 7 != 0).map(Op::Delete).chain(all()));
        ops.extend([Op::ReadSnapshots, Op::Release, Op::Release, Op::Release].into_iter().chain(all()));
        ops.extend(draw(seed + 100, 40, fill));
        for subject in everywhere(seed).filter(|subject| subject.engine == EngineKind::Wip) {
            let buckets = stats_after(&subject, seed, &ops).unwrap().buckets;
            let (splits, joins) = (buckets.splits, buckets.joins);
            assert!(splits > 0 && joins > 0, "{splits} splits, {joins} joins, seed {seed}");
            explore(&subject, seed, &ops).unwrap();
        }
    }
}

#[test]
fn everything() {
    let mix = Mix {
        put: 14,
        synced: 2,
        delete: 5,
        batch: 4,
        sync: 1,
        snapshot: 3,
        read: 2,
        release: 1,
        flush: 2,
        compact: 1,
        background: 4,
        reopen: 1,
        kill: 1,
        keys: 36,
        len: 300,
    };
    for seed in 7..9 {
        explore_everywhere(seed, &draw(seed, 90, mix));
    }
}
