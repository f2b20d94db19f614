//! Doing compactions: merging the chosen tables, cut into parts that run side by side where threads are free.
//!
//! Outputs go into the manifest in one group with the end of their inputs, so after a crash a compaction has
//! happened or not.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use terrace_base::exec::Lane;
use terrace_base::{Error, Result};
use terrace_table::{Cursor, merge};

use super::{Change, Lsm};
use crate::compaction::leveled::{Pick, rewrite, split};
use crate::levels::Levels;
use crate::levels::cursor::LevelCursor;
use crate::levels::merge::Survivors;
use crate::levels::output::{Below, Outputs, Written};
use crate::levels::row::Row;
use crate::levels::run::Run;
use crate::manifest::Edit;

/// Bytes read ahead from each input.
const READAHEAD_BYTES: usize = 512 << 10;

/// Entries merged between two looks at whether the database is closing.
const ENTRIES_A_LOOK: u32 = 4096;

/// Whether a compaction goes on when the database is closing: one that somebody waits for does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    UntilClosing,
    ToTheEnd,
}

/// Does the most worthwhile compaction; false if there is none, or no time. The caller has a slot.
pub(super) fn next(lsm: &Lsm) -> Result<bool> {
    let Some(claim) = Claim::next(lsm) else { return Ok(false) };
    let outcome = lsm.run_pick(&claim.pick, &claim.levels, Patience::UntilClosing);
    if outcome.is_err() && lsm.jobs.is_closing() {
        return Ok(false);
    }
    outcome.inspect_err(|_| lsm.core.counters.background_errors.add(1))?;
    Ok(true)
}

/// A choice whose tables are busy until it is dropped.
struct Claim<'a> {
    lsm: &'a Lsm,
    pick: Pick,
    levels: Arc<Levels>,
}

impl<'a> Claim<'a> {
    fn next(lsm: &'a Lsm) -> Option<Self> {
        let oldest = lsm.core.snapshots.list().first().copied();
        // The choice and the claim are one step, so that no two compactions read one table.
        let mut busy = lsm.choosing.lock();
        let levels = lsm.readable().levels.clone();
        let state = lsm.manifest.state();
        let view = levels.view(lsm.policy.levels(), &busy, &state.candidates);
        let pick = lsm.policy.choose(&view, oldest)?;
        busy.extend(pick.tables());
        drop(busy);
        Some(Claim { lsm, pick, levels })
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut busy = self.lsm.choosing.lock();
        for number in self.pick.tables() {
            busy.remove(&number);
        }
    }
}

impl Lsm {
    /// Starts compactions in the background if a slot is free; those that run go on by themselves.
    pub(super) fn spawn_compaction(&self) {
        if self.core.options.read_only || self.core.is_scratch {
            return;
        }
        let Some(slot) = self.jobs.free_slot() else { return };
        self.spawn(Lane::Compaction, move |lsm| {
            let mut outcome = Ok(true);
            while !lsm.jobs.is_closing() && matches!(outcome, Ok(true)) {
                outcome = next(lsm);
            }
            lsm.sweep();
            drop(slot);
            match outcome {
                Err(e) => lsm.core.health.fail(e),
                // What became due after the last look found the slot taken.
                Ok(false) if lsm.is_due() => lsm.spawn_compaction(),
                Ok(_) => {}
            }
        });
    }

    fn is_due(&self) -> bool {
        Claim::next(self).is_some()
    }

    fn run_pick(&self, pick: &Pick, levels: &Arc<Levels>, patience: Patience) -> Result<()> {
        let mut change = Change::default();
        if pick.is_move {
            let level = pick.output as u32;
            change.edits.extend(pick.inputs.iter().map(|&number| Edit::MoveTable { number, level }));
            return self.install(change, None);
        }
        let written = self.merge_tables(pick, levels, patience)?;
        let bytes = written.iter().map(|t| t.meta.file_bytes).sum();
        change.edits.extend(pick.tables().map(|number| Edit::RemoveTable { number }));
        change.add(pick.output, written);
        self.install(change, None)?;
        self.core.counters.compactions.add(1);
        self.core.counters.compaction_bytes.add(bytes);
        self.remove_merged(pick);
        Ok(())
    }

    /// Removes the inputs' files, what is oldest first: should only some of them be gone after a crash, and the
    /// manifest be lost, then no tombstone is missing above what it hides.
    fn remove_merged(&self, pick: &Pick) {
        let max_seq = |number: &u64| self.runs.get(*number).map_or(0, |run| run.meta().max_seq);
        let mut gone = pick.inputs.clone();
        gone.sort_by_key(max_seq);
        gone.splice(..0, pick.next.iter().copied());
        self.runs.remove(&gone);
    }

