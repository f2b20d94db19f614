//! The manifest: a durable record of a store's tables, changed by one atomic group of edits at a time.
//!
//! A manifest file `MANIFEST-NNNNNN` is a checksummed log: a snapshot of the whole [`State`], then
//! one record for every group of [`Edit`]s applied since. `CURRENT` names the file in force. The
//! bytes are in `docs/formats/manifest.md`.
//!
//! Only the process that created a file appends to it. So the first group applied after an open starts a new
//! file with a new snapshot, and so do the first one after a failure and the first one past a size limit;
//! `CURRENT` is then switched by an atomic rename, and the old file removed. Opening writes nothing (but see
//! invariant 6).
//!
//! Thread safety: every method takes `&self`. Groups are applied one after the other; readers take
//! an immutable state without waiting for them.
//!
//! Invariants:
//!
//! 1. **All or nothing.** A group is one record, so after a crash all or nothing of it is there.
//! 2. **Durable on return.** [`Manifest::apply`] syncs the record before the group shows in
//!    [`Manifest::state`]. After a crash the state is its last value, or that with the one group that was
//!    being applied.
//! 3. **A failure decides nothing.** When `apply` fails, the state is unchanged, but its record may have
//!    reached the disk: until a later `apply` has succeeded, a crash may bring the group back. Files that it
//!    names must be kept until then.
//! 4. **A failed file is not trusted again.** The next group goes to a new file, which does not
//!    contain the failed one; the old file stays until `CURRENT` is durably switched.
//! 5. The log's framing distinguishes damage from a torn tail. A last record that was synced and then damaged
//!    looks like a torn one; [`Manifest::seal`], at a clean close, ends the log, so that damage to any record
//!    is found.
//! 6. Whatever [`Manifest::open`] has read is synced, even what a dead process had not synced. Nothing is
//!    removed because of it before [`Manifest::decide`]: if the sync of a dead process had failed, the system
//!    may show contents that no disk has, and report them as synced. In a file that was closed cleanly every
//!    group was synced.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use terrace_base::{Error, Result};
use terrace_disk::Fs;
use terrace_log::{FileSegment, LogWriter};
use terrace_table::TableMeta;

mod codec;
mod dump;
mod edit;
mod files;
mod ingest_note;
mod listing;
mod replay;
mod roll;
mod state;
#[cfg(test)]
mod tests;

pub use dump::dump;
pub use edit::{BegunLog, Edit, FORMAT_VERSION, Identity, JobKind, KnownPool, KnownStamp, ListPlace};
pub use files::{FileName, locate};
pub(crate) use files::{
    LOST_FOLDER, REPAIR_FOLDER, REPAIR_RECORD, REPAIR_RECORD_TEMP, behind_all, is_of_repair, set_current,
};
pub(crate) use ingest_note::{IngestNote, IngestNotes};
pub use listing::Listing;
use listing::is_anothers;
pub use replay::Salvaged;
pub use state::{BucketState, OpenJob, State, TableState};

/// A new manifest file is started past this size, or past four times its snapshot if that is more.
pub const ROLLOVER_BYTES: u64 = 4 << 20;

/// The manifest of one open store.
#[derive(Debug)]
pub struct Manifest {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    rollover_bytes: u64,
    writer: Mutex<Writer>,
    state: ArcSwap<State>,
    /// The next file number to hand out; never below the state's.
    next_file: AtomicU64,
    /// The session of the open pool, to be recorded with the next group.
    pool: Mutex<Option<KnownPool>>,
    /// That session is not in the manifest yet.
    pool_is_news: AtomicBool,
}

/// The manifest file being appended to.
struct Writer {
    /// `None` before the first group, and after a failure.
    log: Option<LogWriter<FileSegment>>,
    /// The highest manifest number that any file uses.
    number: u64,
    /// The size of the snapshot at the start of the file.
    snapshot_bytes: u64,
    /// Whether a group may be on the disk although it failed: one has failed since one last succeeded, or may
    /// have failed in a process that died.
    undecided: bool,
    /// Whether the file in force ends with its end record.
    sealed: bool,
    /// The manifest in force; none before the first is, and after a failure to switch to one, which leaves
    /// open what a crash would find.
    in_force: Option<u64>,
    /// Manifests that are not in force may exist.
    others: bool,
    /// Manifests that may be another database's: those that were not in force at the opening.
    unknown: Vec<u64>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("number", &self.number).field("writing", &self.log.is_some()).finish()
    }
}

