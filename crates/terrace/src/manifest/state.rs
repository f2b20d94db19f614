//! The state that results from edits.
//!
//! [`State`] is a pure function of the identity and the edits applied to it, in order: the same
//! edits give the same state, whether they are applied now or read back. Invariants, kept by
//! [`State::apply`], which refuses an edit that would break one and then changes nothing:
//!
//! 1. A table is added once and removed at most once; counts are of existing tables.
//! 2. Every candidate is an existing table.
//! 3. `next_file` is above every table's number and never decreases; nor does `flushed_seq`.
//! 4. If there are buckets, one begins at the empty key, so that every key is in one; and each begins at a
//!    key that can be written.
//! 5. A job is open from its start until it is done, and its number is not used twice meanwhile. Its inputs
//!    may be removed before it ends.
//!
//! Its maps are persistent: a copy shares what did not change, so that the cost of a group of edits depends
//! on the changes and not on the size of the state.

use std::sync::Arc;

use rpds::{RedBlackTreeMapSync, RedBlackTreeSetSync};
use terrace_table::{MAX_KEY_BYTES, TableMeta};

use super::edit::{BegunLog, Edit, Identity, JobKind, KnownPool, KnownStamp, ListPlace};
use crate::stats::SsdStats;

/// The most entries of a table, and the limit of a running count: a snapshot writes their difference, which
/// must fit.
const LIMIT: i64 = 1 << 62;

/// A table of the store.
#[derive(Debug, Clone, PartialEq)]
pub struct TableState {
    /// The level it belongs to.
    pub level: u32,
    /// The job that wrote it.
    pub job: u64,
    /// Its place, if it is a list in the pool and no file.
    pub list: Option<ListPlace>,
    /// The table.
    pub meta: Arc<TableMeta>,
    /// The running count of live keys. Deltas may pass below zero or above the entries for a while;
    /// see [`live`](Self::live).
    pub live_raw: i64,
}

impl TableState {
    /// Live keys, between zero and the number of entries.
    pub fn live(&self) -> u64 {
        (self.live_raw.max(0) as u64).min(self.meta.entries)
    }
}

/// A job that has started and not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenJob {
    /// What it does.
    pub kind: JobKind,
    /// The tables it reads.
    pub inputs: Vec<u64>,
}

/// A range of keys whose writes are buffered separately from all others. It ends where the next one begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketState {
    /// Its writes up to this sequence number are in tables.
    pub flushed: u64,
}

/// The contents of a store's manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// The store's permanent properties.
    pub identity: Identity,
    /// Its tables, by file number.
    pub tables: RedBlackTreeMapSync<u64, TableState>,
    /// Candidates for compaction.
    pub candidates: RedBlackTreeSetSync<u64>,
    /// Jobs that have started and not ended, by their number.
    pub jobs: RedBlackTreeMapSync<u64, OpenJob>,
    /// Buckets, by the key at which each begins; none on engines without them.
    pub buckets: RedBlackTreeMapSync<Vec<u8>, BucketState>,
    /// Everything up to this sequence number is in tables.
    pub flushed_seq: u64,
    /// File numbers from here on were never used.
    pub next_file: u64,
    /// Logs numbered below this are no longer needed.
    pub log_number: u64,
    /// The log sealed last and its bytes; `None` if there was none.
    pub log_end: Option<(u64, u64)>,
    /// The logs in files that were begun last: the last one, if there was one, and the one before it.
    pub last_logs: [Option<BegunLog>; 2],
    /// The store's pool and its last known session, if there is a pool.
    pub pool: Option<KnownPool>,
    /// The stamp in the store's file of slots, if there is one.
    pub stamp: Option<KnownStamp>,
}

impl State {
    /// An empty store.
    pub fn new(identity: Identity) -> Self {
        State {
            identity,
            tables: RedBlackTreeMapSync::new_sync(),
            candidates: RedBlackTreeSetSync::new_sync(),
            jobs: RedBlackTreeMapSync::new_sync(),
            buckets: RedBlackTreeMapSync::new_sync(),
            flushed_seq: 0,
            next_file: 1,
            log_number: 0,
            log_end: None,
            last_logs: [None; 2],
            pool: None,
            stamp: None,
        }
    }

    /// Whether this is the initial state of a creation, which then takes the first number: nothing can be in
    /// the store yet.
    pub(crate) fn is_being_created(&self) -> bool {
        self.next_file == 1
    }

