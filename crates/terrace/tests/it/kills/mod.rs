//! Real kills: a process that writes with two threads gets SIGKILL at any moment; its successor finds
//! every acknowledged write, of the two in flight all or nothing each, and nothing else.
//!
//! The writing process is this test binary again, which acknowledges every operation over a pipe
//! (`child.rs`). The same database lives through all kills of a run: some are judged in place, some on a
//! copy of the directory, so that the next process has to recover from what the last one left, and some
//! copies are repaired first, by processes that are killed, too, until one comes to its end. What each operation does follows from the seed (`ops.rs`); when the axe
//! falls does, too, but what the threads are doing at that moment is the machine's business.
//!
//! `TERRACE_KILLS` sets the number of kills for each kind of pool, `TERRACE_KILLS_SEED` the seed.

mod child;
mod judge;
mod ops;
mod run;

use terrace::{EngineKind, PoolChoice, Profile};

/// Kills for each kind of pool where nothing else is asked for.
const KILLS: u64 = 40;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

fn kill_often(engine: EngineKind, pool: &PoolChoice) {
    let (kills, seed) = (number("TERRACE_KILLS", KILLS), number("TERRACE_KILLS_SEED", 1));
    println!("{engine:?}: {}", run::Run::new(engine, pool.clone(), seed).kill(kills));
}

fn emulated() -> PoolChoice {
    PoolChoice::Emulated { path: None, profile: Profile::parse("dram").unwrap() }
}

#[test]
fn kills_take_nothing_from_an_ordinary_file() {
    kill_often(EngineKind::Slm, &PoolChoice::Auto);
}

#[test]
fn kills_take_nothing_from_log_files() {
    kill_often(EngineKind::Lsm, &PoolChoice::Auto);
}

#[test]
fn kills_take_nothing_from_a_log_in_emulated_memory() {
    kill_often(EngineKind::Lsm, &emulated());
}

#[test]
fn kills_take_nothing_from_emulated_memory() {
    kill_often(EngineKind::Slm, &emulated());
}

#[test]
fn kills_take_nothing_from_a_tree_of_values() {
    kill_often(EngineKind::Lab, &emulated());
}

#[test]
fn kills_take_nothing_from_lists() {
    kill_often(EngineKind::Tlsm, &emulated());
}

#[test]
fn kills_take_nothing_from_buckets() {
    kill_often(EngineKind::Wip, &PoolChoice::Auto);
}

#[test]
fn kills_take_nothing_from_buckets_with_a_log_in_emulated_memory() {
    kill_often(EngineKind::Wip, &emulated());
}

#[test]
fn kills_take_nothing_from_a_table() {
    kill_often(EngineKind::Turbo, &emulated());
}

#[test]
fn kills_take_nothing_from_a_tree() {
    kill_often(EngineKind::Sptree, &emulated());
}

#[test]
fn kills_take_nothing_from_records_runs_and_slots() {
    kill_often(EngineKind::Split, &emulated());
}

/// Not a test but the process that is killed; it does nothing unless a run has started it.
#[test]
fn the_process_that_is_killed() {
    if let Ok(task) = std::env::var(child::TASK) {
        child::carry_out(&child::Task::parse(&task));
    }
}
