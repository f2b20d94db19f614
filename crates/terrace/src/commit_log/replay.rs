//! Reading logs back: which of them count, where each must begin, and what may be missing.
//!
//! 1. Reading begins at the newest complete log of those that replace the logs before them. An incomplete one
//!    of these is ignored: it never acknowledged anything. What it replaces stays as long as anything that was
//!    read from it is only in memory: a dead process may have left it complete, but not yet durable.
//! 2. Each other log begins with the last sequence number before it. If the data read until then ends
//!    earlier, the log before it has lost its end. A power cut may have taken that, if nothing of the later
//!    log was ever synced (a sync of a log syncs those before it first); then that log and all after it are
//!    left out. Everything else is damage.
//! 3. The log begun last and the one before it exist as long as they are needed. So does the log sealed last, and it
//!    ends where the manifest says.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use terrace_base::{Error, ErrorKind, Result};
use terrace_disk::Fs;
use terrace_log::{LogReader, Outline};
use terrace_table::Kind;

use super::file::log_path;
use super::record::{self, LogRecord};
use crate::batch::WriteBatch;
use crate::core::Core;
use crate::manifest::State;

/// The outcome of a replay.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    /// Existing logs, whether they count or not.
    pub there: usize,
    /// Logs that were read.
    pub logs: usize,
    pub groups: u64,
    pub writes: u64,
    /// Everything up to this sequence number was found.
    pub reached: u64,
    /// A log had lost its end, or its damage was tolerated: what followed was left out.
    pub gap: bool,
}

/// How a log begins, by its first record and whether it is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begins {
    /// Where the log `previous` ends.
    After { before: u64, previous: u64 },
    /// Anew: it replaces all before it.
    Anew,
    /// It was to begin anew and was not finished, or not even begun: nothing in it counts.
    Not,
}

/// How much of a log was found.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Read {
    /// Its size in bytes, if it was sealed.
    sealed: Option<u64>,
    /// Some of its records are known to have been synced.
    synced: bool,
    /// It was written through the current page cache: no power cut has come between.
    unbroken: bool,
}

/// A source of logs to read.
pub(crate) trait Source {
    /// The logs' numbers, ascending.
    fn numbers(&self) -> Vec<u64>;

    /// Passes each record of a log to `each`, in order.
    fn visit(&self, number: u64, each: &mut dyn FnMut(LogRecord) -> Result<()>) -> Result<Read>;

    /// Where a log lies.
    fn path(&self, number: u64) -> PathBuf;

    /// Whether a log may have lost its end to a power cut.
    fn may_lose_ends(&self) -> bool;
}

/// Logs in files.
pub(super) struct Files<'a> {
    pub fs: &'a dyn Fs,
    pub dir: &'a Path,
    /// Their required owner.
    pub database: u64,
    pub numbers: Vec<u64>,
    /// Each log was complete and synced before the next began.
    pub each_complete: bool,
    /// Nothing may be changed, nor even made durable.
    pub read_only: bool,
}

impl Source for Files<'_> {
    fn numbers(&self) -> Vec<u64> {
        self.numbers.clone()
    }

    fn visit(&self, number: u64, each: &mut dyn FnMut(LogRecord) -> Result<()>) -> Result<Read> {
        let path = self.path(number);
        let mut visit = |_, payload: &[u8]| decode(&path, payload).and_then(&mut *each);
        let read = if self.read_only { LogReader::look } else { LogReader::recover };
        self.admit(&path)?;
        let outline: Outline = read(self.fs, &path, number, &mut visit)?;
        Ok(Read {
            sealed: outline.sealed.then_some(outline.end),
            synced: outline.synced > 0,
            unbroken: outline.origin.epoch != 0 && outline.origin.epoch == self.fs.epoch(self.dir),
        })
    }

    fn path(&self, number: u64) -> PathBuf {
        log_path(self.dir, number)
    }

    fn may_lose_ends(&self) -> bool {
        !self.each_complete
    }
}

impl Files<'_> {
    /// An error if the log at `path` says that it is another database's. Its reader reports damage to its
    /// head.
    fn admit(&self, path: &Path) -> Result<()> {
        match LogReader::origin(self.fs, path)? {
            Some(origin) if origin.database != self.database => {
                let expected = "a log of this database (try `repair`)";
                Err(Error::corruption(path, 0, expected, "another database's log"))
            }
            _ => Ok(()),
        }
    }
}

