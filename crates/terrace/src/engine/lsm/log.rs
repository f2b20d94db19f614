//! The commit log: what makes the memtables, which lie in DRAM, durable.
//!
//! There is one series of logs, numbered upward; each begins where its memtable does, and goes when everything in it
//! is in tables. They lie in the pool, where that is persistent memory, or in files. In the pool every group is durable
//! when it is acknowledged. In files it has been handed to the system by then, so that a killed process loses
//! nothing, and is durable when somebody syncs. A power cut then leaves a prefix of the history:
//!
//! 1. Each log begins with the last sequence number before it. One whose predecessor ends earlier has lost some of
//!    what came before, and nothing of it counts.
//! 2. Who syncs a log syncs those before it first.
//! 3. After a failure to write or sync, the file is left: a new one begins with everything that the memtables hold
//!    ([`Lsm::restart_log`]) and stands for all before it, once it is complete.
//!
//! Logs are changed by the leader alone, but for their removal. `docs/formats/lsm.md` has the records.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use terrace_base::codec::{Reader, put_varint};
use terrace_base::{Error, ErrorKind, Result};
use terrace_disk::Fs;
use terrace_index::kinds;
use terrace_log::{FIRST_LSN, FileSegment, LogReader, LogWriter, PmLog, create_log_file, unfinished_path};
use terrace_pmem::{Kind as PmKind, Marks, Pool};
use terrace_table::{Cursor, Kind};

use super::Lsm;
use crate::batch::WriteBatch;
use crate::engine::Group;
use crate::manifest::{Edit, FileName};
use crate::memtable::MemCursor;

/// Extents of this kind hold logs.
pub(super) const LOG_KIND: PmKind = kinds::LSM_LOG;

/// Roots that logs in the pool hang from. A log takes any that is free.
pub(super) const LOG_ROOTS: [&str; 8] =
    ["lsm.log.0", "lsm.log.1", "lsm.log.2", "lsm.log.3", "lsm.log.4", "lsm.log.5", "lsm.log.6", "lsm.log.7"];

/// Bytes of operations in one record of a log that begins with what the memtables hold.
const COPY_BYTES: usize = 256 << 10;

mod tag {
    pub const START: u8 = 0;
    pub const BATCH: u8 = 1;
    pub const RESTART: u8 = 2;
    pub const COMPLETE: u8 = 3;
    pub const CLOSED: u8 = 4;
}

/// One record of a log.
#[derive(Debug, Clone)]
pub(super) enum Record {
    /// The first of each log: its number, and the last sequence number before it.
    Start { number: u64, before: u64 },
    /// A group's operations, from this sequence number on.
    Batch { first_seq: u64, ops: WriteBatch },
    /// The first of a log that stands for all before it: it holds everything after `flushed`.
    Restart { number: u64, flushed: u64 },
    /// Whatever such a log stands for lies before this.
    Complete,
    /// The last of the newest log in a pool that was closed in order: nothing is missing at its end.
    Closed,
}

impl Record {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Record::Start { number, before } => {
                out.push(tag::START);
                put_varint(out, *number);
                put_varint(out, *before);
            }
            Record::Batch { first_seq, ops } => {
                put_batch_head(out, *first_seq);
                out.extend_from_slice(ops.encoded());
            }
            Record::Restart { number, flushed } => {
                out.push(tag::RESTART);
                put_varint(out, *number);
                put_varint(out, *flushed);
            }
            Record::Complete => out.push(tag::COMPLETE),
            Record::Closed => out.push(tag::CLOSED),
        }
    }

    /// The record that `payload` is; `None` if it is none.
    pub fn decode(payload: &[u8]) -> Option<Record> {
        let mut r = Reader::new(payload);
        let record = match r.u8()? {
            tag::START => Record::Start { number: r.varint()?, before: r.varint()? },
            tag::BATCH => {
                let first_seq = r.varint()?;
                let ops = WriteBatch::decode(r.rest()).filter(|ops| !ops.is_empty())?;
                return Some(Record::Batch { first_seq, ops });
            }
            tag::RESTART => Record::Restart { number: r.varint()?, flushed: r.varint()? },
            tag::COMPLETE => Record::Complete,
            tag::CLOSED => Record::Closed,
            _ => return None,
        };
        r.is_empty().then_some(record)
    }
}

