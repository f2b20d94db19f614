//! The work of opening: jobs that were cut short, unreferenced files, memtables waiting for their flush, and
//! what a crash left allocated and unreachable.
//!
//! None of this grows with the data except what runs in the background and what a rebuild needs; opening
//! after a crash reads manifest, roots, extent table and memtables.
//!
//! Readers need nothing of it. So a full disk does not prevent an opening: what could not be done is done
//! before the next write, and refuses it until there is room.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use terrace_base::exec::Lane;
use terrace_base::{Error, ErrorKind, Result};
use terrace_index::SkipList;
use terrace_pmem::Marks;

use super::Slm;
use super::behind::note_flushed;
use super::flush;
use super::open::describe;
use crate::core::engine::Engine;
use crate::located::Location;
use crate::pool::{self, StartState};

impl Slm {
    /// Brings a just opened database to rest; returns the last sequence number in it.
    pub(super) fn recover(&self, state: StartState) -> Result<u64> {
        self.recover_around(state, &mut Err)
    }

    /// [`recover`](Self::recover), with a function that decides about damaged logs.
    pub(super) fn recover_around(
        &self,
        state: StartState,
        damaged: &mut dyn FnMut(Error) -> Result<()>,
    ) -> Result<u64> {
        if self.core.options.read_only {
            // It was closed cleanly: only what an error had left for the next writer remains to be done, and
            // readers do not depend on that.
            return Ok(self.last_seq());
        }
        match self.finish_opening_as(state, damaged) {
            Err(e) if e.kind() == ErrorKind::NoSpace && state != StartState::Lost => {
                *self.unfinished_opening.lock() = Some(state);
                self.is_opening_unfinished.store(true, Ordering::Release);
                self.core.health.fail(e);
            }
            finished => finished?,
        }
        Ok(self.last_seq())
    }

    /// Does the part of the opening that lacked room. Called by the leader, before anything is written.
    pub(super) fn finish_opening(&self) -> Result<()> {
        if !self.is_opening_unfinished.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut unfinished_opening = self.unfinished_opening.lock();
        if let Some(state) = *unfinished_opening {
            self.finish_opening_as(state, &mut Err)?;
            *unfinished_opening = None;
            self.is_opening_unfinished.store(false, Ordering::Release);
            self.core.health.recover();
        }
        Ok(())
    }

    /// Does all of it; starts again if it could not be finished.
    fn finish_opening_as(
        &self,
        state: StartState,
        damaged: &mut dyn FnMut(Error) -> Result<()>,
    ) -> Result<()> {
        if state == StartState::Crashed {
            self.refuse_older_copy()?;
        }
        self.manifest.decide()?;
        self.drop_flushed_memtables()?;
        // A manifest that was not closed may have lost its end, even beside a pool that was closed.
        let is_whole = state == StartState::Lost || self.manifest.is_sealed();
        self.located.end_cut_jobs()?;
        let mut dead = self.dead_tables()?;
        self.remove_leftovers()?;
        if is_whole {
            self.core.files.remove_tables(std::mem::take(&mut dead));
        }
        self.has_unproved_tables.store(!dead.is_empty(), Ordering::Release);
        match state {
            StartState::New => {}
            StartState::Closed => self.note_logs()?,
            StartState::Crashed => self.renew_log()?,
            StartState::Lost => {
                let rebuilt = self.rebuild(damaged)?;
                note_flushed(&self.pool, self.manifest.state().flushed_seq)?;
                *self.opened.lock() = format!("{}: {rebuilt}", describe(state));
                self.renew_log()?;
                // In this order: the pool that the manifest knows is this database's, even after a kill.
                pool::set_owner(&self.pool, &self.manifest.state().identity)?;
                pool::note(&self.manifest, &self.pool);
            }
        }
        // Even after a clean close something may remain that readers had kept until then.
        if state == StartState::Crashed || !dead.is_empty() || self.pool.needs_reclaim() {
            self.jobs.tidy(&self.me, move |slm| slm.reclaim().and_then(|()| slm.remove_unnamed(&dead)));
        } else {
            // Snapshots that were held at the close are gone.
            self.released();
        }
        self.measure_garbage();
        // Flushed writes must be in logs before.
        if self.has_immutable() && !self.log.is_broken() {
            self.spawn(Lane::Flush, |slm| {
                // Kept in `health`; writers that need the room get the error.
                let _ = flush::run(slm);
            });
        }
        Ok(())
    }

