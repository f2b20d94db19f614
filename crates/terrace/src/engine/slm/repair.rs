//! Recovers everything that is not itself damaged.
//!
//! Tables are the ground truth (`salvage/`). Everything still readable in the old pool's memtables becomes
//! tables, too. From these come a new manifest and a new pool; logs are replayed on top.

use std::path::PathBuf;

use bytes::Bytes;
use terrace_base::{Error, ErrorKind, Kind, Result};
use terrace_index::{Missing, SkipList};
use terrace_pmem::{Granularity, Opened, Pool};
use terrace_table::TableMeta;

use super::memtable::{MEMTABLE_KIND, MEMTABLES, root};
use super::open;
use super::{ahead, behind};
use crate::batch::Op;
use crate::commit_log::replay_files;
use crate::core::engine::Engine;
use crate::manifest::{BegunLog, Identity, Manifest, State};
use crate::options::EngineKind;
use crate::pool::{self, Beyond, MEDIA, StartState};
use crate::salvage::{Entries, Salvage};

/// Repairs the database in the view that `base` works in.
pub(crate) fn repair(base: Salvage) -> Result<Salvage> {
    let mut work = Repair {
        base,
        flushed: 0,
        known: None,
        first_log: 0,
        log_end: None,
        last_logs: [None; 2],
        memtables_hold_all: false,
    };
    let (known, mut identity) = work.base.begin(EngineKind::Slm)?;
    let pool = work.pool_to_salvage(&identity, known.as_ref())?;
    if let (Some(pool), Some(state)) = (&pool, &known) {
        work.compare_manifest(pool, state)?;
    }
    let wanted = work.base.wanted_tables(known.as_ref());
    let sound = work.base.sound_tables(wanted)?;
    let mut tables = sound.into_iter().map(|(_, meta)| (0, meta)).collect();
    work.flushed = known.as_ref().map_or(0, |s| s.flushed_seq);
    work.first_log = known.as_ref().map_or(0, |s| s.log_number);
    work.log_end = known.as_ref().and_then(|s| s.log_end);
    work.last_logs = known.as_ref().map_or([None; 2], |s| s.last_logs);
    work.known = known;
    if let Some(pool) = pool {
        work.salvage_memtables(&identity, pool, &mut tables)?;
    }
    work.finish(&mut identity, tables)
}

struct Repair {
    base: Salvage,
    /// Everything up to this sequence number is in tables.
    flushed: u64,
    /// The manifest's state, as far as it can be read.
    known: Option<State>,
    /// Logs before this one are no longer needed, and may contain refused writes.
    first_log: u64,
    /// The log sealed last, and its length.
    log_end: Option<(u64, u64)>,
    /// The logs begun last, if the memtables do not hold their contents.
    last_logs: [Option<BegunLog>; 2],
    /// Whether the memtables certainly hold everything in logs.
    memtables_hold_all: bool,
}

/// The previous pool, used as it is.
struct OldPool {
    path: PathBuf,
    pool: Pool,
    /// What may be lost with that.
    doubts: Vec<String>,
}

impl Repair {
    /// Reports what the pool shows the manifest to have lost.
    fn compare_manifest(&mut self, old: &OldPool, state: &State) -> Result<()> {
        // A pool older than the manifest shows nothing; a damaged manifest is already known to be.
        if self.base.left.is_some() || !old.doubts.is_empty() {
            return Ok(());
        }
        match ahead::missing_in(state, &old.pool) {
            Ok(None) => Ok(()),
            Ok(Some(found)) => self.base.manifest_lost_its_end(&found),
            Err(e) if e.is_system_failure() || e.is_of_another_version() => Err(e),
            Err(e) => {
                if self.base.present_tables().iter().any(|number| !state.tables.contains_key(number)) {
                    let doubt = format!("whether the manifest has lost its newest groups: {e}");
                    self.base.report.doubts.push(doubt);
                }
                Ok(())
            }
        }
    }

