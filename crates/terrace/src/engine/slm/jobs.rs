//! Moving keys in the index: what flush and compaction share.
//!
//! A job writes tables and then points index words at them. Each chunk of keys goes through three steps
//! under the index-writer lock: look up and decide; record in the job's compaction log, which lies in
//! the pool, and drain it; publish the new words. Tables are in the manifest before any word names
//! them, and what they replace stays until the job is done, so at every moment every word names a
//! live record and there is nothing to undo after a crash. What a crash does leave is a job whose
//! effect on the live-key counts is unknown; the log has it (SLM-DB, section 3.3).
//!
//! 1. Index words and chains are changed under the writer lock alone, chunk by chunk.
//! 2. A chunk's log records are durable before its first word is published, and a record that says how many of
//!    them were applied before the writer lock is given back. So of a chunk that has no such record nobody else
//!    has touched a key: after a crash one of its records has been applied exactly if the key's word is no longer
//!    the recorded one. Of other chunks that cannot be told from the words, which later jobs may have put back: the
//!    offset of a chain that was freed is soon another chain's.
//! 3. Counts go into the manifest in one group with the job's end. Where that group fails the job is unsettled:
//!    its log stays, and no other job begins before the group has been made good.

use std::collections::{BTreeMap, VecDeque};

use parking_lot::MutexGuard;
use terrace_base::codec::{Reader, put_bytes, put_varint};
use terrace_base::{Error, Result};
use terrace_index::fastfair::{FANOUT, Nearby};
use terrace_index::{OrderedIndex, kinds};
use terrace_log::PmLog;
use terrace_pmem::Kind as PmKind;
use terrace_table::Position;

use super::Slm;
use super::chain::{Chain, Version, Word, move_version, retain};
use super::output::{Finished, Origin};
use crate::manifest::{Edit, JobKind, State};

/// Extents of this kind hold compaction logs.
pub(super) const JOB_LOG_KIND: PmKind = kinds::SLM_JOB_LOG;

/// Roots that compaction logs hang from: of the flush, of the job that collapses chains, and of
/// compactions.
pub(super) const JOB_ROOTS: [&str; 5] =
    ["slm.job.flush", "slm.job.chains", "slm.job.c0", "slm.job.c1", "slm.job.c2"];

/// Keys of a chunk, all different: long enough to share its drain, short enough not to keep others waiting.
pub(super) const CHUNK_KEYS: usize = 256;

/// The first byte of the record that ends a chunk.
const CHUNK_END: u8 = 2;

/// Bytes of that record, at most.
const CHUNK_END_BYTES: u64 = 11;

/// First reservation of a compaction log.
const LOG_BYTES: u64 = 64 << 10;

/// The leaves of a chunk's keys.
type Near<'a> = Nearby<'a, FANOUT>;

/// A running job: its number, its log, and what it has done to the counts.
#[derive(Debug)]
pub(super) struct JobRun<'a> {
    slm: &'a Slm,
    pub id: u64,
    root: &'static str,
    log: PmLog,
    deltas: BTreeMap<u64, i64>,
    /// Tables that this job wrote: puts in them, and how many of those are in the index.
    outputs: BTreeMap<u64, (u64, u64)>,
}

/// A job whose work is done and whose end may not be in the manifest yet.
#[derive(Debug)]
pub(super) struct Ending {
    id: u64,
    root: &'static str,
    log: PmLog,
    deltas: BTreeMap<u64, i64>,
}

/// One key's move, decided and not yet published.
struct Move {
    key: Vec<u8>,
    old: u64,
    change: Change,
    /// Tables that gain a live version, and tables that lose one.
    born: Vec<u64>,
    died: Vec<u64>,
}

enum Change {
    /// The word becomes this; zero removes the key.
    Word(u64),
    /// Version `index` of the key's chain moves.
    InChain { chain: u64, index: usize, to: Position },
}

