//! Migration: seldom used records move, sorted, from PM to tables (SplitKV, section 3.3).
//!
//! A walk goes round the index, from where the last one ended, and takes the records that the cut selects
//! (`cut.rs`). A table is written from them, and becomes durable and part of the manifest; then the word of
//! each is replaced, if it still names the version that was written, and the record is retired. Numbers
//! distinguish versions: a record's place may hold another one by then. A record above an older version stays
//! until no snapshot needs that version.
//!
//! 1. Only the thread that holds `moving` moves records: a job that is started when the pool is filled beyond
//!    a share, or a writer that has found no room.
//! 2. The holder waits for no job and runs none: that job might want `moving`, too.
//! 3. Between looking at a word and replacing it the mover is present and holds the shared gate.

use std::ops::Bound;
use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_base::exec::Lane;
use terrace_index::{PointIndex, ScanBatch};
use terrace_pmem::Claim;
use terrace_table::{Kind, Position, TableOptions};

use super::cut::{Cut, Sample};
use super::home::Ssd;
use super::pace::Fill;
use super::place::OnSsd;
use super::reclaim;
use crate::compaction::selective::LeafScan;
use crate::engine::pm::{KeyIndex, Place, PmEngine, PmStore, VersionRef, VersionRefOf};
use crate::manifest::Edit;
use crate::tables::{MadeTable, TableWriter, WriterOptions};
use crate::versions::{LINKED_KIND, RECORD_KIND, Record};

/// Keys examined together.
const BATCH_KEYS: usize = 256;

/// Words replaced during one hold of the gate.
const CHUNK: usize = 64;

/// Records examined to choose a cut.
const SAMPLES: usize = 4096;

/// A table takes at most this part of the pool.
const POOL_SHARE: u64 = 16;

/// A writer without room moves at least this part of all records' bytes.
const URGENT_SHARE: u64 = 8;

/// If the index leaves less than this part of the pool to records, the pool is full.
const LEAST_SHARE: u64 = 64;

/// What a mover keeps for the next one.
#[derive(Debug, Default)]
pub(super) struct Moving {
    /// Where the walk continues: after this key.
    after: Option<Vec<u8>>,
    /// Tables that are not rewritten.
    pub aside: reclaim::Aside,
    /// Where the next leaf scan begins.
    pub leaf_scan: LeafScan,
}

/// A version being moved, with what is needed to replace its word.
#[derive(Debug)]
pub(super) struct Note {
    pub key: Vec<u8>,
    pub from: From,
}

/// Its previous place.
#[derive(Debug, Clone, Copy)]
pub(super) enum From {
    /// In a record with this number.
    Record { number: u64 },
    /// In another table.
    Run(Position),
}

/// Tables being written, and the words of their keys that are to be replaced.
pub(super) struct Mover<'a, E: PmEngine<Home = Ssd>> {
    store: &'a PmStore<E>,
    writer: TableWriter<'a>,
    notes: Vec<Note>,
    /// Words replaced, and bytes of tables written.
    pub arrived: u64,
    pub written: u64,
}

impl<'a, E: PmEngine<Home = Ssd>> Mover<'a, E> {
    pub fn new(store: &'a PmStore<E>) -> Self {
        let (ssd, options) = (&*store.home, &store.core.options);
        let table = TableOptions {
            block_bytes: options.split.block_bytes,
            compression: options.compression,
            filter_bits_per_key: 0,
            origin: ssd.origin(),
            ..TableOptions::default()
        };
        let table_bytes = options.split.run_bytes.min(store.pool.max_size() / POOL_SHARE).max(1);
        let options = WriterOptions { table_bytes, table };
        let writer = TableWriter::new(&store.core, &ssd.manifest, options);
        Mover { store, writer, notes: Vec::new(), arrived: 0, written: 0 }
    }

    /// Adds a version; keys ascend, and no key comes twice.
    pub fn add(&mut self, key: &[u8], number: u64, value: &[u8], from: From) -> Result<()> {
        if self.writer.is_full() {
            self.finish()?;
        }
        self.writer.add(key, number, Kind::Put, value)?;
        self.notes.push(Note { key: key.to_vec(), from });
        Ok(())
    }

