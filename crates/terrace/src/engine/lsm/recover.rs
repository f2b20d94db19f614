//! What opening has to do: logs back into a memtable, files that nobody refers to out of the way.
//!
//! Logs are replayed in order. In files, a log may have lost its end to a power cut; the next one says where it began,
//! so that what follows a gap is left out, and then everything that is left goes into a new log before
//! anything else is written. What a killed process left is whole, and its logs stay until their memtable is flushed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::{Error, ErrorKind, Result};
use terrace_log::PmLog;
use terrace_pmem::Pool;
use terrace_table::Kind;

use super::log::{Record, log_path, visit_file};
use super::open::Found;
use super::{Lsm, MemTable, Readable, flush};
use crate::batch::WriteBatch;
use crate::manifest::Edit;
use crate::memtable::NODE_OVERHEAD_BYTES;

/// More logs than this after a recovery, and their memtable is flushed at once.
const FEW_LOGS: usize = 1;

/// What was replayed.
#[derive(Debug, Default)]
pub(super) struct Replayed {
    pub logs: usize,
    pub groups: u64,
    /// Everything up to this sequence number is there.
    reached: u64,
    /// A log had lost its end, or is damaged and that is to be lived with: what followed was left out.
    gap: bool,
}

/// Whether a log counts, by its first record and whether it is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begins {
    /// Where the one before it ends.
    After(u64),
    /// Anew: it stands for all before it.
    Anew,
    /// As one that was to begin anew and was not finished, or not even begun: nothing in it counts.
    Not,
}

/// Where logs are read from.
pub(super) trait Source {
    /// The logs' numbers, ascending.
    fn numbers(&self) -> Vec<u64>;

    /// Hands each record of a log to `each`, in order.
    fn visit(&self, number: u64, each: &mut dyn FnMut(Record) -> Result<()>) -> Result<()>;

    /// Where a log lies.
    fn path(&self, number: u64) -> PathBuf;

    /// Whether a log may have lost its end to a power cut.
    fn may_lose_ends(&self) -> bool;
}

/// Logs in files.
struct Files<'a> {
    lsm: &'a Lsm,
    numbers: Vec<u64>,
}

/// Logs that were read from a pool, each as far as it could be and with what ended the reading.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    path: PathBuf,
    logs: BTreeMap<u64, (Vec<Record>, Result<()>)>,
}

impl Source for Files<'_> {
    fn numbers(&self) -> Vec<u64> {
        self.numbers.clone()
    }

    fn visit(&self, number: u64, each: &mut dyn FnMut(Record) -> Result<()>) -> Result<()> {
        let path = self.path(number);
        let core = &self.lsm.core;
        visit_file(core.fs(), &core.dir, number, &mut |payload| decode(&path, payload).and_then(&mut *each))
    }

    fn path(&self, number: u64) -> PathBuf {
        log_path(&self.lsm.core.dir, number)
    }

    fn may_lose_ends(&self) -> bool {
        true
    }
}

impl Source for Gathered {
    fn numbers(&self) -> Vec<u64> {
        self.logs.keys().copied().collect()
    }

    fn visit(&self, number: u64, each: &mut dyn FnMut(Record) -> Result<()>) -> Result<()> {
        let Some((records, end)) = self.logs.get(&number) else { return Ok(()) };
        records.iter().cloned().try_for_each(each)?;
        end.clone()
    }

    fn path(&self, _number: u64) -> PathBuf {
        self.path.clone()
    }

    fn may_lose_ends(&self) -> bool {
        false
    }
}

impl Gathered {
    /// Of a pool that was closed in order, the newest log must say so.
    fn check_end(&self) -> Result<()> {
        match self.logs.values().next_back() {
            Some((records, Ok(()))) if !matches!(records.last(), Some(Record::Closed)) => {
                Err(Error::corruption(&self.path, 0, "the end of a log that was closed", "an earlier one"))
            }
            _ => Ok(()),
        }
    }

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
        Gathered { path, logs }
    }
}

fn decode(path: &Path, payload: &[u8]) -> Result<Record> {
    Record::decode(payload)
        .ok_or_else(|| Error::corruption(path, 0, "a record of a commit log", "bytes that do not decode"))
}

/// Whether to go on without what is damaged.
fn judge(error: Error, damaged: &mut dyn FnMut(Error) -> Result<()>, replayed: &mut Replayed) -> Result<()> {
    if error.kind() != ErrorKind::Corruption {
        return Err(error);
    }
    replayed.gap = true;
    damaged(error)
}

