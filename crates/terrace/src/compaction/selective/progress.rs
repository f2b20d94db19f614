//! The promise that choices end, tested on a model store that keeps the engine's contract.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::view::TableView;
use super::{PinnedEntries, SelectiveOptions, Tombstones, View, choose};

type Key = Vec<u8>;

#[derive(Debug, Clone, PartialEq)]
struct Entry {
    key: Key,
    seq: u64,
    put: bool,
}

/// Tables, the index over them, and snapshots, without a byte of storage.
#[derive(Debug, Default)]
struct Model {
    tables: BTreeMap<u64, Vec<Entry>>,
    /// Where each live key's newest version is: sequence number and table.
    index: BTreeMap<Key, (u64, u64)>,
    /// Every version ever written.
    history: BTreeMap<Key, BTreeSet<u64>>,
    noted: BTreeSet<u64>,
    snapshots: BTreeSet<u64>,
    pins: PinnedEntries,
    seq: u64,
    file: u64,
}

impl Model {
    fn flush(&mut self, writes: &[(u8, bool)]) {
        let mut entries = Vec::new();
        self.file += 1;
        for (key, put) in writes {
            self.seq += 1;
            let key = format!("key{key:03}").into_bytes();
            self.history.entry(key.clone()).or_default().insert(self.seq);
            match put {
                true => self.index.insert(key.clone(), (self.seq, self.file)),
                false => self.index.remove(&key),
            };
            entries.push(Entry { key, seq: self.seq, put: *put });
        }
        entries.sort_by(|a, b| a.key.cmp(&b.key).then(b.seq.cmp(&a.seq)));
        self.tables.insert(self.file, entries);
    }

    fn is_live(&self, entry: &Entry) -> bool {
        entry.put && self.index.get(&entry.key).is_some_and(|(seq, _)| *seq == entry.seq)
    }

    fn needed_by_snapshot(&self, entry: &Entry) -> bool {
        let next = self.history[&entry.key].range(entry.seq + 1..).next().copied().unwrap_or(u64::MAX);
        entry.put && self.snapshots.range(entry.seq..next).next().is_some()
    }

