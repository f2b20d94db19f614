//! The commit log: it makes writes durable while they are only in memtables.
//!
//! There is one series of logs, numbered upward by the manifest's file numbers; each begins with a memtable,
//! or when the one before it has reached its size, and is removed when everything in it is in tables. They
//! lie in a pool, if that is persistent memory, or in files. In the pool every group is durable when it is
//! acknowledged. In files it is durable after a sync; where memtables lie in DRAM it has been handed to the
//! system by then, so that a killed process loses nothing, and where they outlive the process some of it may
//! be kept back for a while. A power cut leaves a prefix of the history: see `replay`.
//!
//! Promises for logs in files, whatever fails:
//!
//! 1. **A refused write does not come back.** Its error is returned with the log as it was before, or with the log cut
//!    back to its last acknowledged record and left. A process that is then killed leaves no trace of the write. A
//!    power cut may bring it back as long as no other log could be begun.
//! 2. **A full disk refuses what does not fit, and nothing else.** An append without room leaves the log usable.
//! 3. **A failed sync proves nothing, and neither does the next.** Whatever had not been synced may be gone from
//!    the disk, and from the page cache too. So after a failed sync, and after an append that failed for any
//!    reason but lack of room, the log is abandoned, and nothing is logged until everything that memtables
//!    hold is elsewhere ([`CommitLog::mend`]): in a new log that replaces all before it, durable and complete
//!    before it counts; or, if that is much and tables may be written without a log, in tables. A close, after
//!    which nothing is logged, moves it itself.
//! 4. **A failed attempt costs little.** Nothing is begun before the disk shows room for all of it.
//! 5. **What a dead process left is not assumed durable.** Its last sync may have failed. Its log is read
//!    back, and the contents are written elsewhere, as under 3, before anything is logged that depends on
//!    them.
//! 6. A sync of a log syncs those before it first.
//! 7. The manifest knows a log in a file before the log takes its first group, so that a missing log is
//!    noticed. The next one may be ready by then, without a record ([`CommitLog::make_ready`]): the manifest knows both.
//!
//! Only the leader appends, syncs and mends; removal runs beside it. `docs/formats/commit_log.md` has the
//! records.

mod begin;
mod check;
mod close;
mod file;
mod first;
mod log;
mod mend;
mod place;
mod pool;
mod record;
mod recover;
mod replay;
mod salvage;
mod sync;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use terrace_base::{Error, ErrorKind, Result};
use terrace_disk::Room;
use terrace_log::unfinished_path;
use terrace_pmem::{Marks, Pool};

use crate::core::Core;
use crate::core::request::Group;
use crate::manifest::Manifest;
use file::{Failure, FileLog};
use log::Log;
use pool::PoolLog;
use record::put_batch_head;
use replay::{Files, Source};
use sync::sync_all;

pub(crate) use begin::comes_half_way;
pub(crate) use first::{FirstLog, oldest_first_log};
pub(crate) use mend::{Entry, are_many_and_small};
pub(crate) use place::{LogHome, Opened, PoolContents, durability};
pub(crate) use pool::{Gathered, LOG_ROOTS, number_of};
pub(crate) use record::LogRecord;
pub(crate) use recover::unless_full;
pub(crate) use replay::{Replayed, first_beginning, groups_beyond, log_files, replay, replay_files};
pub(crate) use salvage::{gather_logs, rebuild};

/// The largest buffer kept from one record to the next.
const KEPT_RECORD_BYTES: usize = 4 << 20;

/// What the logs need from the engine whose memtables they make durable.
pub(crate) trait Logged {
    /// A record of a memtable.
    type Entry: Entry;

    /// The manifest.
    fn manifest(&self) -> &Manifest;

    /// The last sequence number in a memtable or table.
    fn last_applied(&self) -> u64;

    /// Notes that writes to the active memtable are logged from log `number` on, unless it already began in
    /// an earlier log.
    fn logged_from(&self, number: u64);

