//! The choice itself.

use super::view::{LevelsView, TableFigures, are_apart, bytes_of, span};
use super::{LeveledOptions, Range, Targets, Victims};
use crate::compaction::overlap::overlaps;

/// A compaction to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pick {
    /// The level to relieve.
    pub level: usize,
    /// The level of the outputs.
    pub output: usize,
    /// Tables of `level`.
    pub inputs: Vec<u64>,
    /// Tables of `output` that are merged with them.
    pub next: Vec<u64>,
    /// Nothing has to be merged or dropped: the inputs merely change their level.
    pub is_move: bool,
}

impl Pick {
    fn new(
        view: &LevelsView<'_>,
        levels: (usize, usize),
        inputs: &[TableFigures<'_>],
        next: &[TableFigures<'_>],
    ) -> Pick {
        let (level, output) = levels;
        let numbers = |tables: &[TableFigures<'_>]| tables.iter().map(|t| t.number).collect();
        // Tombstones end where nothing below is left to hide: they must be merged to be dropped.
        let stays = |t: &TableFigures<'_>| t.holds_garbage() && view.is_bottom(output, t.range());
        let is_move = level != output && next.is_empty() && are_apart(inputs) && !inputs.iter().any(stays);
        Pick { level, output, inputs: numbers(inputs), next: numbers(next), is_move }
    }

    /// The rule in the head of [`leveled`](super) that it breaks in `view`, if any: the last defence against
    /// a wrong policy.
    pub fn breach(&self, view: &LevelsView<'_>) -> Option<&'static str> {
        let is_in = |numbers: &[u64], t: &TableFigures<'_>| numbers.contains(&t.number);
        let split = |level: usize, numbers: &[u64]| -> (Vec<TableFigures<'_>>, Vec<TableFigures<'_>>) {
            view.levels.get(level).into_iter().flatten().copied().partition(|t| is_in(numbers, t))
        };
        let ((inputs, left), (next, _)) = (split(self.level, &self.inputs), split(self.output, &self.next));
        let reach = inputs.iter().map(|t| t.max_seq).max().unwrap_or(0);
        let below = self.output > self.level;
        let passed = |level: usize| !view.overlapping(level, span(&inputs)).is_empty();
        let not_merged = |t: &TableFigures<'_>| !is_in(&self.next, t);
        let rules = [
            (inputs.is_empty() || inputs.len() < self.inputs.len(), "inputs that are not on their level"),
            (next.len() < self.next.len(), "tables to merge with that are not on the output's level"),
            (self.output >= view.levels.len() || self.output < self.level, "an output on no lower level"),
            (inputs.iter().chain(&next).any(|t| t.busy), "a table that is being compacted"),
            (self.is_move && !next.is_empty(), "a move on top of other tables"),
            (self.is_move && !are_apart(&inputs), "a move of tables that overlap"),
            (
                below && self.level == 0 && left.iter().any(|t| t.min_seq < reach),
                "an older table left on level 0",
            ),
            ((self.level + 1..self.output).any(passed), "a level passed over that holds older versions"),
            (
                below && view.overlapping(self.output, span(&inputs)).iter().any(not_merged),
                "a table that its outputs overlap",
            ),
        ];
        rules.into_iter().find_map(|(is_broken, rule)| is_broken.then_some(rule))
    }

    /// Every table that it reads.
    pub fn tables(&self) -> impl Iterator<Item = u64> {
        self.inputs.iter().chain(&self.next).copied()
    }
}

/// The most worthwhile compaction, if there is one. `oldest` is the oldest held snapshot.
pub fn choose(
    view: &LevelsView<'_>,
    options: &LeveledOptions,
    victims: &impl Victims,
    oldest: Option<u64>,
) -> Option<Pick> {
    let targets = Targets::new(&view.sizes(), options);
    let mut scores: Vec<(f64, usize)> = (0..view.levels.len().saturating_sub(1))
        .map(|level| (score(view, &targets, options, level), level))
        .collect();
    scores.sort_by(|a, b| b.0.total_cmp(&a.0));
    let due = scores.iter().take_while(|(score, _)| *score >= 1.0);
    due.map(|(_, level)| *level)
        .find_map(|level| match level {
            0 => from_level_0(view, targets.base, options.max_merge_bytes),
            level => from_level(view, level, options, victims),
        })
        .or_else(|| released(view, oldest))
}

/// The urgency of relieving `level`; from 1 on it is due.
fn score(view: &LevelsView<'_>, targets: &Targets, options: &LeveledOptions, level: usize) -> f64 {
    let tables = &view.levels[level];
    let idle: u64 = tables.iter().filter(|t| !t.busy).map(|t| t.bytes).sum();
    if level > 0 {
        // A level above the base is left from a time with more data. Stale bytes do not burden a level: a
        // merge drops them, but they are not worth a merge of their own.
        let live: u64 = tables.iter().filter(|t| !t.busy).map(TableFigures::live).sum();
        return if level < targets.base && idle > 0 {
            2.0
        } else {
            live as f64 / targets.bytes[level] as f64
        };
    }
    let count = tables.len() as f64 / options.l0_trigger.max(1) as f64;
    count.max(idle as f64 / options.base_bytes.max(1) as f64)
}

/// The oldest tables of level 0, all of them if that is not too much. One such compaction runs at a time.
fn from_level_0(view: &LevelsView<'_>, base: usize, max_bytes: u64) -> Option<Pick> {
    let tables = &view.levels[0];
    if tables.is_empty() || tables.iter().any(|t| t.busy) {
        return None;
    }
    let mut oldest_first: Vec<TableFigures<'_>> = tables.clone();
    oldest_first.sort_by_key(|t| t.max_seq);
    let (mut bytes, mut reach) = (0, 0);
    let taken = oldest_first.iter().zip(earliest(&oldest_first)).take_while(|(t, earliest)| {
        // After a repair tables may be newer or older than one another, neighbours or not: every table that
        // stays must be newer than all that go.
        // Those of one ingest have one number, and do not overlap.
        let goes = bytes < max_bytes || *earliest < reach;
        (bytes, reach) = (bytes + t.bytes, reach.max(t.max_seq));
        goes
    });
    let inputs: Vec<TableFigures<'_>> = taken.map(|(table, _)| *table).collect();
    let next = view.overlapping(base, span(&inputs));
    let free = !next.iter().any(|t| t.busy);
    free.then(|| Pick::new(view, (0, base), &inputs, next))
}

/// For each table the smallest sequence number in it and those after it.
fn earliest(tables: &[TableFigures<'_>]) -> Vec<u64> {
    let least = |least: &mut u64, table: &TableFigures<'_>| {
        *least = (*least).min(table.min_seq);
        Some(*least)
    };
    let mut earliest: Vec<u64> = tables.iter().rev().scan(u64::MAX, least).collect();
    earliest.reverse();
    earliest
}

/// The first of the level's tables, by rank, that needs no busy one.
fn from_level(
    view: &LevelsView<'_>,
    level: usize,
    options: &LeveledOptions,
    victims: &impl Victims,
) -> Option<Pick> {
    let rank = |t: &TableFigures<'_>| victims.rank(t, bytes_of(view.overlapping(level + 1, t.range())));
    let mut ranked: Vec<(f64, TableFigures<'_>)> =
        view.levels[level].iter().filter(|t| !t.busy).map(|t| (rank(t), *t)).collect();
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
    ranked.into_iter().find_map(|(_, table)| around(view, level, &[table], options.max_merge_bytes))
}

/// The compaction of `inputs`, tables of `level`, into the next; `None` if that needs a busy table. More tables of
/// the level are included if they need nothing more from the next.
fn around(view: &LevelsView<'_>, level: usize, inputs: &[TableFigures<'_>], max_bytes: u64) -> Option<Pick> {
    let next = view.overlapping(level + 1, span(inputs));
    if next.iter().chain(inputs).any(|t| t.busy) {
        return None;
    }
    let mut inputs = inputs.to_vec();
    if !next.is_empty() {
        let both = [&inputs[..], next].concat();
        let more = view.overlapping(level, span(&both));
        let same = view.overlapping(level + 1, span(&[more, next].concat())).len() == next.len();
        if same && !more.iter().any(|t| t.busy) && bytes_of(more) + bytes_of(next) <= max_bytes {
            inputs = more.to_vec();
        }
    }
    Some(Pick::new(view, (level, level + 1), &inputs, next))
}

/// A table of the last level with entries that had to stay for released snapshots. Every remaining snapshot
/// sees the newest versions in it and no others, so merging it with itself removes those entries.
fn released(view: &LevelsView<'_>, oldest: Option<u64>) -> Option<Pick> {
    let last = view.levels.len().checked_sub(1)?;
    let droppable = |t: &&TableFigures<'_>| t.holds_garbage() && oldest.is_none_or(|seq| t.max_seq <= seq);
    let table = view.levels[last].iter().filter(|t| !t.busy).find(droppable)?;
    Some(rewrite_table(last, table))
}

fn rewrite_table(level: usize, table: &TableFigures<'_>) -> Pick {
    Pick { level, output: level, inputs: vec![table.number], next: Vec::new(), is_move: false }
}

/// The first compaction that moves the part of `range` on `level` one level down, among tables from key
/// `after` on: for a caller that wants everything merged. Nothing is busy meanwhile.
pub fn pick_range(
    view: &LevelsView<'_>,
    level: usize,
    range: Range<'_>,
    options: &LeveledOptions,
) -> Option<Pick> {
    let inside = |t: &&TableFigures<'_>| t.largest >= range.0 && range.1.is_none_or(|end| t.smallest <= end);
    if level == 0 {
        let base = Targets::new(&view.sizes(), options).base;
        let any = view.levels[0].iter().any(|t| inside(&t));
        return any.then(|| from_level_0(view, base, u64::MAX)).flatten();
    }
    let mut inputs: Vec<TableFigures<'_>> = Vec::new();
    for table in view.levels[level].iter().filter(inside) {
        let next = view.overlapping(level + 1, span(&[&inputs[..], &[*table]].concat()));
        if !inputs.is_empty() && bytes_of(&inputs) + bytes_of(next) > options.max_merge_bytes {
            break;
        }
        inputs.push(*table);
    }
    if inputs.is_empty() { None } else { around(view, level, &inputs, 0) }
}

/// The first table of the last level with keys of `range` that holds garbage and is not done yet: merging it
/// with itself drops what no snapshot needs any more. With `whole`, the first one that is not done, whatever it holds.
pub fn rewrite(
    view: &LevelsView<'_>,
    range: Range<'_>,
    whole: bool,
    is_done: &dyn Fn(u64) -> bool,
) -> Option<Pick> {
    let last = view.levels.len().checked_sub(1)?;
    let end = range.1;
    let inside =
        |t: &&TableFigures<'_>| end.map_or(t.largest >= range.0, |end| overlaps(t.range(), (range.0, end)));
    let table = view.levels[last]
        .iter()
        .filter(inside)
        .find(|t| (whole || t.holds_garbage()) && !is_done(t.number))?;
    Some(rewrite_table(last, table))
}