/// Passes to `each` the groups beyond what `state` says is flushed, from the log files numbered `numbers`, as
/// far as these can be read; each group with the sequence number of its first write. Changes nothing.
pub(crate) fn replay_files(
    core: &Core,
    state: &State,
    numbers: Vec<u64>,
    each: &mut dyn FnMut(u64, &WriteBatch),
) -> Result<()> {
    let (fs, dir, database) = (core.fs(), &*core.dir, state.identity.origin());
    let files = Files { fs, dir, database, numbers, each_complete: true, read_only: true };
    let mut apply = |_, first, ops: &WriteBatch, _| {
        each(first, ops);
        Ok(())
    };
    replay(&files, state, &mut |_| Ok(()), &mut apply).map(drop)
}

/// The number of groups beyond sequence number `seq` in the log files numbered `numbers`. Unreadable logs
/// count as empty.
pub(crate) fn groups_beyond(core: &Core, state: &State, numbers: Vec<u64>, seq: u64) -> u64 {
    let (fs, dir, database) = (core.fs(), &*core.dir, state.identity.origin());
    let files = Files { fs, dir, database, numbers, each_complete: true, read_only: true };
    let mut last_groups = BTreeSet::new();
    for &number in &files.numbers {
        let read = files.visit(number, &mut |record| {
            if let LogRecord::Batch { first_seq, ops } = record {
                last_groups.extend(Some(first_seq + ops.len() as u64 - 1).filter(|last| *last > seq));
            }
            Ok(())
        });
        if let Err(error) = read {
            tracing::debug!(%error, "a log tells nothing of what the pool may lack");
        }
    }
    last_groups.len() as u64
}

/// The log files of `core` numbered `numbers`, of the database `database`, for reading only.
pub(crate) fn log_files(core: &Core, database: u64, numbers: BTreeSet<u64>) -> impl Source + '_ {
    let (fs, dir, numbers) = (core.fs(), &*core.dir, numbers.into_iter().collect());
    Files { fs, dir, database, numbers, each_complete: true, read_only: true }
}

/// The last sequence number before the first log that begins, if one does. The replay reports damage.
pub(crate) fn first_beginning(source: &dyn Source) -> Result<Option<u64>> {
    for number in source.numbers() {
        match look(source, number)?.begins {
            Begins::After { before, .. } => return Ok(Some(before)),
            Begins::Anew | Begins::Not => {}
        }
    }
    Ok(None)
}

pub(super) fn decode(path: &Path, payload: &[u8]) -> Result<LogRecord> {
    LogRecord::decode(payload).ok_or_else(|| match record::reserved(payload) {
        Some(what) => Kind::later(what, path),
        None => Error::corruption(path, 0, "a record of a commit log", "bytes that do not decode"),
    })
}

/// Logs read one after the other.
struct Chain<'a> {
    source: &'a dyn Source,
    /// The first log that exists.
    first: u64,
    replayed: Replayed,
    flushed: u64,
    /// The log read last, and how much of it was found.
    last: Option<(u64, Read)>,
    /// Logs without a beginning: they never acknowledged anything, or lost all of it to a power cut.
    blank: Vec<(u64, Read)>,
    /// The log sealed last, and its length.
    end: Option<(u64, u64)>,
}

/// Passes everything that the logs of `source` hold beyond what is flushed to `apply`: the number of the first
/// log that is needed as long as the group is only in memory, the first sequence number of the group, its operations,
/// and the number up to which they are applied already. `damaged` is asked about each damaged log; if it returns no
/// error, the rest of that log and all that follows are left out.
pub(crate) fn replay(
    source: &dyn Source,
    state: &State,
    damaged: &mut dyn FnMut(Error) -> Result<()>,
    apply: &mut dyn FnMut(u64, u64, &WriteBatch, u64) -> Result<()>,
) -> Result<Replayed> {
    let logs = source.numbers();
    let count = that_count(source)?;
    let (first, flushed) = (logs.first().copied().unwrap_or(0), state.flushed_seq);
    let replayed = Replayed { there: logs.len(), reached: flushed, ..Replayed::default() };
    let mut chain =
        Chain { source, first, replayed, flushed, last: None, blank: Vec::new(), end: state.needed_end() };
    if let Err(e) = check_there(source, state) {
        judge(e, damaged, &mut chain.replayed)?;
    }
    for Looked { number, begins, .. } in count {
        if let Begins::After { before, previous } = begins
            && before > chain.replayed.reached
        {
            if !chain.replayed.gap
                && let Err(e) = chain.excuse_gap(number, before, previous)
            {
                judge(e, damaged, &mut chain.replayed)?;
            }
            chain.replayed.gap = true;
            break;
        }
        if let Err(e) = chain.read(number, begins, apply) {
            judge(e, damaged, &mut chain.replayed)?;
        }
    }
    Ok(chain.replayed)
}

