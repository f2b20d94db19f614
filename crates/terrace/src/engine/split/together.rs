//! Reading what a walk meets on the SSD: items in one submission, which goes on in the background, and the
//! blocks of each table in the order in which they lie.

use terrace_disk::{Slot, SlotReads};
use terrace_table::{Position, ReadBuffers, Sought, find_many};

use super::home::Ssd;
use super::item;
use super::place::OnSsd;
use crate::engine::pm::Loaded;
use crate::tables::TableMap;

/// Begins to read those of `places` that are slots.
pub(super) fn begin(ssd: &Ssd, places: &[OnSsd]) -> Option<SlotReads> {
    let slots: Vec<Slot> = places.iter().filter_map(|place| place.slot()).collect();
    if slots.is_empty() { None } else { ssd.slots.begin_reads(&slots).ok() }
}

/// The versions at `wanted`, whose slots are `coming`.
pub(super) fn finish(
    ssd: &Ssd,
    coming: Option<SlotReads>,
    wanted: &[(&[u8], OnSsd)],
    ahead: Option<&mut ReadBuffers>,
) -> Vec<Option<Loaded>> {
    let mut found: Vec<Option<Loaded>> = vec![None; wanted.len()];
    // Slots are being read while tables are.
    load_runs(ssd, wanted, ahead, &mut found);
    let Some(Ok(items)) = coming.map(SlotReads::finish) else { return found };
    let path = ssd.slots_path();
    let of_slot = |((key, place), out)| -> Option<(&[u8], Slot, &mut Option<Loaded>)> {
        let place: &OnSsd = place;
        Some((key, place.slot()?, out))
    };
    let slots = wanted.iter().map(|(key, place)| (*key, place)).zip(&mut found).filter_map(of_slot);
    for ((key, slot, out), item) in slots.zip(items) {
        *out = item::load(ssd.origin(), key, item, &path, ssd.slots.offset(slot)).ok();
    }
    found
}

/// Finds those of `wanted` that lie in tables. What a walk that goes on reads does not go into the cache.
fn load_runs(
    ssd: &Ssd,
    wanted: &[(&[u8], OnSsd)],
    ahead: Option<&mut ReadBuffers>,
    found: &mut [Option<Loaded>],
) {
    let run = |(i, (_, place)): (usize, &(&[u8], OnSsd))| Some((place.run()?, i));
    let mut runs: Vec<(Position, usize)> = wanted.iter().enumerate().filter_map(run).collect();
    runs.sort_unstable();
    let tables = ssd.tables.load();
    let Some(buffers) = ahead else { return load_together(wanted, &tables, &runs, found) };
    for of_table in runs.chunk_by(|a, b| a.0.number() == b.0.number()) {
        let Some(table) = tables.get(&of_table[0].0.number()) else { continue };
        let requests: Vec<(Position, &[u8])> =
            of_table.iter().map(|(position, i)| (*position, wanted[*i].0)).collect();
        for ((_, i), entry) in of_table.iter().zip(table.get_ahead(&requests, u64::MAX, buffers)) {
            found[*i] = entry.map(|entry| Loaded { number: entry.seq, value: entry.value });
        }
    }
}

/// The same for a read that wants nothing but these. What cannot be read is left out.
fn load_together(
    wanted: &[(&[u8], OnSsd)],
    tables: &TableMap,
    runs: &[(Position, usize)],
    found: &mut [Option<Loaded>],
) {
    let sought = runs.iter().filter_map(|(position, i)| {
        let table = tables.get(&position.number())?;
        Some((*i, Sought { table, key: wanted[*i].0, position: Some(*position) }))
    });
    let (places, sought): (Vec<usize>, Vec<Sought<'_>>) = sought.unzip();
    let Ok(entries) = find_many(&sought, u64::MAX) else { return };
    for (i, entry) in places.into_iter().zip(entries) {
        found[i] = entry.map(|entry| Loaded { number: entry.seq, value: entry.value });
    }
}
