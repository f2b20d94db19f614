//! Choices on a store without a byte of storage: jobs start, fail and end in any order beside flushes and snapshots.
//! Every reader gets the right answer, choices end, and what no snapshot needs is dropped.
//!
//! As in the engine, flushed writes may not be visible yet, and the part of a bucket that newer versions hide
//! is an estimate: from samples and filters, and out of date.

mod steps;

use std::collections::{BTreeMap, BTreeSet};

use super::tests::cuts;
use super::*;

/// Bytes of one entry.
const ENTRY_BYTES: u64 = 10;

/// The error of an estimate.
#[derive(Debug, Clone, Copy)]
enum Estimate {
    /// Always right.
    Right,
    /// This many fourths of the truth, noted whenever a level was merged, and forgotten with the whole
    /// bucket.
    Noted(u8),
}

#[derive(Debug, Clone, PartialEq)]
struct Entry {
    key: Vec<u8>,
    seq: u64,
    put: bool,
}

#[derive(Debug, Clone)]
struct Table {
    level: u32,
    entries: Vec<Entry>,
    busy: bool,
}

#[derive(Debug, Clone, Default)]
struct Bucket {
    tables: BTreeMap<u64, Table>,
    merged: u64,
    /// The last noted estimate.
    overlap: f64,
}

/// Running jobs by the lower bounds of their buckets: none is joined or split while a job runs in it.
#[derive(Debug)]
struct Job {
    bucket: Vec<u8>,
    inputs: Vec<u64>,
    /// The level that it relieves; `None` if it merges the whole bucket.
    level: Option<u32>,
}

#[derive(Debug)]
struct Model {
    options: BucketOptions,
    estimate: Estimate,
    /// Bytes of a table beside its entries.
    table_bytes: u64,
    buckets: BTreeMap<Vec<u8>, Bucket>,
    jobs: Vec<Job>,
    snapshots: BTreeSet<u64>,
    history: BTreeMap<Vec<u8>, Vec<(u64, bool)>>,
    seq: u64,
    /// The number that readers see.
    visible: u64,
    number: u64,
    /// The number of jobs begun.
    begun: usize,
}

fn tables_of(bucket: &Bucket, table_bytes: u64) -> Vec<BucketTable<'_>> {
    let figures = |(number, table): (&u64, &'_ Table)| {
        let entries = &table.entries;
        (*number, table.level, entries.iter().filter(|e| !e.put).count() as u64, table.busy)
    };
    let whole = bucket.tables.iter().map(|pair| (figures(pair), &pair.1.entries));
    whole
        .map(|((number, level, deletes, busy), entries)| BucketTable {
            number,
            level,
            bytes: table_bytes + entries.len() as u64 * ENTRY_BYTES,
            entries: entries.len() as u64,
            deletes,
            smallest: &entries[0].key,
            largest: &entries[entries.len() - 1].key,
            keeps_old: entries.windows(2).any(|pair| pair[0].key == pair[1].key),
            max_seq: entries.iter().map(|e| e.seq).max().unwrap_or(0),
            busy,
        })
        .collect()
}

/// The share of entries whose key is in an older table too.
fn overlap(bucket: &Bucket) -> f64 {
    let keys = |table: &Table| -> BTreeSet<Vec<u8>> { table.entries.iter().map(|e| e.key.clone()).collect() };
    let older = |number: &u64, key: &Vec<u8>| {
        bucket.tables.range(..number).any(|(_, t)| t.entries.iter().any(|e| e.key == *key))
    };
    let all: Vec<bool> = bucket
        .tables
        .iter()
        .flat_map(|(number, table)| keys(table).into_iter().map(move |key| older(number, &key)))
        .collect();
    all.iter().filter(|is| **is).count() as f64 / all.len().max(1) as f64
}

impl Model {
    fn new(options: BucketOptions) -> Model {
        Model {
            options,
            estimate: Estimate::Right,
            table_bytes: 0,
            buckets: BTreeMap::from([(Vec::new(), Bucket::default())]),
            jobs: Vec::new(),
            snapshots: BTreeSet::new(),
            history: BTreeMap::new(),
            seq: 0,
            visible: 0,
            number: 0,
            begun: 0,
        }
    }

    /// The moments that readers see, or may come to see.
    fn seen(&self) -> BTreeSet<u64> {
        self.snapshots.iter().copied().chain([self.visible]).collect()
    }

    fn bucket_of(&mut self, key: &[u8]) -> &mut Bucket {
        let (_, bucket) =
            self.buckets.range_mut(..=key.to_vec()).next_back().expect("one is from the empty key");
        bucket
    }

    /// The entries of some tables that stay: versions that somebody sees, and tombstones unless they are at
    /// the bottom.
    fn dropped(&self, mut entries: Vec<Entry>, is_bottom: bool) -> Vec<Entry> {
        entries.sort_by(|a, b| a.key.cmp(&b.key).then(b.seq.cmp(&a.seq)));
        let seen = self.seen();
        let mut newer: Option<Entry> = None;
        entries.retain(|entry| {
            let above = newer.replace(entry.clone()).filter(|n| n.key == entry.key);
            let hidden = above.is_some_and(|n| seen.range(entry.seq..n.seq).next().is_none());
            let needed = entry.put || !is_bottom || seen.range(..entry.seq).next().is_some();
            !hidden && needed
        });
        entries
    }

