//! Bringing back all that is not itself damaged.
//!
//! Where the manifest can be read and nothing that it names is missing, tables keep their levels; else all that are
//! there go to level 0, where every order of versions is right. Logs are replayed as far as they are whole, and
//! flushed; then the pool is made anew. Nothing old is removed before what replaces it is durable.

use std::collections::BTreeSet;

use terrace_base::{Error, Result};
use terrace_log::PmLog;
use terrace_pmem::Opened;
use terrace_table::TableMeta;

use super::open;
use crate::commit_log::{Gathered, LOG_ROOTS, number_of};
use crate::core::engine::Engine;
use crate::leveled::Found;
use crate::manifest::{Identity, Manifest, State};
use crate::options::EngineKind;
use crate::pool;
use crate::salvage::Salvage;

/// Repairs the database in the view that `base` works in.
pub(crate) fn repair(mut base: Salvage) -> Result<Salvage> {
    base.options = super::table_options(&base.core.options);
    let (known, mut identity) = base.begin(EngineKind::Lsm)?;
    let is_known = known.is_some();
    if !is_known {
        note_place(&base, &mut identity)?;
    }
    let tables = gather_tables(&mut base, known.as_ref())?;
    let gathered =
        open::is_on_pm(&identity).then(|| gather_logs(&mut base, &identity, known.as_ref())).transpose()?;
    let flushed = tables.iter().map(|(_, meta, sound)| if *sound { meta.max_seq } else { 0 }).max();
    let flushed = flushed.unwrap_or(0).max(known.as_ref().map_or(0, |s| s.flushed_seq));
    let (first_log, log_end, last_log) =
        known.map_or((0, None, None), |s| (s.log_number, s.log_end, s.last_log));
    let tables: Vec<(u32, TableMeta)> = tables.into_iter().map(|(level, meta, _)| (level, meta)).collect();
    let mut state = Manifest::state_of(identity, &tables, flushed)?;
    state.next_file = state.next_file.max(base.next);
    (state.log_number, state.log_end, state.last_log) = (first_log, log_end, last_log);
    // What a table's entries beside the newest of their key are for is not known: it is looked at again.
    state.candidates = state.tables.keys().copied().collect::<BTreeSet<u64>>().into();
    finish(base, state, gathered)
}

/// A table with its level, and whether it was found sound.
type Placed = (u32, TableMeta, bool);

fn gather_tables(base: &mut Salvage, known: Option<&State>) -> Result<Vec<Placed>> {
    let present = base.present_tables();
    let whole =
        base.left.is_none() && known.is_some_and(|s| s.tables.keys().all(|number| present.contains(number)));
    let wanted = base.wanted_tables(known);
    // A manifest that names what is not there has lost its end: what replaced it is there and not named.
    let wanted = if whole { wanted } else { &present - &base.left.clone().unwrap_or_default() };
    let level =
        |number: u64| known.filter(|_| whole).map_or(0, |s| s.tables.get(&number).map_or(0, |t| t.level));
    let sound = base.sound_tables(wanted)?;
    let tables = sound.into_iter().map(|(number, meta)| (level(number), number == meta.number, meta));
    Ok(tables.map(|(level, sound, meta)| (level, meta, sound)).collect())
}

/// Notes where the log of a database lies whose manifest tells nothing any more: in the pool, if there is one.
fn note_place(base: &Salvage, identity: &mut Identity) -> Result<()> {
    let core = &base.core;
    let (path, _) = pool::request(core, identity)?;
    open::note_place(identity, core.env.pm.exists(&path)?);
    Ok(())
}

/// Reads the logs in the pool, as far as they can be.
fn gather_logs(base: &mut Salvage, identity: &Identity, known: Option<&State>) -> Result<Gathered> {
    let core = base.core.clone();
    let (path, media) = pool::request(&core, identity)?;
    if !core.env.pm.exists(&path)? {
        base.lost("the pool is missing: writes since the last flush");
        return Ok(Gathered::default());
    }
    let (options, owner) = (pool::pool_options(&core, media), (identity, base.is_known));
    let pool = match pool::open_to_repair(&core, &path, &options, owner)? {
        Ok(pool) => pool,
        Err(e) => {
            base.pool_aside = Some(e.to_string());
            base.lost(format!("{e}: writes since the last flush"));
            return Ok(Gathered::default());
        }
    };
    if pool.opened() == Opened::Torn {
        base.lost("the pool, which may be torn: writes since the last flush");
        return Ok(Gathered::default());
    }
    let doubts = pool::take_as_it_is(&pool, known.and_then(|state| state.pool));
    doubts.into_iter().for_each(|doubt| base.lost(doubt));
    let mut logs = Vec::new();
    for root in LOG_ROOTS {
        let opened = pool.root(root).and_then(|head| head.map(|head| PmLog::open(&pool, head)).transpose());
        match opened.map(|log| log.map(|log| (number_of(&log), log))) {
            Ok(None) => {}
            Ok(Some((Some(number), log))) => logs.push((number, log)),
            Ok(Some((None, _))) => {
                let what = format!("{root}: a log that does not begin");
                base.lost(format!("{what}, if anything was in it"));
                base.pool_aside = Some(what);
            }
            Err(e) => {
                base.pool_aside = Some(e.to_string());
                base.lost(format!("{e}: the writes of one memtable"));
            }
        }
    }
    Ok(Gathered::from_pool(&pool, logs.iter().map(|(number, log)| (*number, log))))
}

/// Makes the new manifest, brings what logs hold into tables, and makes the pool anew.
fn finish(mut base: Salvage, state: State, gathered: Option<Gathered>) -> Result<Salvage> {
    let core = base.core.clone();
    let identity = state.identity.clone();
    let tables = state.tables.size();
    let manifest = Manifest::rebuild(core.fs.clone(), &core.dir, state)?;
    let in_pool = gathered.is_some();
    let mut damaged = |damage: Error| {
        if damage.is_of_another_version() {
            return Err(damage);
        }
        if in_pool {
            base.pool_aside.get_or_insert(damage.to_string());
        }
        base.damaged_log(&damage);
        Ok(())
    };
    let opened = (manifest, None, Found::Crashed);
    let lsm = open::assemble(core.clone(), opened, gathered.as_ref(), &mut damaged)?;
    lsm.rotate()?;
    lsm.settle()?;
    lsm.forget_logs()?;
    base.did(format!("the manifest names {tables} tables; what logs held is in tables, too"));
    lsm.close()?;
    if in_pool {
        let (path, media) = pool::request(&core, &identity)?;
        core.env.pm.remove(&path)?;
        let pool = core.env.pm.create(&path, &pool::pool_options(&core, media))?;
        pool::set_owner(&pool, &identity)?;
        pool.close()?;
        base.did("made the pool anew");
    }
    Ok(base)
}