    fn view(&self) -> View<'_> {
        let oldest = self.snapshots.first().copied();
        let tables = self.tables.iter().map(|(number, entries)| TableView {
            number: *number,
            entries: entries.len() as u64,
            deletes: entries.iter().filter(|e| !e.put).count() as u64,
            live: self.index.values().filter(|(_, file)| file == number).count() as u64,
            pinned: self.pins.active(*number, oldest),
            smallest: &entries.first().expect("no table is empty").key,
            largest: &entries.last().expect("no table is empty").key,
            min_seq: entries.iter().map(|e| e.seq).min().unwrap_or(0),
            max_seq: entries.iter().map(|e| e.seq).max().unwrap_or(0),
        });
        View { tables: tables.collect(), candidates: self.noted.clone(), busy: BTreeSet::new() }
    }

    /// The pair that every compaction must make smaller.
    fn measure(&self) -> (u64, u64) {
        let view = self.view();
        let entries: u64 = view.tables.iter().map(|t| t.entries).sum();
        let keys: BTreeSet<&Key> = self.tables.values().flatten().map(|e| &e.key).collect();
        let depth = |key: &Key| {
            view.tables.iter().filter(|t| t.smallest <= &key[..] && &key[..] <= t.largest).count() as u64
        };
        let depths: u64 = keys.into_iter().map(depth).sum();
        let dead: u64 =
            view.tables.iter().map(|t| t.entries - t.live.saturating_add(t.pinned).min(t.entries)).sum();
        (entries + depths, dead)
    }

    fn compact(&mut self, inputs: &[u64], table_entries: usize) {
        let rule = Tombstones::new(&self.view(), inputs);
        let mut merged: Vec<Entry> = inputs
            .iter()
            .flat_map(|number| {
                self.noted.remove(number);
                self.pins.forget(*number);
                self.tables.remove(number).expect("an input is a table")
            })
            .collect();
        merged.sort_by(|a, b| a.key.cmp(&b.key).then(b.seq.cmp(&a.seq)));
        let mut output: Vec<(Entry, bool)> = Vec::new();
        for versions in merged.chunk_by(|a, b| a.key == b.key) {
            let kept = self.keep(versions, &rule);
            if output.len() + kept.len() > table_entries && !output.is_empty() {
                self.add_output(std::mem::take(&mut output));
            }
            output.extend(kept);
        }
        if !output.is_empty() {
            self.add_output(output);
        }
    }

    /// Which versions of one key stay, and whether each stays only for a snapshot.
    fn keep(&self, versions: &[Entry], rule: &Tombstones) -> Vec<(Entry, bool)> {
        let mut kept = Vec::new();
        // From the oldest, since a tombstone stays if something under it does.
        for entry in versions.iter().rev() {
            let firm = self.is_live(entry) || (!entry.put && !rule.droppable(&entry.key, entry.seq));
            let pinned = self.needed_by_snapshot(entry) || (!entry.put && !kept.is_empty());
            if firm || pinned {
                kept.push((entry.clone(), !firm));
            }
        }
        kept.reverse();
        kept
    }

    fn add_output(&mut self, output: Vec<(Entry, bool)>) {
        self.file += 1;
        let pinned = output.iter().filter(|(_, pinned)| *pinned).count() as u64;
        if let Some(oldest) = self.snapshots.first() {
            self.pins.note(self.file, pinned, *oldest);
        }
        let entries: Vec<Entry> = output.into_iter().map(|(entry, _)| entry).collect();
        for entry in &entries {
            if self.is_live(entry) {
                self.index.insert(entry.key.clone(), (entry.seq, self.file));
            }
        }
        self.tables.insert(self.file, entries);
    }

    /// The tables alone must agree with the index.
    fn check(&self) {
        let mut newest: BTreeMap<&Key, &Entry> = BTreeMap::new();
        for entry in self.tables.values().flatten() {
            let slot = newest.entry(&entry.key).or_insert(entry);
            if entry.seq > slot.seq {
                *slot = entry;
            }
        }
        let alive: Vec<(&Key, u64)> = newest.values().filter(|e| e.put).map(|e| (&e.key, e.seq)).collect();
        let indexed: Vec<(&Key, u64)> = self.index.iter().map(|(key, (seq, _))| (key, *seq)).collect();
        assert_eq!(alive, indexed);
        for snapshot in &self.snapshots {
            for (key, seqs) in &self.history {
                let Some(seq) = seqs.range(..=*snapshot).next_back() else { continue };
                let held = self.tables.values().flatten().find(|e| e.key == *key && e.seq == *seq);
                let visible = self.tables.values().flatten().filter(|e| e.key == *key && e.seq <= *snapshot);
                let newest = visible.max_by_key(|e| e.seq);
                // A tombstone may be dropped, but only with everything under it.
                assert!(held == newest, "snapshot {snapshot} lost {key:?}");
            }
        }
    }

    fn compact_all(&mut self, options: &SelectiveOptions, table_entries: usize) {
        loop {
            let view = self.view();
            let Some(choice) = choose(&view, options) else { return };
            assert!(choice.inputs.is_sorted_by(|a, b| a < b));
            assert!(choice.inputs.len() <= options.max_merge_files.max(1));
            let inputs = choice.inputs;
            let before = self.measure();
            self.compact(&inputs, table_entries);
            self.check();
            assert!(self.measure() < before, "compacting {inputs:?} made no progress");
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Flush(Vec<(u8, bool)>),
    NoteAll,
    Snapshot,
    Release(prop::sample::Index),
    CompactAll,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let writes = prop::collection::vec((0u8..24, prop::bool::weighted(0.7)), 1..16);
    let step = prop_oneof![
        6 => writes.prop_map(Step::Flush),
        2 => Just(Step::NoteAll),
        1 => Just(Step::Snapshot),
        1 => any::<prop::sample::Index>().prop_map(Step::Release),
        3 => Just(Step::CompactAll),
    ];
    prop::collection::vec(step, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_choice_makes_progress_and_loses_nothing(
        steps in steps(), threshold in 0.3..1.2f64, max_merge_files in 1usize..6, table_entries in 1usize..10,
    ) {
        let options = SelectiveOptions { live_key_threshold: threshold, max_merge_files, ..Default::default() };
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Flush(writes) => model.flush(&writes),
                Step::NoteAll => model.noted = model.tables.keys().copied().collect(),
                Step::Snapshot => {
                    model.snapshots.insert(model.seq);
                }
                Step::Release(which) => {
                    if !model.snapshots.is_empty() {
                        let all: Vec<u64> = model.snapshots.iter().copied().collect();
                        model.snapshots.remove(which.get(&all));
                    }
                }
                Step::CompactAll => model.compact_all(&options, table_entries),
            }
        }
        model.compact_all(&options, table_entries);
        // With no snapshot left and everything compacted, garbage is bounded by the threshold.
        model.snapshots.clear();
        model.compact_all(&options, table_entries);
        for table in &model.view().tables {
            prop_assert!(model.view().kept(table) as f64 >= threshold.min(1.0) * table.entries as f64);
        }
    }
}
