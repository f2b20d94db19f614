//! Running compactions: one after the other as the policy chooses them, or all of a range.
//!
//! The manifest takes outputs and the end of their inputs in one group, so after a crash a compaction has
//! happened or not. The head of [`compaction::leveled`](crate::compaction::leveled) has the rules by which a
//! policy keeps compactions apart.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use terrace_base::{Calm, Error, Result};

use super::change::LevelsEdit;
use super::merge::{Merge, Merged};
use super::task::Task;
use super::{LeveledTree, Stage, WriteBuffer};
use crate::background::{Compacting, Patience};
use crate::compaction::leveled::{LevelsView, Pick, RunKind, Tiering, rewrite};
use crate::levels::Levels;

/// A choice whose runs are busy until it is dropped.
struct Claim<'a, B: WriteBuffer> {
    tree: &'a LeveledTree<B>,
    task: Task,
    levels: Arc<Levels>,
    calm: Calm,
}

impl<'a, B: WriteBuffer> Claim<'a, B> {
    fn next(tree: &'a LeveledTree<B>) -> Option<Self> {
        let oldest = tree.oldest_snapshot();
        Self::of(tree, |busy| tree.resume(busy).or_else(|| tree.choose(busy, oldest)))
    }

    /// What `choose` chooses beside what is busy. The choice and the claim are one step, so that no two compactions read
    /// one run, and nothing else takes a place that one writes to.
    fn of(
        tree: &'a LeveledTree<B>,
        choose: impl FnOnce(&BTreeSet<u64>) -> Option<(Task, Arc<Levels>)>,
    ) -> Option<Self> {
        let mut busy = tree.choosing.lock();
        let (task, levels) = choose(&busy)?;
        busy.extend(task.pick.tables());
        drop(busy);
        Some(Claim { tree, task, levels, calm: Calm::now() })
    }
}

impl<B: WriteBuffer> Drop for Claim<'_, B> {
    fn drop(&mut self) {
        self.tree.core.health.note_panic(self.calm);
        let mut busy = self.tree.choosing.lock();
        for number in self.task.pick.tables() {
            busy.remove(&number);
        }
    }
}

impl<B: WriteBuffer> LeveledTree<B> {
    /// Does the most worthwhile compaction; false if there is none, or no time. The caller has a slot.
    pub(super) fn compact_next(&self) -> Result<bool> {
        let Some(claim) = Claim::next(self) else { return Ok(false) };
        let outcome = self.run_task(&claim.task, &claim.levels, Patience::UntilClosing);
        if outcome.is_err() && self.jobs.is_closing() {
            return Ok(false);
        }
        outcome.inspect_err(|_| self.core.counters.background_errors.add(1))?;
        Ok(true)
    }

    /// Starts compactions in the background, as soon as a slot is free.
    pub(super) fn spawn_compaction(&self) {
        if self.core.options.read_only || self.core.is_scratch {
            return;
        }
        let how: Compacting<Self> = Compacting {
            // Files that an opening could not remove take no room from what is chosen.
            begin: |tree| {
                tree.sweep();
                Ok(())
            },
            next: |tree, _| tree.compact_next(),
            is_due: Self::is_due,
            sweep: Self::sweep,
        };
        self.jobs.compact(&self.me, how);
    }

    /// Makes nothing busy, not even briefly: the caller has no slot, and a caller with all slots finds
    /// everything free.
    fn is_due(&self) -> bool {
        let oldest = self.oldest_snapshot();
        let is_cut_short = self.runs.lists().is_some_and(|lists| lists.has_unfinished());
        is_cut_short || self.choose(&self.choosing.lock(), oldest).is_some()
    }

    fn oldest_snapshot(&self) -> Option<u64> {
        self.core.snapshots.list().first().copied()
    }

    fn run_task(&self, task: &Task, levels: &Arc<Levels>, patience: Patience) -> Result<()> {
        let (pick, mut change) = (&task.pick, LevelsEdit::default());
        if pick.is_move {
            change.move_to(pick.output, pick.inputs.iter().copied());
            return self.install(change, None);
        }
        let running = self.core.begin_compaction();
        let (written, moved) = match self.merge_runs(task, levels, patience) {
            Err(e) if e.is_out_of_space() && self.falls_back(task) => {
                // Output without room in persistent memory becomes a table.
                let task = Task { kind: RunKind::Table, done: Vec::new(), ..task.clone() };
                self.merge_runs(&task, levels, patience)?
            }
            Err(e) if e.is_out_of_space() && task.may_wait() => {
                self.runs.lists().inspect(|lists| lists.note_refusal());
                return Ok(());
            }
            outcome => outcome?,
        };
        change.relocations.moved = moved;
        change.remove(pick.tables());
        change.add(pick.output, written);
        let bytes = change.bytes();
        self.install(change, None)?;
        self.core.counters.count_compaction(pick.output, bytes);
        running.done(bytes);
        task.count(self.runs.lists());
        let max_seq = |number| self.runs.get(number).map_or(0, |run| run.meta().max_seq);
        let inputs = pick.inputs.iter().map(|number| (max_seq(*number), *number));
        self.runs.remove_merged(&pick.next, inputs.collect());
        Ok(())
    }

    fn falls_back(&self, task: &Task) -> bool {
        let tiering = self.runs.lists().map(|lists| lists.options.tiering);
        task.kind == RunKind::List && !task.may_wait() && tiering.is_some_and(Tiering::falls_back)
    }

    /// The runs written, and the keys in the inputs that the stage had been told of.
    fn merge_runs(&self, task: &Task, levels: &Arc<Levels>, patience: Patience) -> Result<Merged> {
        let merge = Arc::new(Merge::new(self, task, levels, patience)?);
        for _ in 1..merge.parts {
            let helper = merge.clone();
            if !self.jobs.assist(&self.me, patience, move |tree| helper.work(tree)) {
                break;
            }
        }
        merge.work(self);
        self.jobs.wait_until(|| merge.is_done());
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
        {
            let _no_flush = self.flushes.claim();
            B::Stage::clear(self)?;
        }
        let start = self.new_file_number();
        for level in 0..self.policy.levels() - 1 {
            self.compact_while(|view| {
                // Later flushes are not part of the request.
                let asked = level > 0 || view.levels[0].iter().any(|t| t.number < start);
                asked.then(|| self.policy.choose_in(view, level, range)).flatten()
            })?;
        }
        let whole = self.core.may_change_tables();
        self.compact_while(|view| rewrite(view, range, whole, &|number| number > start))
    }

    fn compact_while(&self, choose: impl Fn(&LevelsView<'_>) -> Option<Pick>) -> Result<()> {
        loop {
            let claim = Claim::of(self, |busy| {
                let levels = self.readable().levels.clone();
                let pick = self.pick_of(&levels, busy, &choose)?;
                Some((self.task(&levels, pick), levels))
            });
            let Some(claim) = claim else { return Ok(()) };
            let outcome = self.run_task(&claim.task, &claim.levels, Patience::ToTheEnd);
            drop(claim);
            self.sweep();
            outcome.inspect_err(|_| self.core.counters.background_errors.add(1))?;
        }
    }
}