impl Manifest {
    /// Creates the manifest of a new, empty store in `dir`, which must exist.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if there is a database already; `Corruption` if there is a damaged one.
    pub fn create(fs: Arc<dyn Fs>, dir: &Path, identity: Identity) -> Result<Self> {
        if locate(&*fs, dir)?.is_some() {
            return Err(Error::invalid(format!("there is a database in {} already", dir.display())));
        }
        // If `locate` accepted it, it is left from a creation that was cut short.
        remove_if_there(&*fs, &FileName::Manifest(1).path(dir))?;
        let state = State::new(identity);
        let manifest = Self::over(fs, dir, state, 0);
        manifest.start_file()?;
        Ok(manifest)
    }

    /// Opens the manifest of the store in `dir`. Writes nothing.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if there is no database (see [`locate`] to ask first); `Corruption` if it is
    /// damaged; `InvalidFormat` if another version wrote it.
    pub fn open(fs: Arc<dyn Fs>, dir: &Path) -> Result<Self> {
        let Some(number) = locate(&*fs, dir)? else {
            return Err(Error::NotFound { dir: dir.to_path_buf() });
        };
        // A switch of `CURRENT` by a process that then died may not be durable yet.
        fs.sync_dir(dir)?;
        let (state, sealed) = replay::read(&*fs, dir, number)?;
        refuse_newer_files(&*fs, dir, number, (&state, sealed))?;
        let numbers = files::manifests(&*fs, dir)?;
        let highest = numbers.last().copied().unwrap_or(number);
        let manifest = Self::over(fs, dir, state, highest.max(number));
        {
            let mut writer = manifest.writer.lock();
            (writer.sealed, writer.in_force) = (sealed, Some(number));
            writer.undecided = !sealed;
            writer.unknown = numbers.into_iter().filter(|n| *n != number).collect();
            writer.others = !writer.unknown.is_empty();
        }
        Ok(manifest)
    }

    /// Makes a new manifest that holds `state`, whatever existed before: the end of a `repair`.
    pub fn rebuild(fs: Arc<dyn Fs>, dir: &Path, state: State) -> Result<Self> {
        let highest = files::manifests(&*fs, dir)?.last().copied().unwrap_or(0);
        let manifest = Self::over(fs, dir, state, highest);
        manifest.start_file()?;
        Ok(manifest)
    }

    /// The state of a store that consists of `tables` (each with its level) and nothing else, for
    /// [`rebuild`](Self::rebuild).
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if two tables have one number or one contradicts itself.
    pub fn state_of(identity: Identity, tables: &[(u32, TableMeta)], flushed_seq: u64) -> Result<State> {
        let mut state = State::new(identity);
        fit(&mut state, &Edit::FlushedSeq(flushed_seq))?;
        for (level, meta) in tables {
            fit(&mut state, &Edit::AddTable { level: *level, job: 0, meta: meta.clone() })?;
        }
        Ok(state)
    }

    /// The contents of the newest readable manifest in `dir`: an identity and hints for `repair`, to be
    /// checked against the existing tables.
    ///
    /// # Errors
    ///
    /// `InvalidFormat` if another version wrote one: it is no case for `repair`.
    pub fn salvage(fs: &dyn Fs, dir: &Path) -> Result<Option<Salvaged>> {
        let mut numbers = files::manifests(fs, dir)?;
        for number in &numbers {
            match replay::read(fs, dir, *number) {
                Err(e) if e.is_system_failure() || matches!(e, Error::InvalidFormat { .. }) => return Err(e),
                _ => {}
            }
        }
        if let Ok(Some(current)) = locate(fs, dir) {
            numbers.push(current);
        }
        // Under its own name, or under that of the pointer, with which it was confused.
        let named = |number: &u64| (FileName::Manifest(*number).path(dir), *number);
        let mixed_up = |number: &u64| (FileName::Current.path(dir), *number);
        let places = numbers.iter().rev().map(named).chain(numbers.iter().rev().map(mixed_up));
        let mut salvaged = places.map(|(path, number)| replay::salvage(fs, &path, number));
        salvaged.find_map(Result::transpose).transpose()
    }

    /// Whether there is exactly one manifest, which would open if a pointer named it: then only the pointer
    /// is missing or damaged.
    pub(crate) fn is_whole_without_pointer(fs: &dyn Fs, dir: &Path) -> Result<bool> {
        let [number] = files::manifests(fs, dir)?[..] else { return Ok(false) };
        let read = replay::read(fs, dir, number)
            .and_then(|(state, sealed)| refuse_newer_files(fs, dir, number, (&state, sealed)));
        match read {
            Err(e) if e.is_system_failure() => Err(e),
            read => Ok(read.is_ok()),
        }
    }