impl Slm {
    /// Starts a job whose log hangs from `root`.
    pub(super) fn start_job(
        &self,
        root: &'static str,
        kind: JobKind,
        inputs: Vec<u64>,
    ) -> Result<JobRun<'_>> {
        self.settle_endings()?;
        let id = self.new_file_number();
        let mut log = PmLog::create(&self.pool, JOB_LOG_KIND, LOG_BYTES)?;
        let mut first = Vec::new();
        put_varint(&mut first, id);
        let linked = log
            .append(&first)
            .and_then(|_| log.persist())
            .and_then(|_| self.pool.set_root(root, log.head()))
            .and_then(|_| self.manifest.apply(&[Edit::JobStarted { id, kind, inputs }]));
        if let Err(e) = linked {
            self.pool.clear_root(root)?;
            log.free()?;
            return Err(e);
        }
        Ok(JobRun { slm: self, id, root, log, deltas: BTreeMap::new(), outputs: BTreeMap::new() })
    }
}

impl<'a> JobRun<'a> {
    /// The engine the job works for.
    pub fn slm(&self) -> &'a Slm {
        self.slm
    }

    /// Notes a table that this job wrote.
    pub fn owns(&mut self, finished: &Finished) {
        self.outputs.insert(finished.number, (finished.puts, 0));
    }

    /// Points the keys of a flush at their new versions, newest first for each key.
    pub fn insert(&mut self, chunk: &[(Vec<u8>, Vec<Version>)], held: &[u64]) -> Result<()> {
        let writer = self.slm.index_writer.lock();
        let mut moves = Moves::of(self.slm, chunk.iter().map(|(key, _)| &key[..]))?;
        for (i, (key, versions)) in chunk.iter().enumerate() {
            moves.push(i, self.slm.plan_insert(key, moves.word(i, key)?, versions, held)?);
        }
        self.publish(writer, moves)
    }

    /// Points the versions that a compaction moved at their new places; one that has meanwhile been
    /// replaced is dead where it arrives.
    pub fn relocate(&mut self, chunk: &[Relocation]) -> Result<()> {
        let writer = self.slm.index_writer.lock();
        let mut moves = Moves::of(self.slm, chunk.iter().map(|relocation| &relocation.key[..]))?;
        for (i, relocation) in chunk.iter().enumerate() {
            match self.slm.plan_relocation(relocation, moves.word(i, &relocation.key)?)? {
                Some(one) => moves.push(i, one),
                None => self.dead_on_arrival(relocation.to.number()),
            }
        }
        self.publish(writer, moves)
    }

    /// Drops versions that no snapshot needs any more from the chains of `keys`.
    pub fn collapse(&mut self, keys: &[Vec<u8>]) -> Result<()> {
        let writer = self.slm.index_writer.lock();
        // Listed under the lock: whoever a chain was made for was listed before it was made.
        let held = self.slm.core.snapshots.list();
        let mut moves = Moves::of(self.slm, keys.iter().map(|key| &key[..]))?;
        for (i, key) in keys.iter().enumerate() {
            if let Some(one) = self.slm.plan_collapse(key, moves.word(i, key)?, &held)? {
                moves.push(i, one);
            }
        }
        self.publish(writer, moves)
    }

    fn dead_on_arrival(&mut self, number: u64) {
        *self.deltas.entry(number).or_default() -= 1;
        self.arrived(number);
    }

    fn arrived(&mut self, number: u64) {
        if let Some((_, arrived)) = self.outputs.get_mut(&number) {
            *arrived += 1;
        }
    }

    fn publish(&mut self, writer: MutexGuard<'_, ()>, mut moves: Moves<'_>) -> Result<()> {
        if moves.planned.is_empty() {
            return Ok(());
        }
        let records: Vec<Vec<u8>> = moves.planned.iter().map(|(_, one)| one.encode()).collect();
        let bytes: usize = records.iter().map(Vec::len).sum();
        // For the record that ends the chunk, too: once there are others it must not fail.
        self.log.reserve(records.len() as u64 + 1, bytes as u64 + CHUNK_END_BYTES)?;
        records.iter().try_for_each(|record| self.log.append(record).map(drop))?;
        self.log.persist()?;
        let mut applied = 0;
        let outcome = self.publish_in_turn(&mut moves, &mut applied);
        let ended = self.log.append(&encode_chunk_end(applied)).and_then(|_| self.log.persist());
        drop(writer);
        outcome.and(ended)
    }

    fn publish_in_turn(&mut self, moves: &mut Moves<'_>, applied: &mut u64) -> Result<()> {
        while let Some((i, one)) = moves.planned.front() {
            self.slm.publish_move(&moves.near, *i, one)?;
            one.born.iter().for_each(|&number| self.arrived(number));
            for &number in &one.died {
                *self.deltas.entry(number).or_default() -= 1;
            }
            moves.planned.pop_front();
            *applied += 1;
        }
        Ok(())
    }

    /// Ends the job before it was done: what it wrote and indexed stays, what it wrote and did not
    /// index is dead.
    pub fn give_up(mut self) -> Result<()> {
        for (number, (puts, arrived)) in std::mem::take(&mut self.outputs) {
            *self.deltas.entry(number).or_default() -= puts as i64 - arrived as i64;
        }
        self.finish(Vec::new)
    }

    /// Ends the job: `edits` and the counts in one manifest group, then the log goes.
    pub fn finish(self, edits: impl FnOnce() -> Vec<Edit>) -> Result<()> {
        let JobRun { slm, id, root, log, deltas, .. } = self;
        slm.end_job(Ending { id, root, log, deltas }, edits)
    }
}

