//! What repairs of all engines begin with: which tables there are, what of them is sound, what is lost.
//!
//! Tables are the ground truth: those of the manifest, or where that is damaged, every one that is there and has not
//! left it for certain. Each is read in full, and of a damaged one the blocks that are sound go into a new
//! table. Nothing is removed here.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_disk::Access;
use terrace_log::LogReader;
use terrace_table::{Kind, Table, TableBuilder, TableMeta, TableOptions, salvage};

use crate::db::core::Core;
use crate::db::report::RepairReport;
use crate::manifest::{FileName, Manifest, State};
use crate::pool;

/// A repair under way.
pub(crate) struct Salvage {
    pub core: Arc<Core>,
    pub report: RepairReport,
    /// How new tables are written.
    pub options: TableOptions,
    /// The next file number.
    pub next: u64,
    /// Where the manifest is damaged: the tables that have certainly left it.
    pub left: Option<BTreeSet<u64>>,
}

/// Versions of keys, for a new table.
#[derive(Default)]
pub(crate) struct Entries {
    pub list: Vec<(Vec<u8>, u64, Kind, Bytes)>,
}

impl Salvage {
    pub fn new(core: Arc<Core>, options: TableOptions) -> Salvage {
        Salvage { core, report: RepairReport::default(), options, next: 1, left: None }
    }

    /// Notes what was done.
    pub fn did(&mut self, action: impl Into<String>) {
        self.report.actions.push(action.into());
    }

    /// Notes what could not be brought back.
    pub fn lost(&mut self, what: impl Into<String>) {
        self.report.lost.push(what.into());
    }

    /// The manifest's state, or what can still be read of it; new files are numbered past all others.
    ///
    /// An error if there is nothing that says that this is a database, and if another version wrote any of it: that is
    /// sound, and not to be touched.
    pub fn begin(&mut self) -> Result<Option<State>> {
        let known = self.known_state()?;
        self.reserve_numbers(known.as_ref())?;
        self.files()?.into_iter().try_for_each(|file| self.admit_version(file))?;
        Ok(known)
    }

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

    fn admit_version(&self, file: FileName) -> Result<()> {
        let (fs, path) = (self.core.fs(), file.path(&self.core.dir));
        let outcome = match file {
            FileName::Table(number) => {
                let cache = self.core.cache().clone();
                Table::open(fs, &path, number, cache, Access::Sequential).map(drop)
            }
            FileName::Log(number) => {
                let read = |bytes: Vec<u8>| LogReader::read_file(&bytes, &path, number, &mut |_, _| Ok(()));
                fs.read(&path).and_then(read).map(drop)
            }
            _ => Ok(()),
        };
        // Everything else is dealt with where it is met.
        outcome.or_else(|e| if pool::is_of_another_version(&e) { Err(e) } else { Ok(()) })
    }

    fn files(&self) -> Result<Vec<FileName>> {
        let files = self.core.fs().list(&self.core.dir)?;
        Ok(files.iter().filter_map(|path: &PathBuf| FileName::parse(path)).collect())
    }

    /// Numbers of the log files that are there.
    pub fn log_files(&self) -> Result<BTreeSet<u64>> {
        let number = |name| if let FileName::Log(n) = name { Some(n) } else { None };
        Ok(self.files()?.into_iter().filter_map(number).collect())
    }

    fn reserve_numbers(&mut self, known: Option<&State>) -> Result<()> {
        let highest = self.files()?.into_iter().map(|name| match name {
            FileName::Table(n) | FileName::Log(n) => n,
            _ => 0,
        });
        self.next = highest.max().unwrap_or(0).max(known.map_or(0, |s| s.next_file)) + 1;
        if self.next == 2 && known.is_none() && !self.core.env.pm.exists(&self.core.dir.join("pool"))? {
            return Err(Error::invalid(format!("there is no database in {}", self.core.dir.display())));
        }
        Ok(())
    }

    /// The tables that are there.
    pub fn present_tables(&self) -> Result<BTreeSet<u64>> {
        let number = |name| if let FileName::Table(n) = name { Some(n) } else { None };
        Ok(self.files()?.into_iter().filter_map(number).collect())
    }

    /// The tables that hold what the database held, of those that are there. Of the rest the report tells.
    pub fn wanted_tables(&mut self, known: Option<&State>) -> Result<BTreeSet<u64>> {
        let present = self.present_tables()?;
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

    /// The tables that are sound, after the sound parts of the others have been put into new ones, each with the
    /// number of the table that it is or is made of.
    pub fn sound_tables(&mut self, wanted: BTreeSet<u64>) -> Result<Vec<(u64, TableMeta)>> {
        let mut sound = Vec::new();
        for number in wanted {
            let core = self.core.clone();
            let path = FileName::Table(number).path(&core.dir);
            let open = Table::open(core.fs(), &path, number, core.cache().clone(), Access::Sequential);
            match open.and_then(|table| table.verify().map(|()| table.meta().clone())) {
                Ok(meta) => sound.push((number, meta)),
                Err(e) => {
                    self.did(format!("{e}: salvaging what is sound"));
                    sound.extend(self.salvage_table(number)?.map(|meta| (number, meta)));
                }
            }
        }
        Ok(sound)
    }

    fn salvage_table(&mut self, number: u64) -> Result<Option<TableMeta>> {
        let core = self.core.clone();
        let mut entries = Entries::default();
        let path = FileName::Table(number).path(&core.dir);
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
    pub fn write_table(&mut self, mut entries: Entries, source: &str) -> Result<Option<TableMeta>> {
        entries.list.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        entries.list.dedup_by(|a, b| a.0 == b.0 && a.1 == b.1);
        if entries.list.is_empty() {
            return Ok(None);
        }
        let number = self.next;
        self.next += 1;
        let file = self.core.fs().create(&FileName::Table(number).path(&self.core.dir))?;
        let mut builder = TableBuilder::new(file, number, self.options.clone())?;
        for (key, seq, kind, value) in &entries.list {
            builder.add(key, *seq, *kind, value)?;
        }
        let built = builder.finish()?;
        self.core.fs().sync_dir(&self.core.dir)?;
        self.did(format!("brought {} entries of {source} into {number:06}.sst", built.meta.entries));
        Ok(Some(built.meta))
    }
}