    /// Applies one edit and returns whether that changed anything, or returns why it does not fit and changes
    /// nothing.
    pub fn apply(&mut self, edit: &Edit) -> Result<bool, String> {
        let changed = match edit {
            Edit::Identity(_) => return Err("a second identity".into()),
            Edit::SnapshotEnd => return Err("a snapshot's end outside of a snapshot".into()),
            Edit::AddTable { level, job, meta } => self.add_table(*level, *job, None, meta)?,
            Edit::AddList { level, place, meta } => self.add_table(*level, 0, Some(*place), meta)?,
            Edit::RemoveTable { number } => {
                self.table(*number, "remove")?;
                self.candidates.remove_mut(number);
                self.tables.remove_mut(number)
            }
            Edit::MoveTable { number, level } => {
                let table = self.table(*number, "move")?;
                std::mem::replace(&mut table.level, *level) != *level
            }
            Edit::Counts { number, live_delta } => {
                let live_raw = &mut self.table(*number, "count in")?.live_raw;
                let counted = live_raw.saturating_add(*live_delta).clamp(-LIMIT, LIMIT);
                std::mem::replace(live_raw, counted) != counted
            }
            Edit::Candidates(numbers) => self.set_candidates(numbers)?,
            Edit::AddCandidates(numbers) => self.add_candidates(numbers)?,
            Edit::JobStarted { id, kind, inputs } => self.start_job(*id, *kind, inputs)?,
            Edit::JobDone { id } => match self.jobs.remove_mut(id) {
                true => true,
                false => return Err(format!("no open job {id}")),
            },
            Edit::FlushedSeq(seq) => raise(&mut self.flushed_seq, *seq),
            Edit::NextFile(number) => raise(&mut self.next_file, *number),
            Edit::LogNumber(number) => raise(&mut self.log_number, *number),
            Edit::LogEnd { number, bytes } => {
                self.log_end.replace((*number, *bytes)) != Some((*number, *bytes))
            }
            Edit::LogBegun(begun) => self.begin_log(*begun),
            Edit::Pool(known) => self.pool.replace(*known) != Some(*known),
            Edit::Stamp(known) => self.stamp.replace(*known) != Some(*known),
            Edit::SetBucket { lower, flushed } => {
                self.set_bucket(lower, BucketState { flushed: *flushed })?
            }
            Edit::RemoveBucket { lower } => self.remove_bucket(lower)?,
        };
        debug_assert!(self.is_consistent(), "after {edit:?}");
        Ok(changed)
    }

