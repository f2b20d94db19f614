//! Logs in a pool. Each hangs from a root; the number in its first record gives its order.

use std::collections::BTreeMap;
use std::path::PathBuf;

use terrace_base::{Error, Result};
use terrace_index::kinds;
use terrace_log::{FIRST_LSN, PmLog};
use terrace_pmem::{Kind as PmKind, Pool};

use super::record::LogRecord;
use super::replay::{Read, Source, decode};
use crate::batch::WriteBatch;

/// Extents of this kind hold logs.
const LOG_KIND: PmKind = kinds::LSM_LOG;

/// Roots that logs hang from. A log takes any free one.
pub(crate) const LOG_ROOTS: [&str; 8] =
    ["lsm.log.0", "lsm.log.1", "lsm.log.2", "lsm.log.3", "lsm.log.4", "lsm.log.5", "lsm.log.6", "lsm.log.7"];

/// The root that holds the number of the first log that the manifest needed when a log last went. It only grows, and is
/// never more than the manifest says. A manifest that needs earlier logs has lost its end: where every log has gone,
/// nothing else tells.
pub(super) const NEEDED_ROOT: &str = "lsm.log.needed";

/// Records, before logs go from `pool`, that the manifest needs those from `needed` on.
pub(super) fn note_needed(pool: &Pool, needed: u64) -> Result<()> {
    match pool.root(NEEDED_ROOT)? {
        Some(known) if known >= needed => Ok(()),
        _ => pool.set_root(NEEDED_ROOT, needed),
    }
}

/// Evidence that a manifest that needs the logs from `needed` on has lost its end.
pub(super) fn refutes(pool: &Pool, needed: u64) -> Result<Option<String>> {
    let gone = pool.root(NEEDED_ROOT)?.filter(|&gone| gone > needed);
    Ok(gone.map(|gone| format!("logs before number {gone} have gone, and it needs those from {needed} on")))
}

/// One log in the pool.
#[derive(Debug)]
pub(super) struct PoolLog {
    pub number: u64,
    root: &'static str,
    pub log: PmLog,
}

/// The most bytes that a log takes beside its first batch: the heads of segment and records, and its first
/// record.
const OVERHEAD_BYTES: u64 = 256;

impl PoolLog {
    /// Creates a log of `bytes`; if a record of `record` bytes needs more, or there is no room for `bytes`,
    /// of the record's size: a log that could not take it would only waste room.
    pub fn create_for(
        pool: &Pool,
        bytes: u64,
        record: u64,
        number: u64,
        first: &LogRecord,
    ) -> Result<PoolLog> {
        let needed = record.saturating_add(OVERHEAD_BYTES);
        match PoolLog::create(pool, bytes.max(needed), number, first) {
            Err(e) if e.is_out_of_space() && bytes > needed => PoolLog::create(pool, needed, number, first),
            outcome => outcome,
        }
    }

    /// Creates a log on a free root, with `first` as its first record.
    pub fn create(pool: &Pool, bytes: u64, number: u64, first: &LogRecord) -> Result<PoolLog> {
        let free = LOG_ROOTS.iter().find(|root| pool.root(root).is_ok_and(|head| head.is_none()));
        // Flushing frees one.
        let root = *free.ok_or_else(|| full(pool))?;
        let mut log = PmLog::create(pool, LOG_KIND, bytes)?;
        let linked = log
            .append(&first.bytes())
            .and_then(|_| log.persist())
            .and_then(|()| pool.set_root(root, log.head()));
        match linked {
            Ok(()) => Ok(PoolLog { number, root, log }),
            Err(e) => {
                pool.clear_root(root)?;
                log.free()?;
                Err(e)
            }
        }
    }

    /// The logs of `pool`, oldest first.
    pub fn open_all(pool: &Pool) -> Result<Vec<PoolLog>> {
        let mut logs = Vec::new();
        for root in LOG_ROOTS {
            let Some(head) = pool.root(root)? else { continue };
            let log = PmLog::open(pool, head)?;
            let number =
                number_of(&log).ok_or_else(|| pool.corruption(head, "a log that begins", "another"))?;
            logs.push(PoolLog { number, root, log });
        }
        logs.sort_by_key(|log| log.number);
        Ok(logs)
    }