    pub(super) fn last_seq(&self) -> u64 {
        let state = self.manifest.state();
        let tables = state.tables.values().map(|t| t.meta.max_seq);
        let mem = self.mem.load();
        let memtables = mem.iter().map(|m| m.list().max_seq());
        tables.chain(memtables).chain([state.flushed_seq]).max().unwrap_or(0)
    }

    /// Drops a memtable whose flush had reached the manifest.
    fn drop_flushed_memtables(&self) -> Result<()> {
        let flushed = self.manifest.state().flushed_seq;
        loop {
            let mem = self.mem.load_full();
            let Some(oldest) = mem.oldest_immutable() else { return Ok(()) };
            if oldest.list().max_seq() > flushed {
                return Ok(());
            }
            self.forget(oldest)?;
        }
    }

    /// Tables that never reached the manifest or have left it. Numbers of files that were made and forgotten
    /// are not given out again.
    fn dead_tables(&self) -> Result<Vec<u64>> {
        let listing = self.manifest.listing()?;
        self.manifest.pass_over(listing.unknown_numbers());
        Ok(listing.dead_tables)
    }

    /// Removes everything else that is no longer needed.
    fn remove_leftovers(&self) -> Result<()> {
        self.core.files.remove(self.manifest.listing()?.leftovers);
        Ok(())
    }

    /// If the manifest was not closed: removes dead tables, none of which the index may name. If it names
    /// one, the manifest has lost its newest group, which looks as if it had never been written; a repair
    /// needs those tables.
    fn remove_unnamed(&self, dead: &[u64]) -> Result<()> {
        if dead.is_empty() {
            return Ok(());
        }
        let mut named = BTreeSet::new();
        self.located.each_word(|_, word| {
            if let Some(Location::Position(position)) = Location::decode(word) {
                named.insert(position.number());
            }
            Ok(())
        })?;
        if let Some(number) = dead.iter().find(|number| named.contains(number)) {
            let path = self.core.files.table(*number);
            let expected = "a table that the manifest names, as the index does (try `repair`)";
            return Err(Error::corruption(&path, 0, expected, "one that the manifest has lost"));
        }
        self.core.files.remove_tables(dead.iter().copied());
        self.has_unproved_tables.store(false, Ordering::Release);
        Ok(())
    }

    /// After a kill the log lacks its newest records, after a power cut it is torn: a whole log is made
    /// before anything else is logged or flushed. If the disk has no room for it now, that is done before the
    /// first write.
    fn renew_log(&self) -> Result<()> {
        if !self.logs_writes() {
            return Ok(());
        }
        self.log.distrust();
        match self.log.mend(self) {
            Err(e) if e.is_out_of_space() => Ok(()),
            outcome => outcome,
        }
    }

    /// The current memtables depend on every log that is left.
    fn note_logs(&self) -> Result<()> {
        let logs = self.manifest.listing()?.logs;
        let _ = self.log.files(logs.clone());
        if self.logs_writes() && !self.log.end_is_there(&self.manifest)? {
            // Nothing is lost: the memtables exist. The next power cut would expose the damage.
            tracing::warn!("the commit log had lost its end, and is begun anew");
            return self.renew_log();
        }
        if let Some(&first) = logs.first()
            && !self.mem.load().active().is_empty()
        {
            self.mem.load().iter().for_each(|m| m.first_log().note(first));
        }
        if self.logs_writes() {
            self.log.join_small(self, logs.len())?;
        }
        Ok(())
    }

    /// Frees what a crash left allocated and unreachable, and collapses every chain: no snapshot
    /// survived.
    fn reclaim(&self) -> Result<()> {
        let mut marks = self.pool.marks();
        let _kept = self.mark(&mut marks)?;
        // A job that had unlinked a chain before the marking passed it has retired it by now: it is in limbo,
        // which is searched below, or has been freed.
        drop(self.located.hold_still());
        self.pool.reclaim(&marks)?;
        if self.located.drain() && self.memtables_are_given_back() {
            // Nothing unlinked before remains to be freed: reclaimed room may be used again.
            self.pool.release_reclaimed()?;
        }
        self.located.collapse_chains()
    }

    /// Marks everything reachable in the pool except the logs of jobs, all of which were begun since the opening: what
    /// was allocated since then is not reclaimed. The returned list keeps the memtables that it has marked:
    /// a reader that releases one does not give it back meanwhile.
    pub(super) fn mark(&self, marks: &mut Marks) -> Result<Vec<SkipList>> {
        // First, so that what a reader releases during the rest is kept.
        let memtables = self.readable_memtables();
        memtables.iter().try_for_each(|list| list.mark(marks))?;
        self.located.mark(marks)?;
        Ok(memtables)
    }
}
