//! Reclaiming: tables with many dead entries are rewritten, together with those that they overlap, so that
//! their space is recovered and a range meets fewer of them. The choice follows the same rules as in `slm`
//! (`compaction/selective`).
//!
//! An entry is live if the word of its key leads to its block. An entry that only a link under a newer
//! version leads to stays in its place, and so does its table, until no snapshot needs it. A table that
//! nothing leads to is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_base::exec::Lane;
use terrace_index::PointIndex;
use terrace_table::{Cursor, Kind};

use super::home::Ssd;
use super::migrate::{From, Mover, Moving};
use super::place::OnSsd;
use super::runs::TableCount;
use crate::compaction::selective::{LeafScan, PinnedEntries, SelectiveOptions, View, choose};
use crate::engine::pm::{KeyIndex, Place, PmEngine, PmStore};
use crate::manifest::State;
use crate::options::SplitOptions;
use crate::tables::merge_ahead;

/// Bytes read ahead from each input, at most.
const READAHEAD_BYTES: usize = 512 << 10;

/// The options of the choice.
pub(super) fn options(split: &SplitOptions) -> SelectiveOptions {
    SelectiveOptions {
        live_key_threshold: split.live_threshold,
        garbage_share: split.garbage_share,
        leaf_scan_files: split.leaf_scan_runs,
        sequentiality_keys: split.sequentiality_keys,
        sequentiality_files: split.sequentiality_runs,
        max_merge_files: split.max_merge_runs,
        ..SelectiveOptions::default()
    }
}

/// A range was read which has found neighbouring keys `scattered` over these tables: they are rewritten
/// together, so that later ranges read fewer.
pub(super) fn range_was_read<E: PmEngine<Home = Ssd>>(store: &PmStore<E>, scattered: Vec<u64>) {
    if store.core.options.read_only {
        return;
    }
    store.home.range_was_read.store(true, Ordering::Relaxed);
    if !scattered.is_empty() {
        store.home.scattered.lock().extend(scattered);
        send(store);
    }
}

/// If a range was read since the last scan, examines the next stretch of the index and notes tables that hold
/// too little of it each.
fn leaf_scan<E: PmEngine<Home = Ssd>>(store: &PmStore<E>, scan: &mut LeafScan) -> Result<()> {
    let ssd = &*store.home;
    if !ssd.range_was_read.swap(false, Ordering::Relaxed) {
        return Ok(());
    }
    let state = counted(&ssd.manifest.state(), &ssd.runs.all());
    let view = View::new(&state, &PinnedEntries::default(), None);
    let found = scan.run(
        &view,
        &options(&store.core.options.split),
        |from, limit, batch| store.index.scan(from, false, limit, batch),
        |word| OnSsd::from_bits(word).and_then(Place::table),
    )?;
    ssd.scattered.lock().extend(found);
    Ok(())
}

/// Tables that are not rewritten, and what must change before they are.
#[derive(Debug, Default)]
pub(super) struct Aside {
    /// Tables in which a rewriting has left this many entries. Links lead to these entries, for snapshots:
    /// another rewriting would find nothing to do, whatever other snapshots come and go. The table is
    /// considered again when some of them have died.
    left: BTreeMap<u64, u64>,
    /// Tables whose rewriting has failed: others come first.
    failed: BTreeSet<u64>,
}

impl Aside {
    /// Those of `runs` that have been rewritten as far as possible.
    fn pinned(&self, runs: &[TableCount]) -> BTreeSet<u64> {
        let is_pinned = |run: &&TableCount| self.left.get(&run.number).is_some_and(|left| run.live >= *left);
        runs.iter().filter(is_pinned).map(|run| run.number).collect()
    }

    /// Notes that these were rewritten, and `runs` are left.
    fn rewritten(&mut self, inputs: &[u64], runs: &[TableCount]) {
        self.left.retain(|number, _| runs.iter().any(|run| run.number == *number));
        let left = runs.iter().filter(|run| run.live > 0 && inputs.contains(&run.number));
        self.left.extend(left.map(|run| (run.number, run.live)));
    }
}

/// Starts reclaiming in the background what is worth it.
pub(super) fn send<E: PmEngine<Home = Ssd>>(store: &PmStore<E>) {
    let ssd = &*store.home;
    if store.core.is_scratch || !ssd.runs.are_counted() || ssd.reclaiming.swap(true, Ordering::AcqRel) {
        return;
    }
    let sent = store.jobs.spawn(Lane::Compaction, &store.me, |store| {
        store.home.reclaiming.store(false, Ordering::Release);
        if let Err(error) = run(store) {
            // The tables are unchanged, and will be chosen again.
            tracing::warn!(%error, "space of tables could not be reclaimed");
            store.core.put_off(&error);
        }
    });
    if !sent {
        ssd.reclaiming.store(false, Ordering::Release);
    }
}

fn run<E: PmEngine<Home = Ssd>>(store: &PmStore<E>) -> Result<()> {
    leaf_scan(store, &mut store.home.moving.lock().leaf_scan)?;
    while !store.jobs.is_closing() {
        let mut moving = store.home.moving.lock();
        if !reclaim_next(store, &mut moving)? {
            return Ok(());
        }
        drop(moving);
        if store.jobs.others_wait() {
            // Other databases get their turn.
            send(store);
            return Ok(());
        }
        store.jobs.give_way(Lane::Compaction);
    }
    Ok(())
}