/// A chunk's moves in order. Those that are not published take the chains made for them along.
struct Moves<'a> {
    slm: &'a Slm,
    near: Near<'a>,
    /// With each its key's place in the chunk.
    planned: VecDeque<(usize, Move)>,
}

impl<'a> Moves<'a> {
    /// No moves yet, of the `keys` of a chunk.
    fn of<'k>(slm: &'a Slm, keys: impl Iterator<Item = &'k [u8]>) -> Result<Self> {
        Ok(Moves { slm, near: slm.index.nearby(keys)?, planned: VecDeque::with_capacity(CHUNK_KEYS) })
    }

    /// The index word of the `i`-th key; zero is none.
    fn word(&self, i: usize, key: &[u8]) -> Result<u64> {
        Ok(self.near.get(i, key)?.unwrap_or(0))
    }

    fn push(&mut self, i: usize, one: Move) {
        self.planned.push_back((i, one));
    }
}

impl Drop for Moves<'_> {
    fn drop(&mut self) {
        for (_, one) in &self.planned {
            if let Change::Word(word) = one.change
                && let Some(Word::Chain(offset)) = Word::decode(word)
            {
                // Nothing leads to it, but who looks at all chains may be reading it.
                self.slm.limbo.retire(offset);
            }
        }
    }
}

/// A version moved by a compaction.
#[derive(Debug, Clone)]
pub(super) struct Relocation {
    pub key: Vec<u8>,
    pub seq: u64,
    pub from: Origin,
    pub to: Position,
}

impl Slm {
    /// Whether the index holds the version of `key` that is `seq` in a table. All versions of a key that
    /// are in one table got there together, so a plain word can only mean the newest of them.
    pub(super) fn holds(&self, key: &[u8], seq: u64, from: Origin) -> Result<bool> {
        Ok(self.held_position(key, seq, from)?.is_some())
    }

    /// Where the index says that the version lies, if it [`holds`](Self::holds) it.
    pub(super) fn held_position(&self, key: &[u8], seq: u64, from: Origin) -> Result<Option<Position>> {
        let _here = self.limbo.enter();
        let Some(word) = self.index.get(key)? else { return Ok(None) };
        Ok(match self.decode_word(word)? {
            Word::Position(position) => {
                (position.number() == from.table && from.newer.is_none()).then_some(position)
            }
            Word::Chain(offset) => {
                let chain = Chain::load(&self.pool, offset)?;
                find_version(&chain, seq, from).and_then(|index| chain.versions[index].position)
            }
        })
    }

    pub(super) fn decode_word(&self, word: u64) -> Result<Word> {
        Word::decode(word)
            .ok_or_else(|| Error::corruption(self.pool.path(), 0, "an index word", format!("{word:#018x}")))
    }

    /// The versions behind an index word; zero is none.
    fn versions_of(&self, word: u64) -> Result<Vec<Version>> {
        if word == 0 {
            return Ok(Vec::new());
        }
        Ok(match self.decode_word(word)? {
            Word::Position(position) => {
                vec![Version { seq: u64::MAX >> 2, exact: false, position: Some(position) }]
            }
            Word::Chain(offset) => Chain::load(&self.pool, offset)?.versions,
        })
    }

    fn plan_insert(&self, key: &[u8], old: u64, new: &[Version], held: &[u64]) -> Result<Move> {
        let mut before = self.versions_of(old)?;
        if let (Some(last), [.., oldest]) = (before.first_mut().filter(|v| !v.exact), new) {
            last.seq = last.seq.min(oldest.seq - 1);
        }
        self.plan(key, old, new.len(), &[new, &before].concat(), held)
    }

