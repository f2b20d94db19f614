//! Selective compaction: merging the chosen tables, keeping what the index still points to.
//!
//! A version is kept if the index holds it, by its word or in a chain. A tombstone is kept while another
//! table may hold something older for it to hide, or while an older version stays for a snapshot. The same
//! group takes the merged tables out of the manifest and ends the job (SLM-DB, section 3.3).

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::atomic::Ordering;

use terrace_base::exec::Lane;
use terrace_base::{Error, Result};
use terrace_index::OrderedIndex;
use terrace_table::{Cursor, Kind, TableMeta};

use super::flush::side_by_side;
use super::output::{Finished, Outputs, Sink};
use super::{JOB_ROOTS, Slm};
use crate::background::Compacting;
use crate::compaction::selective::{
    Choice, PinnedEntries, SelectiveOptions, Tombstones, View, choose, overdue_garbage,
};
use crate::core::engine::no_operands;
use crate::core::filters::Judge;
use crate::located::{CHUNK_KEYS, JobRun, Location, Origin, Relocation};
use crate::manifest::{Edit, JobKind};
use crate::tables::merge_ahead;

/// Bytes read ahead from each input, at most.
const READAHEAD_BYTES: usize = 512 << 10;

/// How compactions run in the background, each in the job slot of its number.
pub(super) const HOW: Compacting<Slm> = Compacting {
    begin: leaf_scan,
    next: |slm, slot| {
        // A chain that no snapshot needs keeps its versions live: merging them would change nothing.
        if slm.located.has_chains() && slm.core.snapshots.list().is_empty() {
            slm.located.collapse_chains()?;
        }
        slm.compact_next(JOB_ROOTS.compactions[slot.number()])
    },
    // Whatever becomes due is requested explicitly.
    is_due: |_| false,
    sweep: Slm::sweep,
};

/// If a range was read since the last scan, examines the next stretch of leaves and notes tables that hold
/// too little of it each.
fn leaf_scan(slm: &Slm) -> Result<()> {
    let asked = slm.range_was_read.swap(false, Ordering::Relaxed);
    if !asked && !slm.core.options.slm.unasked_leaf_scans {
        return Ok(());
    }
    let options = slm.compaction_options();
    let state = slm.manifest.state();
    let mut choosing = slm.choosing.lock();
    let view = View::new(&state, &PinnedEntries::default(), None);
    let index = slm.located.index();
    let found = choosing.leaf_scan.run(
        &view,
        &options,
        |from, limit, batch| index.scan(from, false, limit, batch),
        file_of,
    )?;
    slm.new_candidates.lock().extend(found);
    Ok(())
}

/// The table that an index word names; a chain names no single one.
pub(super) fn file_of(word: u64) -> Option<u64> {
    match Location::decode(word) {
        Some(Location::Position(position)) => Some(position.number()),
        _ => None,
    }
}

impl Slm {
    pub(super) fn compaction_options(&self) -> SelectiveOptions {
        let slm = &self.core.options.slm;
        SelectiveOptions {
            live_key_threshold: slm.live_key_threshold,
            garbage_share: slm.garbage_share,
            leaf_scan_files: slm.leaf_scan_files,
            sequentiality_keys: slm.sequentiality_keys,
            sequentiality_files: slm.sequentiality_files,
            max_merge_files: slm.max_merge_files,
            ..SelectiveOptions::default()
        }
    }

    /// Does the most worthwhile compaction; false if there is none.
    fn compact_next(&self, root: &'static str) -> Result<bool> {
        let (job, inputs, tombstones) = {
            // The choice and the job's start are one step, so that no two jobs read one table.
            let choosing = self.choosing.lock();
            let state = self.manifest.state();
            let oldest = self.core.snapshots.list().first().copied();
            let mut view = View::new(&state, &choosing.pins, oldest);
            view.candidates
                .extend(self.new_candidates.lock().iter().filter(|n| state.tables.contains_key(n)));
            let Some(choice) = choose(&view, &self.compaction_options()) else {
                return Ok(false);
            };
            tracing::debug!(?choice, "tables to be merged");
            let Choice { inputs, .. } = choice;
            let tombstones = Tombstones::new(&view, &inputs);
            (self.located.start_job(root, JobKind::Compaction, inputs.clone())?, inputs, tombstones)
        };
        self.compact_tables(job, &inputs, &tombstones)?;
        Ok(true)
    }

    /// Merges those of the `wanted` tables that still exist and are in no other job.
    pub(super) fn compact_these(&self, root: &'static str, wanted: &BTreeSet<u64>) -> Result<()> {
        let (job, inputs, tombstones) = {
            let choosing = self.choosing.lock();
            let state = self.manifest.state();
            let view = View::new(&state, &choosing.pins, None);
            let inputs: Vec<u64> = wanted
                .iter()
                .copied()
                .filter(|n| state.tables.contains_key(n) && !view.busy.contains(n))
                .collect();
            if inputs.is_empty() {
                return Ok(());
            }
            let tombstones = Tombstones::new(&view, &inputs);
            (self.located.start_job(root, JobKind::Compaction, inputs.clone())?, inputs, tombstones)
        };
        self.compact_tables(job, &inputs, &tombstones)
    }

