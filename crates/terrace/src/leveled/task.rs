//! The next compaction, and the kind of its outputs: a merge that a crash has cut short, one that makes room
//! in persistent memory, or one that the policy chooses. The first two are for trees with runs in persistent
//! memory.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_index::pmlist::PmList;

use super::{LeveledTree, Stage, WriteBuffer};
use crate::compaction::leveled::{LevelsView, Pick, Relief, Room, RunKind};
use crate::levels::Levels;
use crate::levels::lists::{ListStore, Unfinished};

/// Extents that may be lost to the ends of lists and buffers before a compaction is chosen for that.
const SLACK_EXTENTS: u64 = 16;

/// A compaction to be done.
#[derive(Debug, Clone)]
pub(super) struct Task {
    pub pick: Pick,
    /// The kind of its outputs.
    pub kind: RunKind,
    pub why: Why,
    /// Outputs that exist already.
    pub done: Vec<PmList>,
}

/// The reason for a compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    Policy,
    Resumed,
    Evict,
    Empty,
}

impl Task {
    /// Whether it may be skipped if there is no room for it.
    pub fn may_wait(&self) -> bool {
        self.why == Why::Empty
    }

    /// Counts it as done.
    pub fn count(&self, lists: Option<&Arc<ListStore>>) {
        let Some(lists) = lists else { return };
        let counter = match self.why {
            Why::Policy => return,
            Why::Resumed => &lists.counts.resumed,
            Why::Evict => &lists.counts.evicted,
            Why::Empty => &lists.counts.emptied,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl<B: WriteBuffer> LeveledTree<B> {
    /// The most worthwhile compaction, if there is one. The caller holds the lock of the `busy` runs.
    pub(super) fn choose(&self, busy: &BTreeSet<u64>, oldest: Option<u64>) -> Option<(Task, Arc<Levels>)> {
        let levels = self.readable().levels.clone();
        if let Some(task) = self.relief(&levels, busy) {
            return Some((task, levels));
        }
        let pick = self.pick_of(&levels, busy, |view| self.policy.choose(view, oldest))?;
        Some((self.task(&levels, pick), levels))
    }

    /// The choice of `choose` among `levels`, checked against the rules that every choice keeps.
    pub(super) fn pick_of(
        &self,
        levels: &Levels,
        busy: &BTreeSet<u64>,
        choose: impl FnOnce(&LevelsView<'_>) -> Option<Pick>,
    ) -> Option<Pick> {
        let state = self.manifest.state();
        let stale = self.buffer.stage().stale();
        let view = levels.view(self.policy.levels(), busy, &state.candidates, &stale);
        let pick = choose(&view)?;
        debug_assert_eq!(pick.breach(&view), None, "{pick:?} of {:?}", self.policy);
        Some(pick)
    }

    /// `pick` with the kind of its outputs.
    pub(super) fn task(&self, levels: &Levels, mut pick: Pick) -> Task {
        let (mut list_bytes, mut table_bytes) = (0, 0);
        for run in pick.tables().filter_map(|number| self.runs.get(number).ok()) {
            *(if run.is_list() { &mut list_bytes } else { &mut table_bytes }) += run.meta().file_bytes;
        }
        let kind = match self.runs.lists() {
            None => RunKind::Table,
            Some(lists) => {
                let depth = self.policy.depth(&levels.sizes(self.policy.levels()), pick.output);
                lists.options.tiering.kind(depth, list_bytes, table_bytes)
            }
        };
        // A list that is to become a table is rewritten.
        pick.is_move &= list_bytes == 0 || kind == RunKind::List;
        Task { pick, kind, why: Why::Policy, done: Vec::new() }
    }

    /// A compaction that makes room in persistent memory, if that is needed.
    fn relief(&self, levels: &Levels, busy: &BTreeSet<u64>) -> Option<Task> {
        let lists = self.runs.lists()?;
        let usage = lists.usage();
        let slack = SLACK_EXTENTS * lists.lists().pool().extent_bytes();
        let room = Room { bytes: usage.bytes, live: usage.live, limit: usage.limit, slack };
        let tiering = lists.options.tiering;
        if lists.was_refused() || !tiering.is_pressed(&room) {
            return None;
        }
        let relief = tiering.relieve(room, &lists.figures(), busy)?;
        let (number, kind, why) = match relief {
            Relief::Evict(number) => (number, RunKind::Table, Why::Evict),
            Relief::Empty(number) => (number, RunKind::List, Why::Empty),
        };
        let level = levels.level_of(number)?;
        let pick = Pick { level, output: level, inputs: vec![number], next: Vec::new(), is_move: false };
        Some(Task { pick, kind, why, done: Vec::new() })
    }

    /// A merge that a crash has cut short, if it can continue. Others are dropped.
    pub(super) fn resume(&self, busy: &BTreeSet<u64>) -> Option<(Task, Arc<Levels>)> {
        let lists = self.runs.lists()?;
        let levels = self.readable().levels.clone();
        let (state, stale) = (self.manifest.state(), self.buffer.stage().stale());
        while let Some(unfinished) = lists.take_unfinished() {
            let view = levels.view(self.policy.levels(), busy, &state.candidates, &stale);
            let pick = pick_of_unfinished(&unfinished, |number| levels.level_of(number));
            if let Some(pick) = pick.filter(|pick| pick.breach(&view).is_none()) {
                let done = apart(unfinished.outputs);
                return Some((Task { pick, kind: RunKind::List, why: Why::Resumed, done }, levels));
            }
        }
        None
    }
}

/// The choice from which `unfinished` began, by the levels of its inputs.
fn pick_of_unfinished(unfinished: &Unfinished, level_of: impl Fn(u64) -> Option<usize>) -> Option<Pick> {
    let output = unfinished.level as usize;
    let levels: Vec<usize> =
        unfinished.inputs.iter().map(|number| level_of(*number)).collect::<Option<_>>()?;
    let level = levels.iter().copied().min()?;
    let on = |wanted: usize| {
        let numbers = unfinished.inputs.iter().zip(&levels).filter(move |(_, level)| **level == wanted);
        numbers.map(|(number, _)| *number).collect::<Vec<u64>>()
    };
    let next = if level == output { Vec::new() } else { on(output) };
    let pick = Pick { level, output, inputs: on(level), next, is_move: false };
    (pick.tables().count() == unfinished.inputs.len()).then_some(pick)
}

/// As many of `lists` as cover disjoint keys, in order. Others exist if a merge failed and was started again
/// before the crash.
fn apart(mut lists: Vec<PmList>) -> Vec<PmList> {
    lists.sort_by(|a, b| a.about().cover.from.cmp(&b.about().cover.from));
    let mut kept: Vec<PmList> = Vec::new();
    for list in lists {
        let is_behind =
            kept.last().is_none_or(|last| match (&last.about().cover.to, &list.about().cover.from) {
                (Some(to), Some(from)) => to <= from,
                _ => false,
            });
        if is_behind {
            kept.push(list);
        }
    }
    kept
}