    /// What becomes of the key's chain now that only `held` are left; `None` if nothing does.
    fn plan_collapse(&self, key: &[u8], old: u64, held: &[u64]) -> Result<Option<Move>> {
        if !matches!(Word::decode(old), Some(Word::Chain(_))) {
            return Ok(None);
        }
        let versions = self.versions_of(old)?;
        if retain(&versions, held).len() == versions.len() {
            return Ok(None);
        }
        self.plan(key, old, 0, &versions, held).map(Some)
    }

    /// Decides what becomes of a key's `versions`, of which the first `new` are not in the index yet.
    fn plan(&self, key: &[u8], old: u64, new: usize, versions: &[Version], held: &[u64]) -> Result<Move> {
        let kept = retain(versions, held);
        let word = match kept.as_slice() {
            [] => 0,
            [Version { position: Some(position), .. }] => Word::Position(*position).encode(),
            _ => {
                let chain = Chain { key: key.to_vec(), versions: kept.clone() };
                Word::Chain(chain.store(&self.pool)?).encode()
            }
        };
        let died = versions
            .iter()
            .filter(|v| !kept.contains(v))
            .filter_map(|v| v.position.map(Position::number))
            .collect();
        let born = versions[..new].iter().filter_map(|v| v.position.map(Position::number)).collect();
        Ok(Move { key: key.to_vec(), old, change: Change::Word(word), born, died })
    }

    fn plan_relocation(&self, r: &Relocation, old: u64) -> Result<Option<Move>> {
        if old == 0 {
            return Ok(None);
        }
        let change = match self.decode_word(old)? {
            Word::Position(position) if position.number() == r.from.table && r.from.newer.is_none() => {
                Change::Word(Word::Position(r.to).encode())
            }
            Word::Position(_) => return Ok(None),
            Word::Chain(chain) => {
                let loaded = Chain::load(&self.pool, chain)?;
                match find_version(&loaded, r.seq, r.from) {
                    Some(index) => Change::InChain { chain, index, to: r.to },
                    None => return Ok(None),
                }
            }
        };
        Ok(Some(Move {
            key: r.key.clone(),
            old,
            change,
            born: vec![r.to.number()],
            died: vec![r.from.table],
        }))
    }

    fn publish_move(&self, near: &Near<'_>, i: usize, one: &Move) -> Result<()> {
        match one.change {
            Change::InChain { chain, index, to } => {
                move_version(&self.pool, chain, index, to);
                return Ok(());
            }
            Change::Word(0) => {
                self.index.remove(&one.key)?;
            }
            Change::Word(word) => {
                near.insert(i, &one.key, word)?;
                self.count_chain(word, 1);
            }
        }
        if let Some(Word::Chain(offset)) = Word::decode(one.old) {
            self.count_chain(one.old, -1);
            self.limbo.retire(offset);
        }
        Ok(())
    }

    /// Ends a job, or keeps it for [`settle_endings`](Self::settle_endings).
    fn end_job(&self, ending: Ending, edits: impl FnOnce() -> Vec<Edit>) -> Result<()> {
        match self.commit_job(ending.id, edits, &ending.deltas) {
            Ok(()) => self.drop_log(ending),
            Err(e) => {
                self.endings.lock().push(ending);
                Err(e)
            }
        }
    }

    fn drop_log(&self, ending: Ending) -> Result<()> {
        self.pool.clear_root(ending.root)?;
        ending.log.free()
    }

    /// Makes good the ends of jobs that did not get into the manifest. Others wait meanwhile: the root that such
    /// a job's log hangs from is not free for the next job before that is done.
    fn settle_endings(&self) -> Result<()> {
        let mut endings = self.endings.lock();
        while let Some(ending) = endings.pop() {
            let edits = || restart_edits(&self.manifest.state(), ending.id);
            if let Err(e) = self.commit_job(ending.id, edits, &ending.deltas) {
                endings.push(ending);
                return Err(e);
            }
            self.drop_log(ending)?;
        }
        Ok(())
    }