fn put_batch_head(out: &mut Vec<u8>, first_seq: u64) {
    out.push(tag::BATCH);
    put_varint(out, first_seq);
}

/// The logs of a database: the one being written, and those before it that are still needed.
#[derive(Debug)]
pub(super) struct Logs {
    place: Place,
    current: Option<CommitLog>,
    older: Vec<CommitLog>,
    /// A record being put together.
    record: Vec<u8>,
}

#[derive(Debug)]
enum Place {
    Pool { pool: Pool, log_bytes: u64 },
    Files,
}

/// One log.
#[derive(Debug)]
enum CommitLog {
    Pool { number: u64, root: &'static str, log: PmLog },
    File { number: u64, writer: LogWriter<FileSegment>, unsynced: bool },
}

impl CommitLog {
    fn number(&self) -> u64 {
        match self {
            CommitLog::Pool { number, .. } | CommitLog::File { number, .. } => *number,
        }
    }

    fn append(&mut self, record: &[u8]) -> Result<()> {
        match self {
            CommitLog::Pool { log, .. } => log.append(record).map(drop),
            CommitLog::File { writer, unsynced, .. } => {
                *unsynced = true;
                writer.append(record).map(drop)
            }
        }
    }

    fn sync(&mut self) -> Result<()> {
        match self {
            CommitLog::Pool { log, .. } => log.persist(),
            CommitLog::File { writer, unsynced, .. } => {
                if *unsynced {
                    writer.sync()?;
                }
                *unsynced = false;
                Ok(())
            }
        }
    }
}

/// The path of log file `number` in `dir`.
pub(super) fn log_path(dir: &Path, number: u64) -> PathBuf {
    FileName::Log(number).path(dir)
}

impl Logs {
    /// No logs yet; they are to lie in `pool`, `log_bytes` reserved for each, or in files.
    pub fn new(pool: Option<&Pool>, log_bytes: u64) -> Logs {
        let place = match pool {
            Some(pool) => Place::Pool { pool: pool.clone(), log_bytes },
            None => Place::Files,
        };
        Logs { place, current: None, older: Vec::new(), record: Vec::new() }
    }

    /// Leaves the log being written, which the next memtable does not go on with.
    pub fn rotate(&mut self) {
        self.older.extend(self.current.take());
    }

    /// Opens the logs in the pool, oldest first.
    pub fn open_in_pool(&mut self) -> Result<()> {
        let Place::Pool { pool, .. } = &self.place else { return Ok(()) };
        for root in LOG_ROOTS {
            let Some(head) = pool.root(root)? else { continue };
            let log = PmLog::open(pool, head)?;
            let number =
                number_of(&log).ok_or_else(|| pool.corruption(head, "a log that begins", "another"))?;
            self.older.push(CommitLog::Pool { number, root, log });
        }
        self.older.sort_by_key(CommitLog::number);
        Ok(())
    }

    /// The logs in the pool that were found there, with their numbers, oldest first.
    pub fn in_pool(&self) -> impl Iterator<Item = (u64, &PmLog)> {
        self.older.iter().filter_map(|log| match log {
            CommitLog::Pool { number, log, .. } => Some((*number, log)),
            CommitLog::File { .. } => None,
        })
    }

    /// Frees the logs in the pool that are numbered below `needed`. Those in files are dropped: who holds the lock
    /// removes them by name.
    fn forget_below(&mut self, needed: u64) -> Result<()> {
        let (keep, gone): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.older).into_iter().partition(|log| log.number() >= needed);
        self.older = keep;
        for log in gone {
            if let (CommitLog::Pool { root, log, .. }, Place::Pool { pool, .. }) = (log, &self.place) {
                pool.clear_root(root)?;
                log.free()?;
            }
        }
        Ok(())
    }

