//! What a store does while something is refused.

use terrace::EngineKind;

use super::cases::{everywhere, explore, stats_after};
use crate::crash::mixes::{Drawn, Mix, Script};
use crate::crash::ops::Op;

fn explore_everywhere(script: impl Into<Script>) {
    let Script { seed, ops } = script.into();
    let failures: Vec<String> =
        everywhere(seed).filter_map(|subject| explore(&subject, seed, &ops).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Must catch a creation that a refusal leaves half done, so that trying again cannot complete it.
#[test]
fn creation() {
    explore_everywhere(Script { seed: 1, ops: vec![Op::Put { key: 1, len: 10 }] });
}

/// Must catch a flush that is tried again and changes the versions that a snapshot sees: memtables go into several
/// tables each.
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
        ..Mix::NONE
    };
    explore_everywhere(Drawn { seed: 2, ops: 70, mix });
}

/// Must catch a merge that is tried again and drops a version that a snapshot or an iterator needs, and tables that a
/// refused one leaves behind.
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
        ..Mix::NONE
    };
    explore_everywhere(Drawn { seed: 3, ops: 70, mix });
}

/// Must catch a refused write that comes back from its log, and a synced one that a later log lacks.
#[test]
fn logs_and_syncs() {
    let mix = Mix { synced: 5, sync: 2, snapshot: 1, read: 1, ..Mix::LOGS };
    explore_everywhere(Drawn { seed: 4, ops: 40, mix });
}

/// Must catch an opening or a close that is refused half way and takes something from the one after it.
#[test]
fn opening_and_closing() {
    let mix = Mix { put: 10, background: 2, reopen: 2, kill: 2, snapshot: 1, read: 1, ..Mix::OPENINGS };
    explore_everywhere(Drawn { seed: 5, ops: 40, mix });
}

/// Must catch room that is lost with a refused growth of the pool, or used without one: values are so large that it has
/// to grow.
#[test]
fn growth() {
    let mix = Mix { put: 8, batch: 1, snapshot: 1, read: 1, keys: 6, ..Mix::GROWTH };
    explore_everywhere(Drawn { seed: 6, ops: 24, mix });
}

/// Must catch a batch that is not taken back whole when something is refused on its way: values have extents of their
/// own and lie over versions that snapshots hold.
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
        ..Mix::NONE
    };
    for seed in 20..22 {
        explore_everywhere(Drawn { seed, ops: 40, mix });
    }
}

/// Must catch a transaction of which something is there although it was refused, and one that is refused although all
/// is well: its conflicts would be with itself.
#[test]
fn transactions_under_snapshots() {
    let mix = Mix {
        put: 3,
        transact: 10,
        background: 3,
        flush: 1,
        snapshot: 1,
        read: 1,
        keys: 20,
        len: 1500,
        ..Mix::NONE
    };
    explore_everywhere(Drawn { seed: 41, ops: 28, mix });
}

/// Must catch a range that is half deleted or comes back because its batch or its sweep was refused and tried again, and
/// keys that were put since and go with it.
#[test]
fn deleted_ranges_under_snapshots() {
    let mix = Mix {
        put: 12,
        delete_range: 4,
        batch: 2,
        background: 2,
        flush: 1,
        snapshot: 2,
        read: 1,
        release: 1,
        reopen: 1,
        keys: 24,
        len: 700,
        ..Mix::NONE
    };
    for seed in 50..52 {
        explore_everywhere(Drawn { seed, ops: 40, mix });
    }
}

/// Must catch a key that walks miss or meet twice because a split or a join of buckets was refused and tried again.
#[test]
fn buckets_split_and_joined() {
    let mix = Mix { snapshot: 1, read: 1, ..Mix::BUCKETS };
    let all =
        || [Op::Flush, Op::COMPACT_LONG_KEYS].into_iter().chain(std::iter::repeat_n(Op::Background, 12));
    for seed in 30..33 {
        let mut ops: Vec<Op> = Drawn { seed, ops: 90, mix }.draw().into_iter().chain(all()).collect();
        ops.extend([Op::Snapshot, Op::ReadSnapshots]);
        ops.extend((0..60).filter(|key| key % 7 != 0).map(|key| Op::Delete { key }).chain(all()));
        ops.extend([Op::ReadSnapshots, Op::Release, Op::Release, Op::Release].into_iter().chain(all()));
        ops.extend(Drawn { seed: seed + 100, ops: 40, mix }.draw());
        for subject in everywhere(seed).filter(|subject| subject.engine == EngineKind::Wip) {
            let buckets = stats_after(&subject, seed, &ops).unwrap().buckets;
            let (splits, joins) = (buckets.splits, buckets.joins);
            assert!(splits > 0 && joins > 0, "{splits} splits, {joins} joins, seed {seed}");
            explore(&subject, seed, &ops).unwrap();
        }
    }
}

/// Must catch a refusal that one job outlives and another, which runs beside it, does not.
#[test]
fn everything() {
    let mix = Mix { put: 14, snapshot: 3, read: 2, keys: 36, ..Mix::EVERYTHING };
    for seed in 7..9 {
        explore_everywhere(Drawn { seed, ops: 90, mix });
    }
}
