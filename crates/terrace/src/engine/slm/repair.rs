//! Bringing back all that is not itself damaged.
//!
//! Tables are the ground truth: those of the manifest, or where that is damaged, every one that is there and
//! has not left it for certain. Each is read in full, and of a damaged one the blocks that are sound go
//! into a new table. What memtables of the old pool can still be read becomes tables, too. From these
//! come a new manifest and a new pool; logs are replayed on top. Nothing old is removed before what
//! replaces it is durable.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_disk::Access;
use terrace_index::SkipList;
use terrace_pmem::{Opened, Pool};
use terrace_table::{Kind, Table, TableBuilder, TableMeta, TableOptions, salvage};

use super::memtable::{MEMTABLE_KIND, MEMTABLES, root};
use super::open::{self, Attached};
use super::tables::{FileKind, classify, table_path};
use crate::db::core::Core;
use crate::db::report::RepairReport;
use crate::engine::Engine;
use crate::manifest::{Identity, Manifest, State};
use crate::options::EngineKind;
use crate::pool;

/// Repairs the database in `core.dir`, which nobody has open.
pub(crate) fn repair(core: Arc<Core>) -> Result<RepairReport> {
    let report = RepairReport::default();
    let mut work = Repair { core, report, next: 1, flushed: 0, first_log: 0, left: None };
    let known = work.known_state()?;
    work.reserve_numbers(known.as_ref())?;
    let wanted = work.wanted_tables(known.as_ref())?;
    let mut tables = work.sound_tables(wanted)?;
    work.flushed = known.as_ref().map_or(0, |s| s.flushed_seq);
    work.first_log = known.as_ref().map_or(0, |s| s.log_number);
    let mut identity =
        known.map_or_else(|| pool::new_identity(&work.core.options, EngineKind::Slm), |s| s.identity);
    let pool_path = work.salvage_memtables(&identity, &mut tables)?;
    work.finish(&mut identity, tables, pool_path)
}

struct Repair {
    core: Arc<Core>,
    report: RepairReport,
    /// The next file number.
    next: u64,
    /// Everything up to this sequence number is in tables.
    flushed: u64,
    /// Logs before this one are no longer needed, and may tell of writes that were refused.
    first_log: u64,
    /// Where the manifest is damaged: the tables that have certainly left it.
    left: Option<BTreeSet<u64>>,
}

impl Repair {
    fn did(&mut self, action: impl Into<String>) {
        self.report.actions.push(action.into());
    }

    fn lost(&mut self, what: impl Into<String>) {
        self.report.lost.push(what.into());
    }

    /// The manifest's state, or what can still be read of it.
    fn known_state(&mut self) -> Result<Option<State>> {
        match Manifest::open(self.core.fs.clone(), &self.core.dir) {
            Ok(manifest) => Ok(Some((*manifest.state()).clone())),
            Err(e) => {
                self.did(format!("the manifest is unreadable ({e}); making it anew from the tables"));
                let salvaged = Manifest::salvage(self.core.fs(), &self.core.dir)?;
                let (state, removed) = salvaged.map(|s| (s.state, s.removed)).unzip();
                self.left = Some(removed.unwrap_or_default());
                Ok(state)
            }
        }
    }

    fn table_files(&self) -> Result<Vec<u64>> {
        let files = self.core.fs().list(&self.core.dir)?;
        let number = |path: PathBuf| if let FileKind::Table(n) = classify(&path) { Some(n) } else { None };
        Ok(files.into_iter().filter_map(number).collect())
    }

    fn reserve_numbers(&mut self, known: Option<&State>) -> Result<()> {
        let files = self.core.fs().list(&self.core.dir)?;
        let highest = files.iter().map(|path| match classify(path) {
            FileKind::Table(n) | FileKind::Log(n) => n,
            FileKind::Other => 0,
        });
        self.next = highest.max().unwrap_or(0).max(known.map_or(0, |s| s.next_file)) + 1;
        if self.next == 2 && known.is_none() && !self.core.env.pm.exists(&self.core.dir.join("pool"))? {
            return Err(Error::invalid(format!("there is no database in {}", self.core.dir.display())));
        }
        Ok(())
    }