    fn compact_tables(&self, job: JobRun<'_>, inputs: &[u64], tombstones: &Tombstones) -> Result<()> {
        let running = self.core.begin_compaction();
        let outcome = self.run_compaction(job, inputs, tombstones);
        self.sweep();
        match outcome {
            Ok(bytes) => {
                self.core.counters.count_compaction(0, bytes);
                running.done(bytes);
                self.drop_tables(inputs);
                Ok(())
            }
            Err(e) => {
                self.core.counters.background_errors.add(1);
                Err(e)
            }
        }
    }

    /// Merges `inputs` and ends the job, whatever fails, with correct counts; returns the bytes written.
    fn run_compaction(&self, mut job: JobRun<'_>, inputs: &[u64], tombstones: &Tombstones) -> Result<u64> {
        let (id, mut bytes, mut moved) = (job.id(), 0, Ok(()));
        let written = side_by_side(
            self,
            |sink| merge_tables(self, id, inputs, tombstones, sink),
            |finished| {
                job.owns(finished.number, finished.puts);
                bytes += finished.bytes;
                if moved.is_ok() {
                    moved = relocate(&mut job, &finished);
                }
            },
        );
        match moved.and(written) {
            Ok(()) => job.finish(|| self.end_of(inputs)).map(|()| bytes),
            Err(e) => {
                // The cause matters more than a failure to record it, which is repaired later. The inputs
                // still exist.
                let _ = job.give_up(true);
                Err(e)
            }
        }
    }

    /// The edits that end a compaction: inputs leave, and the new candidates go into the manifest.
    fn end_of(&self, inputs: &[u64]) -> Vec<Edit> {
        let mut candidates = self.new_candidates.lock();
        let state = self.manifest.state();
        candidates.retain(|n| state.tables.contains_key(n) && !state.candidates.contains(n));
        let stay: Vec<u64> = candidates.iter().copied().filter(|number| !inputs.contains(number)).collect();
        let mut edits: Vec<Edit> = inputs.iter().map(|&number| Edit::RemoveTable { number }).collect();
        if !stay.is_empty() {
            edits.push(Edit::AddCandidates(stay));
        }
        edits
    }

    /// Drops tables that the manifest no longer has.
    fn drop_tables(&self, numbers: &[u64]) {
        let mut choosing = self.choosing.lock();
        numbers.iter().for_each(|&number| choosing.pins.forget(number));
        drop(choosing);
        self.tables.remove(numbers);
        self.measure_garbage();
    }

    /// Tells writers by how much compactions are behind.
    pub(super) fn measure_garbage(&self) {
        // Two memtables of garbage are no backlog: flushes bring as much at once.
        let spare = 2 * self.memtable_bytes;
        // The lock also orders those who measure: the last one has seen everything.
        let choosing = self.choosing.lock();
        let oldest = self.core.snapshots.list().first().copied();
        let (state, options) = (self.manifest.state(), self.compaction_options());
        let overdue = overdue_garbage(&state, (&choosing.pins, oldest), &options, spare);
        self.overdue_garbage.store(overdue.to_bits(), Ordering::Relaxed);
    }
}

fn merge_tables(slm: &Slm, job: u64, inputs: &[u64], tombstones: &Tombstones, sink: Sink<'_>) -> Result<()> {
    let mut outputs = Outputs::new(slm, job);
    let child = |&number: &u64, ahead| slm.tables.cursor(number, ahead);
    let (mut cursor, _loan) = merge_ahead(&slm.core, READAHEAD_BYTES, inputs, child)?;
    let mut group = KeyGroup::default();
    let mut judge = slm.core.filters.judge(0);
    while cursor.valid() {
        if cursor.key() != group.key || group.versions.is_empty() {
            group.write(slm, tombstones, &mut outputs, judge.as_mut(), sink)?;
            group.begin(cursor.key());
            slm.jobs.give_way(Lane::Compaction);
        }
        let Some(table) = cursor.child().map(|child| inputs[child]) else { break };
        group.versions.push(Entry { seq: cursor.seq(), kind: cursor.kind(), table, value: cursor.value()? });
        cursor.next()?;
    }
    group.write(slm, tombstones, &mut outputs, judge.as_mut(), sink)?;
    outputs.finish(sink)?;
    note_pins(slm, &outputs);
    Ok(())
}

/// Tombstones kept only for a snapshot must not make their table a candidate again.
fn note_pins(slm: &Slm, outputs: &Outputs<'_>) {
    let Some(&oldest) = slm.core.snapshots.list().first() else { return };
    let mut choosing = slm.choosing.lock();
    for (&table, &entries) in &outputs.pinned {
        choosing.pins.note(table, entries, oldest);
    }
}