    /// Commits a job's end and its counts; those of tables that are gone no longer matter. `edits` is
    /// called with no other job ending beside it.
    pub(super) fn commit_job(
        &self,
        id: u64,
        edits: impl FnOnce() -> Vec<Edit>,
        deltas: &BTreeMap<u64, i64>,
    ) -> Result<()> {
        let _alone = self.counting.lock();
        let mut group = edits();
        let removed: Vec<u64> = group
            .iter()
            .filter_map(|e| if let Edit::RemoveTable { number } = e { Some(*number) } else { None })
            .collect();
        group.extend(count_edits(&self.manifest.state(), deltas, &removed));
        group.push(Edit::JobDone { id });
        self.manifest.apply(&group)
    }
}

/// Ends a job's inputs among the candidates.
pub(super) fn restart_edits(state: &State, id: u64) -> Vec<Edit> {
    let inputs = state.jobs.get(&id).map(|job| job.inputs.clone()).unwrap_or_default();
    let mut candidates = state.candidates.clone();
    candidates.extend(inputs.into_iter().filter(|n| state.tables.contains_key(n)));
    vec![Edit::Candidates(candidates.into_iter().collect())]
}

/// The count edits of `deltas` for tables that are there and stay.
pub(super) fn count_edits(state: &State, deltas: &BTreeMap<u64, i64>, removed: &[u64]) -> Vec<Edit> {
    deltas
        .iter()
        .filter(|(number, delta)| {
            **delta != 0 && state.tables.contains_key(number) && !removed.contains(number)
        })
        .map(|(&number, &live_delta)| Edit::Counts { number, live_delta })
        .collect()
}

/// Which version of `chain` is the one that is `seq` in a table: the one whose number is the highest there
/// up to what the chain says.
fn find_version(chain: &Chain, seq: u64, from: Origin) -> Option<usize> {
    let is_it = |v: &Version| seq <= v.seq && from.newer.is_none_or(|newer| newer > v.seq);
    chain.versions.iter().position(|v| v.position.is_some_and(|p| p.number() == from.table) && is_it(v))
}

impl Move {
    /// Old word, new word (for a move within a chain: the chain's word and the new position, marked),
    /// the tables that gained and that lost a version, and the key.
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.key.len() + 32);
        let (tag, new) = match self.change {
            Change::Word(word) => (0, word),
            Change::InChain { to, .. } => (1, to.word()),
        };
        out.push(tag);
        put_varint(&mut out, self.old);
        put_varint(&mut out, new);
        for numbers in [&self.born, &self.died] {
            put_varint(&mut out, numbers.len() as u64);
            numbers.iter().for_each(|n| put_varint(&mut out, *n));
        }
        put_bytes(&mut out, &self.key);
        out
    }
}

/// The record that says how many of a chunk's moves were applied, from the first.
fn encode_chunk_end(applied: u64) -> Vec<u8> {
    let mut out = vec![CHUNK_END];
    put_varint(&mut out, applied);
    out
}

fn decode_chunk_end(payload: &[u8]) -> Option<u64> {
    let mut r = Reader::new(payload.strip_prefix(&[CHUNK_END])?);
    r.varint().filter(|_| r.is_empty())
}

/// What a compaction log tells of the counts, added up record by record; see invariant 2.
pub(super) struct LoggedJob<'a> {
    slm: &'a Slm,
    /// What the first record says: the job's number in the manifest.
    id: Option<Option<u64>>,
    deltas: BTreeMap<u64, i64>,
    /// Records of the chunk that has not ended yet, with their ends.
    chunk: Vec<u8>,
    ends: Vec<usize>,
}

impl<'a> LoggedJob<'a> {
    pub fn new(slm: &'a Slm) -> Self {
        LoggedJob { slm, id: None, deltas: BTreeMap::new(), chunk: Vec::new(), ends: Vec::new() }
    }

    /// Takes the next record.
    pub fn take(&mut self, payload: &[u8]) {
        if self.id.is_none() {
            self.id = Some(Reader::new(payload).varint());
        } else if let Some(applied) = decode_chunk_end(payload) {
            self.end_chunk(usize::try_from(applied).unwrap_or(usize::MAX));
        } else {
            self.chunk.extend_from_slice(payload);
            self.ends.push(self.chunk.len());
        }
    }

    fn end_chunk(&mut self, applied: usize) {
        for moved in moves_in(&self.chunk, &self.ends).take(applied) {
            moved.count(&mut self.deltas);
        }
        self.chunk.clear();
        self.ends.clear();
    }