    /// Finishes the table being written, if there is one, and makes words lead there.
    pub fn finish(&mut self) -> Result<()> {
        let Some(MadeTable { meta, blocks, file }) = self.writer.finish()? else { return Ok(()) };
        let (ssd, core) = (&*self.store.home, &self.store.core);
        core.files.sync_names()?;
        let table = ssd.tables.made(&meta)?;
        if let Err(e) = ssd.manifest.apply(&[Edit::AddTable { level: 0, job: 0, meta: meta.clone() }]) {
            file.keep_until_decided();
            return Err(e);
        }
        file.keep();
        ssd.runs.add(meta.number, meta.entries, meta.file_bytes);
        ssd.tables.insert([table]);
        core.counters.tables_written.add(1);
        self.written += meta.file_bytes;
        let notes = std::mem::take(&mut self.notes);
        let mut blocks = blocks.iter().peekable();
        let mut place = None;
        let mut placed = Vec::with_capacity(notes.len());
        for (i, note) in notes.iter().enumerate() {
            while let Some(span) = blocks.next_if(|block| block.first_entry <= i as u64) {
                place = Some(span.position);
            }
            placed.extend(place.map(|to| (note, to)));
        }
        for chunk in placed.chunks(CHUNK) {
            let _shared = self.store.gate.shared();
            self.store.admit()?;
            if self.store.is_pending() {
                // What a group that could not be taken back has replaced stays as it is.
                return Ok(());
            }
            let _here = self.store.limbo.enter();
            for (note, to) in chunk {
                self.arrived += u64::from(self.replace(note, *to)?);
            }
        }
        Ok(())
    }

    /// Makes the word of a key lead to its place in a table, if it still names the version that was written.
    /// The caller holds the gate and is present.
    fn replace(&self, note: &Note, to: Position) -> Result<bool> {
        let store = self.store;
        let Some(word) = store.decode_some(store.index.get(&note.key)?)? else { return Ok(false) };
        let is_same = match (word, note.from) {
            (VersionRef::Place(OnSsd::Run(position)), From::Run(from)) => position == from,
            (VersionRef::Record(record), From::Record { number }) if !record.is_tombstone() => {
                // SAFETY: the caller has been present since before the word was loaded.
                let record = unsafe { Record::peek(&store.pool, record)? };
                record.number == number
            }
            _ => false,
        };
        if !is_same {
            return Ok(false);
        }
        let replaced = replace_word(store, &note.key, word, OnSsd::Run(to))?;
        if replaced {
            store.home.runs.arrived(to.number());
        }
        Ok(replaced)
    }
}

/// Makes the word of `key` lead to `to` if it is `from`, which is retired then. The caller holds the gate and is
/// present.
pub(super) fn replace_word<E: PmEngine<Home = Ssd>>(
    store: &PmStore<E>,
    key: &[u8],
    from: VersionRefOf<E>,
    to: OnSsd,
) -> Result<bool> {
    // The index may take what else it needs from the room kept back: what is replaced is given back soon.
    let (before, after) = (Some(from.bits()), Some(to.bits()));
    let replaced =
        store.pool.claiming(Claim::Few, || store.index.compare_exchange(key, before, after))?.is_ok();
    if replaced {
        store.afterwards(store.retire_version(key, from));
    }
    Ok(replaced)
}

/// How full the records' part of the pool is.
pub(super) fn fill<E: PmEngine<Home = Ssd>>(store: &PmStore<E>) -> Fill {
    let used = store.pool.taken_bytes(&[RECORD_KIND, LINKED_KIND]);
    let index = store.index.pm_bytes();
    let kept = crate::pool::kept_back(&store.pool);
    let capacity = match store.core.options.split.records_bytes {
        0 => u64::MAX,
        asked => asked,
    };
    Fill { used, capacity: capacity.min(store.pool.reachable_bytes().saturating_sub(index + kept)) }
}

/// Whether the size of records may be limited further than by what the index leaves.
fn is_bounded<E: PmEngine<Home = Ssd>>(store: &PmStore<E>) -> bool {
    store.core.options.split.records_bytes > 0
}

/// Called before a writer writes this many bytes to PM.
pub(super) fn pace<E: PmEngine<Home = Ssd>>(store: &PmStore<E>, bytes: u64) {
    let ssd = &*store.home;
    if ssd.pace.is_due(bytes) {
        let fill = fill(store);
        ssd.pace.note(fill);
        if fill.share() >= store.core.options.split.high_share {
            send(store);
        }
    }
    store.core.slow_down(ssd.pace.delay(bytes));
}