    /// The memtables' records after `flushed`, in any order.
    fn unflushed(&self, flushed: u64) -> Result<Vec<Self::Entry>>;

    /// An upper bound of the bytes in memtables.
    fn memtable_bytes(&self) -> u64;

    /// Flushes everything that memtables hold into tables.
    fn flush_all(&self) -> Result<()>;

    /// Notes, for every memtable that is not empty, that log `number` replaces all before it; returns whether
    /// the active one continues in it.
    fn relogged(&self, number: u64) -> bool;
}

/// What an engine requires of its logs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Policy {
    /// Bytes kept in DRAM before they are handed to the file system.
    pub buffer_bytes: usize,
    /// A log is complete and synced before the next begins, because flushing begins to show what is in tables
    /// before all of it is there.
    pub each_complete: bool,
    /// Memtables that hold more are flushed instead of being copied to another log.
    pub copy_bytes: u64,
}

/// The logs of a database.
#[derive(Debug)]
pub(crate) struct CommitLog {
    core: Arc<Core>,
    policy: Policy,
    /// The owner, in the headers of files.
    database: u64,
    /// A log in a file that is ready to be the next one. Who holds this takes the numbers of logs; it is taken before
    /// the series.
    ready: Mutex<Option<FileLog>>,
    series: Mutex<Series>,
    /// Held while files of logs are removed, or have to stay. Taken after the series, if both are.
    removing: Mutex<()>,
    /// Logs removed from the pool since the opening.
    dropped: AtomicU64,
    /// The files' contents are not reliable: nothing more is logged until everything is elsewhere.
    broken: AtomicBool,
}

/// The log being written, and the earlier ones that are still needed.
#[derive(Debug)]
struct Series {
    place: LogMedium,
    current: Option<Log>,
    older: Vec<Log>,
    /// The log before the next one; zero if there was none.
    previous: u64,
    /// The last log that the manifest knows.
    announced: u64,
    /// A record under construction.
    record: Vec<u8>,
}

#[derive(Debug)]
enum LogMedium {
    Pool { pool: Pool, log_bytes: u64 },
    Files,
}

impl CommitLog {
    /// No logs yet; they will lie in the pool, with this many bytes reserved for each, or in files.
    pub fn new(
        core: Arc<Core>,
        manifest: &Manifest,
        pool: Option<(&Pool, u64)>,
        policy: Policy,
    ) -> CommitLog {
        let place = match pool {
            Some((pool, log_bytes)) => {
                pool.keep_back(0, pool.extent_bytes());
                LogMedium::Pool { pool: pool.clone(), log_bytes }
            }
            None => LogMedium::Files,
        };
        let series =
            Series { place, current: None, older: Vec::new(), previous: 0, announced: 0, record: Vec::new() };
        let database = manifest.state().identity.origin();
        let (series, dropped, broken) = (Mutex::new(series), AtomicU64::new(0), AtomicBool::new(false));
        CommitLog {
            core,
            policy,
            database,
            ready: Mutex::default(),
            series,
            removing: Mutex::new(()),
            dropped,
            broken,
        }
    }

    /// Whether a group was refused for want of room that logs give back: the pool is full, or cannot grow.
    pub fn lacks_room(&self, refusal: &Error) -> bool {
        let lies_in_pool = || matches!(self.series.lock().place, LogMedium::Pool { .. });
        refusal.kind() == ErrorKind::PoolFull || refusal.is_out_of_space() && lies_in_pool()
    }

    /// Opens the logs in the pool, oldest first.
    pub fn open_in_pool(&self, manifest: &Manifest) -> Result<()> {
        let mut series = self.series.lock();
        let LogMedium::Pool { pool, .. } = &series.place else { return Ok(()) };
        if let Some(found) = pool::refutes(pool, manifest.state().log_number)? {
            let expected = "a manifest that knows which logs have gone";
            let found = format!("one that has lost its end: {found}; run repair");
            return Err(pool.corruption(0, expected, found));
        }
        let logs = PoolLog::open_all(pool)?;
        series.older.extend(logs.into_iter().map(Log::Pool));
        Ok(())
    }

