//! Operations on which a crash once went wrong, each with what it was. Fixed seeds: the same images every time.

use terrace_pmem::Granularity;

use super::env::{ENGINES, runs_on};
use super::judge::options;
use super::ops::Op;
use super::run::Errors;
use super::scenarios::{explorer, scenario};

fn passes(granularity: Granularity, seed: u64, images: u64, ops: &[Op]) {
    for engine in ENGINES.into_iter().filter(|e| runs_on(*e, granularity)) {
        let scenario = scenario(options(engine), Errors::Fail);
        explorer(engine, seed, granularity, images).must_pass(scenario, ops.to_vec());
    }
}

/// A flush cut short is done again, so two tables hold the same tombstone: a compaction that merged both
/// wrote it twice, which a table refuses.
#[test]
fn tombstones_of_a_flush_done_twice_are_merged() {
    let ops = [
        Op::Put(18, 225),
        Op::Compact(0, 65535),
        Op::Batch(vec![(26, None), (16, None), (9, Some(232)), (6, Some(280))]),
        Op::Delete(18),
        Op::Put(14, 1),
        Op::Flush,
    ];
    passes(Granularity::CacheLine, 12, 1500, &ops);
}

/// After a kill the pool held more than the log. A power cut during the recovery, after some of that had been
/// put into tables, brought those records back and not the ones before them.
#[test]
fn a_power_cut_while_recovering_from_a_kill_leaves_a_prefix() {
    let ops = [Op::Put(10, 24), Op::PutSynced(4, 60), Op::Put(10, 17), Op::Put(6, 6), Op::Put(5, 49)];
    passes(Granularity::Page, 2, 1500, &ops);
}

/// A pool that was being made anew after a power cut was known before it bore its database's name. A kill between left it to be
/// taken for damage to one that holds more than its logs.
#[test]
fn a_kill_while_a_pool_is_made_anew_begins_that_again() {
    let ops = [Op::Put(4, 126), Op::Put(5, 66), Op::Reopen, Op::Delete(7)];
    passes(Granularity::Page, 10, 1200, &ops);
    let ops = [
        Op::Put(15, 6),
        Op::Batch(vec![(2, Some(2)), (8, Some(37)), (11, Some(55)), (15, Some(66))]),
        Op::Sync,
        Op::Batch(vec![(6, None), (3, Some(28)), (8, Some(72)), (0, Some(2)), (5, None)]),
        Op::Batch(vec![(15, Some(24)), (13, Some(52))]),
        Op::Batch(vec![(14, None), (9, Some(0)), (14, Some(1)), (5, Some(53))]),
    ];
    passes(Granularity::Page, 3, 600, &ops);
}

/// A compaction moved two versions of a key into one block. After a power cut between the two the log of the job was
/// taken to say that both had moved, because the chain held the block's position.
#[test]
fn versions_of_a_key_that_move_into_one_block_are_counted_one_by_one() {
    let ops = [
        Op::Put(12, 0),
        Op::Put(7, 30),
        Op::Snapshot,
        Op::Put(7, 142),
        Op::Put(10, 209),
        Op::Compact(0, 65535),
    ];
    passes(Granularity::CacheLine, 21, 1200, &ops);
}