    /// The state of the manifest in force in `dir`; `None` if there is none. Nothing is written.
    pub(crate) fn state_in(fs: &dyn Fs, dir: &Path) -> Result<Option<State>> {
        let Some(number) = locate(fs, dir)? else { return Ok(None) };
        replay::read(fs, dir, number).map(|(state, _)| Some(state))
    }

    /// The identity in manifest `number` at `path`, as far as it can be read; `None` if it has none, or does
    /// not exist.
    pub(crate) fn identity_in(fs: &dyn Fs, path: &Path, number: u64) -> Result<Option<Identity>> {
        Ok(replay::salvage(fs, path, number)?.map(|salvaged| salvaged.state.identity))
    }

    fn over(fs: Arc<dyn Fs>, dir: &Path, state: State, number: u64) -> Self {
        Manifest {
            fs,
            dir: dir.to_path_buf(),
            rollover_bytes: ROLLOVER_BYTES,
            writer: Mutex::new(Writer {
                log: None,
                number,
                snapshot_bytes: 0,
                undecided: false,
                sealed: false,
                in_force: None,
                others: false,
                unknown: Vec::new(),
            }),
            next_file: AtomicU64::new(state.next_file),
            pool: Mutex::new(state.pool),
            pool_is_news: AtomicBool::new(false),
            state: ArcSwap::from_pointee(state),
        }
    }

    /// Sets the size at which a new file replaces the current one, instead of [`ROLLOVER_BYTES`].
    pub fn with_rollover_bytes(mut self, bytes: u64) -> Self {
        self.rollover_bytes = bytes;
        self
    }

    /// The state now; it does not change under the caller.
    pub fn state(&self) -> Arc<State> {
        self.state.load_full()
    }

    /// The store's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Hands out `count` unused file numbers. The next applied group takes them durably: before that a crash
    /// forgets them, so a job whose files or index entries may outlive it takes its numbers before its
    /// `JobStarted` is applied.
    pub fn take_numbers(&self, count: u64) -> Range<u64> {
        let first = self.next_file.fetch_add(count, Ordering::Relaxed);
        first..first + count
    }

    /// Hands out none of `numbers`, which are of files that were made and may have been forgotten, nor one before them.
    /// Those far behind all others are nobody's: nothing of the database has such a number.
    pub fn pass_over(&self, numbers: impl IntoIterator<Item = u64>) {
        let next = files::behind_all(self.next_file.load(Ordering::Relaxed), numbers);
        self.next_file.fetch_max(next, Ordering::Relaxed);
    }

    /// The next group records the session of the open pool.
    pub fn note_pool(&self, known: KnownPool) {
        *self.pool.lock() = Some(known);
        self.pool_is_news.store(self.state().pool != Some(known), Ordering::Release);
    }

    /// Records the session of the open pool before anything is acknowledged that lies only there: an older
    /// copy of the pool is then detected, however the session ends.
    pub fn announce_pool(&self) -> Result<()> {
        if self.pool_is_news.load(Ordering::Acquire) { self.apply(&[]) } else { Ok(()) }
    }

    /// Applies `edits` as one atomic group; it is durable on return. An empty group ends a failed one,
    /// which is then gone for good.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if an edit does not fit the state: nothing was written. After any other
    /// error it is undecided whether the group is there after a crash; see the head of the module.
    pub fn apply(&self, edits: &[Edit]) -> Result<()> {
        let mut writer = self.writer.lock();
        let old = self.state.load_full();
        let mut group = edits.to_vec();
        let taken = self.next_file.load(Ordering::Relaxed);
        if taken > old.next_file {
            group.push(Edit::NextFile(taken));
        }
        let pool = *self.pool.lock();
        group.extend(pool.filter(|_| pool != old.pool).map(Edit::Pool));
        let mut new = (*old).clone();
        let mut changed = false;
        for edit in &group {
            changed |= fit(&mut new, edit)?;
        }
        if !changed && !writer.undecided {
            return Ok(());
        }
        writer.undecided = true;
        self.write(&mut writer, &group, &new)?;
        writer.undecided = false;
        self.next_file.fetch_max(new.next_file, Ordering::Relaxed);
        if pool == new.pool {
            self.pool_is_news.store(false, Ordering::Release);
        }
        self.state.store(Arc::new(new));
        Ok(())
    }

