//! Targets and delays by example; choices on a model store, where they must end, keep the levels in order and
//! lose nothing.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::debt::debt;
use super::view::span;
use super::*;
use crate::compaction::overlap::overlaps;

fn options() -> LeveledOptions {
    LeveledOptions { levels: 7, base_bytes: 256, ..LeveledOptions::default() }
}

fn figures(number: u64, seqs: (u64, u64)) -> TableFigures<'static> {
    TableFigures {
        number,
        bytes: 100,
        entries: 1,
        deletes: 0,
        smallest: b"a",
        largest: b"b",
        min_seq: seqs.0,
        max_seq: seqs.1,
        busy: false,
        keeps_old: false,
        stale: 0,
    }
}

/// Tables that a repair has put on level 0: 3 holds something older than 1 does, and 2, between them, does
/// not.
#[test]
fn what_stays_on_level_0_is_newer_than_all_that_goes() {
    let options = LeveledOptions { levels: 2, l0_trigger: 1, max_merge_bytes: 100, ..options() };
    let policy = LeveledPolicy::new(options, 100, LeastOverlap);
    let chosen = |tables: &[TableFigures<'static>]| {
        let view = LevelsView { levels: vec![tables.to_vec(), Vec::new()] };
        let pick = policy.choose(&view, None).expect("level 0 is over its target");
        assert_eq!(pick.breach(&view), None);
        pick.inputs
    };
    assert_eq!(chosen(&[figures(3, (2, 12)), figures(2, (7, 9)), figures(1, (1, 5))]), [1, 2, 3]);
    assert_eq!(chosen(&[figures(3, (10, 12)), figures(2, (7, 9)), figures(1, (1, 5))]), [1]);
}

/// A database created with seven levels is opened with three.
#[test]
fn levels_that_are_there_have_targets_though_fewer_are_asked_for() {
    let options = LeveledOptions { levels: 3, ..LeveledOptions::default() };
    let sizes = [0, 0, 0, 0, 0, 0, 1 << 20];
    let targets = Targets::new(&sizes, &options);
    assert_eq!((targets.base, targets.bytes.len()), (6, 7));
    assert_eq!(debt(&sizes, 0, &targets, &options), 0);
}

