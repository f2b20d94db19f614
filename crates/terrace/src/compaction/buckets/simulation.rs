//! Whole lives of a store with keys and no bytes: the costs of choices, by the order of the keys.
//!
//! A key takes one byte. Writes fill memtables; the bucket of a full one flushes it. All memtables together have a
//! budget, so that each is smaller the more buckets there are. Two jobs run at a time, each of which writes a number
//! of bytes for each that users write: a choice made while they run sees busy tables.

use std::collections::HashSet;

use super::tests::cuts;
use super::*;

/// Most bytes of a memtable, and of all of them.
pub(super) const MEMTABLE: usize = 64;
const BUDGET: usize = 40 * MEMTABLE;

/// Bytes of the log: no write stays longer in a memtable.
const LOG: u64 = 2 * BUDGET as u64;

/// Eight sublevels on three levels.
pub(super) const CAPACITY: u64 = 512 * MEMTABLE as u64;

/// Bytes that one job writes while users write one.
pub(super) const SPEED: u64 = 4;
const SLOTS: usize = 2;

#[derive(Debug, Clone)]
struct Table {
    number: u64,
    level: u32,
    keys: Vec<u64>,
    busy: bool,
}

#[derive(Debug, Default)]
pub(super) struct Bucket {
    id: u64,
    lower: u64,
    memtable: Vec<u64>,
    /// When the first entry of the memtable was written.
    oldest: u64,
    tables: Vec<Table>,
    merged: u64,
    reads: [u64; LEVELS],
    /// When its level was first found due, as long as it is.
    due_since: [Option<u64>; LEVELS],
}

#[derive(Debug)]
struct Job {
    bucket: u64,
    ends: u64,
    /// The level that it relieves; for a whole bucket everything but freeing its inputs is done at its start.
    level: Option<(u32, Vec<u64>)>,
}

/// The costs of a life.
#[derive(Debug, Default)]
pub(super) struct Cost {
    flushed: u64,
    written: u64,
    wholes: u64,
    pub(super) splits: u64,
    joins: u64,
    pub(super) deepest: usize,
    pub(super) longest_wait: u64,
    /// Sublevels that reads searched, and reads.
    pub(super) looked: (u64, u64),
}

impl Cost {
    pub(super) fn amplification(&self) -> f64 {
        self.written as f64 / self.flushed as f64
    }
}

#[derive(Debug)]
pub(super) struct Life {
    pub(super) options: BucketOptions,
    pub(super) buckets: Vec<Bucket>,
    pub(super) figures: Vec<BucketFigures>,
    jobs: Vec<Job>,
    now: u64,
    pub(super) budget: usize,
    buffered: usize,
    /// The average of recent flushes.
    pub(super) average: f64,
    number: u64,
    /// Keys are overwritten: the hidden part is sampled.
    overwrites: bool,
    pub(super) cost: Cost,
}

