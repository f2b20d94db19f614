//! What a repair recovers of the levels.
//!
//! If the manifest can be read and nothing that it names is missing, runs keep their levels; otherwise all
//! existing ones go to level 0, where every order of versions is right.

use terrace_base::Result;
use terrace_table::TableMeta;

use crate::commit_log::{Gathered, first_beginning};
use crate::manifest::{Identity, Manifest, State};
use crate::salvage::Salvage;

/// A run with its level, and whether it was found sound.
pub(crate) type PlacedRun = (u32, TableMeta, bool);

/// The existing runs. `known` is the state in the manifest, if it can be read.
pub(crate) fn gather_runs(base: &mut Salvage, known: Option<&State>) -> Result<Vec<PlacedRun>> {
    let present = base.present_tables();
    let whole =
        base.left.is_none() && known.is_some_and(|s| s.files().all(|number| present.contains(&number)));
    let wanted = base.wanted_tables(known);
    // A manifest that names missing runs has lost its end: the runs that replaced them exist and are not
    // named.
    let wanted = if whole { wanted } else { &present - &base.left.clone().unwrap_or_default() };
    let level =
        |number: u64| known.filter(|_| whole).map_or(0, |s| s.tables.get(&number).map_or(0, |t| t.level));
    let sound = base.sound_tables(wanted)?;
    let tables = sound.into_iter().map(|(number, meta)| (level(number), number == meta.number, meta));
    Ok(tables.map(|(level, sound, meta)| (level, meta, sound)).collect())
}

/// What the new manifest says of them.
pub(crate) fn new_state(
    base: &Salvage,
    identity: Identity,
    runs: Vec<PlacedRun>,
    known: Option<State>,
    gathered: Option<&Gathered>,
) -> Result<State> {
    let flushed = runs.iter().map(|(_, meta, sound)| if *sound { meta.max_seq } else { 0 }).max();
    let flushed = flushed.unwrap_or(0).max(known.as_ref().map_or(0, |s| s.flushed_seq));
    let newest = runs.iter().map(|(_, meta, _)| meta.max_seq).max().unwrap_or(0).max(base.flushing);
    let flushed = match gathered.filter(|_| base.left.is_some()) {
        // Writes before the first existing log were flushed, to lists as well as to tables.
        Some(gathered) => flushed.max(first_beginning(gathered)?.unwrap_or(0).min(newest)),
        None => flushed,
    };
    let runs: Vec<(u32, TableMeta)> = runs.into_iter().map(|(level, meta, _)| (level, meta)).collect();
    let mut state = Manifest::state_of(identity, &runs, flushed)?;
    state.next_file = state.next_file.max(base.next);
    (state.log_number, state.log_end, state.last_logs) =
        known.map_or((0, None, [None; 2]), |s| (s.log_number, s.log_end, s.last_logs));
    // Why a run has entries beside the newest of their key is unknown: it is examined again.
    state.candidates = state.tables.keys().copied().collect();
    Ok(state)
}