    /// Marks every log in the pool.
    pub fn mark(&self, marks: &mut Marks) -> Result<()> {
        self.older.iter().chain(&self.current).try_for_each(|log| match log {
            CommitLog::Pool { log, .. } => log.mark(marks),
            CommitLog::File { .. } => Ok(()),
        })
    }

    /// Reads every log in the pool back; says what is wrong.
    pub fn check(&self) -> Vec<String> {
        let all = self.older.iter().chain(&self.current);
        all.flat_map(|log| match log {
            CommitLog::Pool { log, .. } => log.check(),
            CommitLog::File { .. } => Vec::new(),
        })
        .collect()
    }

    /// A log in the pool, hanging from a free root, whose first record is `first`.
    fn create_in_pool(&self, pool: &Pool, bytes: u64, number: u64, first: &Record) -> Result<CommitLog> {
        let free = LOG_ROOTS.iter().find(|root| pool.root(root).is_ok_and(|head| head.is_none()));
        // Flushing frees one.
        let root = *free.ok_or_else(|| full(pool))?;
        let mut log = PmLog::create(pool, LOG_KIND, bytes)?;
        let mut record = Vec::new();
        first.encode(&mut record);
        let linked =
            log.append(&record).and_then(|_| log.persist()).and_then(|()| pool.set_root(root, log.head()));
        match linked {
            Ok(()) => Ok(CommitLog::Pool { number, root, log }),
            Err(e) => {
                pool.clear_root(root)?;
                log.free()?;
                Err(e)
            }
        }
    }
}

fn full(pool: &Pool) -> Error {
    Error::PoolFull { path: pool.path().to_path_buf(), requested: 0, size: pool.max_size() }
}

/// The number that a log in a pool begins with.
pub(super) fn number_of(log: &PmLog) -> Option<u64> {
    let mut number = None;
    // An error ends the reading where it is enough.
    let _ = log.visit(&mut |lsn, payload| {
        if let (FIRST_LSN, Some(Record::Start { number: n, .. })) = (lsn, Record::decode(payload)) {
            number = Some(n);
        }
        Err(Error::invalid("enough"))
    });
    number
}

/// Creates log file `number` with `first` as its first record, not yet synced.
fn create_file(fs: &dyn Fs, dir: &Path, number: u64, first: &Record) -> Result<CommitLog> {
    let path = log_path(dir, number);
    let mut record = Vec::new();
    first.encode(&mut record);
    let created = create_log_file(fs, &path, (number, FIRST_LSN), 0).and_then(|mut writer| {
        writer.append(&record)?;
        Ok(CommitLog::File { number, writer, unsynced: true })
    });
    created.inspect_err(|_| remove_attempt(fs, &path))
}

/// What a failed creation leaves would do no harm but take room, which may be what is missing.
fn remove_attempt(fs: &dyn Fs, path: &Path) {
    let _ = fs.remove(&unfinished_path(path)).or_else(|_| fs.remove(path));
}

/// Hands each record of log file `number` to `each`. A torn end is where reading stops.
pub(super) fn visit_file(
    fs: &dyn Fs,
    dir: &Path,
    number: u64,
    each: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    LogReader::recover(fs, &log_path(dir, number), number, &mut |_, payload| each(payload)).map(drop)
}

impl Lsm {
    /// Appends the group, and makes it as durable as it is asked to be.
    pub(super) fn append_to_log(&self, group: &Group<'_>) -> Result<()> {
        let mut logs = self.log.lock();
        let outcome = self.append_locked(&mut logs, group);
        self.after(&mut logs, outcome)
    }