/// Starts a migration in the background, unless one is running.
fn send<E: PmEngine<Home = Ssd>>(store: &PmStore<E>) {
    let ssd = &*store.home;
    if store.core.is_scratch || ssd.sent.swap(true, Ordering::AcqRel) {
        return;
    }
    let sent = store.jobs.spawn(Lane::Flush, &store.me, |store| {
        let outcome = run(store);
        store.home.sent.store(false, Ordering::Release);
        if let Err(error) = outcome {
            // A writer that needs the room tries again, and gets the error.
            tracing::warn!(%error, "records stay in persistent memory for now");
            store.core.put_off(&error);
        }
        reclaim::send(store);
    });
    if !sent {
        ssd.sent.store(false, Ordering::Release);
    }
}

/// Migrates until the pool is less full than it should be.
fn run<E: PmEngine<Home = Ssd>>(store: &PmStore<E>) -> Result<()> {
    let low = store.core.options.split.low_share;
    loop {
        let before = fill(store);
        let goal = before.beyond(low);
        if goal == 0 || store.jobs.is_closing() {
            return Ok(());
        }
        let mut moving = store.home.moving.lock();
        let moved = migrate(store, &mut moving, goal, &choose(store, goal))?.bytes;
        drop(moving);
        store.home.pace.note(fill(store));
        if moved == 0 {
            return Ok(());
        }
    }
}

/// Makes room for a writer that holds nothing; returns whether it, or another thread doing the same, has succeeded.
pub(super) fn relieve<E: PmEngine<Home = Ssd>>(store: &PmStore<E>) -> Result<bool> {
    let ssd = &*store.home;
    let before = ssd.migrated.load(Ordering::Acquire);
    let mut moving = ssd.moving.lock();
    if ssd.migrated.load(Ordering::Acquire) != before {
        return Ok(true);
    }
    let fill = fill(store);
    if fill.capacity < store.pool.reachable_bytes() / LEAST_SHARE && !is_bounded(store) {
        // The index has filled the pool: the rest is not worth a table.
        return Ok(false);
    }
    let goal = fill.beyond(store.core.options.split.low_share).max(fill.used / URGENT_SHARE);
    let goal = goal.min(store.core.options.split.run_bytes);
    if goal == 0 {
        return Ok(false);
    }
    let mut moved = Moved::default();
    let outcome = store.core.stalled(|| {
        moved = migrate(store, &mut moving, goal, &choose(store, goal))?;
        if !moved.has_chosen() {
            // The lightest of all are no longer named, or are kept for snapshots.
            moved = migrate(store, &mut moving, goal, &Cut::ALL)?;
        }
        Ok(())
    });
    drop(moving);
    reclaim::send(store);
    match outcome {
        // The writer is told of the pool.
        Err(e) if e.is_out_of_space() => Ok(ssd.migrated.load(Ordering::Acquire) != before),
        // Others have freed what they replaced meanwhile.
        outcome => outcome.map(|()| moved.has_chosen()),
    }
}

/// What a migration has achieved.
#[derive(Debug, Default)]
struct Moved {
    /// Bytes of tables with records that are named there.
    bytes: u64,
    /// All records that it had chosen were replaced before it named them.
    are_replaced: bool,
}

impl Moved {
    fn has_chosen(&self) -> bool {
        self.bytes > 0 || self.are_replaced
    }
}

/// Moves records of about `goal` bytes to tables, of those that `cut` takes.
fn migrate<E: PmEngine<Home = Ssd>>(
    store: &PmStore<E>,
    moving: &mut Moving,
    goal: u64,
    cut: &Cut,
) -> Result<Moved> {
    let start = store.core.env.clock.now();
    let running = store.core.begin_flush();
    let mut mover = Mover::new(store);
    let outcome = walk_round(store, moving, cut, goal, &mut mover);
    let ssd = &*store.home;
    ssd.migrated.fetch_add(mover.arrived, Ordering::AcqRel);
    store.core.counters.count_flush(0, 0, mover.written);
    let has_arrived = mover.arrived > 0;
    let are_replaced = !has_arrived && mover.written > 0 && !store.is_pending();
    let bytes = if has_arrived { mover.written } else { 0 };
    ssd.migrated_bytes.fetch_add(bytes, Ordering::Relaxed);
    ssd.pace.migrated(bytes, store.core.env.clock.now() - start);
    {
        // The moved records are freed when their readers have left.
        let _shared = store.gate.shared();
        store.give_back();
    }
    store.core.files.sweep(&ssd.manifest);
    store.fit_cache();
    outcome?;
    running.done(bytes);
    Ok(Moved { bytes, are_replaced })
}

