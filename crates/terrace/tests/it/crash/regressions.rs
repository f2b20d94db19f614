//! Operations on which a crash once went wrong, each with what it was. Fixed seeds: the same images every time.

use terrace_pmem::Granularity;

use super::env::{ENGINES, runs_on};
use super::judge::options;
use super::ops::{Op, Write};
use super::run::Errors;
use super::scenarios::{Exploration, scenario};

/// What is looked at for the operations of a regression.
struct Regression {
    granularity: Granularity,
    seed: u64,
    images: u64,
}

impl Regression {
    fn passes(&self, ops: &[Op]) {
        let Regression { granularity, seed, images } = *self;
        for engine in ENGINES.into_iter().filter(|e| runs_on(*e, granularity)) {
            let scenario = scenario(options(engine), Errors::Fail);
            let explorer = Exploration { engine, granularity, seed, images }.explorer();
            explorer.must_pass(scenario, ops.to_vec());
        }
    }
}

/// Must catch a compaction that writes one tombstone twice, which a table refuses: a flush that was cut short is done
/// again, and two tables hold the tombstone.
#[test]
fn tombstones_of_a_flush_done_twice_are_merged() {
    let ops = [
        Op::Put { key: 18, len: 225 },
        Op::COMPACT_LONG_KEYS,
        Op::Batch(vec![
            Write::Delete { key: 26 },
            Write::Delete { key: 16 },
            Write::Put { key: 9, len: 232 },
            Write::Put { key: 6, len: 280 },
        ]),
        Op::Delete { key: 18 },
        Op::Put { key: 14, len: 1 },
        Op::Flush,
    ];
    Regression { granularity: Granularity::CacheLine, seed: 12, images: 1500 }.passes(&ops);
}

/// Must catch records that come back without those before them: after a kill the pool held more than the log, and the
/// power went during the recovery, after some of that had been put into tables.
#[test]
fn a_power_cut_while_recovering_from_a_kill_leaves_a_prefix() {
    let ops = [
        Op::Put { key: 10, len: 24 },
        Op::PutSynced { key: 4, len: 60 },
        Op::Put { key: 10, len: 17 },
        Op::Put { key: 6, len: 6 },
        Op::Put { key: 5, len: 49 },
    ];
    Regression { granularity: Granularity::Page, seed: 2, images: 1500 }.passes(&ops);
}

/// Must catch a pool that is known before it bears its database's name: a kill while it was made anew after a power cut
/// left it to be taken for damage to one that holds more than its logs.
#[test]
fn a_kill_while_a_pool_is_made_anew_begins_that_again() {
    let ops = [Op::Put { key: 4, len: 126 }, Op::Put { key: 5, len: 66 }, Op::Reopen, Op::Delete { key: 7 }];
    Regression { granularity: Granularity::Page, seed: 10, images: 1200 }.passes(&ops);
    let ops = [
        Op::Put { key: 15, len: 6 },
        Op::Batch(vec![
            Write::Put { key: 2, len: 2 },
            Write::Put { key: 8, len: 37 },
            Write::Put { key: 11, len: 55 },
            Write::Put { key: 15, len: 66 },
        ]),
        Op::Sync,
        Op::Batch(vec![
            Write::Delete { key: 6 },
            Write::Put { key: 3, len: 28 },
            Write::Put { key: 8, len: 72 },
            Write::Put { key: 0, len: 2 },
            Write::Delete { key: 5 },
        ]),
        Op::Batch(vec![Write::Put { key: 15, len: 24 }, Write::Put { key: 13, len: 52 }]),
        Op::Batch(vec![
            Write::Delete { key: 14 },
            Write::Put { key: 9, len: 0 },
            Write::Put { key: 14, len: 1 },
            Write::Put { key: 5, len: 53 },
        ]),
    ];
    Regression { granularity: Granularity::Page, seed: 3, images: 600 }.passes(&ops);
}

/// Must catch a version of a key that is taken for moved because another one has moved into the same block: the log of
/// the job was read so after a power cut between the two.
#[test]
fn versions_of_a_key_that_move_into_one_block_are_counted_one_by_one() {
    let ops = [
        Op::Put { key: 12, len: 0 },
        Op::Put { key: 7, len: 30 },
        Op::Snapshot,
        Op::Put { key: 7, len: 142 },
        Op::Put { key: 10, len: 209 },
        Op::COMPACT_LONG_KEYS,
    ];
    Regression { granularity: Granularity::CacheLine, seed: 21, images: 1200 }.passes(&ops);
}