    /// The numbers of tables that are files.
    pub fn files(&self) -> impl Iterator<Item = u64> + '_ {
        self.tables.iter().filter(|(_, table)| table.list.is_none()).map(|(number, _)| *number)
    }

    /// Whether table `number` is a file.
    pub fn has_file(&self, number: u64) -> bool {
        self.tables.get(&number).is_some_and(|table| table.list.is_none())
    }

    /// Counts tables, and what they hold.
    pub(crate) fn fill_stats(&self, ssd: &mut SsdStats) {
        for table in self.tables.values().filter(|table| table.list.is_none()) {
            ssd.tables += 1;
            ssd.table_bytes += table.meta.file_bytes;
            ssd.table_entries += table.meta.entries;
            ssd.live_entries += table.live();
        }
    }

    /// Checks invariants 2 to 4 as far as an edit may have broken them.
    fn is_consistent(&self) -> bool {
        let highest = self.tables.last().map_or(0, |(number, _)| *number);
        let covers_all = self.buckets.first().is_none_or(|(lower, _)| lower.is_empty());
        highest < self.next_file
            && covers_all
            && self.candidates.iter().all(|number| self.tables.contains_key(number))
    }

    fn table(&mut self, number: u64, purpose: &str) -> Result<&mut TableState, String> {
        self.tables.get_mut(&number).ok_or_else(|| format!("no table {number} to {purpose}"))
    }

    fn set_candidates(&mut self, numbers: &[u64]) -> Result<bool, String> {
        self.are_tables(numbers)?;
        let candidates = numbers.iter().copied().collect();
        Ok(std::mem::replace(&mut self.candidates, candidates) != self.candidates)
    }

    fn add_candidates(&mut self, numbers: &[u64]) -> Result<bool, String> {
        self.are_tables(numbers)?;
        let before = self.candidates.size();
        numbers.iter().for_each(|&number| self.candidates.insert_mut(number));
        Ok(self.candidates.size() > before)
    }

    fn are_tables(&self, candidates: &[u64]) -> Result<(), String> {
        match candidates.iter().find(|number| !self.tables.contains_key(number)) {
            Some(number) => Err(format!("candidate {number} is not a table")),
            None => Ok(()),
        }
    }

    fn add_table(
        &mut self,
        level: u32,
        job: u64,
        list: Option<ListPlace>,
        meta: &TableMeta,
    ) -> Result<bool, String> {
        if self.tables.contains_key(&meta.number) {
            return Err(format!("table {} is there already", meta.number));
        }
        if meta.number == 0 || meta.number == u64::MAX {
            return Err(format!("{} is not a file number", meta.number));
        }
        if meta.deletes > meta.entries || meta.entries > LIMIT as u64 || meta.smallest > meta.largest {
            return Err(format!("table {} contradicts itself", meta.number));
        }
        let live_raw = (meta.entries - meta.deletes) as i64;
        let table = TableState { level, job, list, meta: Arc::new(meta.clone()), live_raw };
        self.tables.insert_mut(meta.number, table);
        self.next_file = self.next_file.max(meta.number + 1);
        Ok(true)
    }

    fn start_job(&mut self, id: u64, kind: JobKind, inputs: &[u64]) -> Result<bool, String> {
        if self.jobs.contains_key(&id) {
            return Err(format!("job {id} is open already"));
        }
        self.jobs.insert_mut(id, OpenJob { kind, inputs: inputs.to_vec() });
        Ok(true)
    }

    fn set_bucket(&mut self, lower: &[u8], bucket: BucketState) -> Result<bool, String> {
        if lower.len() > MAX_KEY_BYTES {
            return Err(format!(
                "a bucket from a key of {} bytes, {MAX_KEY_BYTES} are the most",
                lower.len()
            ));
        }
        if self.buckets.is_empty() && !lower.is_empty() {
            return Err("no bucket begins at the empty key".into());
        }
        let changed = self.buckets.get(lower) != Some(&bucket);
        if changed {
            self.buckets.insert_mut(lower.to_vec(), bucket);
        }
        Ok(changed)
    }

    fn remove_bucket(&mut self, lower: &[u8]) -> Result<bool, String> {
        if lower.is_empty() {
            return Err("the bucket from the empty key has none before it".into());
        }
        if !self.buckets.remove_mut(lower) {
            return Err(format!("no bucket begins at \"{}\"", lower.escape_ascii()));
        }
        Ok(true)
    }

    /// The log sealed last and its length, as long as it is needed.
    pub(crate) fn needed_end(&self) -> Option<(u64, u64)> {
        self.log_end.filter(|(number, _)| *number != 0 && *number >= self.log_number)
    }

    /// Notes that a log was begun. Logs with higher numbers are forgotten: they were made ready and are not written.
    fn begin_log(&mut self, begun: BegunLog) -> bool {
        let before = self.last_logs.into_iter().flatten().find(|log| log.number < begun.number);
        let last_logs = [Some(begun), before];
        std::mem::replace(&mut self.last_logs, last_logs) != last_logs
    }

    /// Whether log `number` is one of the two begun last.
    pub(crate) fn has_begun(&self, number: u64) -> bool {
        self.last_logs.iter().flatten().any(|begun| begun.number == number)
    }

    /// The log begun last and the one before it, as long as they are needed. The last one may be ready and not written
    /// yet.
    pub(crate) fn needed_begun(&self) -> impl Iterator<Item = BegunLog> {
        self.last_logs.into_iter().flatten().filter(|begun| begun.number >= self.log_number)
    }

    /// Edits that turn [`State::new`] with the same identity into this state.
    pub(crate) fn snapshot(&self) -> Vec<Edit> {
        let mut edits = Vec::new();
        for table in self.tables.values() {
            let meta = &table.meta;
            let (level, job, meta_of) = (table.level, table.job, (**meta).clone());
            edits.push(match table.list {
                None => Edit::AddTable { level, job, meta: meta_of },
                Some(place) => Edit::AddList { level, place, meta: meta_of },
            });
            let live_delta = table.live_raw - (meta.entries - meta.deletes) as i64;
            if live_delta != 0 {
                edits.push(Edit::Counts { number: meta.number, live_delta });
            }
        }
        if !self.candidates.is_empty() {
            edits.push(Edit::Candidates(self.candidates.iter().copied().collect()));
        }
        for (id, job) in &self.jobs {
            edits.push(Edit::JobStarted { id: *id, kind: job.kind, inputs: job.inputs.clone() });
        }
        // In order, so that the one that begins at the empty key is first.
        edits.extend(
            self.buckets
                .iter()
                .map(|(lower, bucket)| Edit::SetBucket { lower: lower.clone(), flushed: bucket.flushed }),
        );
        edits.push(Edit::FlushedSeq(self.flushed_seq));
        edits.push(Edit::NextFile(self.next_file));
        edits.push(Edit::LogNumber(self.log_number));
        edits.extend(self.log_end.map(|(number, bytes)| Edit::LogEnd { number, bytes }));
        edits.extend(self.last_logs.into_iter().rev().flatten().map(Edit::LogBegun));
        edits.extend(self.pool.map(Edit::Pool));
        edits.extend(self.stamp.map(Edit::Stamp));
        edits
    }
}

/// Raises a number that never decreases; returns whether it rose.
fn raise(number: &mut u64, to: u64) -> bool {
    let rises = to > *number;
    *number = to.max(*number);
    rises
}