    /// The job's number and, by table, how many live versions it has brought and taken.
    pub fn finish(mut self) -> Result<(u64, BTreeMap<u64, i64>)> {
        for moved in moves_in(&self.chunk, &self.ends) {
            if moved.was_applied(self.slm)? {
                moved.count(&mut self.deltas);
            }
        }
        let id = self.id.flatten().ok_or_else(|| {
            Error::corruption(self.slm.pool.path(), 0, "a compaction log's job number", "none")
        })?;
        Ok((id, self.deltas))
    }
}

fn moves_in<'r>(chunk: &'r [u8], ends: &'r [usize]) -> impl Iterator<Item = LoggedMove<'r>> {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts.zip(ends).filter_map(|(start, &end)| LoggedMove::decode(&chunk[start..end]))
}

/// A compaction log's record, read back.
#[derive(Debug, PartialEq, Eq)]
struct LoggedMove<'r> {
    in_chain: bool,
    old: u64,
    new: u64,
    born: Numbers<'r>,
    died: Numbers<'r>,
    key: &'r [u8],
}

/// Table numbers in a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Numbers<'r>(&'r [u8]);

impl<'r> Numbers<'r> {
    /// Reads a count and so many numbers.
    fn decode(r: &mut Reader<'r>) -> Option<Self> {
        let count = r.varint()?;
        let all = r.rest();
        for _ in 0..count {
            r.varint()?;
        }
        all.get(..all.len() - r.rest().len()).map(Numbers)
    }

    fn iter(self) -> impl Iterator<Item = u64> {
        let mut r = Reader::new(self.0);
        std::iter::from_fn(move || r.varint())
    }
}

impl<'r> LoggedMove<'r> {
    fn decode(payload: &'r [u8]) -> Option<Self> {
        let mut r = Reader::new(payload);
        let in_chain = match r.u8()? {
            form @ (0 | 1) => form == 1,
            _ => return None,
        };
        let (old, new) = (r.varint()?, r.varint()?);
        let (born, died) = (Numbers::decode(&mut r)?, Numbers::decode(&mut r)?);
        let key = r.bytes()?;
        r.is_empty().then_some(LoggedMove { in_chain, old, new, born, died, key })
    }

    fn count(&self, deltas: &mut BTreeMap<u64, i64>) {
        self.born.iter().for_each(|n| *deltas.entry(n).or_default() += 1);
        self.died.iter().for_each(|n| *deltas.entry(n).or_default() -= 1);
    }

    /// Whether the move, of a chunk without an end, was published before the crash; see invariant 2.
    fn was_applied(&self, slm: &Slm) -> Result<bool> {
        let now = slm.index.get(self.key)?.unwrap_or(0);
        if now != self.old || !self.in_chain {
            return Ok(now != self.old);
        }
        let to = Position::from_word(self.new);
        Ok(slm.versions_of(now)?.iter().any(|v| v.position == to))
    }
}

/// Reads any record of a compaction log; says whether it is one.
pub(crate) fn read_compaction_record(payload: &[u8]) -> bool {
    let end = decode_chunk_end(payload).is_some();
    let moved = LoggedMove::decode(payload).is_some();
    assert!(!(end && moved), "a record is the one or the other");
    end || moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_the_documented_bytes_and_come_back() {
        let key = b"key".to_vec();
        let to = Position::new(2, 16, 512).unwrap();
        let change = Change::InChain { chain: 4096, index: 1, to };
        let moved = Move { key: key.clone(), old: 300, change, born: vec![2], died: vec![1, 130] };
        let new = [0x81, 0x82, 0x80, 0x80, 0x80, 0x04];
        let bytes = [&[1, 0xac, 0x02][..], &new, &[1, 2, 2, 1, 0x82, 0x01, 3], b"key"].concat();
        assert_eq!(moved.encode(), bytes);
        let logged = LoggedMove::decode(&bytes).unwrap();
        assert_eq!((logged.in_chain, logged.old, logged.new), (true, 300, to.word()));
        assert_eq!((logged.born.iter().collect::<Vec<_>>(), logged.key), (vec![2], &key[..]));
        assert_eq!(logged.died.iter().collect::<Vec<_>>(), [1, 130]);
        for cut in 0..bytes.len() {
            assert_eq!(LoggedMove::decode(&bytes[..cut]), None);
        }
        assert_eq!(LoggedMove::decode(&[&bytes[..], &[0]].concat()), None);
    }
}