/// Walks round at most once, from where the last walk ended.
fn walk_round<E: PmEngine<Home = Ssd>>(
    store: &PmStore<E>,
    moving: &mut Moving,
    cut: &Cut,
    goal: u64,
    mover: &mut Mover<'_, E>,
) -> Result<()> {
    let mut from = moving.after.take();
    let begun_at = from.clone();
    let (mut taken, mut is_second) = (0, begun_at.is_none());
    let mut batch = ScanBatch::new();
    loop {
        let found = look(store, &mut batch, &from, cut)?;
        let is_over = batch.len() < BATCH_KEYS;
        for one in found {
            let is_past = is_second && begun_at.as_ref().is_some_and(|begun_at| one.key > *begun_at);
            if is_past {
                continue;
            }
            taken += (one.key.len() + one.value.len()) as u64;
            mover.add(&one.key, one.number, &one.value, From::Record { number: one.number })?;
        }
        from = batch.len().checked_sub(1).map(|last| batch.key(last).to_vec()).or(from);
        let is_round = is_second
            && (is_over || begun_at.as_ref().is_some_and(|begun_at| from.as_ref() >= Some(begun_at)));
        if taken >= goal || is_round || store.jobs.is_closing() {
            mover.finish()?;
            moving.after = if is_over { None } else { from };
            return Ok(());
        }
        if is_over {
            // Keys start from the beginning again.
            mover.finish()?;
            (from, is_second) = (None, true);
        }
    }
}

/// A record that migrates.
struct Going {
    key: Vec<u8>,
    value: Vec<u8>,
    number: u64,
}

/// Takes the next keys after `from`: returns copies of the records that migrate, and lowers the weights of
/// the others.
fn look<E: PmEngine<Home = Ssd>>(
    store: &PmStore<E>,
    batch: &mut ScanBatch,
    from: &Option<Vec<u8>>,
    cut: &Cut,
) -> Result<Vec<Going>> {
    let _here = store.limbo.enter();
    let weights = &store.home.weights;
    batch.clear();
    let from = from.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    store.index.scan(from, false, BATCH_KEYS, batch)?;
    let mut going = Vec::new();
    for (key, bits) in batch.iter() {
        let word: VersionRefOf<E> = store.decode(bits)?;
        let VersionRef::Record(word) = word else { continue };
        if word.is_tombstone() || word.is_remote() {
            continue;
        }
        // SAFETY: the caller has been present since before the word was loaded.
        let loaded = unsafe { Record::load(&store.pool, word) }.and_then(|found| found.of(&store.pool, key));
        // A reader of the damaged record gets the error; the record hinders nobody.
        let Ok(record) = loaded else { continue };
        if !cut.takes((weights.get(word.offset()), record.number)) {
            weights.lower(word.offset(), cut.average);
            continue;
        }
        if !matches!(store.link(&record), Ok(None)) {
            continue;
        }
        going.push(Going { key: key.to_vec(), value: record.value.to_vec(), number: record.number });
    }
    Ok(going)
}

/// The cut by which records of about `goal` bytes migrate.
fn choose<E: PmEngine<Home = Ssd>>(store: &PmStore<E>, goal: u64) -> Cut {
    let _here = store.limbo.enter();
    let used = fill(store).used.max(1);
    let slots = store.pool.some_slots(&[RECORD_KIND, LINKED_KIND], SAMPLES);
    let sample = |at: u64| -> Option<Sample> {
        // A guess is enough: a write there meanwhile only makes it another guess.
        Some((store.home.weights.get(at), Record::number_at(&store.pool, at)?))
    };
    let mut samples: Vec<Sample> = slots.into_iter().filter_map(sample).collect();
    Cut::choose(&mut samples, goal as f64 / used as f64)
}