    /// Turns the contents of the old pool's memtables into tables.
    fn salvage_memtables(
        &mut self,
        identity: &Identity,
        old: OldPool,
        tables: &mut Vec<(u32, TableMeta)>,
    ) -> Result<()> {
        let OldPool { path, pool, mut doubts } = old;
        let known_pool = self.known.as_ref().and_then(|state| state.pool);
        let read: Vec<_> = (0..MEMTABLES).map(|slot| read_memtable(&pool, slot)).collect();
        let is_damaged = read.iter().any(Result::is_err);
        let read: Vec<Entries> = (read.into_iter().enumerate())
            .map(|(slot, read)| read.or_else(|e| self.salvage_memtable(&pool, slot, e)))
            .collect::<Result<_>>()?;
        let reached = read.iter().flatten().map(|entry| entry.1).fold(self.flushed, u64::max);
        let missed = match self.missed(&pool, reached) {
            // The part that would say so is damaged itself.
            Err(e) if e.kind() == ErrorKind::Corruption => Some(format!("or may be, since {e}")),
            outcome => outcome?,
        };
        doubts.extend(missed.map(|found| {
            format!(
                "{} is an older copy ({found}): what was written since, unless a log has it",
                path.display()
            )
        }));
        let is_sound = doubts.is_empty();
        doubts.into_iter().for_each(|doubt| self.base.lost(doubt));
        // A memtable from before its flush may still hold a key that was deleted before it: tables know of
        // neither. A damaged deletion is unknown, too.
        let in_tables = if is_sound && !is_damaged { 0 } else { self.flushed };
        // Memtables and logs tell the same history, each version by its number: what is damaged in one may be
        // whole in the other, and the newest records of the logs may not have reached their files. So both
        // are merged before either is taken for complete.
        let logged = if is_damaged { self.logged(identity)? } else { Entries::new() };
        let sources = read.into_iter().map(|entries| (entries, "a memtable")).chain([(logged, "logs")]);
        for (mut entries, source) in sources {
            entries.retain(|entry| entry.1 > in_tables);
            self.flushed = entries.iter().map(|e| e.1).fold(self.flushed, u64::max);
            let made = self.base.write_tables(entries, source)?;
            tables.extend(made.into_iter().map(|meta| (0, meta)));
        }
        if is_sound && !is_damaged {
            self.last_logs = [None; 2];
        }
        self.memtables_hold_all = is_sound
            && !is_damaged
            && pool.opened() == Opened::Clean
            && known_pool.is_some()
            && self.base.left.is_none();
        Ok(())
    }

    /// The pool, if it exists and the logs do not tell its contents better.
    fn pool_to_salvage(&mut self, identity: &Identity, known: Option<&State>) -> Result<Option<OldPool>> {
        let owner = self.base.sought(identity);
        let (path, media) = pool::request(&self.base.core, identity)?;
        let options = pool::pool_options(&self.base.core, media);
        if !self.base.core.env.pm.exists(&path)? {
            self.without_pool("the pool is missing", known);
            return Ok(None);
        }
        let pool = match pool::open_to_repair(&self.base.core, &path, &options, owner)? {
            Ok(pool) => pool,
            Err(e) => {
                self.base.pool_aside = Some(e.to_string());
                self.without_pool(&e.to_string(), known);
                return Ok(None);
            }
        };
        if pool.opened() == Opened::Torn {
            self.base.leave_torn_pool();
            match pool.granularity() {
                Granularity::Page => self.leave_to_logs("read no pool, since it cannot be trusted"),
                _ => self.base.lost(
                    "the pool, which may be torn, and of which no log was kept: writes since the last flush",
                ),
            }
            return Ok(None);
        }
        let doubts = pool::take_as_it_is(&pool, known.and_then(|state| state.pool));
        Ok(Some(OldPool { path, pool, doubts }))
    }

    /// Reports what is lost with a pool that cannot be read, as `why` says. The logs are compared with the
    /// manifest when they are replayed.
    fn without_pool(&mut self, why: &str, known: Option<&State>) {
        let known = known.filter(|_| self.base.left.is_none());
        let beyond = known.map(|state| pool::beyond_logs(&self.base.core, state, self.base.was_closed));
        match beyond.unwrap_or(Beyond::Anything) {
            Beyond::Nothing => {
                self.base.did(format!("{why}: nothing is lost by that, tables and logs hold what was in it"));
            }
            Beyond::Unsynced => self.leave_to_logs(why),
            Beyond::Anything => {
                self.base.lost(format!("{why}: writes since the last flush, unless a log has them"));
            }
        }
    }

    /// Reports that the logs tell what the pool held: all that was synced.
    fn leave_to_logs(&mut self, why: &str) {
        self.base.did(format!("{why}: the logs have what was synced"));
        let doubt = "whether only the pool had some of the writes that were not synced";
        self.base.report.doubts.push(doubt.into());
    }

