//! Recovers everything that is not itself damaged.
//!
//! As for `lsm`, tables are the ground truth and logs are replayed over them. Before that the value tree's
//! contents are written into tables of level 0: they are newer than the contents of other tables, and older
//! than what only logs have. If the tree's index cannot be read, records are taken wherever they lie, and all
//! tables go to level 0, where every order of versions is right: a record may be one that had been replaced.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use bytes::Bytes;
use terrace_base::Result;
use terrace_index::{FastFair, OrderedIndex, ScanBatch};
use terrace_pmem::Pool;
use terrace_table::Kind;

use super::layout::{VALUES_ROOT, ValueLocation};
use super::open;
use super::tree::{CHUNK, kind};
use super::witness::Witness;
use crate::commit_log::Gathered;
use crate::leveled::{PlacedRun, logged};
use crate::manifest::{Identity, State};
use crate::salvage::{Entries, Salvage};
use crate::versions::{RECORD_KIND, Record, RecordRef};

/// Repairs the database in the view that `base` works in.
pub(crate) fn repair(base: Salvage) -> Result<Salvage> {
    let core = base.core.clone();
    logged::repair(base, open::log_home(), &core.options.lab.levels, gather_values, open::assemble)
}

/// Writes the value tree's contents into tables, beside `runs`.
fn gather_values(
    base: &mut Salvage,
    identity: &Identity,
    known: Option<&State>,
    logs: Option<&Gathered>,
    runs: &mut Vec<PlacedRun>,
) -> Result<()> {
    let Some(pool) = base.open_pool(identity, known)? else {
        base.lost("the newest values of keys that are written often, where they were in the pool");
        return Ok(());
    };
    let mut entries = Entries::new();
    if let Err(e) = named(base, &pool, &mut entries) {
        if e.is_of_another_version() || e.is_system_failure() {
            return Err(e);
        }
        base.lost(format!("{e}: values whose records are damaged, too"));
        base.report.doubts.push(
            "which values in the pool were the newest of their keys: their index is damaged. What was deleted or \
             replaced last may be back"
                .into(),
        );
        base.pool_aside.get_or_insert(e.to_string());
        entries = scattered(&pool);
        runs.iter_mut().for_each(|(level, ..)| *level = 0);
    }
    let witness = Witness::read(&pool);
    drop(pool);
    let tables = base.write_tables(entries, "the value tree")?;
    // The log may hold older writes that are in no table yet: the last write here says nothing about those.
    runs.extend(tables.into_iter().map(|meta| (0, meta, false)));
    match witness {
        Ok(witness) => hear(base, &witness, (known, logs), runs),
        // It is unknown which root cannot be read.
        Err(e) => drop(base.pool_aside.get_or_insert(e.to_string())),
    }
    Ok(())
}

/// Uses what the pool knows of the manifest.
fn hear(
    base: &mut Salvage,
    witness: &Witness,
    (known, logs): (Option<&State>, Option<&Gathered>),
    runs: &[PlacedRun],
) {
    base.flushing = witness.flushed;
    let logged = |known| logs.and_then(|logs| logs.reached(known));
    if base.left.is_none() {
        let found = known.and_then(|state| witness.refutes(state, logged));
        base.found_lost_end = base.found_lost_end.take().or(found);
        return;
    }
    let found = runs.iter().map(|(_, meta, _)| meta.max_seq).max().unwrap_or(0);
    let found = logs.map_or(found, |logs| logs.readable(found));
    if witness.flushed > found {
        base.report.doubts.push(format!(
            "writes {} to {}, which were flushed and are nowhere: deletions of what was not there, or lost",
            found + 1,
            witness.flushed
        ));
    }
}

/// Takes the records that the index names. Damaged records are lost.
fn named(base: &mut Salvage, pool: &Pool, entries: &mut Entries) -> Result<()> {
    let index: FastFair = FastFair::open(pool, VALUES_ROOT)?;
    let (mut batch, mut from) = (ScanBatch::new(), std::ops::Bound::Unbounded);
    loop {
        batch.clear();
        index.scan(from.as_ref().map(Vec::as_slice), false, CHUNK, &mut batch)?;
        for (key, bits) in batch.iter() {
            match entry(pool, key, bits) {
                Ok(found) => entries.extend(found),
                Err(e) => {
                    base.pool_aside.get_or_insert(e.to_string());
                    base.lost(format!("{e}: the newest value of the key {}", key.escape_ascii()));
                }
            }
        }
        if batch.len() < CHUNK {
            return Ok(());
        }
        from = std::ops::Bound::Excluded(batch.key(batch.len() - 1).to_vec());
    }
}

/// A version of a key, for a new table.
type Version = (Vec<u8>, u64, Kind, Bytes);

/// The version that the word `bits` of `key` leads to; `None` if that is on the levels.
fn entry(pool: &Pool, key: &[u8], bits: u64) -> Result<Option<Version>> {
    match ValueLocation::decode(bits) {
        Some(ValueLocation::Below) => Ok(None),
        Some(ValueLocation::Here(word)) => {
            // SAFETY: only this repair has the pool, and it frees nothing.
            let record = unsafe { Record::peek(pool, word)? }.of(pool, key)?;
            Ok(Some(version(&record)))
        }
        None => Err(pool.corruption(0, "the word of a key in the value tree", format!("{bits:#018x}"))),
    }
}

fn version(record: &Record<'_>) -> Version {
    (record.key.to_vec(), record.number, kind(record.word), Bytes::copy_from_slice(record.value))
}

/// Takes every record, in order; of two copies of a version, one.
fn scattered(pool: &Pool) -> Entries {
    let words =
        pool.slots(RECORD_KIND).flat_map(|(at, _)| [false, true].map(|gone| RecordRef::new(at, gone, false)));
    // SAFETY: only this repair has the pool, and it frees nothing.
    let records = words.filter_map(|word| unsafe { Record::peek(pool, word) }.ok());
    let mut entries: Entries = records.map(|record| version(&record)).collect();
    entries.sort_by(|a, b| a.0.cmp(&b.0).then(Reverse(a.1).cmp(&Reverse(b.1))));
    let mut seen = BTreeSet::new();
    entries.retain(|(key, seq, ..)| seen.insert((key.clone(), *seq)));
    entries
}
