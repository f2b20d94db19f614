//! The walk along the index after an opening, which finds the number of live entries in each table and the
//! free slots.
//!
//! It takes a few keys at a time while nobody writes, and lets writers and readers run in between. It ends if
//! something that it must read is damaged: then no slot or table from before is used again before the next opening.

use std::collections::{BTreeMap, BTreeSet};

use terrace_base::Result;
use terrace_disk::Slot;
use terrace_index::ScanBatch;

use super::home::Ssd;
use super::place::OnSsd;
use super::{pack, reclaim};
use crate::engine::pm::{Named, PmEngine, PmStore, PositionOf, VersionRef, VersionRefOf};

/// Starts the walk in the background.
pub(super) fn send<E: PmEngine<Home = Ssd>>(store: &PmStore<E>) {
    store.spawn(|store| {
        let walked = walk(store);
        // Some of what is dead has been so since before the opening.
        reclaim::send(store);
        pack::send_if_due(store, &store.home.slots.stats());
        if let Err(error) = walked {
            tracing::warn!(%error, "space on the SSD is not used again before the next opening");
            store.core.put_off(&error);
        }
    });
}

/// Waits for the end of the walk and helps with it; it may have failed.
pub(super) fn wait<E: PmEngine<Home = Ssd>>(store: &PmStore<E>) -> Result<()> {
    match store.home.runs.are_counted() {
        true => Ok(()),
        false => walk(store),
    }
}

/// What the walk meets.
#[derive(Debug, Default)]
struct Met {
    /// Entries of tables in the last step.
    entries: BTreeMap<u64, u64>,
    slots: Vec<Slot>,
}

fn walk<E: PmEngine<Home = Ssd>>(store: &PmStore<E>) -> Result<()> {
    let ssd = &*store.home;
    let _once = ssd.counting.lock();
    if ssd.runs.are_counted() {
        return Ok(());
    }
    if ssd.runs.has_begun() {
        // A walk that failed has counted some keys: it is not started twice.
        return Ok(());
    }
    let (mut cursor, mut batch, mut met) = (PositionOf::<E>::default(), ScanBatch::new(), Met::default());
    let mut named = BTreeSet::new();
    loop {
        if store.jobs.is_closing() {
            return Ok(());
        }
        let _alone = store.gate.exclusive();
        let more =
            store.visit_batch(&mut cursor, &mut batch, &mut |key, word| meet(store, key, word, &mut met))?;
        let last = batch.len().checked_sub(1).map(|last| batch.key(last));
        named.extend(met.entries.keys().copied());
        ssd.runs.counted(last, &std::mem::take(&mut met.entries));
        if !more {
            if store.is_pending() {
                // Only the undo list names what a group that could not be taken back has replaced.
                return Ok(());
            }
            ssd.remove_unknown(&named)?;
            ssd.stamps.with(|stamps| ssd.slots.adopt(met.slots.into_iter().chain(stamps.iter().copied())))?;
            ssd.runs.all_counted();
            return Ok(());
        }
    }
}

fn meet<E: PmEngine<Home = Ssd>>(
    store: &PmStore<E>,
    key: &[u8],
    word: VersionRefOf<E>,
    met: &mut Met,
) -> Result<()> {
    if let VersionRef::Record(record) = word
        && !record.is_linked()
        && !record.is_remote()
    {
        return Ok(());
    }
    for version in store.chain(word, key)? {
        let place = match version {
            Named::Place(place) => Some(place),
            Named::Record(record) => store.place_in(&record)?,
        };
        match place {
            Some(OnSsd::Run(position)) => *met.entries.entry(position.number()).or_default() += 1,
            Some(OnSsd::Slot(slot)) => met.slots.push(slot),
            None => {}
        }
    }
    Ok(())
}