    /// The sound part of a damaged memtable.
    fn salvage_memtable(&mut self, pool: &Pool, slot: usize, damage: Error) -> Result<Entries> {
        let mut of_later_version = damage.is_of_another_version().then(|| damage.clone());
        self.base.pool_aside = Some(damage.to_string());
        let mut entries = Entries::new();
        let head = pool.root(root(slot)).ok().flatten();
        let missing = head.and_then(|head| {
            let salvaged = SkipList::salvage(pool, MEMTABLE_KIND, head, &mut |record| {
                match Kind::parse(record.kind, pool.path(), head) {
                    Ok(kind) => {
                        let value = Bytes::copy_from_slice(record.value);
                        entries.push((record.key.to_vec(), record.seq, kind, value));
                    }
                    Err(e) if e.is_of_another_version() => of_later_version = Some(e),
                    // Damage to this record alone.
                    Err(_) => {}
                }
                Ok(())
            });
            salvaged.ok()
        });
        if let Some(error) = of_later_version {
            return Err(error);
        }
        self.base.lost(match missing {
            None => format!("{damage}: the writes of one memtable, unless a log has them"),
            Some(Missing { breaks, batches, extents }) => {
                let more = if extents { ", and what lay in parts of it that cannot be found" } else { "" };
                format!(
                    "{damage}: writes of one memtable at {breaks} places and of {batches} batches{more}, unless a log has them"
                )
            }
        });
        Ok(entries)
    }

    /// The contents of the needed logs that are not in tables. Damage to them is reported when they are
    /// replayed.
    fn logged(&self, identity: &Identity) -> Result<Entries> {
        let state = self.known.clone().unwrap_or_else(|| State::new(identity.clone()));
        let needed = self.base.log_files()?.into_iter().filter(|number| *number >= self.first_log);
        let mut entries = Entries::new();
        replay_files(&self.base.core, &state, needed.collect(), &mut |first, ops| {
            let versions = ops.ops().zip(first..);
            let entry = |op: Op<'_>, seq| (op.key.to_vec(), seq, op.kind, Bytes::copy_from_slice(op.value));
            entries.extend(versions.map(|(op, seq)| entry(op, seq)));
        })?;
        Ok(entries)
    }

    /// What a pool lacks that was not closed cleanly, and that holds everything up to `reached`.
    fn missed(&self, pool: &Pool, reached: u64) -> Result<Option<String>> {
        let Some(known) = self.known.as_ref().filter(|_| pool.opened() == Opened::SameBoot) else {
            return Ok(None);
        };
        let logs = self.base.log_files()?.into_iter().filter(|number| *number >= self.first_log);
        behind::missed(&self.base.core, pool, known, (logs.collect(), reached))
    }

    /// Reports that a log cannot be read further.
    fn damaged_log(&mut self, error: &Error) {
        if self.memtables_hold_all {
            self.base.damaged_file(error);
            self.base.did(format!("{error}: nothing is lost by that, the memtables hold what was in it"));
        } else {
            self.base.damaged_log(error);
        }
    }

    /// Makes the new manifest and pool and fills them.
    fn finish(mut self, identity: &mut Identity, tables: Vec<(u32, TableMeta)>) -> Result<Salvage> {
        let core = self.base.core.clone();
        let pool = open::replace_pool(&core, identity)?;
        let media = identity.options.entry(MEDIA.into());
        media.or_insert_with(|| pool::media_name(&pool).into());
        let mut state = Manifest::state_of(identity.clone(), &tables, self.flushed)?;
        state.next_file = state.next_file.max(self.base.next);
        (state.log_number, state.log_end, state.last_logs) = (self.first_log, self.log_end, self.last_logs);
        let manifest = Manifest::rebuild(core.fs.clone(), &core.dir, state)?;
        let slm = open::assemble(core, manifest, pool, StartState::Lost)?;
        let recovered = slm.recover_around(StartState::Lost, &mut |damage| {
            if damage.is_of_another_version() {
                return Err(damage);
            }
            self.damaged_log(&damage);
            Ok(())
        });
        slm.jobs.closed_unless(recovered)?;
        let indexed = terrace_index::PointIndex::len(slm.located.index());
        self.base.did(format!("rebuilt the index of {indexed} keys from {} tables", tables.len()));
        slm.close()?;
        Ok(self.base)
    }
}

pub(super) fn read_memtable(pool: &Pool, slot: usize) -> Result<Entries> {
    let mut entries = Entries::new();
    let Some(head) = pool.root(root(slot))? else { return Ok(entries) };
    let list = SkipList::open(pool, MEMTABLE_KIND, head)?;
    let mut cursor = list.cursor();
    cursor.seek_first()?;
    while cursor.valid() {
        cursor.verify()?;
        let (kind, value) = (cursor.version_kind()?, Bytes::copy_from_slice(cursor.value()?));
        entries.push((cursor.key().to_vec(), cursor.seq(), kind, value));
        cursor.next()?;
    }
    Ok(entries)
}