    /// The contents of the logs in the pool; none without a pool.
    pub fn gather(&self) -> Option<Gathered> {
        let series = self.series.lock();
        let LogMedium::Pool { pool, .. } = &series.place else { return None };
        let logs = series.older.iter().filter_map(|log| match log {
            Log::Pool(log) => Some((log.number, &log.log)),
            Log::File(_) => None,
        });
        Some(Gathered::from_pool(pool, logs))
    }

    /// The logs in files numbered `numbers`, to be replayed.
    pub fn files(&self, numbers: Vec<u64>) -> impl Source + '_ {
        self.series.lock().previous = numbers.last().copied().unwrap_or(0);
        self.files_of(numbers, self.core.options.read_only)
    }

    fn files_of(&self, numbers: Vec<u64>, read_only: bool) -> Files<'_> {
        let (each_complete, database) = (self.policy.each_complete, self.database);
        Files { fs: self.core.fs(), dir: &self.core.dir, database, numbers, each_complete, read_only }
    }

    /// Appends the group, and makes it as durable as requested. On an error nothing of it was appended.
    pub fn append(&self, host: &impl Logged, group: &Group<'_>) -> Result<()> {
        let mut series = self.series.lock();
        let mut record = std::mem::take(&mut series.record);
        record.clear();
        put_batch_head(&mut record, group.first_seq);
        group.requests.iter().for_each(|r| record.extend_from_slice(r.batch.encoded()));
        if series.current.is_none() {
            drop(series);
            series = self.begin_next(host, record.len() as u64)?;
        }
        let outcome = self
            .announce(&mut series, host.manifest())
            .map_err(Failure::Refused)
            .and_then(|()| self.append_record(&mut series, host, &record, group.sync));
        if record.capacity() <= KEPT_RECORD_BYTES {
            series.record = record;
        }
        self.after(&mut series, outcome)
    }

    fn append_record(
        &self,
        series: &mut Series,
        host: &impl Logged,
        record: &[u8],
        sync: bool,
    ) -> Result<(), Failure> {
        if sync {
            // In this order: a synced log proves that those before it are complete.
            series.older.iter_mut().try_for_each(Log::sync)?;
        }
        let Some(log) = &mut series.current else {
            return Err(Failure::Refused(Error::invalid("the commit log is not open")));
        };
        debug_assert!(
            !matches!(log, Log::File(file) if !host.manifest().state().has_begun(file.number)),
            "the manifest knows a log before its first group"
        );
        host.logged_from(log.number());
        log.append(record, self.policy.buffer_bytes, sync)?;
        if self.policy.each_complete {
            log.start_sync();
        }
        Ok(())
    }

    /// Abandons the logs if their end or their durability is no longer known.
    fn after<T>(&self, series: &mut Series, outcome: Result<T, Failure>) -> Result<T> {
        if let Err(Failure::Broken(_)) = &outcome {
            self.broken.store(true, Ordering::Release);
            if let Some(Log::File(log)) = &mut series.current {
                log.leave();
            }
            series.current = None;
            series.older.clear();
        }
        outcome.map_err(|failure| failure.error().clone())
    }

    /// Whether the files' contents must be written elsewhere before anything more is logged.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// The error of an `operation` that needs the logs after they have failed.
    pub fn failure(&self, operation: &'static str) -> Error {
        let why = io::Error::other("the commit log has failed, and is begun anew with the next write");
        Error::io(&self.core.dir, operation, why)
    }

    /// Requires everything replayed to be written elsewhere before anything more is logged.
    pub fn distrust(&self) {
        self.broken.store(true, Ordering::Release);
    }

    /// Ends the use of the log being written: the next memtable begins another. If each log must be complete,
    /// it is synced first, and stays in use if that fails.
    pub fn rotate(&self) -> Result<()> {
        let mut series = self.series.lock();
        if self.policy.each_complete {
            let outcome = sync_all(&mut series);
            self.after(&mut series, outcome)?;
        }
        let mut current = series.current.take();
        current.iter_mut().for_each(Log::trim);
        series.older.extend(current);
        Ok(())
    }

    /// The room of files, where they can have some. Records that are buffered first are cheaper to hand over by a
    /// system call, which does not clear a page before filling it.
    fn room(&self) -> Room {
        match self.core.options.map_logs && self.policy.buffer_bytes == 0 {
            true => Room::Mapped,
            false => Room::Called,
        }
    }

    /// Describes where logs lie and how they are written.
    pub fn describe(&self) -> &'static str {
        let series = self.series.lock();
        let is_mapped = self.room() == Room::Mapped;
        match (&series.place, &series.current) {
            (LogMedium::Pool { .. }, _) => "on persistent memory",
            (LogMedium::Files, Some(Log::File(log))) if log.is_mapped() => {
                "in files, written through a mapping"
            }
            (LogMedium::Files, None) if is_mapped => {
                "in files, written through a mapping where the file system suits that"
            }
            (LogMedium::Files, _) => "in files, written by calls of the system",
        }
    }

    /// The log from which on later memtables are logged: `known`, if that is known. Otherwise it is the one that is
    /// ready, or a new number is taken under the log's lock, so that the next log has a higher one.
    pub fn first_after(&self, manifest: &Manifest, known: impl FnOnce() -> Option<u64>) -> u64 {
        let ready = self.ready.lock();
        let _series = self.series.lock();
        let next = || ready.as_ref().map_or_else(|| manifest.take_numbers(1).start, |log| log.number);
        known().unwrap_or_else(next)
    }

    /// Removes logs that the manifest no longer needs. The leader waits for those in the pool, and not for files: to
    /// remove a large one takes the system long.
    pub fn drop_old(&self, manifest: &Manifest) -> Result<()> {
        self.drop_from_series(manifest)?;
        self.remove_old_files(manifest)
    }

    fn drop_from_series(&self, manifest: &Manifest) -> Result<()> {
        let mut series = self.series.lock();
        let series = &mut *series;
        let needed = manifest.state().log_number;
        let is_old = |log: &Log| log.number() < needed;
        if let LogMedium::Pool { pool, .. } = &series.place
            && series.older.iter().any(is_old)
        {
            pool::note_needed(pool, needed)?;
        }
        // One after the other: if one fails, those after it are still known.
        while let Some(at) = series.older.iter().position(is_old) {
            if let (Log::Pool(log), LogMedium::Pool { pool, .. }) = (series.older.remove(at), &series.place) {
                log.remove(pool)?;
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// The number of logs removed from the pool since the opening: a refused writer may try again if it has
    /// grown.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// The remains of a failed creation would only take room, which may be what is missing.
    fn remove_attempt(&self, number: u64) {
        let path = file::log_path(&self.core.dir, number);
        self.core.files.remove([unfinished_path(&path), path]);
    }

    fn remove_old_files(&self, manifest: &Manifest) -> Result<()> {
        let _removing = self.removing.lock();
        self.core.files.remove(manifest.old_logs()?);
        Ok(())
    }

    /// Marks every log in the pool; none is freed before `then` has returned.
    pub fn with_marked<T>(&self, mut marks: Marks, then: impl FnOnce(&Marks) -> Result<T>) -> Result<T> {
        let series = self.series.lock();
        for log in series.older.iter().chain(&series.current) {
            if let Log::Pool(log) = log {
                log.log.mark(&mut marks)?;
            }
        }
        then(&marks)
    }
}