    fn merge_tables(&self, pick: &Pick, levels: &Arc<Levels>, patience: Patience) -> Result<Vec<Written>> {
        let merge = Arc::new(Merge::new(self, pick, levels, patience)?);
        for _ in 1..merge.parts {
            // Who is patient has all slots.
            let slot = self.jobs.free_slot();
            if slot.is_none() && patience == Patience::UntilClosing {
                break;
            }
            let helper = merge.clone();
            self.spawn(Lane::Compaction, move |lsm| {
                let _slot = slot;
                helper.work(lsm);
            });
        }
        merge.work(self);
        self.jobs.wait_until(|| merge.left.load(Ordering::Acquire) == 0);
        merge.finish()
    }

    /// Compacts everything in the range to the last level, and drops there what no snapshot needs.
    pub(super) fn compact_range(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<()> {
        if self.core.options.read_only {
            return Err(Error::ReadOnly);
        }
        let end = match to {
            Bound::Included(to) | Bound::Excluded(to) => Some(to),
            Bound::Unbounded => None,
        };
        let range = match from {
            Bound::Included(from) | Bound::Excluded(from) => (from, end),
            Bound::Unbounded => (&[][..], end),
        };
        // Nobody else compacts meanwhile.
        let _slots = self.jobs.all_slots();
        let start = self.new_file_number();
        let depth = self.policy.levels();
        for level in 0..depth - 1 {
            self.compact_while(|lsm, levels| {
                let state = lsm.manifest.state();
                let view = levels.view(depth, &lsm.choosing.lock(), &state.candidates);
                // What is flushed from now on is not asked for.
                let asked = level > 0 || levels.level(0).iter().any(|t| t.number() < start);
                asked.then(|| lsm.policy.choose_in(&view, level, range)).flatten()
            })?;
        }
        self.compact_while(|lsm, levels| {
            let state = lsm.manifest.state();
            let view = levels.view(depth, &lsm.choosing.lock(), &state.candidates);
            rewrite(&view, range, &|number| number > start)
        })
    }

    fn compact_while(&self, pick: impl Fn(&Lsm, &Levels) -> Option<Pick>) -> Result<()> {
        loop {
            let levels = self.readable().levels.clone();
            let Some(pick) = pick(self, &levels) else { return Ok(()) };
            let outcome = self.run_pick(&pick, &levels, Patience::ToTheEnd);
            self.sweep();
            outcome.inspect_err(|_| self.core.counters.background_errors.add(1))?;
        }
    }
}

/// One compaction's merge, cut into parts; each is done by whoever comes for it first.
struct Merge {
    pick: Pick,
    /// Snapshots, listed after everything in the inputs had become visible.
    held: Vec<u64>,
    patience: Patience,
    /// What the parts read; let go of with the last part, so that no helper that comes too late keeps files from going.
    sources: Mutex<Option<Arc<Sources>>>,
    parts: usize,
    todo: Mutex<VecDeque<Part>>,
    done: Mutex<Vec<(usize, Result<Vec<Written>>)>>,
    /// Parts that are not done.
    left: AtomicUsize,
}

/// The tables that a merge is of, and all that there were when it was chosen.
struct Sources {
    levels: Arc<Levels>,
    inputs: Row,
    next: Row,
}

/// The keys from one to another, the last excluded.
#[derive(Debug, Clone)]
struct Part {
    ordinal: usize,
    from: Option<Vec<u8>>,
    to: Option<Vec<u8>>,
}

impl Merge {
    fn new(lsm: &Lsm, pick: &Pick, levels: &Arc<Levels>, patience: Patience) -> Result<Merge> {
        let find = |number: &u64| lsm.runs.get(*number);
        let mut inputs: Vec<Run> = pick.inputs.iter().map(find).collect::<Result<_>>()?;
        let next: Vec<Run> = pick.next.iter().map(find).collect::<Result<_>>()?;
        inputs.sort_by(|a, b| a.meta().smallest.cmp(&b.meta().smallest));
        let part_bytes = lsm.policy.outputs(pick.output).run_bytes;
        let todo = parts(lsm, inputs.iter().chain(&next), part_bytes)?;
        let sources = Sources { levels: levels.clone(), inputs: Row::of(inputs), next: Row::of(next) };
        Ok(Merge {
            pick: pick.clone(),
            held: lsm.core.snapshots.list(),
            patience,
            sources: Mutex::new(Some(Arc::new(sources))),
            parts: todo.len(),
            left: AtomicUsize::new(todo.len()),
            todo: Mutex::new(todo),
            done: Mutex::default(),
        })
    }

    /// Does parts until there is none left to begin.
    fn work(&self, lsm: &Lsm) {
        loop {
            let Some(part) = self.todo.lock().pop_front() else { return };
            let mut ending = Ending { merge: self, ordinal: part.ordinal, outcome: None };
            // Gone before `ending` is.
            let Some(sources) = self.sources.lock().clone() else { return };
            ending.outcome = Some(self.merge_part(lsm, &sources, &part));
        }
    }