    fn add(&mut self, bucket: &[u8], level: u32, entries: Vec<Entry>) {
        if !entries.is_empty() {
            self.number += 1;
            let table = Table { level, entries, busy: false };
            let number = self.number;
            self.bucket_of(bucket).tables.insert(number, table);
        }
    }

    /// Flushes what is written and visible.
    fn flush(&mut self, writes: &[(u8, bool)]) {
        self.flush_unseen(writes);
        self.visible = self.seq;
    }

    fn flush_unseen(&mut self, writes: &[(u8, bool)]) {
        let mut of_bucket: BTreeMap<Vec<u8>, Vec<Entry>> = BTreeMap::new();
        for (key, put) in writes {
            self.seq += 1;
            let entry = Entry { key: vec![*key], seq: self.seq, put: *put };
            self.history.entry(entry.key.clone()).or_default().push((entry.seq, entry.put));
            let (lower, _) =
                self.buckets.range(..=entry.key.clone()).next_back().expect("one is from the empty key");
            of_bucket.entry(lower.clone()).or_default().push(entry);
        }
        for (lower, entries) in of_bucket {
            let kept = self.dropped(entries, false);
            self.add(&lower, 0, kept);
        }
    }

    /// Starts the chosen job; returns whether there was one.
    fn start(&mut self, reads: u64) -> bool {
        let figures: Vec<BucketFigures> = self
            .buckets
            .iter()
            .map(|(lower, b)| {
                let seed = lower.first().map_or(0, |byte| u64::from(*byte));
                let overlap = match self.estimate {
                    Estimate::Right => overlap(b),
                    Estimate::Noted(_) => b.overlap,
                };
                BucketFigures::new(&tables_of(b, self.table_bytes), overlap, b.merged, seed)
            })
            .collect();
        let reads = vec![[reads; LEVELS]; figures.len()];
        let oldest = self.seen().first().copied();
        let Some(pick) = choose(&figures, &reads, &self.options, oldest) else { return false };
        let lowers: Vec<Vec<u8>> = self.buckets.keys().cloned().collect();
        self.begun += 1;
        match pick {
            Pick::Level { bucket, level } => {
                assert!(level < LEVELS - 1, "the last level has none below");
                assert!(figures[bucket].levels[level].bytes <= self.options.room);
                self.start_job(lowers[bucket].clone(), Some(level as u32));
            }
            Pick::Whole { bucket } => {
                assert!(!figures[bucket].is_busy && figures[bucket].is_full(&self.options, oldest));
                assert!(figures[bucket].bytes_to_merge() <= self.options.room);
                self.start_job(lowers[bucket].clone(), None);
            }
            Pick::Join { left } => {
                assert!(!figures[left].is_busy && !figures[left + 1].is_busy);
                let right = self.buckets.remove(&lowers[left + 1]).expect("it is there");
                let bucket = self.bucket_of(&lowers[left]);
                bucket.tables.extend(right.tables);
                (bucket.merged, bucket.overlap) = (0, 0.0);
            }
        }
        true
    }

    fn start_job(&mut self, bucket: Vec<u8>, level: Option<u32>) {
        let tables = &mut self.buckets.get_mut(&bucket).expect("it is there").tables;
        let reads = |t: &Table| level.is_none_or(|level| t.level == level);
        let inputs: Vec<u64> = tables.iter().filter(|(_, t)| reads(t)).map(|(number, _)| *number).collect();
        for number in &inputs {
            let table = tables.get_mut(number).expect("it is there");
            assert!(!table.busy, "two jobs read one table");
            table.busy = true;
        }
        self.jobs.push(Job { bucket, inputs, level });
    }

    fn finish(&mut self, at: usize) {
        if self.jobs.is_empty() {
            return;
        }
        let job = self.jobs.remove(at % self.jobs.len());
        match job.level {
            Some(level) => {
                let entries = self.take(&job.bucket, &job.inputs);
                let kept = self.dropped(entries, false);
                self.add(&job.bucket, level + 1, kept);
                if let Estimate::Noted(fourths) = self.estimate {
                    self.bucket_of(&job.bucket).overlap = f64::from(fourths) / 4.0;
                }
            }
            None => self.finish_whole(&job),
        }
    }

    /// A running job fails.
    fn fail(&mut self, at: usize) {
        if self.jobs.is_empty() {
            return;
        }
        let job = self.jobs.remove(at % self.jobs.len());
        let tables = &mut self.bucket_of(&job.bucket).tables;
        job.inputs.iter().for_each(|number| tables.get_mut(number).expect("it is there").busy = false);
    }

    fn take(&mut self, bucket: &[u8], numbers: &[u64]) -> Vec<Entry> {
        let tables = &mut self.bucket_of(bucket).tables;
        numbers.iter().flat_map(|n| tables.remove(n).expect("an input is a table").entries).collect()
    }