    fn append_locked(&self, logs: &mut Logs, group: &Group<'_>) -> Result<()> {
        if logs.current.is_none() {
            let number = self.new_file_number();
            let first = Record::Start { number, before: self.applied.load(Ordering::Acquire) };
            logs.current = Some(match &logs.place {
                Place::Pool { pool, log_bytes } => logs.create_in_pool(pool, *log_bytes, number, &first)?,
                Place::Files => create_file(self.core.fs(), &self.core.dir, number, &first)?,
            });
        }
        if let Some(log) = &logs.current {
            self.readable.load().active().logged_from(log.number());
        }
        logs.record.clear();
        put_batch_head(&mut logs.record, group.first_seq);
        group.requests.iter().for_each(|r| logs.record.extend_from_slice(r.batch.encoded()));
        let Some(log) = &mut logs.current else { return Err(Error::invalid("the commit log is not open")) };
        log.append(&logs.record)?;
        match (&logs.place, group.sync) {
            (Place::Pool { .. }, _) => log.sync(),
            (Place::Files, true) => sync_all(logs),
            (Place::Files, false) => Ok(()),
        }
    }

    /// Where `outcome` leaves the log's end or durability unknown, another is begun at once: what was refused must
    /// not be found when the process is killed next.
    fn after(&self, logs: &mut Logs, outcome: Result<()>) -> Result<()> {
        match &outcome {
            Err(e) if matches!(logs.place, Place::Files) && e.kind() != ErrorKind::NoSpace => {
                self.log_broken.store(true, Ordering::Release);
                if let Err(again) = self.restart_locked(logs) {
                    tracing::warn!(error = %again, "the commit log could not be begun anew");
                }
            }
            _ => {}
        }
        outcome
    }

    /// After a failure of the log: puts everything that it may have lost into a new one.
    pub(super) fn mend_log(&self) -> Result<()> {
        if self.log_broken.load(Ordering::Acquire) { self.restart_log() } else { Ok(()) }
    }

    /// Begins a log with everything that the memtables hold and drops those before it.
    pub(super) fn restart_log(&self) -> Result<()> {
        self.restart_locked(&mut self.log.lock())
    }

    fn restart_locked(&self, logs: &mut Logs) -> Result<()> {
        self.log_broken.store(true, Ordering::Release);
        logs.current = None;
        let number = self.new_file_number();
        // In this order: what is flushed meanwhile is in the log twice rather than not at all.
        let flushed = self.manifest.state().flushed_seq;
        let readable = self.readable();
        let mut records: Vec<MemCursor> = Vec::new();
        for memtable in &readable.memtables {
            let mut cursor = memtable.list.cursor();
            cursor.seek_first()?;
            while cursor.valid() {
                if cursor.seq() > flushed {
                    records.push(cursor.clone());
                }
                cursor.next()?;
            }
        }
        records.sort_unstable_by_key(Cursor::seq);
        let copied = if records.is_empty() { None } else { Some(self.copy(number, flushed, &records)?) };
        self.manifest.apply(&[Edit::LogNumber(number)])?;
        let logged = |m: &&std::sync::Arc<super::MemTable>| copied.is_some() && !m.list.is_empty();
        readable.memtables.iter().filter(logged).for_each(|m| m.relogged(number));
        let active_goes_on = !readable.active().list.is_empty();
        logs.older.clear();
        match (copied, active_goes_on) {
            (Some(log), true) => logs.current = Some(log),
            // An empty memtable begins a log of its own.
            (Some(log), false) => logs.older.push(log),
            (None, _) => {}
        }
        self.log_broken.store(false, Ordering::Release);
        self.remove_old_files()
    }