/// Whether to continue without what is damaged.
fn judge(error: Error, damaged: &mut dyn FnMut(Error) -> Result<()>, replayed: &mut Replayed) -> Result<()> {
    if error.kind() != ErrorKind::Corruption {
        return Err(error);
    }
    replayed.gap = true;
    damaged(error)
}

/// What a first look at a log has shown.
struct Looked {
    number: u64,
    begins: Begins,
    /// How much of it there is, or what damage.
    read: Result<Read>,
}

/// The logs that count: all from the newest on that is complete and replaces those before it.
fn that_count(source: &dyn Source) -> Result<Vec<Looked>> {
    let looks = source.numbers().into_iter().map(|number| look(source, number));
    let mut looks: Vec<Looked> = looks.collect::<Result<_>>()?;
    let from = looks.iter().rposition(|look| look.begins == Begins::Anew).unwrap_or(0);
    Ok(looks.split_off(from))
}

/// Looks at log `number`.
fn look(source: &dyn Source, number: u64) -> Result<Looked> {
    let mut begins = Begins::Not;
    let mut restarts = false;
    let read = source.visit(number, &mut |record| {
        match record {
            LogRecord::Start { before, previous, .. } => begins = Begins::After { before, previous },
            LogRecord::Restart { .. } => restarts = true,
            LogRecord::Complete if restarts => begins = Begins::Anew,
            _ => {}
        }
        Ok(())
    });
    match read {
        Err(e) if e.kind() != ErrorKind::Corruption => Err(e),
        read => Ok(Looked { number, begins, read }),
    }
}

/// Checks what a replay relies on: that the logs that count are sound, that those begun and sealed last exist as long
/// as they are needed, and that the sealed one is whole. Passes what is wrong to `found`.
pub(super) fn check(
    source: &dyn Source,
    state: &State,
    found: &mut dyn FnMut(Error) -> Result<()>,
) -> Result<()> {
    check_there(source, state).or_else(&mut *found)?;
    for Looked { number, read, .. } in that_count(source)? {
        let checked = read.and_then(|read| check_end(source, state.needed_end(), number, read));
        checked.or_else(&mut *found)?;
    }
    Ok(())
}

fn check_there(source: &dyn Source, state: &State) -> Result<()> {
    let sealed = state.needed_end().map(|(number, bytes)| (number, format!("was sealed at byte {bytes}")));
    let how = || "was begun, and is still needed".to_string();
    let begun = state.needed_begun().map(|begun| (begun.number, how()));
    let numbers = source.numbers();
    match sealed.into_iter().chain(begun).find(|(number, _)| !numbers.contains(number)) {
        Some((number, how)) => {
            let expected = format!("a log that {how}");
            Err(Error::corruption(&source.path(number), 0, expected, "no such file"))
        }
        None => Ok(()),
    }
}

/// Fails if `number` is the log sealed last, and does not end where it did: `end`.
fn check_end(source: &dyn Source, end: Option<(u64, u64)>, number: u64, read: Read) -> Result<()> {
    let Some((_, bytes)) = end.filter(|(sealed, _)| *sealed == number) else { return Ok(()) };
    let (at, found) = match read.sealed {
        Some(end) if end == bytes => return Ok(()),
        Some(end) => (end, format!("its end at byte {end}")),
        None => (0, "one that was not, or is cut short".into()),
    };
    let expected = format!("a log that was sealed at byte {bytes}");
    Err(Error::corruption(&source.path(number), at, expected, found))
}