    /// The tables that hold what the database held, of those that are there. Of the rest the report tells.
    fn wanted_tables(&mut self, known: Option<&State>) -> Result<BTreeSet<u64>> {
        let present: BTreeSet<u64> = self.table_files()?.into_iter().collect();
        let named: BTreeSet<u64> = known.iter().flat_map(|s| s.tables.keys().copied()).collect();
        let Some(left) = self.left.clone() else {
            for number in named.difference(&present) {
                self.lost(format!("{number:06}.sst is missing, with everything in it"));
            }
            return Ok(&named & &present);
        };
        for number in named.difference(&present).filter(|n| !left.contains(n)) {
            self.lost(format!("{number:06}.sst is missing: merged since, or lost with everything in it"));
        }
        Ok(&present - &left)
    }

    /// The tables that are sound, after the sound parts of the others have been put into new ones.
    fn sound_tables(&mut self, wanted: BTreeSet<u64>) -> Result<Vec<(u32, TableMeta)>> {
        let mut sound = Vec::new();
        for number in wanted {
            let path = table_path(&self.core.dir, number);
            let core = self.core.clone();
            let open = Table::open(core.fs(), &path, number, core.cache().clone(), Access::Sequential);
            match open.and_then(|table| table.verify().map(|()| table.meta().clone())) {
                Ok(meta) => sound.push((0, meta)),
                Err(e) => {
                    self.did(format!("{e}: salvaging what is sound"));
                    sound.extend(self.salvage_table(number)?.map(|meta| (0, meta)));
                }
            }
        }
        Ok(sound)
    }

    fn salvage_table(&mut self, number: u64) -> Result<Option<TableMeta>> {
        let core = self.core.clone();
        let mut entries = Entries::default();
        let path = table_path(&core.dir, number);
        let outcome = match salvage(core.fs(), &path, &mut |key, seq, kind, value| {
            entries.list.push((key.to_vec(), seq, kind, value));
            Ok(())
        }) {
            Err(e @ Error::InvalidFormat { .. }) => {
                self.lost(format!("{e}: everything that was in it"));
                return Ok(None);
            }
            outcome => outcome?,
        };
        if let Some(other) = outcome.number.filter(|n| *n != number) {
            self.lost(format!("{number:06}.sst is table {other}: everything that was in table {number}"));
            return Ok(None);
        }
        for range in outcome.lost {
            self.lost(format!(
                "{number:06}.sst: bytes {} to {} are damaged",
                range.offset,
                range.offset + range.len
            ));
        }
        self.write_table(entries, &format!("{number:06}.sst"))
    }

    /// Writes entries into a new table.
    fn write_table(&mut self, mut entries: Entries, source: &str) -> Result<Option<TableMeta>> {
        entries.list.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        entries.list.dedup_by(|a, b| a.0 == b.0 && a.1 == b.1);
        if entries.list.is_empty() {
            return Ok(None);
        }
        let number = self.next;
        self.next += 1;
        let file = self.core.fs().create(&table_path(&self.core.dir, number))?;
        let mut builder = TableBuilder::new(file, number, TableOptions::default())?;
        for (key, seq, kind, value) in &entries.list {
            builder.add(key, *seq, *kind, value)?;
        }
        let built = builder.finish()?;
        self.core.fs().sync_dir(&self.core.dir)?;
        self.did(format!("brought {} entries of {source} into {number:06}.sst", built.meta.entries));
        Ok(Some(built.meta))
    }

