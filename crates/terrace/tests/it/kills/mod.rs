//! Real kills: a process that writes with two threads gets SIGKILL at any moment; its successor finds
//! every acknowledged write, of the two in flight all or nothing each, and nothing else.
//!
//! The writing process is this test binary again, which acknowledges every operation over a pipe (`child.rs`). The same
//! database lives through all kills of a run: some are judged in place, some on a copy of the directory, so that the
//! next process has to recover from what the last one left, and some copies are repaired first, by processes that are
//! killed, too, until one comes to its end. What each operation does follows from the seed (`ops.rs`); when the axe
//! falls does, too, but what the threads are doing at that moment is the machine's business.
//!
//! `TERRACE_KILLS` sets the number of kills for each kind of pool, `TERRACE_KILLS_SEED` the seed.

mod child;
mod judge;
mod ops;
mod run;

use terrace::{EngineKind, PoolChoice, Profile};

use crate::harness::test_each_engine;

/// Kills for each kind of pool where nothing else is asked for.
const KILLS: u64 = 40;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// Must catch a write that is acknowledged while only the process has it, a batch of which a part is there, and what a
/// successor takes for damage or for whole although it was cut off: in emulated memory, and in ordinary files where the
/// engine does with them.
fn kill_often(engine: EngineKind) {
    let emulated = PoolChoice::Emulated { path: None, profile: Profile::parse("dram").unwrap() };
    let file = (!engine.needs_memory()).then_some(PoolChoice::Auto);
    let (kills, seed) = (number("TERRACE_KILLS", KILLS), number("TERRACE_KILLS_SEED", 1));
    for pool in file.into_iter().chain([emulated]) {
        let run = run::Run::new(engine, pool.clone(), seed);
        println!("{engine:?}, {pool:?}: {}", run.kill(kills));
    }
}

test_each_engine!(kill_often);

/// Catches nothing: it is the process that is killed, and does nothing unless a run has started it.
#[test]
fn the_process_that_is_killed() {
    if let Ok(task) = std::env::var(child::TASK) {
        child::carry_out(&child::Task::parse(&task));
    }
}
