//! The first part of every engine's repair: which tables exist, which parts of them are sound, what is lost.
//!
//! Tables are the ground truth: those of the manifest, or, where that is damaged or older than the tables,
//! every existing table that has not certainly been dropped. Each is read in full; the sound blocks of a
//! damaged one go into a new table. A table is what its contents say, whatever its name; one that says it is
//! another database's is set aside.

mod runs;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_disk::Access;
use terrace_log::LogReader;
use terrace_pmem::{Opened as Condition, Pool};
use terrace_table::{Kind, Table, TableMeta, TableOptions, salvage};

use crate::core::Core;
use crate::core::report::RepairReport;
use crate::manifest::{FileName, Identity, IngestNotes, Manifest, State, behind_all};
use crate::options::EngineKind;
use crate::pool;

pub(crate) use runs::{TableSorter, each_newest_in};

/// Which database the remaining files belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The first bytes of its identity, according to tables or logs.
    Told(u64),
    /// The same, where equally many tables and logs say otherwise.
    Disputed(u64),
    /// According to the pool alone, which may be another database's.
    ByPool(u64),
}

impl Owner {
    /// The first bytes of the identity.
    pub fn bytes(self) -> u64 {
        let (Owner::Told(owner) | Owner::Disputed(owner) | Owner::ByPool(owner)) = self;
        owner
    }
}

/// A repair under way. Nobody else sees its changes to the directory of `core` until it is over.
pub(crate) struct Salvage {
    pub core: Arc<Core>,
    pub report: RepairReport,
    /// How new tables are written.
    pub options: TableOptions,
    /// The next file number.
    pub next: u64,
    /// Whether the manifest is sealed: the database was closed.
    pub was_closed: bool,
    /// Where the manifest is damaged or has lost its end: the tables that have certainly been dropped.
    pub left: Option<BTreeSet<u64>>,
    /// Evidence that the manifest has lost its end, if already known.
    pub lost_end: Option<String>,
    /// The last write in whole items of the pool that the manifest does not name, and which item that is.
    pub newest_unnamed: Option<(u64, String)>,
    /// Evidence that the manifest has lost its end, found by a repair that had trusted it.
    pub found_lost_end: Option<String>,
    /// The last write that was about to be flushed, according to the pool: writes that the logs do not reach
    /// back to were flushed.
    pub flushing: u64,
    /// Files to set aside, by name, with reasons.
    pub aside: BTreeMap<String, String>,
    /// Why the previous pool is to be set aside, if it is.
    pub pool_aside: Option<String>,
    /// Whether anything but the pool says which database this is.
    is_known: bool,
    /// Whether a manifest records what the database was created with.
    is_recorded: bool,
    /// Where the manifest says that the pool lies, if it is to say something else.
    left_place: Option<PathBuf>,
    /// The owner of the tables that the manifest does not mention.
    owner: Option<Owner>,
    /// The existing tables by the numbers stored in them, each with the origin it names.
    tables: BTreeMap<u64, (PathBuf, u64)>,
}

/// Versions of keys, for a new table.
pub(crate) type Entries = Vec<(Vec<u8>, u64, Kind, Bytes)>;

/// The number of the table that a sound one is or is made from, and its figures.
pub(crate) type Sound = (u64, TableMeta);

impl Salvage {
    pub fn new(core: Arc<Core>, owner: Option<Owner>) -> Salvage {
        Salvage {
            core,
            report: RepairReport::default(),
            options: TableOptions::default(),
            next: 1,
            was_closed: false,
            left: None,
            lost_end: None,
            newest_unnamed: None,
            found_lost_end: None,
            flushing: 0,
            aside: BTreeMap::new(),
            pool_aside: None,
            is_known: false,
            is_recorded: false,
            left_place: None,
            owner,
            tables: BTreeMap::new(),
        }
    }

    /// Reports an action.
    pub fn did(&mut self, action: impl Into<String>) {
        self.report.actions.push(action.into());
    }

    /// Reports a loss.
    pub fn lost(&mut self, what: impl Into<String>) {
        self.report.lost.push(what.into());
    }

    /// Notes that the pool is not read, as its parts may date from different times. It is kept.
    pub fn leave_torn_pool(&mut self) {
        self.pool_aside = Some("it cannot be trusted, and was not read".into());
    }

    /// Reports that a file is damaged or not the database's, and sets it aside.
    pub fn set_aside(&mut self, name: impl Into<String>, why: impl Into<String>) {
        self.aside.entry(name.into()).or_insert(why.into());
    }

