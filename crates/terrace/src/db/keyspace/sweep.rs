//! Removing the keys of dropped keyspaces, what range tombstones hide, what is due and what compaction filters let go, in
//! steps, beside everything else.
//!
//! 1. A step belongs to an open database: closing waits for the one that runs, and no other begins.
//! 2. A number stays noted until all keys of its keyspace are gone. So an opening goes on where a process was killed.
//! 3. Where threads do background work, steps are jobs of theirs, one after the other. Elsewhere the thread that drops
//!    a keyspace or opens the database does all steps.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use terrace_base::exec::Executor;
use terrace_base::{Error, ErrorKind, Result};

use crate::batch::WriteBatch;
use crate::core::filters::Noted;
use crate::db::Store;
use crate::db::keyspace::due::DueSearch;
use crate::db::range_delete::RangeSweep;
use crate::db::removal::{KEYS, KEYS_WITHOUT_ORDER};
use crate::keyspaces::{Prefix, callbacks};

/// Steps of a database.
#[derive(Debug, Default)]
pub(in crate::db) struct Sweeps {
    /// Locked by the step that runs.
    state: Mutex<State>,
    /// Whether there are jobs.
    running: AtomicBool,
    /// Whether there is something since the last job has begun.
    again: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    /// The number of the keyspace whose keys are being removed, and the place up to which they are.
    done: Option<(u32, Vec<u8>)>,
    ranges: RangeSweep,
    due: DueSearch,
    /// What filters let go and the steps go on with, and whether the last step has deleted some of it.
    filtered: Noted,
    was_filtered: bool,
}

impl Sweeps {
    /// Lets no further step begin, and waits for the one that runs.
    pub fn close(&self) {
        self.state.lock().closed = true;
    }
}

/// Begins to remove what nobody needs, if there is something. If that cannot be told, it stays.
pub(in crate::db) fn resume(store: &Arc<Store>) {
    match store.has_to_sweep() {
        Ok(false) => {}
        Ok(true) if store.read_only => {}
        Ok(true) => start(store),
        Err(error) => {
            tracing::warn!(%error, "what dropped keyspaces and deleted ranges have left, and what is due, stays")
        }
    }
}

pub(in crate::db) fn start(store: &Arc<Store>) {
    if !store.core.env.executor.runs_beside() {
        if let Err(error) = store.sweep_all() {
            tracing::warn!(%error, "what dropped keyspaces and deleted ranges have left, and what is due, stays until there are more, or until the next opening");
        }
    } else {
        start_beside(&store.sweeps, &*store.core.env.executor, Arc::downgrade(store));
    }
}

fn start_beside(sweeps: &Arc<Sweeps>, executor: &dyn Executor, store: Weak<Store>) {
    sweeps.again.store(true, Ordering::SeqCst);
    if !sweeps.running.swap(true, Ordering::SeqCst) {
        spawn(sweeps, executor, store);
    }
}

/// Has steps begin when filters let go of something, where threads do background work. Elsewhere whoever compacts deletes
/// it.
pub(in crate::db) fn follow_filters(store: &Arc<Store>) {
    let (sweeps, weak) = (store.sweeps.clone(), Arc::downgrade(store));
    let executor = store.core.env.executor.clone();
    // A compaction calls this, and must not be the last to hold the database.
    store.core.filters.on_noted(move || {
        if executor.runs_beside() {
            start_beside(&sweeps, &*executor, weak.clone());
        }
    });
}

/// The outcome of a write to keyspaces. Begins to look for what is due if that is worth while; the caller keeps no
/// keyspace from being dropped.
pub(in crate::db) fn after_write<T>(store: &Arc<Store>, outcome: Result<T>) -> Result<T> {
    let is_refused = outcome.as_ref().is_err_and(Error::is_out_of_space);
    // What users have the database call makes no steps: it may run within one, or be waited for by one.
    if callbacks::check_none_runs().is_ok() && store.core.deadlines.want_search_after(is_refused) {
        start(store);
    }
    outcome
}