    fn merge_part(&self, lsm: &Lsm, sources: &Sources, part: &Part) -> Result<Vec<Written>> {
        let mut cursor = merge(self.children(sources));
        match &part.from {
            Some(from) => cursor.seek(from, u64::MAX)?,
            None => cursor.seek_first()?,
        }
        let mut survivors = Survivors::new(&self.held, &sources.levels, self.pick.output + 1);
        let limits = lsm.policy.outputs(self.pick.output);
        let below = self.below(sources, part, limits.overlap_bytes);
        let options = lsm.output_options(limits.run_bytes);
        let mut outputs = Outputs::new(&lsm.core, &lsm.manifest, options, below);
        let mut entries = 0u32;
        while cursor.valid() && part.to.as_ref().is_none_or(|to| cursor.key() < &to[..]) {
            entries = entries.wrapping_add(1);
            if entries.is_multiple_of(ENTRIES_A_LOOK) {
                self.look_up(lsm)?;
            }
            if survivors.keeps(cursor.key(), cursor.seq(), cursor.kind()) {
                outputs.add(cursor.key(), cursor.seq(), cursor.kind(), &cursor.value()?)?;
            }
            cursor.next()?;
        }
        outputs.finish()
    }

    /// Lets what is more urgent go first. Ends the work where it is no longer wanted.
    fn look_up(&self, lsm: &Lsm) -> Result<()> {
        lsm.jobs.give_way(Lane::Compaction);
        match self.patience {
            Patience::UntilClosing if lsm.jobs.is_closing() => Err(Error::invalid("the database is closing")),
            _ => Ok(()),
        }
    }

    fn children(&self, sources: &Sources) -> Vec<Box<dyn Cursor>> {
        let mut children: Vec<Box<dyn Cursor>> = Vec::new();
        if self.pick.level == 0 {
            for table in sources.inputs.iter() {
                children.push(Box::new(table.cursor(false, READAHEAD_BYTES)));
            }
        } else {
            children.push(Box::new(LevelCursor::new(sources.inputs.clone(), false, READAHEAD_BYTES)));
        }
        if !sources.next.is_empty() {
            children.push(Box::new(LevelCursor::new(sources.next.clone(), false, READAHEAD_BYTES)));
        }
        children
    }

    fn below(&self, sources: &Sources, part: &Part, max_bytes: u64) -> Below {
        let below = sources.levels.level(self.pick.output + 1);
        let tables = below.iter().map(|t| t.meta());
        let tables = tables.filter(|meta| part.from.as_ref().is_none_or(|from| meta.largest >= *from));
        Below::new(tables.map(|meta| (meta.largest.clone(), meta.file_bytes)).collect(), max_bytes)
    }

    /// The outputs of all parts in order, or what went wrong in one of them: then all of them go.
    fn finish(&self) -> Result<Vec<Written>> {
        drop(self.sources.lock().take());
        let mut done = std::mem::take(&mut *self.done.lock());
        done.sort_by_key(|(ordinal, _)| *ordinal);
        let parts: Vec<Vec<Written>> = done.into_iter().map(|(_, outcome)| outcome).collect::<Result<_>>()?;
        Ok(parts.into_iter().flatten().collect())
    }
}

/// Counts a part as done, however that comes about.
struct Ending<'a> {
    merge: &'a Merge,
    ordinal: usize,
    outcome: Option<Result<Vec<Written>>>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let outcome = self.outcome.take();
        let outcome = outcome.unwrap_or_else(|| Err(Error::invalid("a part of a compaction panicked")));
        self.merge.done.lock().push((self.ordinal, outcome));
        self.merge.left.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Cuts the merge of `runs` into as many parts as there may be threads for, none of them of fewer than `least` bytes.
fn parts<'a>(lsm: &Lsm, runs: impl Iterator<Item = &'a Run> + Clone, least: u64) -> Result<VecDeque<Part>> {
    let bytes: u64 = runs.clone().map(|t| t.meta().file_bytes).sum();
    let threads = lsm.core.options.background_threads.saturating_sub(1).max(1) as u64;
    let wanted = (bytes / least.max(1)).clamp(1, threads);
    let mut anchors = Vec::new();
    if wanted > 1 {
        for run in runs {
            anchors.extend(run.anchors()?);
        }
    }
    let cuts = split(anchors, wanted as usize);
    let froms = std::iter::once(None).chain(cuts.iter().cloned().map(Some));
    let tos = cuts.iter().cloned().map(Some).chain(std::iter::once(None));
    let part = |(ordinal, (from, to))| Part { ordinal, from, to };
    Ok(froms.zip(tos).enumerate().map(part).collect())
}