/// A disk without room is no reason not to open.
fn unless_full(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(e) if e.kind() == ErrorKind::NoSpace => Ok(()),
        outcome => outcome,
    }
}

/// A log is removed when its memtable is in tables and the manifest says so. If what came before the first is in
/// neither, the manifest has lost its newest group, or a log is missing.
fn lost_predecessor(path: &Path, before: u64, flushed: u64) -> Error {
    let expected = format!("a log that begins where tables end, after {flushed} (try `repair`)");
    Error::corruption(path, 0, expected, format!("one that begins after {before}"))
}

impl Lsm {
    /// Brings a just opened database to rest; returns the last sequence number in it. `damaged` is asked about each
    /// damaged log; what it held from there on, and all that follows, is left out if that is no error.
    pub(super) fn recover(
        &self,
        found: Found,
        gathered: Option<&Gathered>,
        damaged: &mut dyn FnMut(Error) -> Result<()>,
    ) -> Result<Replayed> {
        let listing = self.manifest.listing()?;
        let in_pool = self.pool.as_ref().map(|pool| Gathered::from_pool(pool, self.log.lock().in_pool()));
        let files = Files { lsm: self, numbers: listing.logs.clone() };
        let source: &dyn Source = match gathered.or(in_pool.as_ref()) {
            Some(gathered) => gathered,
            None => &files,
        };
        let logs = source.numbers();
        self.reserve_numbers(logs.iter().chain(&listing.dead_tables).max().copied());
        if let Some(pool) = &in_pool
            && found == Found::Closed
        {
            pool.check_end()?;
        }
        let replayed = self.replay(source, damaged)?;
        self.applied.fetch_max(self.last_seq(), Ordering::AcqRel);
        if self.core.options.read_only {
            return Ok(replayed);
        }
        self.remove_tables(listing.dead_tables.into_iter());
        self.remove_leftovers()?;
        if replayed.gap {
            // Without room for it every write begins with another attempt.
            unless_full(self.restart_log())?;
        }
        self.drop_old_logs()?;
        if logs.len() > FEW_LOGS && !self.readable().active().list.is_empty() {
            self.rotate_memtable();
        }
        self.reclaim(found == Found::Crashed);
        self.spawn_compaction();
        Ok(replayed)
    }

    /// Notes that everything is in tables, and lets go of all logs; nothing is written meanwhile.
    pub(super) fn forget_logs(&self) -> Result<()> {
        let number = self.new_file_number();
        self.manifest.apply(&[Edit::FlushedSeq(self.last_seq()), Edit::LogNumber(number)])?;
        self.drop_old_logs()
    }

    /// The last sequence number in tables and memtables.
    pub(super) fn last_seq(&self) -> u64 {
        let state = self.manifest.state();
        let tables = state.tables.values().map(|t| t.meta.max_seq).max().unwrap_or(0);
        tables.max(state.flushed_seq).max(self.applied.load(Ordering::Acquire))
    }

    /// Numbers of files that were made and forgotten are not given out again.
    fn reserve_numbers(&self, highest: Option<u64>) {
        let next = self.manifest.state().next_file;
        if let Some(highest) = highest.filter(|n| *n >= next) {
            self.manifest.take_numbers(highest + 1 - next);
        }
    }

    /// Removes what is no longer needed.
    fn remove_leftovers(&self) -> Result<()> {
        self.manifest.listing()?.leftovers.iter().try_for_each(|path| self.core.fs().remove(path))
    }

    /// After a crash, frees what was allocated in the pool and belongs to no log.
    fn reclaim(&self, crashed: bool) {
        let wanted = self.pool.as_ref().is_some_and(|pool| crashed || pool.needs_reclaim());
        if wanted {
            self.spawn(|lsm| {
                if let Err(e) = lsm.reclaim_now() {
                    lsm.core.health.fail(e);
                }
            });
        }
    }

    fn reclaim_now(&self) -> Result<()> {
        let Some(pool) = &self.pool else { return Ok(()) };
        // Nobody frees a log meanwhile, so nothing that is found has an owner.
        let logs = self.log.lock();
        let mut marks = pool.marks();
        logs.mark(&mut marks)?;
        pool.reclaim(&marks)?;
        pool.release_reclaimed().map(drop)
    }