/// Writes without a gap between them, out of a log that replaces others. Its records do not end where groups
/// do, so they are applied together: nothing may put a part of a group into a table while a power cut could
/// still take the rest.
#[derive(Default)]
struct ContiguousWrites {
    first_seq: u64,
    ops: WriteBatch,
    /// Behind the record that says that the log is whole, records are groups again.
    is_over: bool,
}

impl ContiguousWrites {
    fn add(
        &mut self,
        first_seq: u64,
        ops: &WriteBatch,
        take: &mut dyn FnMut(u64, &WriteBatch) -> Result<()>,
    ) -> Result<()> {
        if self.is_over {
            return take(first_seq, ops);
        }
        if first_seq != self.first_seq + self.ops.len() as u64 {
            self.hand_over(take)?;
            self.first_seq = first_seq;
        }
        self.ops.append(ops);
        Ok(())
    }

    fn end(&mut self, take: &mut dyn FnMut(u64, &WriteBatch) -> Result<()>) -> Result<()> {
        self.is_over = true;
        self.hand_over(take)
    }

    fn hand_over(&mut self, take: &mut dyn FnMut(u64, &WriteBatch) -> Result<()>) -> Result<()> {
        let ops = std::mem::take(&mut self.ops);
        if ops.is_empty() { Ok(()) } else { take(self.first_seq, &ops) }
    }
}

impl Chain<'_> {
    /// Fails unless a power cut may have taken what lies between the data read so far and log `number`.
    fn excuse_gap(&self, number: u64, before: u64, previous: u64) -> Result<()> {
        let source = self.source;
        let now = source.visit(number, &mut |_| Ok(()))?;
        let reached = self.replayed.reached;
        let found = format!("one that begins after {before}");
        let blank = self.blank.iter().find(|(blank, _)| *blank == previous).copied();
        let Some((last, read)) = blank.or(self.last) else {
            // A log is removed when its memtable is in tables and the manifest says so. If the writes before
            // the first log are in neither, the manifest has lost its newest group, or a log is missing.
            let expected =
                format!("a log that begins where tables end, after {} (try `repair`)", self.flushed);
            return Err(Error::corruption(&source.path(number), 0, expected, found));
        };
        if previous != last {
            let expected = format!("log {previous}, which comes before log {number}");
            return Err(Error::corruption(&source.path(previous), 0, expected, "no such log"));
        }
        let lost_none = read.sealed.is_some() || read.unbroken || now.unbroken || now.synced;
        if lost_none || !source.may_lose_ends() {
            let expected = format!("everything up to {before}, where log {number} begins");
            return Err(Error::corruption(
                &source.path(last),
                0,
                expected,
                format!("its end after {reached}"),
            ));
        }
        Ok(())
    }

    fn read(
        &mut self,
        number: u64,
        begins: Begins,
        apply: &mut dyn FnMut(u64, u64, &WriteBatch, u64) -> Result<()>,
    ) -> Result<()> {
        if begins == Begins::Not {
            // It never acknowledged anything, unless it is damaged or the next log says that it did.
            let read = self.source.visit(number, &mut |_| Ok(()))?;
            self.blank.push((number, read));
            return check_end(self.source, self.end, number, read);
        }
        self.replayed.logs += 1;
        let needed_from = if begins == Begins::Anew { self.first } else { number };
        let Replayed { groups, writes, reached, .. } = &mut self.replayed;
        let mut take = |first_seq: u64, ops: &WriteBatch| {
            let last = first_seq + ops.len() as u64 - 1;
            if last > *reached {
                apply(needed_from, first_seq, ops, *reached)?;
                *groups += 1;
                *writes += last - (*reached).max(first_seq - 1);
                *reached = last;
            }
            Ok(())
        };
        let mut run = (begins == Begins::Anew && self.source.may_lose_ends()).then(ContiguousWrites::default);
        let read = self.source.visit(number, &mut |record| match (record, &mut run) {
            (LogRecord::Batch { first_seq, ops }, None) => take(first_seq, &ops),
            (LogRecord::Batch { first_seq, ops }, Some(run)) => run.add(first_seq, &ops, &mut take),
            (LogRecord::Complete, Some(run)) => run.end(&mut take),
            _ => Ok(()),
        })?;
        self.last = Some((number, read));
        check_end(self.source, self.end, number, read)
    }
}