    /// Turns what the old pool's memtables hold into tables. Returns the pool's path.
    fn salvage_memtables(
        &mut self,
        identity: &Identity,
        tables: &mut Vec<(u32, TableMeta)>,
    ) -> Result<PathBuf> {
        let (path, media) = pool::request(&self.core, identity)?;
        let options = pool::pool_options(&self.core, media);
        if !self.core.env.pm.exists(&path)? {
            self.lost("the pool is missing: writes since the last flush, unless a log has them");
            return Ok(path);
        }
        let pool = match self.core.env.pm.open(&path, &options) {
            Ok(pool) => pool,
            Err(e) if matches!(e, Error::Locked { .. } | Error::Io { .. }) => return Err(e),
            Err(e) => {
                self.lost(format!("{e}: writes since the last flush, unless a log has them"));
                return Ok(path);
            }
        };
        if pool.opened() == Opened::Torn {
            self.did("left the pool alone, which a power cut may have torn: the logs have what was synced");
            return Ok(path);
        }
        let read: Vec<_> = (0..MEMTABLES).map(|slot| read_memtable(&pool, slot)).collect();
        for e in read.iter().filter_map(|r| r.as_ref().err()) {
            self.lost(format!("{e}: the writes of one memtable, unless a log has them"));
        }
        // Memtables and logs tell the same history. Mixing an unfinished one of the one with the other
        // could put an older version above a newer: with a log there, memtables count all or not at all.
        if read.iter().any(Result::is_err) && !self.log_files()?.is_empty() {
            return Ok(path);
        }
        for entries in read.into_iter().flatten() {
            self.flushed = entries.list.iter().map(|e| e.1).fold(self.flushed, u64::max);
            let table = self.write_table(entries, "a memtable")?;
            tables.extend(table.map(|meta| (0, meta)));
        }
        Ok(path)
    }

    fn log_files(&self) -> Result<BTreeSet<u64>> {
        let files = self.core.fs().list(&self.core.dir)?;
        let number = |path: PathBuf| if let FileKind::Log(n) = classify(&path) { Some(n) } else { None };
        Ok(files.into_iter().filter_map(number).collect())
    }

    /// Makes the new manifest and pool and fills them.
    fn finish(
        mut self,
        identity: &mut Identity,
        tables: Vec<(u32, TableMeta)>,
        pool_path: PathBuf,
    ) -> Result<RepairReport> {
        let (_, media) = pool::request(&self.core, identity)?;
        let options = pool::pool_options(&self.core, media);
        let mut state = Manifest::state_of(identity.clone(), &tables, self.flushed)?;
        state.next_file = state.next_file.max(self.next);
        state.log_number = self.first_log;
        let manifest = Manifest::rebuild(self.core.fs.clone(), &self.core.dir, state)?;
        self.core.env.pm.remove(&pool_path)?;
        let pool = open::create_pool(&self.core, &pool_path, &options)?;
        let core = self.core.clone();
        let slm = open::assemble(core, manifest, pool, Attached::Rebuild)?;
        slm.recover_around(Attached::Rebuild, &mut |damage| {
            self.lost(format!("{damage}: the writes of this log from there on"));
            Ok(())
        })?;
        pool::set_owner(&slm.pool, identity)?;
        let keys = { terrace_index::OrderedIndex::len(&slm.index) };
        self.did(format!("rebuilt the index of {keys} keys from {} tables", tables.len()));
        self.report.keys = keys;
        slm.close()?;
        Ok(self.report)
    }
}

#[derive(Default)]
struct Entries {
    list: Vec<(Vec<u8>, u64, Kind, Bytes)>,
}

fn read_memtable(pool: &Pool, slot: usize) -> Result<Entries> {
    let mut entries = Entries::default();
    let Some(head) = pool.root(root(slot))? else { return Ok(entries) };
    let list = SkipList::open(pool, MEMTABLE_KIND, head)?;
    let mut cursor = list.cursor();
    cursor.seek_first()?;
    while cursor.valid() {
        cursor.verify()?;
        if let Some(kind) = Kind::from_u8(cursor.kind()) {
            let value = Bytes::copy_from_slice(cursor.value()?);
            entries.list.push((cursor.key().to_vec(), cursor.seq(), kind, value));
        }
        cursor.next()?;
    }
    Ok(entries)
}