/// The tables' figures for a choice.
fn with_tables<T>(tables: &[Table], decide: impl FnOnce(&[BucketTable<'_>]) -> T) -> T {
    let keys: Vec<([u8; 8], [u8; 8])> = tables.iter().map(|t| (first(t), last(t))).collect();
    let described = tables.iter().zip(&keys).map(|(table, (smallest, largest))| BucketTable {
        number: table.number,
        level: table.level,
        bytes: table.keys.len() as u64,
        entries: table.keys.len() as u64,
        deletes: 0,
        smallest,
        largest,
        keeps_old: false,
        max_seq: table.number,
        busy: table.busy,
    });
    decide(&described.collect::<Vec<_>>())
}

fn figures(bucket: &Bucket, overwrites: bool) -> BucketFigures {
    let overlap = if overwrites { overlap(&bucket.tables) } else { 0.0 };
    with_tables(&bucket.tables, |tables| BucketFigures::new(tables, overlap, bucket.merged, bucket.id))
}

fn first(table: &Table) -> [u8; 8] {
    table.keys[0].to_be_bytes()
}

fn last(table: &Table) -> [u8; 8] {
    table.keys[table.keys.len() - 1].to_be_bytes()
}

/// The share of a few keys that an older table has, too; the oldest tables are the largest.
fn overlap(tables: &[Table]) -> f64 {
    let oldest = tables.iter().map(|t| t.number).min();
    let mut newer: Vec<&Table> = tables.iter().filter(|t| Some(t.number) != oldest).collect();
    newer.sort_by_key(|t| std::cmp::Reverse(t.keys.len()));
    let of_table = |t: &&Table| -> bool {
        let key = t.keys[t.number as usize * 7 % t.keys.len()];
        tables.iter().any(|old| old.number < t.number && old.keys.binary_search(&key).is_ok())
    };
    let sample = newer.iter().take(16);
    let count = sample.len();
    sample.filter(|t| of_table(t)).count() as f64 / count.max(1) as f64
}

fn merge(tables: &[&Table]) -> Vec<u64> {
    let mut keys: Vec<u64> = tables.iter().flat_map(|t| &t.keys).copied().collect();
    keys.sort();
    keys.dedup();
    keys
}

impl Life {
    pub(super) fn new(overwrites: bool) -> Life {
        let options =
            BucketOptions { capacity: CAPACITY, memtable_bytes: MEMTABLE as u64, ..Default::default() };
        let bucket = Bucket::default();
        Life {
            options,
            figures: vec![figures(&bucket, false)],
            buckets: vec![bucket],
            jobs: Vec::new(),
            now: 0,
            budget: BUDGET,
            buffered: 0,
            average: MEMTABLE as f64,
            number: 0,
            overwrites,
            cost: Cost::default(),
        }
    }

    pub(super) fn write(&mut self, key: u64) {
        self.now += 1;
        let at = self.bucket_of(key);
        let bucket = &mut self.buckets[at];
        if bucket.memtable.is_empty() {
            bucket.oldest = self.now;
        }
        bucket.memtable.push(key);
        self.buffered += 1;
        if bucket.memtable.len() >= MEMTABLE {
            self.flush(at);
        } else if self.buffered >= self.budget {
            let fullest = (0..self.buckets.len()).max_by_key(|i| self.buckets[*i].memtable.len());
            self.flush(fullest.expect("there is a bucket"));
        } else if self.now.is_multiple_of(MEMTABLE as u64) {
            let late = |b: &Bucket| !b.memtable.is_empty() && b.oldest + LOG < self.now;
            self.buckets.iter().position(late).into_iter().for_each(|at| self.flush(at));
        }
    }

    fn bucket_of(&self, key: u64) -> usize {
        self.buckets.partition_point(|b| b.lower <= key) - 1
    }

    pub(super) fn read(&mut self, key: u64) {
        let at = self.bucket_of(key);
        for (level, figures) in self.figures[at].levels.iter().enumerate() {
            self.cost.looked.0 += figures.sublevels as u64;
            self.buckets[at].reads[level] += u64::from(figures.tables > 0);
        }
        self.cost.looked.1 += 1;
    }

    fn flush(&mut self, at: usize) {
        let bucket = &mut self.buckets[at];
        let mut keys = std::mem::take(&mut bucket.memtable);
        self.buffered -= keys.len();
        keys.sort_unstable();
        keys.dedup();
        let bytes = keys.len() as u64;
        self.cost.flushed += bytes;
        self.cost.written += bytes;
        self.average += (bytes as f64 - self.average) / 64.0;
        self.options.memtable_bytes = self.average as u64;
        self.number += 1;
        self.buckets[at].tables.push(Table { number: self.number, level: 0, keys, busy: false });
        self.changed(at);
        self.work();
    }

    fn changed(&mut self, at: usize) {
        self.figures[at] = figures(&self.buckets[at], self.overwrites);
        let bucket = &mut self.buckets[at];
        for level in 0..LEVELS - 1 {
            let figures = &self.figures[at];
            self.cost.deepest = self.cost.deepest.max(figures.levels[level].sublevels);
            let is_due = !figures.levels[level].is_busy && figures.progress(level, &self.options) >= 1.0;
            if let Some(since) = bucket.due_since[level] {
                self.cost.longest_wait = self.cost.longest_wait.max(self.now - since);
            }
            bucket.due_since[level] = is_due.then(|| bucket.due_since[level].unwrap_or(self.now));
        }
        self.cost.deepest = self.cost.deepest.max(self.figures[at].levels[LEVELS - 1].sublevels);
    }

    /// Ends jobs whose time has come and starts others.
    fn work(&mut self) {
        while let Some(i) = self.jobs.iter().position(|job| job.ends <= self.now) {
            let job = self.jobs.swap_remove(i);
            self.finish(&job);
        }
        while self.jobs.len() < SLOTS {
            let reads: Vec<[u64; LEVELS]> = self.buckets.iter().map(|b| b.reads).collect();
            match choose(&self.figures, &reads, &self.options, None) {
                Some(Pick::Level { bucket, level }) => self.start_level(bucket, level as u32),
                Some(Pick::Whole { bucket }) => self.start_whole(bucket),
                Some(Pick::Join { left }) => self.join(left),
                None => return,
            }
        }
    }

    fn start_level(&mut self, at: usize, level: u32) {
        let bucket = &mut self.buckets[at];
        bucket.reads[level as usize] = 0;
        let mut inputs = Vec::new();
        let mut bytes = 0;
        for table in bucket.tables.iter_mut().filter(|t| t.level == level) {
            assert!(!table.busy);
            table.busy = true;
            inputs.push(table.number);
            bytes += table.keys.len() as u64;
        }
        let ends = self.now + bytes / SPEED;
        self.jobs.push(Job { bucket: bucket.id, ends, level: Some((level, inputs)) });
        self.changed(at);
    }

    fn finish(&mut self, job: &Job) {
        if let Some((level, inputs)) = &job.level {
            let at = self.buckets.iter().position(|b| b.id == job.bucket).expect("it is there");
            let (read, rest): (Vec<Table>, Vec<Table>) = std::mem::take(&mut self.buckets[at].tables)
                .into_iter()
                .partition(|t| inputs.contains(&t.number));
            let keys = merge(&read.iter().collect::<Vec<_>>());
            self.cost.written += keys.len() as u64;
            // It is as old as the newest of its inputs.
            let number = read.iter().map(|t| t.number).max().unwrap_or(0);
            self.buckets[at].tables = rest;
            self.buckets[at].tables.push(Table { number, level: level + 1, keys, busy: false });
            self.changed(at);
            return;
        }
        for at in 0..self.buckets.len() {
            if self.buckets[at].id == job.bucket || self.buckets[at].id >> 20 == job.bucket {
                self.buckets[at].tables.iter_mut().filter(|t| t.level == 2).for_each(|t| t.busy = false);
                self.changed(at);
            }
        }
    }

    fn start_whole(&mut self, at: usize) {
        let old = self.buckets.remove(at);
        self.figures.remove(at);
        let kept = self.kept_of(&old);
        let cuts = self.cuts_of(&old, &kept);
        let (stay, read): (Vec<&Table>, Vec<&Table>) =
            old.tables.iter().partition(|t| kept.contains(&t.number));
        let merged = merge(&read);
        let written = merged.len() as u64;
        let left = written + stay.iter().map(|t| t.keys.len() as u64).sum::<u64>();
        let splits = pieces(left, &self.options) > 1 && !cuts.is_empty();
        self.cost.written += written;
        self.cost.wholes += 1;
        self.cost.splits += u64::from(splits);
        // Its pieces are known by its number.
        self.number += 1;
        let job = self.number;
        let bounds: Vec<u64> = [old.lower].into_iter().chain(cuts.into_iter().filter(|_| splits)).collect();
        for (i, lower) in bounds.iter().enumerate() {
            let inside = |key: &&u64| *key >= lower && bounds.get(i + 1).is_none_or(|upper| *key < upper);
            let part = |keys: &[u64]| -> Vec<u64> { keys.iter().filter(inside).copied().collect() };
            let table = |keys: &[u64], number| Table { number, level: 2, keys: part(keys), busy: true };
            let stays = stay.iter().map(|t| table(&t.keys, t.number));
            let bucket = Bucket {
                id: job << 20 | i as u64,
                lower: *lower,
                memtable: part(&old.memtable),
                oldest: old.oldest,
                tables: stays.chain([table(&merged, job)]).filter(|t| !t.keys.is_empty()).collect(),
                merged: if splits { 0 } else { left },
                ..Bucket::default()
            };
            self.figures.insert(at + i, figures(&bucket, self.overwrites));
            self.buckets.insert(at + i, bucket);
        }
        self.jobs.push(Job { bucket: job, ends: self.now + written / SPEED, level: None });
    }

    fn kept_of(&self, bucket: &Bucket) -> Vec<u64> {
        with_tables(&bucket.tables, |tables| kept(tables, CAPACITY / 64..=CAPACITY / 4))
    }

    fn cuts_of(&self, bucket: &Bucket, kept: &[u64]) -> Vec<u64> {
        let sample = |i: usize| {
            bucket.tables[i].keys.iter().step_by(16).map(|key| key.to_be_bytes().to_vec()).collect()
        };
        let cuts = with_tables(&bucket.tables, |tables| cuts(tables, sample, kept, &self.options));
        cuts.iter()
            .map(|cut| u64::from_be_bytes(cut[..].try_into().expect("keys are of eight bytes")))
            .collect()
    }

    fn join(&mut self, left: usize) {
        let right = self.buckets.remove(left + 1);
        self.figures.remove(left + 1);
        let bucket = &mut self.buckets[left];
        bucket.tables.extend(right.tables);
        bucket.memtable.extend(right.memtable);
        bucket.oldest = bucket.oldest.min(right.oldest);
        bucket.merged = 0;
        self.cost.joins += 1;
        self.changed(left);
    }

    pub(super) fn live(&self) -> u64 {
        let all: HashSet<u64> =
            self.buckets.iter().flat_map(|b| b.tables.iter().flat_map(|t| &t.keys)).copied().collect();
        all.len() as u64
    }

    pub(super) fn bytes(&self) -> u64 {
        self.figures.iter().map(|f| f.bytes).sum()
    }

    pub(super) fn run(mut self, writes: u64, mut key: impl FnMut(u64) -> u64) -> Life {
        for i in 0..writes {
            self.write(key(i));
        }
        self
    }

    /// Prints its costs, to explain a surprising figure.
    pub(super) fn report(&self, what: &str) {
        println!(
            "{what}: {:.2} written, {} buckets, {} bytes of {}, {:?}",
            self.cost.amplification(),
            self.buckets.len(),
            self.bytes(),
            self.live(),
            self.cost,
        );
    }
}