    /// Reports damage to a file that cannot be read further.
    pub fn damaged_file(&mut self, error: &Error) {
        if let Error::Corruption { file, .. } = error
            && let Some(name) = file.file_name().and_then(|name| name.to_str())
            && FileName::parse(file).is_some()
        {
            self.set_aside(name, error.to_string());
        }
    }

    /// Reports that a log cannot be read further, and what that means.
    pub fn damaged_log(&mut self, error: &Error) {
        self.damaged_file(error);
        self.lost(format!("{error}: the writes of this log from there on"));
    }

    /// The pool to look for: that of the database `identity`, with how much of it is known.
    pub fn sought<'a>(&self, identity: &'a Identity) -> pool::Sought<'a> {
        let (is_known, is_recorded) = (self.is_known, self.is_recorded);
        pool::Sought { identity, is_known, is_recorded, left_place: self.left_place.clone() }
    }

    /// The pool, as it is, for what an engine keeps in it beside logs; the logs have been read before, and
    /// what is wrong with the pool was reported then.
    pub fn open_pool(&mut self, identity: &Identity, known: Option<&State>) -> Result<Option<Pool>> {
        let core = self.core.clone();
        let (path, media) = pool::request(&core, identity)?;
        if !core.env.pm.exists(&path)? {
            return Ok(None);
        }
        let (options, owner) = (pool::pool_options(&core, media), self.sought(identity));
        let Ok(pool) = pool::open_to_repair(&core, &path, &options, owner)? else { return Ok(None) };
        if pool.opened() == Condition::Torn {
            return Ok(None);
        }
        let _told = pool::take_as_it_is(&pool, known.and_then(|state| state.pool));
        Ok(Some(pool))
    }

    /// The manifest's state, or what can still be read of it, and the identity; new files get numbers after
    /// all existing ones.
    pub fn begin(&mut self, engine: EngineKind) -> Result<(Option<State>, Identity)> {
        let known = self.known_state()?;
        if let Some(found) = self.lost_end.take() {
            self.manifest_lost_its_end(&found)?;
        }
        self.reserve_numbers(known.as_ref())?;
        let mut identity = match (&known, self.owner) {
            (Some(state), _) => state.identity.clone(),
            (None, owner) => {
                let new = pool::new_identity(&self.core.dir, &self.core.options, engine)?;
                owner.map_or_else(|| new.clone(), |owner| new.clone().with_owner(owner.bytes()))
            }
        };
        let recorded = pool::recorded_path(&identity, &self.core.dir);
        if pool::record_place(&mut identity, &self.core.dir, &self.core.options.pool)? {
            self.left_place = Some(recorded.unwrap_or_else(|| self.core.dir.join(pool::POOL_NAME)));
            let place = self.core.options.pool.path().unwrap_or(&self.core.dir);
            self.report.actions.push(format!("recorded that the pool lies in {}", place.display()));
        }
        self.is_recorded = known.is_some();
        self.is_known = self.is_recorded || !matches!(self.owner, None | Some(Owner::ByPool(_)));
        let doubt = match self.owner.filter(|_| known.is_none()) {
            Some(Owner::ByPool(_)) => {
                Some("the pool's owner: only the pool names the database, and may be another one's")
            }
            Some(Owner::Disputed(_)) => {
                Some("the database's owner: equally many files name another database; those are set aside")
            }
            Some(Owner::Told(_)) | None => None,
        };
        self.report.doubts.extend(doubt.map(String::from));
        self.options.origin = identity.origin();
        self.identify_tables(known.as_ref(), &identity)?;
        Ok((known, identity))
    }

    fn known_state(&mut self) -> Result<Option<State>> {
        match Manifest::open(self.core.fs.clone(), &self.core.dir) {
            Ok(manifest) => {
                self.was_closed = manifest.is_sealed();
                Ok(Some((*manifest.state()).clone()))
            }
            // A system failure while reading proves no damage.
            Err(e) if e.is_system_failure() => Err(e),
            Err(e) => {
                self.did(format!("the manifest is of no use ({e}); making it anew from the tables"));
                if !Manifest::is_whole_without_pointer(self.core.fs(), &self.core.dir)? {
                    let doubt =
                        "which tables and logs there were, and whether there was a pool: the manifest knew";
                    self.report.doubts.push(doubt.into());
                }
                self.damaged_file(&e);
                let salvaged = Manifest::salvage(self.core.fs(), &self.core.dir)?;
                let (state, removed) = salvaged.map(|s| (s.state, s.removed)).unzip();
                self.left = Some(removed.unwrap_or_default());
                Ok(state)
            }
        }
    }

    /// Reports that the manifest has lost its newest groups, as `found` shows: it does not name everything.
    pub fn manifest_lost_its_end(&mut self, found: &str) -> Result<()> {
        if self.left.is_some() {
            return Ok(());
        }
        self.did(format!("the manifest has lost its end ({found}): using all tables that have not left it"));
        let doubt = "which tables and logs there were: the manifest has lost its newest groups";
        self.report.doubts.push(doubt.into());
        let salvaged = Manifest::salvage(self.core.fs(), &self.core.dir)?;
        self.left = Some(salvaged.map(|salvaged| salvaged.removed).unwrap_or_default());
        Ok(())
    }

    fn files(&self) -> Result<Vec<FileName>> {
        let files = self.core.fs().list(&self.core.dir)?;
        Ok(files.iter().filter_map(|path: &PathBuf| FileName::parse(path)).collect())
    }

    /// Numbers of the existing log files.
    pub fn log_files(&self) -> Result<BTreeSet<u64>> {
        let number = |name| if let FileName::Log(n) = name { Some(n) } else { None };
        Ok(self.files()?.into_iter().filter_map(number).collect())
    }

    /// No number of a file is given again. What lies far behind all others and does not say what it is has a number that
    /// the database never gave: a log is set aside.
    fn reserve_numbers(&mut self, known: Option<&State>) -> Result<()> {
        let numbered = self.files()?.into_iter().filter_map(|name| match name {
            FileName::Table(n) | FileName::TableHidden(n) | FileName::Ingest(n) | FileName::Log(n) => {
                Some((n, name))
            }
            _ => None,
        });
        let mut numbered = Vec::from_iter(numbered);
        numbered.sort_by_key(|(number, _)| *number);
        let first = known.map(|state| state.next_file).or(numbered.first().map(|(number, _)| *number));
        self.next = behind_all(first.unwrap_or(0), numbered.iter().map(|(number, _)| *number));
        let behind = numbered.partition_point(|(number, _)| *number < self.next);
        for (number, name) in numbered.split_off(behind) {
            if self.is_told_by_itself(name)? {
                self.next = number + 1;
            } else if matches!(name, FileName::Log(_)) {
                self.set_aside(name.to_string(), "it is no log, and the database never gave its number");
                // From the view alone.
                self.core.fs().remove(&name.path(&self.core.dir))?;
            }
        }
        // With 1 the database would look like an unfinished creation: opening it would create it again, or refuse what
        // the repair has put into its pool.
        self.next = (self.next + 1).max(2);
        Ok(())
    }

    /// Whether a file says what it is.
    fn is_told_by_itself(&self, name: FileName) -> Result<bool> {
        let (fs, path) = (self.core.fs(), name.path(&self.core.dir));
        Ok(match name {
            FileName::Table(_) => Table::identify(fs, &path).is_ok(),
            FileName::Log(_) => LogReader::origin(fs, &path)?.is_some(),
            _ => false,
        })
    }

    /// Identifies the table in each file. Files of another database and second copies are set aside.
    fn identify_tables(&mut self, known: Option<&State>, identity: &Identity) -> Result<()> {
        let notes = IngestNotes::read(self.core.fs(), &self.core.dir)?;
        let names = self.files()?.into_iter();
        let mut numbers: Vec<u64> =
            names.filter_map(|name| if let FileName::Table(n) = name { Some(n) } else { None }).collect();
        // Files whose name and content agree come first: of two with one number such a file counts.
        let mut found = Vec::with_capacity(numbers.len());
        for number in numbers.drain(..) {
            let path = FileName::Table(number).path(&self.core.dir);
            // A file that does not even say which table it is, is taken for the table of its name.
            let (own, origin) = match Table::identify(self.core.fs(), &path) {
                Err(e) if e.is_system_failure() => return Err(e),
                origin => origin.unwrap_or((number, identity.origin())),
            };
            let is_named = known.is_some_and(|state| state.has_file(own));
            if !is_named && notes.tell_of_file(self.core.fs(), &path, (own, origin))? {
                self.did(format!("{number:06}.sst is of an ingest that has not taken place: left out"));
                continue;
            }
            found.push((own != number, number, own, origin, path));
        }
        found.sort();
        for (_, number, own, origin, path) in found {
            let name = FileName::Table(number).to_string();
            if origin != identity.origin() {
                self.set_aside(&name, "it is a table of another database");
                if known.is_none_or(|state| state.has_file(number)) {
                    self.lost(format!("{name} is another database's: what was in this one's table {number}, if there was one"));
                }
            } else if let Entry::Vacant(entry) = self.tables.entry(own) {
                entry.insert((path, origin));
            } else {
                self.set_aside(&name, format!("it is a second copy of table {own}"));
            }
        }
        Ok(())
    }

    /// The existing tables.
    pub fn present_tables(&self) -> BTreeSet<u64> {
        self.tables.keys().copied().collect()
    }

    /// The existing tables that hold the database's contents. The report covers the others.
    pub fn wanted_tables(&mut self, known: Option<&State>) -> BTreeSet<u64> {
        let present = self.present_tables();
        let named: BTreeSet<u64> = known.iter().flat_map(|s| s.files()).collect();
        let Some(left) = self.left.clone() else {
            for number in named.difference(&present) {
                self.lost(format!("{number:06}.sst is missing, with everything in it"));
            }
            return &named & &present;
        };
        for number in named.difference(&present).filter(|n| !left.contains(n)) {
            self.lost(format!("{number:06}.sst is missing: merged since, or lost with everything in it"));
        }
        &present - &left
    }

    /// The sound tables, after the sound parts of the others have been written into new ones.
    pub fn sound_tables(&mut self, wanted: BTreeSet<u64>) -> Result<Vec<Sound>> {
        let mut sound = Vec::new();
        for number in wanted {
            let core = self.core.clone();
            let Some((path, _)) = self.tables.get(&number).cloned() else { continue };
            if path != FileName::Table(number).path(&core.dir) {
                let name = name_of(&path);
                self.did(format!("{name} is table {number} under another name"));
                self.set_aside(
                    &name,
                    format!("it is table {number} under another name; what is in it was brought over"),
                );
                sound.extend(self.salvage_table(number, &path)?);
                continue;
            }
            let open = Table::open(core.fs(), &path, number, core.cache().clone(), Access::Sequential);
            match open.and_then(|table| table.verify().map(|()| table.meta().clone())) {
                Ok(meta) => sound.push((number, meta)),
                Err(e) if e.is_of_another_version() => return Err(e),
                Err(e) => {
                    self.did(format!("{e}: salvaging what is sound"));
                    self.set_aside(name_of(&path), e.to_string());
                    sound.extend(self.salvage_table(number, &path)?);
                }
            }
        }
        Ok(sound)
    }

    fn salvage_table(&mut self, number: u64, path: &Path) -> Result<Vec<Sound>> {
        let (core, options, name) = (self.core.clone(), self.options.clone(), name_of(path));
        let mut runs = TableSorter::new(&core, &options, &mut self.next);
        let take = &mut |key: &[u8], seq, kind, value| runs.add(key, seq, kind, value);
        let outcome = salvage(core.fs(), path, number, self.options.origin, take);
        let outcome = match outcome {
            Err(e @ Error::InvalidFormat { .. }) if !e.is_of_another_version() => {
                self.lost(format!("{e}: everything that was in it"));
                return Ok(Vec::new());
            }
            outcome => outcome?,
        };
        let made = runs.finish()?;
        if let Some(other) = outcome.number.filter(|n| *n != number) {
            made.iter()
                .try_for_each(|meta| core.fs().remove(&FileName::Table(meta.number).path(&core.dir)))?;
            self.lost(format!("{name} is table {other}: everything that was in table {number}"));
            return Ok(Vec::new());
        }
        for range in outcome.lost {
            self.lost(format!("{name}: bytes {} to {} are damaged", range.offset, range.offset + range.len));
        }
        Ok(self.brought(made, &name).into_iter().map(|meta| (number, meta)).collect())
    }

    /// Writes entries, which must be in order, into new tables.
    pub fn write_tables(&mut self, entries: Entries, source: &str) -> Result<Vec<TableMeta>> {
        let (core, options) = (self.core.clone(), self.options.clone());
        let mut runs = TableSorter::new(&core, &options, &mut self.next);
        for (key, seq, kind, value) in entries {
            runs.add(&key, seq, kind, value)?;
        }
        let made = runs.finish()?;
        Ok(self.brought(made, source))
    }

    pub fn brought(&mut self, made: Vec<TableMeta>, source: &str) -> Vec<TableMeta> {
        for meta in &made {
            self.did(format!("brought {} entries of {source} into {:06}.sst", meta.entries, meta.number));
        }
        made
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}