    /// Ends a failed group, if there is one: it is then gone for good, and files that only it names may be
    /// removed. After an opening it decides about the newest group that a dead process has left: from then on that
    /// group is permanent.
    pub fn decide(&self) -> Result<()> {
        let undecided = self.writer.lock().undecided;
        if undecided { self.apply(&[]) } else { Ok(()) }
    }

    /// Whether no group is in doubt: nothing has to be [decided](Self::decide).
    pub fn is_decided(&self) -> bool {
        !self.writer.lock().undecided
    }

    /// [`decide`](Self::decide) for an opening, which a full disk does not prevent; returns whether it has
    /// decided.
    pub fn try_decide(&self) -> Result<bool> {
        match self.decide() {
            Err(e) if e.is_out_of_space() => Ok(false),
            decided => decided.map(|()| true),
        }
    }

    /// Ends the file's log, for a clean close, with the numbers of all files that were begun; later groups may still be
    /// applied. A new file that can be ended replaces the file of a process that could not end it.
    pub fn seal(&self) -> Result<()> {
        // Numbers that were handed out become permanent: a table with a higher number is newer than this
        // manifest.
        if self.next_file.load(Ordering::Relaxed) > self.state.load().next_file {
            self.apply(&[])?;
        }
        let mut writer = self.writer.lock();
        if writer.sealed {
            return Ok(());
        }
        if writer.log.is_none() {
            self.roll(&mut writer, &self.state.load())?;
        }
        if let Some(mut log) = writer.log.take() {
            log.seal()?;
            writer.sealed = true;
        }
        Ok(())
    }

    /// Revokes, durably, the clean end of the file in force: before a session begins its first table without
    /// a group that records it. A table that a sealed file does not know shows that the file is an older
    /// copy.
    pub fn unseal(&self) -> Result<()> {
        let mut writer = self.writer.lock();
        // A file begun since the opening was not closed.
        if writer.log.is_none() { self.roll(&mut writer, &self.state.load()) } else { Ok(()) }
    }

    /// Whether the file in force was closed cleanly: then nothing can be missing at its end.
    pub fn is_sealed(&self) -> bool {
        self.writer.lock().sealed
    }

    fn write(&self, writer: &mut Writer, group: &[Edit], new: &State) -> Result<()> {
        writer.sealed = false;
        let limit = self.rollover_bytes.max(writer.snapshot_bytes.saturating_mul(4));
        // The log is put back only if it took the record: a failed file is not trusted again.
        match writer.log.take() {
            Some(log) if log.len() < limit => {
                writer.log = Some(append(log, &codec::encode_group(group))?);
                Ok(())
            }
            _ => self.roll(writer, new),
        }
    }

    /// The contents of the directory, compared with the manifest.
    pub fn listing(&self) -> Result<Listing> {
        // No other file is put in force meanwhile.
        let _writer = self.writer.lock();
        Listing::read(&*self.fs, &self.dir, &self.state())
    }
}

/// Appends a record and makes it durable; returns the log only if that worked.
fn append(mut log: LogWriter<FileSegment>, payload: &[u8]) -> Result<LogWriter<FileSegment>> {
    log.append(payload)?;
    log.sync()?;
    Ok(log)
}

/// Applies an edit; returns whether it changed anything.
fn fit(state: &mut State, edit: &Edit) -> Result<bool> {
    state.apply(edit).map_err(|why| Error::invalid(format!("a manifest edit does not fit: {why}")))
}

/// A manifest that was closed cleanly knows the number of every table that was ever begun: a table with a
/// higher one shows that it is an older copy. One that records only a creation shows the same beside any
/// table or log: a creation takes the first number, and only then is a file begun.
fn refuse_newer_files(fs: &dyn Fs, dir: &Path, number: u64, (state, sealed): (&State, bool)) -> Result<()> {
    let (ours, _) = files::list(fs, dir)?;
    let is_newer = |name: &&FileName| match name {
        FileName::Table(_) | FileName::Log(_) if state.is_being_created() => true,
        FileName::Table(table) => sealed && *table >= state.next_file,
        _ => false,
    };
    let origin = state.identity.origin();
    let mut newer = ours.iter().filter(is_newer).filter(|name| !is_anothers(fs, dir, name, origin));
    let Some(newer) = newer.next() else { return Ok(()) };
    let path = FileName::Manifest(number).path(dir);
    let found = format!("an older one: {newer} is newer than it; run repair");
    Err(Error::corruption(&path, 0, "the newest manifest of this database", found))
}

fn remove_if_there(fs: &dyn Fs, path: &Path) -> Result<()> {
    if fs.exists(path)? { fs.remove(path) } else { Ok(()) }
}