/// Rewrites every table that has dead entries or overlaps another one, or that a filter is to meet.
pub(super) fn all<E: PmEngine<Home = Ssd>>(store: &PmStore<E>) -> Result<()> {
    let mut moving = store.home.moving.lock();
    if !store.home.runs.are_counted() {
        return Ok(());
    }
    drop_dead(store)?;
    let inputs: Vec<u64> = store.home.runs.all().iter().map(|run| run.number).collect();
    let is_filtered = !inputs.is_empty() && store.core.filters.are_there();
    if is_filtered || inputs.len() > 1 || store.home.runs.all().iter().any(|run| run.live < run.entries) {
        rewrite(store, &inputs, &mut moving)?;
    }
    Ok(())
}

/// Does the most worthwhile rewriting; false if none is.
fn reclaim_next<E: PmEngine<Home = Ssd>>(store: &PmStore<E>, moving: &mut Moving) -> Result<bool> {
    if drop_dead(store)? {
        return Ok(true);
    }
    let runs = store.home.runs.all();
    let state = counted(&store.home.manifest.state(), &runs);
    let pins = PinnedEntries::default();
    let mut view = View::new(&state, &pins, None);
    let pinned = moving.aside.pinned(&runs);
    view.busy.extend(pinned.iter().chain(&moving.aside.failed));
    view.candidates = scattered_of(store, &state);
    let options = options(&store.core.options.split);
    let mut choice = choose(&view, &options);
    if choice.is_none() && !moving.aside.failed.is_empty() {
        // Those failed in an earlier job, as this one would have ended. Nothing else is left to do: now they
        // are tried.
        view.busy.retain(|number| !moving.aside.failed.contains(number) || pinned.contains(number));
        moving.aside.failed.clear();
        choice = choose(&view, &options);
    }
    let Some(choice) = choice else { return Ok(false) };
    tracing::debug!(?choice, "tables to be rewritten");
    rewrite(store, &choice.inputs, moving)?;
    Ok(true)
}

/// The tables that still exist over which neighbouring keys lie scattered.
fn scattered_of<E: PmEngine<Home = Ssd>>(store: &PmStore<E>, state: &State) -> BTreeSet<u64> {
    let mut scattered = store.home.scattered.lock();
    scattered.retain(|number| state.tables.contains_key(number));
    scattered.clone()
}

/// The manifest's tables with the current counts.
fn counted(state: &State, runs: &[TableCount]) -> State {
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

/// Drops tables that nothing leads to, and those that the manifest took although that seemed to have failed.
fn drop_dead<E: PmEngine<Home = Ssd>>(store: &PmStore<E>) -> Result<bool> {
    let ssd = &*store.home;
    ssd.core.files.sweep(&ssd.manifest);
    let runs = ssd.runs.all();
    let known: BTreeSet<u64> = runs.iter().map(|run| run.number).collect();
    let mut dead: Vec<u64> = runs.iter().filter(|run| run.live == 0).map(|run| run.number).collect();
    dead.extend(ssd.manifest.state().tables.keys().filter(|number| !known.contains(number)));
    ssd.drop_tables(&dead)?;
    Ok(!dead.is_empty())
}

/// Writes the live entries of `inputs` into new tables. Inputs of which nothing is left are dropped.
fn rewrite<E: PmEngine<Home = Ssd>>(store: &PmStore<E>, inputs: &[u64], moving: &mut Moving) -> Result<()> {
    let running = store.core.begin_compaction();
    let mut mover = Mover::new(store);
    let outcome = merge_into(store, inputs, &mut mover).and_then(|()| mover.finish());
    store.core.counters.count_compaction(0, mover.written);
    if outcome.is_err() {
        moving.aside.failed.extend(inputs);
    }
    outcome?;
    running.done(mover.written);
    // What an input keeps for snapshots lies in no other place afterwards, however often it is rewritten.
    store.home.scattered.lock().retain(|number| !inputs.contains(number));
    moving.aside.rewritten(inputs, &store.home.runs.all());
    drop_dead(store)?;
    store.fit_cache();
    Ok(())
}

fn merge_into<E: PmEngine<Home = Ssd>>(
    store: &PmStore<E>,
    inputs: &[u64],
    mover: &mut Mover<'_, E>,
) -> Result<()> {
    let child = |&number: &u64, ahead| store.home.tables.cursor(number, ahead);
    let (mut cursor, _loan) = merge_ahead(&store.core, READAHEAD_BYTES, inputs, child)?;
    let mut judge = store.core.filters.judge(0);
    while cursor.valid() {
        if store.jobs.is_closing() {
            return Ok(());
        }
        if let (Kind::Put, Some(position)) = (cursor.kind(), cursor.position()) {
            // A word keeps its place: only movers change it to another table's.
            let is_live = store.index.get(cursor.key())? == Some(OnSsd::Run(position).bits());
            if is_live {
                let value = cursor.value()?;
                if let Some(judge) = &mut judge {
                    judge.see(cursor.key(), &value);
                }
                mover.add(cursor.key(), cursor.seq(), &value, From::Run(position))?;
            }
        }
        cursor.next()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(number: u64, live: u64) -> TableCount {
        TableCount { number, entries: 10, live, bytes: 100 }
    }

    /// A rewritten table is considered again when fewer of its entries live, and not before.
    #[test]
    fn what_is_left_rests_until_some_of_it_has_died() {
        let mut aside = Aside::default();
        aside.rewritten(&[1, 2, 3], &[run(1, 4), run(3, 0), run(9, 10)]);
        assert_eq!(aside.pinned(&[run(1, 4), run(3, 0), run(9, 10)]), [1].into());
        assert!(aside.pinned(&[run(1, 3), run(9, 10)]).is_empty());
        aside.rewritten(&[1], &[run(1, 3), run(9, 10)]);
        assert_eq!(aside.pinned(&[run(1, 3)]), [1].into());
        aside.rewritten(&[9], &[run(10, 10)]);
        assert!(aside.left.is_empty());
    }
}