    /// A log that begins with `records`, in order, and stands for all before it.
    fn copy(&self, number: u64, flushed: u64, records: &[MemCursor]) -> Result<CommitLog> {
        let fs = self.core.fs();
        let copied = (|| {
            let mut log = create_file(fs, &self.core.dir, number, &Record::Restart { number, flushed })?;
            let mut record = Vec::new();
            for run in records.chunk_by(|a, b| a.seq() + 1 == b.seq()) {
                let mut rest = run;
                while !rest.is_empty() {
                    let (ops, taken) = some_ops(rest);
                    record.clear();
                    Record::Batch { first_seq: rest[0].seq(), ops }.encode(&mut record);
                    log.append(&record)?;
                    rest = &rest[taken..];
                }
            }
            record.clear();
            Record::Complete.encode(&mut record);
            log.append(&record)?;
            log.sync()?;
            Ok(log)
        })();
        copied.inspect_err(|_: &Error| remove_attempt(fs, &log_path(&self.core.dir, number)))
    }

    /// Lets go of logs whose contents are all in tables.
    pub(super) fn drop_old_logs(&self) -> Result<()> {
        let mut logs = self.log.lock();
        logs.forget_below(self.manifest.state().log_number)?;
        self.remove_old_files()
    }

    /// Removes log files that the manifest says are no longer needed.
    fn remove_old_files(&self) -> Result<()> {
        for path in self.manifest.listing()?.leftovers {
            if matches!(FileName::parse(&path), Some(FileName::Log(_))) {
                self.core.fs().remove(&path)?;
            }
        }
        Ok(())
    }

    /// Makes everything logged so far power-safe.
    pub(super) fn sync_log(&self) -> Result<()> {
        self.mend_log()?;
        let mut logs = self.log.lock();
        let outcome = sync_all(&mut logs);
        self.after(&mut logs, outcome)
    }

    /// Ends the logs in order: then damage to any of their records is found.
    pub(super) fn seal_logs(&self) -> Result<()> {
        let mut logs = self.log.lock();
        sync_all(&mut logs)?;
        logs.rotate();
        match logs.older.last_mut() {
            Some(CommitLog::File { writer, .. }) => writer.seal(),
            Some(CommitLog::Pool { log, .. }) => {
                let mut record = Vec::new();
                Record::Closed.encode(&mut record);
                log.append(&record).and_then(|_| log.persist())
            }
            None => Ok(()),
        }
    }
}

/// Syncs every log, the oldest first.
fn sync_all(logs: &mut Logs) -> Result<()> {
    logs.older.iter_mut().chain(&mut logs.current).try_for_each(CommitLog::sync)
}

/// The first operations of `run`, not too many, and how many they are.
fn some_ops(run: &[MemCursor]) -> (WriteBatch, usize) {
    let mut ops = WriteBatch::new();
    for (taken, record) in run.iter().enumerate() {
        if ops.encoded().len() >= COPY_BYTES {
            return (ops, taken);
        }
        match record.kind() {
            Kind::Put => ops.put(record.key(), record.value_bytes()),
            Kind::Delete => ops.delete(record.key()),
        }
    }
    (ops, run.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of `docs/formats/lsm.md`'s worked example.
    #[test]
    fn records_are_golden() {
        let mut ops = WriteBatch::new();
        ops.put(b"k", b"v");
        ops.delete(b"");
        let golden: [(Record, &[u8]); 5] = [
            (Record::Start { number: 7, before: 300 }, &[0, 7, 0xac, 0x02]),
            (Record::Batch { first_seq: 301, ops }, &[1, 0xad, 0x02, 1, 1, b'k', 1, b'v', 0, 0]),
            (Record::Restart { number: 9, flushed: 5 }, &[2, 9, 5]),
            (Record::Complete, &[3]),
            (Record::Closed, &[4]),
        ];
        for (record, bytes) in golden {
            let mut out = Vec::new();
            record.encode(&mut out);
            assert_eq!(out, bytes);
            let mut again = Vec::new();
            Record::decode(bytes).unwrap().encode(&mut again);
            assert_eq!(again, bytes);
            for len in 0..bytes.len() {
                // A batch that ends between two operations is a shorter batch; the log's framing rules that out.
                assert!(Record::decode(&bytes[..len]).is_none() || bytes[0] == 1);
            }
        }
        assert!(Record::decode(&[5]).is_none() && Record::decode(&[3, 0]).is_none());
    }
}