    pub fn append(&mut self, record: &[u8]) -> Result<()> {
        self.log.append(record)?;
        self.log.persist()
    }

    /// Unlinks and frees it.
    pub fn remove(self, pool: &Pool) -> Result<()> {
        pool.clear_root(self.root)?;
        self.log.free()
    }
}

fn full(pool: &Pool) -> Error {
    Error::PoolFull { path: pool.path().to_path_buf(), requested: 0, size: pool.max_size() }
}

/// The number in the first record of a log in a pool.
pub(crate) fn number_of(log: &PmLog) -> Option<u64> {
    let mut number = None;
    // An error only ends the reading, which has enough.
    let _ = log.visit(&mut |lsn, payload| {
        if let (FIRST_LSN, Some(LogRecord::Start { number: n, .. })) = (lsn, LogRecord::decode(payload)) {
            number = Some(n);
        }
        Err(Error::invalid("enough"))
    });
    number
}

/// The records of a log as far as they can be read, and the error that ended the reading.
type Log = (Vec<LogRecord>, Result<()>);

/// Logs read from a pool, each as far as possible and with the error that ended the reading.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    path: PathBuf,
    logs: BTreeMap<u64, Log>,
    /// Some logs that existed are missing here.
    pub lacks_some: bool,
}

impl Gathered {
    /// Reads the logs `logs` of `pool`.
    pub fn from_pool<'a>(pool: &Pool, logs: impl Iterator<Item = (u64, &'a PmLog)>) -> Gathered {
        let path = pool.path().to_path_buf();
        let read = logs.map(|(number, log)| {
            let mut records = Vec::new();
            let end = log.visit(&mut |_, payload| {
                records.push(decode(&path, payload)?);
                Ok(())
            });
            (number, (records, end))
        });
        let logs = read.collect();
        Gathered { path, logs, lacks_some: false }
    }

    /// The last write up to which the logs held everything after `known`. Of a damaged log the next one tells where it
    /// ended. `None` if that is unknown: no log comes after a damaged one, or logs are missing.
    pub fn reached(&self, known: u64) -> Option<u64> {
        let mut reached = known;
        let mut damaged = None;
        for (number, (records, end)) in &self.logs {
            for record in records {
                match record {
                    LogRecord::Start { before, previous, .. } => match damaged.take() {
                        // It holds everything up to there, or did before it was damaged.
                        Some(last) if last == *previous => reached = reached.max(*before),
                        Some(_) if *before > reached => return None,
                        // What is missing here no later log has, be that damaged or not.
                        None if *before > reached => return (!self.lacks_some).then_some(reached),
                        _ => {}
                    },
                    LogRecord::Batch { first_seq, ops } => reached = reached.max(last_of(*first_seq, ops)),
                    _ => {}
                }
            }
            if end.is_err() {
                damaged = Some(*number);
            }
        }
        (damaged.is_none() && !self.lacks_some).then_some(reached)
    }

    /// The last write up to which everything after `known` can be read.
    pub fn readable(&self, known: u64) -> u64 {
        let mut readable = known;
        for (records, end) in self.logs.values() {
            for record in records {
                match record {
                    LogRecord::Start { before, .. } if *before > readable => return readable,
                    LogRecord::Batch { first_seq, ops } => readable = readable.max(last_of(*first_seq, ops)),
                    _ => {}
                }
            }
            if end.is_err() {
                return readable;
            }
        }
        readable
    }

    /// In a pool that was closed cleanly the newest log must say so.
    pub fn check_end(&self) -> Result<()> {
        match self.logs.values().next_back() {
            Some((records, Ok(()))) if !matches!(records.last(), Some(LogRecord::Closed)) => {
                Err(Error::corruption(&self.path, 0, "the end of a log that was closed", "an earlier one"))
            }
            _ => Ok(()),
        }
    }
}