/// All versions of one key in the inputs, newest first.
#[derive(Default)]
struct KeyGroup {
    key: Vec<u8>,
    versions: Vec<Entry>,
}

struct Entry {
    seq: u64,
    kind: Kind,
    table: u64,
    value: bytes::Bytes,
}

impl KeyGroup {
    fn begin(&mut self, key: &[u8]) {
        self.key.clear();
        self.key.extend_from_slice(key);
        self.versions.clear();
    }

    /// Writes the versions to keep. From the oldest up, a tombstone above a kept version is kept with it.
    fn write(
        &mut self,
        slm: &Slm,
        tombstones: &Tombstones,
        outputs: &mut Outputs<'_>,
        judge: Option<&mut Judge<'_>>,
        sink: Sink<'_>,
    ) -> Result<()> {
        let mut keep = vec![false; self.versions.len()];
        let mut pinned = 0;
        let mut older_stays = false;
        for (i, entry) in self.versions.iter().enumerate().rev() {
            keep[i] = match entry.kind {
                Kind::Operand => return Err(no_operands()),
                Kind::Put => slm.located.holds(&self.key, entry.seq, self.origin(i))?,
                Kind::Delete if self.stays_already(i, &keep) => false,
                Kind::Delete => older_stays || !tombstones.droppable(&self.key, entry.seq),
            };
            if keep[i] && entry.kind == Kind::Delete && older_stays {
                pinned += 1;
            }
            older_stays |= keep[i];
        }
        if let (Some(judge), Some(newest)) = (judge, self.versions.first())
            && keep[0]
            && newest.kind == Kind::Put
        {
            judge.see(&self.key, &newest.value);
        }
        for (i, entry) in self.versions.iter().enumerate().filter(|(i, _)| keep[*i]) {
            let origin = Some(self.origin(i));
            outputs.add(&self.key, entry.seq, entry.kind, &entry.value, origin, sink)?;
        }
        outputs.pin(pinned);
        self.versions.clear();
        Ok(())
    }

    /// Whether a later copy of version `i` is kept. A flush that a crash cut short was repeated, so its
    /// tables hold what the first ones hold; the index tells which copy of a put counts, and any copy of a
    /// tombstone does.
    fn stays_already(&self, i: usize, keep: &[bool]) -> bool {
        let copies = self.versions[i + 1..].iter().zip(&keep[i + 1..]);
        copies.take_while(|(v, _)| v.seq == self.versions[i].seq).any(|(_, kept)| *kept)
    }

    fn origin(&self, version: usize) -> Origin {
        let table = self.versions[version].table;
        let newer = self.versions[..version].iter().rfind(|newer| newer.table == table);
        Origin { table, newer: newer.map(|newer| newer.seq) }
    }
}

fn relocate(job: &mut JobRun<'_>, finished: &Finished) -> Result<()> {
    let mut chunk = Vec::with_capacity(CHUNK_KEYS);
    for placed in finished.entries() {
        let (Kind::Put, Some(origin)) = (placed.kind, placed.origin) else { continue };
        chunk.push(Relocation {
            key: placed.key.to_vec(),
            seq: placed.seq,
            from: origin,
            to: placed.position,
        });
        if chunk.len() == CHUNK_KEYS {
            job.relocate(&chunk)?;
            chunk.clear();
        }
    }
    job.relocate(&chunk)
}

impl Slm {
    /// Compacts every table with keys of the range, those that overlap one another together.
    pub(super) fn compact_all(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<()> {
        if self.core.options.read_only {
            return Err(Error::ReadOnly);
        }
        // Versions that only released snapshots needed are to be dropped, too.
        self.located.collapse_chains()?;
        // A filter is to meet what others are merging, too.
        let is_alone = self.core.filters.are_there();
        let slots = if is_alone { self.jobs.all_slots() } else { vec![self.jobs.slot()] };
        let slot = &slots[0];
        let inside = |meta: &TableMeta| {
            let starts = match to {
                Bound::Included(to) => *meta.smallest <= *to,
                Bound::Excluded(to) => *meta.smallest < *to,
                Bound::Unbounded => true,
            };
            let ends = match from {
                Bound::Included(from) => *meta.largest >= *from,
                Bound::Excluded(from) => *meta.largest > *from,
                Bound::Unbounded => true,
            };
            starts && ends
        };
        let state = self.manifest.state();
        let mut tables: Vec<&TableMeta> =
            state.tables.values().map(|t| &*t.meta).filter(|m| inside(m)).collect();
        tables.sort_by(|a, b| a.smallest.cmp(&b.smallest));
        let mut group = BTreeSet::new();
        let mut reach: &[u8] = &[];
        for meta in tables {
            if !group.is_empty() && *meta.smallest > *reach {
                self.compact_these(JOB_ROOTS.compactions[slot.number()], &std::mem::take(&mut group))?;
            }
            reach = reach.max(&meta.largest);
            group.insert(meta.number);
        }
        self.compact_these(JOB_ROOTS.compactions[slot.number()], &group)
    }
}