    fn finish_whole(&mut self, job: &Job) {
        let bucket = self.bucket_of(&job.bucket).clone();
        let read: Vec<BucketTable<'_>> = tables_of(&bucket, self.table_bytes)
            .into_iter()
            .filter(|t| job.inputs.contains(&t.number))
            .collect();
        let kept = kept(&read, 3 * ENTRY_BYTES..=self.options.capacity / 4);
        let keys = |i: usize| bucket.tables[&read[i].number].entries.iter().map(|e| e.key.clone()).collect();
        let cuts = cuts(&read, keys, &kept, &self.options);
        let merged: Vec<u64> = job.inputs.iter().copied().filter(|n| !kept.contains(n)).collect();
        let entries = self.take(&job.bucket, &merged);
        let entries = self.dropped(entries, true);
        let options = self.options.clone();
        let table_bytes = self.table_bytes;
        let bucket = self.bucket_of(&job.bucket);
        for number in &kept {
            let table = bucket.tables.get_mut(number).expect("it is there");
            (table.busy, table.level) = (false, LEVELS as u32 - 1);
        }
        let left: u64 = kept.iter().map(|n| bucket.tables[n].entries.len() as u64).sum();
        let tables = kept.len() as u64 + u64::from(!entries.is_empty());
        let left = (left + entries.len() as u64) * ENTRY_BYTES + tables * table_bytes;
        (bucket.merged, bucket.overlap) = (left, 0.0);
        // Tables that came meanwhile may be on their way to the next level: then it stays in one piece for
        // now.
        let is_idle = !self.jobs.iter().any(|other| other.bucket == job.bucket);
        self.add(&job.bucket, LEVELS as u32 - 1, entries);
        if pieces(left, &options) > 1 && !cuts.is_empty() {
            self.bucket_of(&job.bucket).merged = 0;
            if is_idle {
                self.split(&job.bucket, cuts);
            }
        }
    }

    fn split(&mut self, bucket: &[u8], cuts: Vec<Vec<u8>>) {
        let old = std::mem::take(&mut self.bucket_of(bucket).tables);
        self.buckets.extend(cuts.into_iter().map(|cut| (cut, Bucket::default())));
        for table in old.into_values() {
            let mut parts: BTreeMap<Vec<u8>, Vec<Entry>> = BTreeMap::new();
            for entry in table.entries {
                let (lower, _) = self.buckets.range(..=entry.key.clone()).next_back().expect("one covers it");
                parts.entry(lower.clone()).or_default().push(entry);
            }
            parts.into_iter().for_each(|(lower, entries)| self.add(&lower, table.level, entries));
        }
    }

    /// Levels in order: the first with a version decides which is the newest.
    fn read(&self, key: &[u8], at: u64) -> bool {
        let (_, bucket) = self.buckets.range(..=key.to_vec()).next_back().expect("one is from the empty key");
        for level in 0..LEVELS as u32 {
            let tables = bucket.tables.values().filter(|t| t.level == level);
            let versions = tables.flat_map(|t| &t.entries).filter(|e| e.key == key && e.seq <= at);
            if let Some(newest) = versions.max_by_key(|e| e.seq) {
                return newest.put;
            }
        }
        false
    }

    fn check(&self) {
        // All snapshots, or a few of many.
        let snapshots = self.snapshots.iter().step_by(1 + self.snapshots.len() / 5);
        let readers: Vec<u64> = snapshots.copied().chain([self.visible, u64::MAX]).collect();
        for (key, versions) in &self.history {
            for at in readers.iter().copied() {
                let expected = versions.iter().rev().find(|(seq, _)| *seq <= at).is_some_and(|(_, put)| *put);
                assert_eq!(self.read(key, at), expected, "{key:?} at {at}");
            }
        }
        let lowers: Vec<&Vec<u8>> = self.buckets.keys().collect();
        assert!(lowers[0].is_empty(), "every key is in a bucket");
        for (i, bucket) in self.buckets.values().enumerate() {
            for entry in bucket.tables.values().flat_map(|t| &t.entries) {
                let before_next = lowers.get(i + 1).is_none_or(|next| entry.key < **next);
                assert!(entry.key >= *lowers[i] && before_next, "a key outside of its bucket");
            }
        }
    }

    /// Runs jobs until none is chosen, which takes a few for each table: each empties a level or a bucket, or
    /// removes a bucket, and the writes pay for what splits add.
    fn merge_all(&mut self, reads: u64) {
        while !self.jobs.is_empty() {
            self.finish(0);
        }
        let tables: usize = self.buckets.values().map(|b| b.tables.len()).sum();
        let most = self.begun + 3 * (tables + self.buckets.len()) + 8 * self.history.len();
        while self.start(reads) || !self.jobs.is_empty() {
            self.finish(0);
            self.check();
            assert!(self.begun <= most, "choices do not end: {:?}", self.buckets);
        }
    }

    fn bytes(&self) -> u64 {
        let bytes = |b| tables_of(b, self.table_bytes).into_iter().map(|t| t.bytes).sum::<u64>();
        self.buckets.values().map(bytes).sum()
    }
}