/// The last write of a group.
fn last_of(first_seq: u64, ops: &WriteBatch) -> u64 {
    first_seq.saturating_add(ops.len() as u64).saturating_sub(1)
}

impl Source for Gathered {
    fn numbers(&self) -> Vec<u64> {
        self.logs.keys().copied().collect()
    }

    fn visit(&self, number: u64, each: &mut dyn FnMut(LogRecord) -> Result<()>) -> Result<Read> {
        let Some((records, end)) = self.logs.get(&number) else { return Ok(Read::default()) };
        records.iter().cloned().try_for_each(each)?;
        end.clone().map(|()| Read::default())
    }

    fn path(&self, _number: u64) -> PathBuf {
        self.path.clone()
    }

    fn may_lose_ends(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log that begins after the write `before`, with so many writes.
    fn log(before: u64, writes: u64, is_whole: bool) -> Log {
        let mut ops = WriteBatch::new();
        (0..writes).for_each(|_| ops.put(b"key", b"value"));
        let records = vec![
            LogRecord::Start { number: 1, before, previous: 0 },
            LogRecord::Batch { first_seq: before + 1, ops: Box::new(ops) },
        ];
        (records, if is_whole { Ok(()) } else { Err(Error::invalid("damaged")) })
    }

    /// Logs of these numbers, each with the number of the one before it.
    fn gathered(logs: Vec<(u64, u64, Log)>) -> Gathered {
        let linked = |(number, before_it, (mut records, end)): (u64, u64, Log)| {
            if let Some(LogRecord::Start { previous, .. }) = records.first_mut() {
                *previous = before_it;
            }
            (number, (records, end))
        };
        let logs = logs.into_iter().map(linked).collect();
        Gathered { path: PathBuf::new(), logs, lacks_some: false }
    }

    fn in_a_row(logs: Vec<Log>) -> Gathered {
        gathered((1..).zip(logs).map(|(number, log)| (number, number - 1, log)).collect())
    }

    fn reached(known: u64, logs: Vec<Log>) -> Option<u64> {
        in_a_row(logs).reached(known)
    }

    /// A log behind a gap says nothing of what is missing before it.
    #[test]
    fn damage_behind_a_gap_does_not_hide_the_gap() {
        assert_eq!(reached(10, vec![log(10, 5, true), log(15, 5, true)]), Some(20));
        assert_eq!(reached(10, vec![log(12, 5, true)]), Some(10));
        assert_eq!(reached(10, vec![log(12, 5, false)]), Some(10));
        assert_eq!(reached(10, vec![log(10, 5, true), log(17, 5, false)]), Some(15));
        assert_eq!(reached(10, vec![log(10, 5, false)]), None);
    }

    /// The next log tells where a damaged one ended, unless there was another between them.
    #[test]
    fn a_damaged_log_ends_where_the_next_begins() {
        assert_eq!(reached(10, vec![log(10, 5, false), log(17, 5, true)]), Some(22));
        assert_eq!(reached(10, vec![log(10, 5, false), log(15, 5, true)]), Some(20));
        assert_eq!(reached(10, vec![log(10, 5, false), log(17, 5, false), log(30, 5, true)]), Some(35));
        assert_eq!(reached(10, vec![log(10, 5, false), log(17, 5, true), log(23, 5, true)]), Some(22));
        assert_eq!(reached(10, vec![log(10, 5, false), log(17, 5, false)]), None, "it may have held more");
        let apart = gathered(vec![(1, 0, log(10, 5, false)), (3, 2, log(17, 5, true))]);
        assert_eq!(apart.reached(10), None, "one is missing");
    }

    #[test]
    fn what_is_readable_ends_at_damage_and_at_gaps() {
        let readable = |logs| in_a_row(logs).readable(10);
        assert_eq!(readable(vec![log(10, 5, true), log(15, 5, true)]), 20);
        assert_eq!(readable(vec![log(10, 5, false), log(15, 5, true)]), 15);
        assert_eq!(readable(vec![log(10, 5, true), log(17, 5, true)]), 15);
        assert_eq!(readable(vec![log(12, 5, true)]), 10);
    }
}