fn spawn(sweeps: &Arc<Sweeps>, executor: &dyn Executor, store: Weak<Store>) {
    let sweeps = sweeps.clone();
    executor.spawn(Box::new(move || run(&sweeps, store)));
}

fn run(sweeps: &Arc<Sweeps>, weak: Weak<Store>) {
    let mut state = sweeps.state.lock();
    if state.closed {
        return;
    }
    // Given back before the lock is: a closer goes on to what it frees.
    let Some(store) = weak.upgrade() else { return };
    let again = || spawn(sweeps, &*store.core.env.executor, weak);
    sweeps.again.store(false, Ordering::SeqCst);
    match store.sweep(&mut state) {
        Ok(true) => return again(),
        Ok(false) => {}
        Err(error) if error.kind() == ErrorKind::Closed => {}
        Err(error) => {
            tracing::warn!(%error, "what dropped keyspaces and deleted ranges have left, and what is due, stays until there are more, or until the next opening");
            sweeps.running.store(false, Ordering::SeqCst);
            if sweeps.again.load(Ordering::SeqCst) && !sweeps.running.swap(true, Ordering::SeqCst) {
                again();
            }
            return;
        }
    }
    sweeps.running.store(false, Ordering::SeqCst);
    // One that was dropped since has met jobs that were about to end.
    if store.has_to_sweep().is_ok_and(|has| has) && !sweeps.running.swap(true, Ordering::SeqCst) {
        again();
    }
}

impl Store {
    fn has_to_sweep(&self) -> Result<bool> {
        Ok(self.core.deadlines.is_search_wanted()
            || self.core.filters.have_noted()
            || !self.written_tombstones().is_empty()
            || !self.dropped()?.is_empty())
    }

    /// Takes all steps on this thread.
    pub(super) fn sweep_all(&self) -> Result<()> {
        while self.sweep_once()? {}
        Ok(())
    }

    /// The same, and looks for everything that is due, however little was put since the last search.
    pub(super) fn sweep_everything(&self) -> Result<()> {
        callbacks::check_none_runs()?;
        self.sweeps.state.lock().due.begin(&self.core);
        while self.sweep_once()? {
            // Others may want one search after another.
            if !self.sweeps.state.lock().due.is_running() && self.core.deadlines.is_search_wanted() {
                self.core.deadlines.begin_search();
            }
        }
        self.sweeps.state.lock().due.outcome()
    }

    /// Takes a step on this thread; returns whether there may be more to do.
    pub(in crate::db) fn sweep_once(&self) -> Result<bool> {
        let mut state = self.sweeps.state.lock();
        if state.closed {
            return Err(Error::Closed);
        }
        self.sweep(&mut state)
    }

    /// The same for range tombstones alone.
    pub(in crate::db) fn sweep_ranges_once(&self) -> Result<bool> {
        let mut state = self.sweeps.state.lock();
        if state.closed {
            return Err(Error::Closed);
        }
        self.sweep_range(&mut state.ranges)
    }

    /// Deletes on this thread what filters have let go so far.
    pub(in crate::db) fn sweep_all_filtered(&self) -> Result<()> {
        if !self.core.filters.are_there() {
            return Ok(());
        }
        let mut noted = self.core.filters.take();
        while self.sweep_filtered_once(Some(&mut noted))? {}
        // What the background has begun with.
        while self.sweep_filtered_once(None)? {}
        Ok(())
    }

    fn sweep_filtered_once(&self, noted: Option<&mut Noted>) -> Result<bool> {
        let mut state = self.sweeps.state.lock();
        if state.closed {
            return Err(Error::Closed);
        }
        self.sweep_filtered(noted.unwrap_or(&mut state.filtered))
    }

    /// The same in the background, with what is noted then.
    fn sweep_noted(&self, state: &mut State) -> Result<bool> {
        if state.filtered.is_empty() {
            state.filtered = self.core.filters.take();
        }
        self.sweep_filtered(&mut state.filtered)
    }

