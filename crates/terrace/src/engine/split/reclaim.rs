//! Reclaiming: tables of which much is dead are rewritten, together with those that they overlap, so that their space comes
//! back and a range meets fewer of them. Which, decides what `slm` decides by (`compaction/selective`).
//!
//! An entry is live if the word of its key leads to its block. What only a link under a newer version leads to stays where it
//! is, and so does its table, until no snapshot needs it. A table to which nothing leads leaves.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_base::exec::Lane;
use terrace_table::{Cursor, Kind, merge};

use super::home::Ssd;
use super::migrate::{From, Mover, Moving};
use super::place::OnSsd;
use super::runs::Run;
use crate::compaction::selective::{PinnedEntries, SelectiveOptions, View, choose};
use crate::engine::pm::{KeyIndex, Place, PmStore};
use crate::manifest::State;

/// Bytes read ahead from each input, at most.
const READAHEAD_BYTES: usize = 512 << 10;

/// Has the background reclaim what is worth it.
pub(super) fn send<I: KeyIndex<Home = Ssd>>(store: &PmStore<I>) {
    let ssd = &*store.home;
    if store.core.is_scratch || !ssd.runs.are_counted() || ssd.reclaiming.swap(true, Ordering::AcqRel) {
        return;
    }
    let sent = store.jobs.spawn(Lane::Compaction, &store.me, |store| {
        store.home.reclaiming.store(false, Ordering::Release);
        if let Err(error) = run(store) {
            // The tables are as they were, and are chosen again.
            tracing::warn!(%error, "space of tables could not be reclaimed");
            store.core.counters.background_errors.add(1);
        }
    });
    if !sent {
        ssd.reclaiming.store(false, Ordering::Release);
    }
}

fn run<I: KeyIndex<Home = Ssd>>(store: &PmStore<I>) -> Result<()> {
    while !store.jobs.is_closing() {
        let mut moving = store.home.moving.lock();
        if !reclaim_next(store, &mut moving)? {
            return Ok(());
        }
        drop(moving);
        store.jobs.give_way(Lane::Compaction);
    }
    Ok(())
}

/// Rewrites every table of which anything is dead, or that overlaps another one.
pub(super) fn all<I: KeyIndex<Home = Ssd>>(store: &PmStore<I>) -> Result<()> {
    let mut moving = store.home.moving.lock();
    if !store.home.runs.are_counted() {
        return Ok(());
    }
    drop_dead(store)?;
    let inputs: Vec<u64> = store.home.runs.all().iter().map(|run| run.number).collect();
    if inputs.len() > 1 || store.home.runs.all().iter().any(|run| run.live < run.entries) {
        rewrite(store, &inputs, &mut moving)?;
    }
    Ok(())
}

/// Does what is worth the most; false if nothing is.
fn reclaim_next<I: KeyIndex<Home = Ssd>>(store: &PmStore<I>, moving: &mut Moving) -> Result<bool> {
    if drop_dead(store)? {
        return Ok(true);
    }
    let held = store.core.snapshots.list();
    if moving.stuck.0 != held {
        moving.stuck = (held, BTreeSet::new());
    }
    let state = counted(&store.home.manifest.state(), &store.home.runs.all());
    let pins = PinnedEntries::default();
    let mut view = View::new(&state, &pins, None);
    view.busy.extend(&moving.stuck.1);
    let split = &store.core.options.split;
    let options = SelectiveOptions {
        live_key_threshold: split.live_threshold,
        garbage_share: split.garbage_share,
        max_merge_files: split.max_merge_runs,
        ..SelectiveOptions::default()
    };
    let Some(choice) = choose(&view, &options) else { return Ok(false) };
    tracing::debug!(?choice, "tables to be rewritten");
    rewrite(store, &choice.inputs, moving)?;
    Ok(true)
}

/// The manifest's tables with the counts as they are.
fn counted(state: &State, runs: &[Run]) -> State {
    let mut state = state.clone();
    for run in runs {
        if let Some(table) = state.tables.get(&run.number) {
            let mut table = table.clone();
            table.live_raw = run.live as i64;
            state.tables.insert_mut(run.number, table);
        }
    }
    state
}

/// Lets tables go to which nothing leads, and those that the manifest took although that seemed to have failed.
fn drop_dead<I: KeyIndex<Home = Ssd>>(store: &PmStore<I>) -> Result<bool> {
    let ssd = &*store.home;
    ssd.core.files.sweep(&ssd.manifest);
    let runs = ssd.runs.all();
    let known: BTreeSet<u64> = runs.iter().map(|run| run.number).collect();
    let mut dead: Vec<u64> = runs.iter().filter(|run| run.live == 0).map(|run| run.number).collect();
    dead.extend(ssd.manifest.state().tables.keys().filter(|number| !known.contains(number)));
    ssd.drop_tables(&dead)?;
    Ok(!dead.is_empty())
}

/// Writes what is live in `inputs` into new tables. Those of which nothing is left go.
fn rewrite<I: KeyIndex<Home = Ssd>>(store: &PmStore<I>, inputs: &[u64], moving: &mut Moving) -> Result<()> {
    let mut mover = Mover::new(store);
    let outcome = merge_into(store, inputs, &mut mover).and_then(|()| mover.finish());
    store.core.counters.count_compaction(0, mover.written);
    if outcome.is_err() {
        // Others get their chance, too.
        moving.stuck.1.extend(inputs);
    }
    outcome?;
    let left = store.home.runs.all().into_iter().filter(|run| run.live > 0 && inputs.contains(&run.number));
    moving.stuck.1.extend(left.map(|run| run.number));
    drop_dead(store)?;
    store.fit_cache();
    Ok(())
}

fn merge_into<I: KeyIndex<Home = Ssd>>(
    store: &PmStore<I>,
    inputs: &[u64],
    mover: &mut Mover<'_, I>,
) -> Result<()> {
    let readahead = store.core.memory.buffer(inputs.len(), READAHEAD_BYTES);
    let _loan = store.core.memory.lend(inputs.len() * readahead);
    let mut children: Vec<Box<dyn Cursor>> = Vec::with_capacity(inputs.len());
    for &number in inputs {
        children.push(Box::new(store.home.tables.get(number)?.cursor(false, readahead)));
    }
    let mut cursor = merge(children);
    cursor.seek_first()?;
    while cursor.valid() {
        if store.jobs.is_closing() {
            return Ok(());
        }
        if let (Kind::Put, Some(position)) = (cursor.kind(), cursor.position()) {
            // What a word leads to stays there: only movers change it to another table's.
            let is_live = store.index.get(cursor.key())? == Some(OnSsd::Run(position).bits());
            if is_live {
                let value = cursor.value()?;
                mover.add(cursor.key(), cursor.seq(), &value, From::Run(position))?;
            }
        }
        cursor.next()?;
    }
    Ok(())
}
