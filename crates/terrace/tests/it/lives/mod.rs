//! What changes between two lives of a database: the media, the boot of the machine, single files that are older copies
//! of themselves, missing or under another's name, pages of the pool of another time or place, the engine and the
//! options asked for, operations that fail.
//!
//! A history is a series of lives. In each the database is opened, compared with the model, written to, and closed,
//! killed, or cut off from its power, now and then beside a reader, or before its background work; then something
//! around it changes. What opens must answer as the model does, or say what is wrong: never is a write lost in silence
//! that had to be there. After an error what was changed is put back, and all must be as it was.
//!
//! `TERRACE_LIVES=n` lives n times as many histories; `TERRACE_LIVES_SEED` sets others. What fails names its seed.

mod change;
mod history;
mod moved;

use std::collections::BTreeMap;

use terrace::EngineKind;
use terrace_pmem::Granularity;

use crate::harness::test_each_engine;
use history::{History, OWING};

/// Histories of each kind of database, and lives of each.
const HISTORIES: u64 = 40;
const LIVES: u32 = 10;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// Must catch a write that is lost without a word where something around a database changed between two lives: a file,
/// the pool or a page of it that is of another time or place, another engine, other options, media or boots.
fn live(engine: EngineKind) {
    live_on(engine, Granularity::CacheLine);
    if !engine.needs_memory() {
        live_on(engine, Granularity::Page);
    }
}

fn live_on(engine: EngineKind, granularity: Granularity) {
    let (many, first) = (number("TERRACE_LIVES", 1), number("TERRACE_LIVES_SEED", 1));
    let mut tally: BTreeMap<String, u32> = BTreeMap::new();
    let mut faults: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for seed in first..first + HISTORIES * many {
        let mut history = History::begin(engine, granularity, seed);
        for life in 0..LIVES {
            match history.live() {
                Ok(outcomes) => outcomes.into_iter().for_each(|what| *tally.entry(what).or_default() += 1),
                Err((change, fault)) => {
                    let seed = format!("seed {seed}, life {life}: {fault}");
                    faults.entry(change).or_default().push(seed);
                    break;
                }
            }
        }
    }
    for (what, count) in &tally {
        println!("{count:>5} x {what}");
    }
    let shown: Vec<_> =
        faults.iter().map(|(what, all)| format!("{} x {what}: {}", all.len(), all[0])).collect();
    assert!(shown.is_empty(), "{shown:#?}");
    assert!(tally.len() > 20, "hardly anything was tried: {tally:?}");
    // In an ordinary file only this one has a pool.
    let has_pool = granularity != Granularity::Page || engine == EngineKind::Slm;
    assert!(!has_pool || tally.keys().any(|what| what.ends_with(OWING)), "no debt was left: {tally:?}");
}

test_each_engine!(live);