    /// Removes some keys; returns whether there may be more to do. What keeps one kind from being swept keeps no other.
    fn sweep(&self, state: &mut State) -> Result<bool> {
        let dropped = self.sweep_dropped(state);
        if dropped.as_ref().is_ok_and(|more| *more) || self.sweep_due(&mut state.due)? {
            return Ok(true);
        }
        // Every other step, so that merges that let go of more and more keep nothing else waiting.
        let rests = std::mem::take(&mut state.was_filtered);
        if !rests && self.sweep_noted(state)? {
            state.was_filtered = true;
            return Ok(true);
        }
        let ranges = self.sweep_range(&mut state.ranges);
        if ranges.as_ref().is_ok_and(|more| *more) {
            return Ok(true);
        }
        // Last, so that one search after another keeps nothing else waiting.
        if self.core.deadlines.is_search_wanted() {
            state.due.begin(&self.core);
            return Ok(state.due.is_running());
        }
        dropped.and(ranges)?;
        state.due.tell()?;
        Ok(rests && (!state.filtered.is_empty() || self.core.filters.have_noted()))
    }

    fn sweep_dropped(&self, state: &mut State) -> Result<bool> {
        let dropped = self.dropped()?;
        match dropped.first() {
            None => return Ok(false),
            Some(&number) if self.engine.ordered().is_ok() => self.sweep_one_dropped(state, number)?,
            Some(_) => self.sweep_dropped_together(&dropped.into_iter().collect())?,
        }
        Ok(true)
    }

    /// Removes some keys of the dropped keyspace with this number, which lie side by side.
    fn sweep_one_dropped(&self, state: &mut State, number: u32) -> Result<()> {
        let prefix = Prefix::of(number);
        // Nothing comes into a dropped keyspace: tombstones of earlier steps are not passed again.
        let done = state.done.take().filter(|(other, _)| *other == number);
        let from = done.map_or_else(|| prefix.as_slice().to_vec(), |(_, place)| place);
        let mut places = Vec::new();
        self.visit_all_from(prefix, &from, |key, _| {
            places.push([prefix.as_slice(), key].concat());
            Ok(places.len() < KEYS)
        })?;
        let (is_all, last) = (places.len() < KEYS, places.last().cloned());
        self.remove(places, &|_| Ok(true))?;
        if is_all {
            self.forget_dropped(&BTreeSet::from([number]))?;
        } else {
            state.done = last.map(|last| (number, last));
        }
        Ok(())
    }

    /// Removes some keys of the dropped keyspaces with these numbers. Without an order of keys each step goes over
    /// everything, so it looks for all of them.
    fn sweep_dropped_together(&self, numbers: &BTreeSet<u32>) -> Result<()> {
        let is_dropped =
            |place: &[u8]| Prefix::number_at(place).is_some_and(|number| numbers.contains(&number));
        let mut places = Vec::new();
        self.walk_from(&self.unmasked, &[], |walk| {
            while places.len() < KEYS_WITHOUT_ORDER
                && let Some((place, _)) = walk.next()?
            {
                if is_dropped(&place) {
                    places.push(place.to_vec());
                }
            }
            Ok(())
        })?;
        let is_all = places.len() < KEYS_WITHOUT_ORDER;
        self.remove(places, &|_| Ok(true))?;
        if is_all { self.forget_dropped(numbers) } else { Ok(()) }
    }

    fn forget_dropped(&self, numbers: &BTreeSet<u32>) -> Result<()> {
        let _unchanged = self.catalog.hold();
        let mut dropped = self.dropped()?;
        dropped.retain(|number| !numbers.contains(number));
        let mut batch = WriteBatch::new();
        Store::note_dropped(&mut batch, &dropped)?;
        batch.counts_as_deletion = true;
        self.commit(batch, false, false, &|| Ok(true)).map(drop)
    }
}