/// A rule, and a choice that breaks it: source level, output level, and the tables of each.
type Breach = (&'static str, (usize, usize), &'static [u64], &'static [u64]);

#[test]
fn choices_that_break_a_rule_are_told() {
    let busy = TableFigures { busy: true, ..figures(5, (1, 1)) };
    let levels = vec![
        vec![figures(2, (8, 9)), figures(1, (6, 7))],
        vec![figures(3, (5, 5))],
        vec![figures(4, (3, 4))],
        vec![busy],
    ];
    let view = LevelsView { levels };
    let breaches: [Breach; 7] = [
        ("inputs that are not on their level", (0, 1), &[3], &[]),
        ("tables to merge with that are not on the output's level", (0, 1), &[1, 2], &[4]),
        ("an output on no lower level", (1, 0), &[3], &[]),
        ("a table that is being compacted", (2, 3), &[4], &[5]),
        ("an older table left on level 0", (0, 1), &[2], &[3]),
        ("a level passed over that holds older versions", (0, 2), &[1, 2], &[4]),
        ("a table that its outputs overlap", (1, 2), &[3], &[]),
    ];
    for (rule, (level, output), inputs, next) in breaches {
        let pick = Pick { level, output, inputs: inputs.into(), next: next.into(), is_move: false };
        assert_eq!(pick.breach(&view), Some(rule), "{pick:?}");
    }
    let sound = Pick { level: 1, output: 2, inputs: vec![3], next: vec![4], is_move: false };
    assert_eq!(sound.breach(&view), None);
    assert_eq!(Pick { is_move: true, ..sound }.breach(&view), Some("a move on top of other tables"));
    let onto_nothing = LevelsView { levels: vec![view.levels[0].clone(), Vec::new()] };
    let together = Pick { level: 0, output: 1, inputs: vec![1, 2], next: Vec::new(), is_move: true };
    assert_eq!(together.breach(&onto_nothing), Some("a move of tables that overlap"));
    assert_eq!(Pick { is_move: false, ..together }.breach(&onto_nothing), None);
}

#[derive(Debug, Clone, PartialEq)]
struct Entry {
    key: Vec<u8>,
    seq: u64,
    put: bool,
}

#[derive(Debug, Clone)]
struct Table {
    level: usize,
    entries: Vec<Entry>,
}

/// A leveled store without a byte of storage.
#[derive(Debug)]
struct Model {
    policy: Box<dyn LevelPolicy>,
    tables: BTreeMap<u64, Table>,
    snapshots: BTreeSet<u64>,
    noted: BTreeSet<u64>,
    /// The newest version of each key at each snapshot's sequence number, and now.
    history: BTreeMap<Vec<u8>, Vec<(u64, bool)>>,
    seq: u64,
    number: u64,
}

/// The real compaction, with small levels: `scale` is the model's bytes for one entry.
fn leveled(victims: impl Victims + 'static, scale: u64) -> Box<dyn LevelPolicy> {
    let options = LeveledOptions {
        levels: 5,
        l0_trigger: 2,
        base_bytes: 6 * scale,
        multiplier: 3.0,
        max_merge_bytes: 10 * scale,
    };
    Box::new(LeveledPolicy::new(options, 4 * scale, victims))
}

/// Ways to decide, the usual one and others, for runs whose entries take about `scale` bytes.
pub fn policies(scale: u64) -> [Box<dyn LevelPolicy>; 3] {
    [leveled(LeastOverlap, scale), leveled(MostDeletes, scale), Box::new(TwoLevels { run_bytes: 4 * scale })]
}

/// Another rule for victims: the table with the most tombstones.
#[derive(Debug)]
struct MostDeletes;

impl Victims for MostDeletes {
    fn rank(&self, table: &TableFigures<'_>, _overlap: u64) -> f64 {
        -(table.deletes as f64)
    }
}

/// Another policy: one level below level 0, and everything is merged into it as soon as two tables wait.
#[derive(Debug)]
struct TwoLevels {
    run_bytes: u64,
}

impl TwoLevels {
    fn everything(view: &LevelsView<'_>) -> Pick {
        let numbers = |level: usize| view.levels[level].iter().map(|t| t.number).collect();
        Pick { level: 0, output: 1, inputs: numbers(0), next: numbers(1), is_move: false }
    }
}

impl LevelPolicy for TwoLevels {
    fn levels(&self) -> usize {
        2
    }

    fn choose(&self, view: &LevelsView<'_>, _oldest: Option<u64>) -> Option<Pick> {
        (view.levels[0].len() >= 2).then(|| Self::everything(view))
    }

    fn choose_in(&self, view: &LevelsView<'_>, level: usize, range: Range<'_>) -> Option<Pick> {
        let tables = &view.levels[level];
        let (from, to) = (range.0, range.1.unwrap_or(span(tables).1));
        tables.iter().any(|t| overlaps(t.range(), (from, to))).then(|| Self::everything(view))
    }

    fn base(&self, _sizes: &[u64]) -> usize {
        1
    }

    fn outputs(&self, _level: usize) -> OutputLimits {
        OutputLimits { run_bytes: self.run_bytes, overlap_bytes: u64::MAX }
    }

    fn debt(&self, sizes: &[u64], l0_runs: usize) -> u64 {
        if l0_runs < 2 { 0 } else { sizes.iter().sum() }
    }
}

impl Model {
    fn new(policy: Box<dyn LevelPolicy>) -> Model {
        Model {
            policy,
            tables: BTreeMap::new(),
            snapshots: BTreeSet::new(),
            noted: BTreeSet::new(),
            history: BTreeMap::new(),
            seq: 0,
            number: 0,
        }
    }

    fn view(&self) -> LevelsView<'_> {
        let mut levels: Vec<Vec<TableFigures<'_>>> = vec![Vec::new(); self.policy.levels()];
        for (number, table) in &self.tables {
            let seqs = || table.entries.iter().map(|e| e.seq);
            levels[table.level].push(TableFigures {
                number: *number,
                bytes: table.entries.len() as u64 * 10,
                entries: table.entries.len() as u64,
                deletes: table.entries.iter().filter(|e| !e.put).count() as u64,
                smallest: &table.entries[0].key,
                largest: &table.entries[table.entries.len() - 1].key,
                min_seq: seqs().min().unwrap_or(0),
                max_seq: seqs().max().unwrap_or(0),
                busy: false,
                keeps_old: self.noted.contains(number),
                // Any value will do: it only affects which tables go first, and when.
                stale: number % 4 * 10,
            });
        }
        for (level, tables) in levels.iter_mut().enumerate() {
            match level {
                0 => tables.sort_by_key(|t| std::cmp::Reverse(t.max_seq)),
                _ => tables.sort_by_key(|t| t.smallest),
            }
        }
        LevelsView { levels }
    }

    fn add(&mut self, level: usize, entries: Vec<Entry>) {
        self.number += 1;
        if entries.windows(2).any(|pair| pair[0].key == pair[1].key) {
            self.noted.insert(self.number);
        }
        self.tables.insert(self.number, Table { level, entries });
    }

    fn flush(&mut self, writes: &[(u8, bool)]) {
        let mut entries = Vec::new();
        for (key, put) in writes {
            self.seq += 1;
            let key = vec![*key];
            self.history.entry(key.clone()).or_default().push((self.seq, *put));
            entries.push(Entry { key, seq: self.seq, put: *put });
        }
        entries.sort_by(|a, b| a.key.cmp(&b.key).then(b.seq.cmp(&a.seq)));
        self.add(0, entries);
    }

    fn execute(&mut self, pick: &Pick) {
        assert_eq!(pick.breach(&self.view()), None, "{pick:?}");
        if pick.is_move {
            for number in &pick.inputs {
                self.tables.get_mut(number).expect("an input is a table").level = pick.output;
            }
            return;
        }
        let mut entries: Vec<Entry> = Vec::new();
        for number in pick.tables() {
            self.noted.remove(&number);
            entries.extend(self.tables.remove(&number).expect("an input is a table").entries);
        }
        entries.sort_by(|a, b| a.key.cmp(&b.key).then(b.seq.cmp(&a.seq)));
        let mut newer: Option<Entry> = None;
        let kept: Vec<Entry> =
            entries.into_iter().filter(|entry| self.keeps(entry, &mut newer, pick)).collect();
        let mut output: Vec<Entry> = Vec::new();
        for entry in kept {
            if output.len() >= 4 && output.last().is_some_and(|last| last.key != entry.key) {
                self.add(pick.output, std::mem::take(&mut output));
            }
            output.push(entry);
        }
        if !output.is_empty() {
            self.add(pick.output, output);
        }
    }

    fn keeps(&self, entry: &Entry, newer: &mut Option<Entry>, pick: &Pick) -> bool {
        let above = newer.replace(entry.clone()).filter(|n| n.key == entry.key);
        if above.is_some_and(|n| self.snapshots.range(entry.seq..n.seq).next().is_none()) {
            return false;
        }
        let range = (&entry.key[..], &entry.key[..]);
        let hides =
            !self.view().is_bottom(pick.output, range) || self.snapshots.range(..entry.seq).next().is_some();
        entry.put || hides
    }

    /// Tables of a level are disjoint, newer versions lie above older ones, and every reader gets the right
    /// answer.
    fn check(&self) {
        let view = self.view();
        for tables in &view.levels[1..] {
            assert!(tables.windows(2).all(|pair| pair[0].largest < pair[1].smallest), "{tables:?}");
        }
        for (key, versions) in &self.history {
            for at in self.snapshots.iter().copied().chain([u64::MAX]) {
                let expected = versions.iter().rev().find(|(seq, _)| *seq <= at).is_some_and(|(_, put)| *put);
                assert_eq!(self.read(&view, key, at), expected, "{key:?} at {at}");
            }
        }
    }

    /// Like a reader: the first level with a version decides which is the newest.
    fn read(&self, view: &LevelsView<'_>, key: &[u8], at: u64) -> bool {
        for tables in &view.levels {
            let covering = tables.iter().filter(|t| overlaps(t.range(), (key, key)));
            let versions = covering.flat_map(|t| &self.tables[&t.number].entries);
            let newest = versions.filter(|e| e.key == key && e.seq <= at).max_by_key(|e| e.seq);
            if let Some(newest) = newest {
                return newest.put;
            }
        }
        false
    }

    fn compact_until_at_rest(&mut self) {
        for _ in 0..2000 {
            let oldest = self.snapshots.first().copied();
            let Some(pick) = self.policy.choose(&self.view(), oldest) else { return };
            self.execute(&pick);
            self.check();
        }
        panic!("choices do not end: {:?}", self.view());
    }

    fn repair(&mut self) {
        self.tables.values_mut().for_each(|table| table.level = 0);
        self.noted = self.tables.keys().copied().collect();
    }

    /// Everything to the last level, and rewritten there.
    fn compact_all(&mut self) {
        for level in 0..self.policy.levels() - 1 {
            while let Some(pick) = self.policy.choose_in(&self.view(), level, (&[], None)) {
                self.execute(&pick);
                self.check();
            }
        }
        let start = self.number;
        while let Some(pick) = rewrite(&self.view(), (&[], None), false, &|number| number > start) {
            self.execute(&pick);
            self.check();
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Flush(Vec<(u8, bool)>),
    Snapshot,
    Release(prop::sample::Index),
    One,
    Rest,
    CompactAll,
    /// A repair that cannot read the manifest puts every table on level 0.
    Repair,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let writes = prop::collection::vec((0u8..40, prop::bool::weighted(0.75)), 1..14);
    let step = prop_oneof![
        8 => writes.prop_map(Step::Flush),
        1 => Just(Step::Snapshot),
        1 => any::<prop::sample::Index>().prop_map(Step::Release),
        3 => Just(Step::One),
        3 => Just(Step::Rest),
        1 => Just(Step::CompactAll),
        1 => Just(Step::Repair),
    ];
    prop::collection::vec(step, 1..40)
}

fn take(model: &mut Model, step: Step) {
    match step {
        Step::Flush(writes) => model.flush(&writes),
        Step::Snapshot => drop(model.snapshots.insert(model.seq)),
        Step::Release(which) => {
            let all: Vec<u64> = model.snapshots.iter().copied().collect();
            if !all.is_empty() {
                model.snapshots.remove(which.get(&all));
            }
        }
        Step::One => {
            if let Some(pick) = model.policy.choose(&model.view(), None) {
                // With a snapshot held this may achieve nothing, but must do no harm.
                model.execute(&pick);
            }
        }
        Step::Rest => model.compact_until_at_rest(),
        Step::CompactAll => model.compact_all(),
        Step::Repair => model.repair(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn choices_end_and_lose_nothing(steps in steps()) {
        for policy in policies(10) {
            let mut model = Model::new(policy);
            for step in steps.clone() {
                take(&mut model, step);
                model.check();
            }
            model.snapshots.clear();
            model.compact_until_at_rest();
            model.compact_all();
            // Only the newest put of each key is left.
            let is_live = |versions: &&Vec<(u64, bool)>| versions.last().is_some_and(|(_, put)| *put);
            let live = model.history.values().filter(is_live).count();
            let left: usize = model.tables.values().map(|t| t.entries.len()).sum();
            prop_assert_eq!(left, live, "{:?}", model.policy);
        }
    }
}
