//! The merge of one compaction, cut into parts that run in parallel where threads are free.

use std::collections::{BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use terrace_base::{Error, Result};
use terrace_index::pmlist::{Cover, PmList};
use terrace_table::{Cursor, MergeCursor, merge};

use super::task::Task;
use super::{LeveledTree, MergePart, Stage, WriteBuffer};
use crate::background::Patience;
use crate::compaction::leveled::{Pick, RunKind, split};
use crate::levels::Levels;
use crate::levels::cursor::LevelCursor;
use crate::levels::list_writer::ListJob;
use crate::levels::lists::{ListStore, meta_of};
use crate::levels::merge::Survivors;
use crate::levels::output::{Below, Outputs, Written};
use crate::levels::row::Row;
use crate::levels::run::{Made, Passed, Run};

/// Bytes read ahead from each input.
const READAHEAD_BYTES: usize = 512 << 10;

/// The outputs of a merge, in order, and the keys in the inputs that the stage had been told of.
pub(super) type Merged = (Vec<Written>, Vec<Vec<u8>>);

/// One compaction's merge, cut into parts; each is done by the first thread that takes it.
pub(super) struct Merge {
    pick: Pick,
    /// The kind of the outputs.
    kind: RunKind,
    /// Snapshots, listed after everything in the inputs had become visible.
    held: Vec<u64>,
    /// The last visible write before that: no later snapshot is older.
    visible: u64,
    patience: Patience,
    /// What the parts read; dropped with the last part, so that a helper that comes too late keeps no files.
    sources: Mutex<Option<Arc<Sources>>>,
    pub parts: usize,
    todo: Mutex<VecDeque<Part>>,
    done: Mutex<Vec<(usize, Result<Merged>)>>,
    /// Parts that are not done.
    left: AtomicUsize,
}

/// The runs being merged, and all runs that existed when the merge was chosen.
struct Sources {
    levels: Arc<Levels>,
    inputs: Row,
    next: Row,
}

/// A range of keys, without its end.
#[derive(Debug, Clone)]
struct Part {
    ordinal: usize,
    from: Option<Vec<u8>>,
    to: Option<Vec<u8>>,
}

impl Merge {
    pub fn new<B: WriteBuffer>(
        tree: &LeveledTree<B>,
        task: &Task,
        levels: &Arc<Levels>,
        patience: Patience,
    ) -> Result<Merge> {
        let pick = &task.pick;
        let find = |number: &u64| tree.runs.get(*number);
        let mut inputs: Vec<Run> = pick.inputs.iter().map(find).collect::<Result<_>>()?;
        let next: Vec<Run> = pick.next.iter().map(find).collect::<Result<_>>()?;
        inputs.sort_by(|a, b| a.meta().smallest.cmp(&b.meta().smallest));
        let part_bytes = tree.policy.outputs(pick.output).run_bytes;
        let todo = match &task.done[..] {
            [] => parts(tree, inputs.iter().chain(&next), part_bytes)?,
            done => between(done),
        };
        let resumed = tree.runs.lists().map(|store| resumed(store, tree, &task.done)).unwrap_or_default();
        let visible = tree.core.snapshots.visible();
        let sources = Sources { levels: levels.clone(), inputs: Row::of(inputs), next: Row::of(next) };
        Ok(Merge {
            pick: pick.clone(),
            kind: task.kind,
            held: tree.core.snapshots.list(),
            visible,
            patience,
            sources: Mutex::new(Some(Arc::new(sources))),
            parts: todo.len(),
            left: AtomicUsize::new(todo.len()),
            todo: Mutex::new(todo),
            // After all parts.
            done: Mutex::new(vec![(usize::MAX, Ok((resumed, Vec::new())))]),
        })
    }

    /// Does parts until none is left to begin.
    pub fn work<B: WriteBuffer>(&self, tree: &LeveledTree<B>) {
        loop {
            let Some(part) = self.todo.lock().pop_front() else { return };
            let mut ending = PartGuard { merge: self, ordinal: part.ordinal, outcome: None };
            // Dropped before `ending` is.
            let Some(sources) = self.sources.lock().clone() else { return };
            ending.outcome = Some(self.merge_part(tree, &sources, &part));
        }
    }

    fn merge_part<B: WriteBuffer>(
        &self,
        tree: &LeveledTree<B>,
        sources: &Sources,
        part: &Part,
    ) -> Result<Merged> {
        let stage = tree.buffer.stage();
        let numbers: BTreeSet<u64> = self.pick.tables().collect();
        let (from, to) = (part.from.as_deref(), part.to.as_deref());
        let (held, visible) = (&self.held[..], self.visible);
        let watched = stage.watch(&MergePart { from, to, inputs: &numbers, held, visible })?;
        let (wanted, passed, moved) =
            watched.map_or_else(Default::default, |w| (Some(w.wanted), w.passed, w.named));
        let mut children = self.children(sources, &passed);
        let inputs = children.len();
        // A version on the stage hides older ones in the inputs and stays where it is. A reader without a
        // listed snapshot sees it, or a newer version. It comes after the inputs, and so hides no copy of
        // itself: the stage leaves such a copy behind on level 0 and may be about to drop the version.
        children.extend(stage.hiding(self.visible));
        let mut cursor = merge(children);
        match &part.from {
            Some(from) => cursor.seek(from, u64::MAX)?,
            None => cursor.seek_first()?,
        }
        // Versions that stay on level 0 may hide others in other runs there. Between two versions of the inputs none
        // lies elsewhere: of two on different levels the newer is on the upper one.
        let lacks = |key: &[u8], numbers: RangeInclusive<u64>| {
            let is_between = *numbers.start() > 0;
            is_between || self.pick.output > 0 && sources.levels.lacks(self.pick.output + 1, key)
        };
        let mut survivors = Survivors::new(&self.held, lacks);
        let limits = tree.policy.outputs(self.pick.output);
        let below = self.below(sources, part, limits.overlap_bytes);
        let outputs = match tree.runs.lists().filter(|_| self.kind == RunKind::List) {
            Some(store) => {
                let job = self.list_job(part, limits.run_bytes);
                Outputs::lists(&tree.core, &tree.manifest, store, job, below)
            }
            None => Outputs::new(&tree.core, &tree.manifest, tree.writer_options(limits.run_bytes), below),
        };
        let mut outputs = outputs.noting(wanted).judged(self.pick.output);
        let look_up = || tree.jobs.look_up(self.patience);
        let is_input = |cursor: &MergeCursor| cursor.child().is_some_and(|child| child < inputs);
        outputs.add_survivors(&mut cursor, part.to.as_deref(), &mut survivors, is_input, look_up)?;
        Ok((outputs.finish()?, moved))
    }

    fn list_job(&self, part: &Part, run_bytes: u64) -> ListJob {
        ListJob {
            level: self.pick.output as u32,
            inputs: self.pick.tables().collect(),
            cover: Cover { from: part.from.clone(), to: part.to.clone() },
            run_bytes,
        }
    }

    fn children(&self, sources: &Sources, passed: &Passed) -> Vec<Box<dyn Cursor>> {
        let mut children: Vec<Box<dyn Cursor>> = Vec::new();
        if self.pick.level == 0 {
            for run in sources.inputs.iter() {
                children.push(Box::new(run.cursor_past(passed, false, READAHEAD_BYTES)));
            }
        } else {
            let level = LevelCursor::new(sources.inputs.clone(), false, READAHEAD_BYTES);
            children.push(Box::new(level.past(passed)));
        }
        if !sources.next.is_empty() {
            let level = LevelCursor::new(sources.next.clone(), false, READAHEAD_BYTES);
            children.push(Box::new(level.past(passed)));
        }
        children
    }

    fn below(&self, sources: &Sources, part: &Part, max_bytes: u64) -> Below {
        let below = sources.levels.level(self.pick.output + 1);
        let metas = below.iter().map(|run| run.meta());
        let metas = metas.filter(|meta| part.from.as_ref().is_none_or(|from| meta.largest >= *from));
        Below::new(metas.map(|meta| (meta.largest.clone(), meta.file_bytes)).collect(), max_bytes)
    }

    /// Whether every part is done.
    pub fn is_done(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    /// The outputs of all parts in order, or the error of one of them: then all outputs are removed.
    pub fn finish(&self) -> Result<Merged> {
        drop(self.sources.lock().take());
        let mut done = std::mem::take(&mut *self.done.lock());
        done.sort_by_key(|(ordinal, _)| *ordinal);
        let parts: Vec<Merged> = done.into_iter().map(|(_, outcome)| outcome).collect::<Result<_>>()?;
        let (written, moved): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        Ok((written.into_iter().flatten().collect(), moved.into_iter().flatten().collect()))
    }
}

/// Counts a part as done, however it ends.
struct PartGuard<'a> {
    merge: &'a Merge,
    ordinal: usize,
    outcome: Option<Result<Merged>>,
}

impl Drop for PartGuard<'_> {
    fn drop(&mut self) {
        let outcome = self.outcome.take();
        let outcome = outcome.unwrap_or_else(|| Err(Error::invalid("a part of a compaction panicked")));
        self.merge.done.lock().push((self.ordinal, outcome));
        self.merge.left.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Cuts the merge of `runs` into as many parts as there may be threads for, none smaller than `least` bytes.
fn parts<'a, B: WriteBuffer>(
    tree: &LeveledTree<B>,
    runs: impl Iterator<Item = &'a Run> + Clone,
    least: u64,
) -> Result<VecDeque<Part>> {
    let bytes: u64 = runs.clone().map(|t| t.meta().file_bytes).sum();
    let threads = tree.core.options.background_threads.saturating_sub(1).max(1) as u64;
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

/// The rest of a merge between finished lists, which are in order and stand for some of the keys.
fn between(done: &[PmList]) -> VecDeque<Part> {
    let (mut todo, mut from) = (VecDeque::new(), Some(None));
    for list in done {
        let cover = &list.about().cover;
        if let Some(from) = from.take().filter(|from| *from != cover.from) {
            todo.push_back(Part { ordinal: todo.len(), from, to: cover.from.clone() });
        }
        // Nothing follows one that reaches to the end.
        from = cover.to.clone().map(Some);
    }
    if let Some(from) = from {
        todo.push_back(Part { ordinal: todo.len(), from, to: None });
    }
    todo
}

/// Registers as outputs those lists that were whole when a crash cut their merge short.
fn resumed<B: WriteBuffer>(store: &Arc<ListStore>, tree: &LeveledTree<B>, done: &[PmList]) -> Vec<Written> {
    let written = |list: &PmList| {
        let (number, keeps_old) = (tree.new_file_number(), list.about().keeps_old);
        let made = Made::List(store.adopted(number, list.clone()));
        Written { meta: meta_of(number, list), made, keeps_old, written_bytes: 0, hints: Vec::new() }
    };
    done.iter().map(written).collect()
}