    /// How log `number` begins. Damage is for whoever replays it.
    fn beginning(source: &dyn Source, number: u64) -> Result<Begins> {
        let mut begins = Begins::Not;
        let mut restarts = false;
        let outcome = source.visit(number, &mut |record| {
            match record {
                Record::Start { before, .. } => begins = Begins::After(before),
                Record::Restart { .. } => restarts = true,
                Record::Complete if restarts => begins = Begins::Anew,
                _ => {}
            }
            Ok(())
        });
        match outcome {
            Err(e) if e.kind() != ErrorKind::Corruption => Err(e),
            _ => Ok(begins),
        }
    }

    /// Puts what the logs of `source` hold after what is flushed into the memtable.
    pub(super) fn replay(
        &self,
        source: &dyn Source,
        damaged: &mut dyn FnMut(Error) -> Result<()>,
    ) -> Result<Replayed> {
        let logs = source.numbers();
        let begins: Vec<Begins> = logs.iter().map(|&n| Self::beginning(source, n)).collect::<Result<_>>()?;
        let from = begins.iter().rposition(|b| *b == Begins::Anew).unwrap_or(0);
        let flushed = self.manifest.state().flushed_seq;
        let mut replayed = Replayed { reached: flushed, ..Replayed::default() };
        for (at, (&number, begins)) in logs.iter().zip(&begins).enumerate().skip(from) {
            match begins {
                Begins::Anew => {}
                Begins::After(before) if *before <= replayed.reached => {}
                Begins::After(before) => {
                    if (at == from || !source.may_lose_ends()) && !replayed.gap {
                        damaged(lost_predecessor(&source.path(number), *before, flushed))?;
                    }
                    replayed.gap = true;
                    break;
                }
                Begins::Not => {
                    // Never acknowledged anything; but its beginning may be damaged.
                    if let Err(e) = source.visit(number, &mut |_| Ok(())) {
                        judge(e, damaged, &mut replayed)?;
                    }
                    continue;
                }
            }
            replayed.logs += 1;
            if let Err(e) = self.replay_log(source, number, &mut replayed) {
                judge(e, damaged, &mut replayed)?;
            }
        }
        Ok(replayed)
    }

    fn replay_log(&self, source: &dyn Source, number: u64, replayed: &mut Replayed) -> Result<()> {
        let Replayed { groups, reached, .. } = replayed;
        source.visit(number, &mut |record| {
            let Record::Batch { first_seq, ops } = record else { return Ok(()) };
            let last = first_seq + ops.len() as u64 - 1;
            if last > *reached {
                self.replay_group(number, first_seq, &ops, *reached)?;
                *groups += 1;
                *reached = last;
            }
            Ok(())
        })
    }

    /// Puts a group's operations after `reached` into the memtable; makes room first where it is full.
    fn replay_group(&self, number: u64, first_seq: u64, ops: &WriteBatch, reached: u64) -> Result<()> {
        let need = ops.encoded().len() as u64 + ops.len() as u64 * NODE_OVERHEAD_BYTES;
        let active = self.readable().active().clone();
        let used = active.list.bytes_used();
        if used > 0 && used + need > self.core.options.lsm.memtable_bytes {
            self.set_active_aside();
            self.readable().active().logged_from(number);
            if !self.core.options.read_only {
                // Without room it stays in memory, and in its logs.
                unless_full(flush::run(self))?;
            }
        }
        let readable = self.readable();
        let active = readable.active();
        active.logged_from(number);
        let mut writer = active.list.writer();
        for (op, seq) in ops.ops().zip(first_seq..).filter(|(_, seq)| *seq > reached) {
            let value = if op.kind == Kind::Put { op.value } else { &[] };
            writer.insert(op.key, seq, op.kind, value);
        }
        self.applied.store(first_seq + ops.len() as u64 - 1, Ordering::Release);
        Ok(())
    }

    /// Makes what was replayed so far immutable. Unlike a rotation this leaves the logs as they are.
    fn set_active_aside(&self) {
        let next = MemTable::new(self.core.options.lsm.memtable_bytes);
        self.readable.rcu(|now| {
            let memtables: Vec<Arc<MemTable>> =
                std::iter::once(&next).chain(&now.memtables).cloned().collect();
            Readable { memtables, levels: now.levels.clone() }
        });
    }
}
