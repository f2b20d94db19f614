//! Recovers everything that is not itself damaged.
//!
//! Tables stay as they are found; a bucket's bound stays if no table spans it. The log is replayed as far as
//! it is whole, and flushed. The manifest records up to which number a bucket is in tables, and is trusted if
//! all its tables are sound: a put that they do not hold may have been dropped together with its tombstone,
//! which a damaged log does not bring back. In other buckets each operation is looked up in the tables, for
//! itself or a newer one. Nothing old is removed before its replacement is durable.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Included, Unbounded};

use terrace_base::{Error, Result};
use terrace_table::TableMeta;

use super::bucket::LAST_LEVEL;
use super::open;
use super::recover::Replaying;
use crate::commit_log::{Gathered, PoolContents, first_beginning, gather_logs, log_files, rebuild};
use crate::core::engine::Engine;
use crate::leveled::{PlacedRun, gather_runs};
use crate::manifest::{Edit, Identity, Manifest, State};
use crate::options::EngineKind;
use crate::salvage::Salvage;

/// Repairs the database in the view that `base` works in.
pub(crate) fn repair(mut base: Salvage) -> Result<Salvage> {
    base.options = super::table_options(&base.core.options);
    let (known, mut identity) = base.begin(EngineKind::Wip)?;
    let home = open::log_home(&base.core);
    if known.is_none() {
        home.note_found(&base.core, &mut identity)?;
    }
    let runs = gather_runs(&mut base, known.as_ref())?;
    let on_pm = home.is_on_pm(&identity);
    let gathered = on_pm.then(|| gather_logs(&mut base, &identity, known.as_ref())).transpose()?;
    let state = new_state(&base, identity, runs, known, gathered.as_ref())?;
    let core = base.core.clone();
    rebuild(base, state, gathered.as_ref(), PoolContents::NOTHING, |opened, damaged| {
        let wip = open::assemble(core, opened, Replaying::Asked, gathered.as_ref(), damaged)?;
        let flush = || wip.rotate().and_then(|()| wip.wait_until_flushed());
        let forget = || wip.log.forget_all(&wip.manifest, wip.last_seq());
        wip.jobs.closed_unless(flush().and_then(|()| forget()))?;
        wip.close()
    })
}

/// The state for the new manifest.
fn new_state(
    base: &Salvage,
    identity: Identity,
    runs: Vec<PlacedRun>,
    known: Option<State>,
    gathered: Option<&Gathered>,
) -> Result<State> {
    let trusted = known.as_ref().filter(|_| base.left.is_none());
    let flushed_of = trusted.map(|state| flushed_of(state, &runs)).unwrap_or_default();
    let tables: Vec<(u32, TableMeta)> =
        runs.into_iter().map(|(level, meta, _)| (level.min(LAST_LEVEL as u32), meta)).collect();
    let newest = tables.iter().map(|(_, meta)| meta.max_seq).max().unwrap_or(0);
    // Writes before the first existing log are, or were, in tables, and these are recovered as far as
    // possible.
    let flushed = match trusted {
        Some(state) => state.flushed_seq,
        None => match gathered {
            Some(gathered) => first_beginning(gathered)?,
            None => first_beginning(&log_files(&base.core, identity.origin(), base.log_files()?))?,
        }
        .map_or(newest, |before| before.min(newest)),
    };
    let mut state = Manifest::state_of(identity, &tables, flushed)?;
    state.next_file = state.next_file.max(base.next);
    let bounds = known.iter().flat_map(|known| known.buckets.keys().cloned());
    let spans = |bound: &Vec<u8>| tables.iter().any(|(_, t)| t.smallest < *bound && *bound <= t.largest);
    // In order: the first of all buckets begins at the empty key.
    let others = bounds.filter(|bound| !bound.is_empty() && !spans(bound));
    for lower in [Vec::new()].into_iter().chain(others) {
        let flushed = flushed_of.get(&lower).copied().unwrap_or(0);
        let fits = state.apply(&Edit::SetBucket { lower, flushed });
        fits.map_err(|why| Error::invalid(format!("a manifest edit does not fit: {why}")))?;
    }
    (state.log_number, state.log_end, state.last_logs) =
        known.map_or((0, None, [None; 2]), |s| (s.log_number, s.log_end, s.last_logs));
    // Why a table has entries beside the newest of their key is unknown: it is examined again.
    state.candidates = state.tables.keys().copied().collect();
    Ok(state)
}

/// The numbers up to which the buckets of `known` are in tables, by their lower bounds: for buckets whose
/// tables are all among `runs`, and sound. If `runs` has other tables, it is unknown which buckets these come
/// from.
fn flushed_of(known: &State, runs: &[PlacedRun]) -> BTreeMap<Vec<u8>, u64> {
    let sound: BTreeSet<u64> =
        runs.iter().filter(|(_, _, is_sound)| *is_sound).map(|(_, meta, _)| meta.number).collect();
    if sound.iter().any(|number| !known.tables.contains_key(number)) {
        return BTreeMap::new();
    }
    let mut flushed: BTreeMap<Vec<u8>, u64> =
        known.buckets.iter().map(|(lower, bucket)| (lower.clone(), bucket.flushed)).collect();
    for (_, table) in known.tables.iter().filter(|(number, _)| !sound.contains(number)) {
        let of_table =
            flushed.range_mut::<[u8], _>((Unbounded, Included(&table.meta.smallest[..]))).next_back();
        of_table.into_iter().for_each(|(_, flushed)| *flushed = 0);
    }
    flushed
}
