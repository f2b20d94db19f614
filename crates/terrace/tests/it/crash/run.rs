//! Carrying operations out, with a model of what was acknowledged.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Bound;

use terrace::{Db, ErrorKind, Options, Result, Snapshot, WriteOptions};
use terrace_pmem::Media;
use terrace_sim::{Change, KvModel, Map, Recorder, World};

use super::env::{DIR, Process};
use super::judge::{is_torn, may_end_early};
use super::ops::{Op, Write, deletes_between, is_junk, key};
use super::writing::How;
use crate::harness::Contents;

/// Snapshots held at a time.
const MOST_SNAPSHOTS: usize = 3;

/// Where acknowledgements go.
pub trait Ledger {
    fn update(&mut self, change: &mut dyn FnMut(&mut KvModel));
    fn model(&self) -> KvModel;
}

impl Ledger for Recorder<KvModel> {
    fn update(&mut self, change: &mut dyn FnMut(&mut KvModel)) {
        Recorder::update(self, change);
    }

    fn model(&self) -> KvModel {
        self.read(KvModel::clone)
    }
}

/// What to do about errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errors {
    /// There must be none.
    Fail,
    /// They are expected: a write that fails may have happened or not. Reads are right all the same.
    Expected,
    /// The same, but what failed is tried again at once and must then succeed.
    Passing,
}

/// An open database under test.
pub struct Session<'a> {
    world: &'a World,
    options: Options,
    errors: Errors,
    process: Process,
    db: Option<Db>,
    snapshots: VecDeque<(Snapshot, Map)>,
    stamp: u32,
    /// An error was met and taken in stride.
    failed: Cell<bool>,
    /// The pool was torn before the last opening that has succeeded.
    was_torn: bool,
}

impl<'a> Session<'a> {
    /// Opens the database in `world`.
    pub fn open(world: &'a World, options: &Options, errors: Errors) -> std::result::Result<Self, String> {
        let process = Process::new(world);
        let mut session = Session {
            world,
            options: options.clone(),
            errors,
            process,
            db: None,
            snapshots: VecDeque::new(),
            stamp: 0,
            failed: Cell::new(false),
            was_torn: false,
        };
        session.start()?;
        Ok(session)
    }

    pub fn db(&self) -> &Db {
        self.db.as_ref().expect("a session has its database open")
    }

    /// Whether the pool was torn before it was opened: what was not synced may be gone.
    pub fn was_torn(&self) -> bool {
        self.was_torn
    }

    /// Runs background jobs until there is none.
    pub fn rest(&self) {
        while self.process.help() {}
    }

    fn start(&mut self) -> std::result::Result<(), String> {
        let tries = if self.errors == Errors::Fail { 1 } else { 2 };
        let mut last = String::new();
        for _ in 0..tries {
            self.process = Process::new(self.world);
            self.was_torn = is_torn(self.world);
            match Db::open_in(self.process.env.clone(), DIR, self.options.clone()) {
                Ok(db) => {
                    self.db = Some(db);
                    return Ok(());
                }
                Err(e) => last = format!("opening: {e}"),
            }
        }
        Err(last)
    }

    /// Says what to do about errors from now on.
    pub fn expect(&mut self, errors: Errors) {
        self.errors = errors;
    }

    /// Carries out `op`, telling `ledger` of it.
    pub fn carry_out(&mut self, op: &Op, ledger: &mut dyn Ledger) -> std::result::Result<(), String> {
        self.failed.set(false);
        self.attempt(op, ledger)?;
        if self.errors == Errors::Passing && self.failed.take() {
            self.errors = Errors::Fail;
            let outcome = self.attempt(op, ledger).and_then(|()| self.compare(ledger).map(drop));
            self.errors = Errors::Passing;
            outcome.map_err(|e| format!("tried again after an error: {e}"))?;
        }
        Ok(())
    }

    fn attempt(&mut self, op: &Op, ledger: &mut dyn Ledger) -> std::result::Result<(), String> {
        self.stamp += 1;
        match op {
            Op::Put { key, len } => self.write(ledger, &[Write::Put { key: *key, len: *len }], How::PLAIN),
            Op::PutSynced { key, len } => {
                self.write(ledger, &[Write::Put { key: *key, len: *len }], How::Batch(WriteOptions::SYNC))
            }
            Op::Delete { key } => self.write(ledger, &[Write::Delete { key: *key }], How::PLAIN),
            Op::PutJunk { key, len } => {
                self.write(ledger, &[Write::Junk { key: *key, len: *len }], How::PLAIN)
            }
            Op::Batch(writes) => self.write(ledger, writes, How::PLAIN),
            Op::Swap { key, len } => self.write(ledger, &[Write::Put { key: *key, len: *len }], How::Swap),
            Op::Transact { reads, writes } => self.write(ledger, writes, How::Transaction(reads)),
            Op::DeleteRange { from, to } => {
                self.write(ledger, &deletes_between(*from, *to), How::Range(*from, *to))
            }
            Op::Ingest(puts) => self.write(ledger, puts, How::Ingest),
            Op::Sync => {
                let outcome = self.db().sync();
                if self.has_worked("sync", outcome)? {
                    ledger.update(&mut KvModel::synced_so_far);
                }
                Ok(())
            }
            Op::Snapshot => self.take_snapshot(ledger),
            Op::ReadSnapshots => self.read_snapshots(),
            Op::Release => {
                self.snapshots.pop_front();
                Ok(())
            }
            Op::Compare => self.compare(ledger).map(drop),
            Op::Flush => {
                let outcome = self.db().flush();
                self.has_worked("flush", outcome).map(drop)
            }
            Op::Compact { from, to } => {
                let (from, to) = (key(*from), key(*to));
                let last: &[u8] = if from <= to { &to } else { b"\xff" };
                let range = (Bound::Included(&from[..]), Bound::Included(last));
                let outcome = self.db().compact_range(range);
                self.has_worked("compact", outcome).map(drop)
            }
            Op::CompactAll => {
                let outcome = self.db().compact_range(..);
                self.has_worked("compact all", outcome).map(drop)
            }
            Op::Background => {
                self.process.help();
                Ok(())
            }
            Op::Reopen => self.reopen(ledger),
            Op::Kill => self.kill(ledger),
            Op::DiskFull { slack } => {
                let fs = self.world.fs();
                fs.set_capacity(Some(fs.used_bytes() + u64::from(*slack)));
                Ok(())
            }
            Op::PoolFull { slack } => {
                let media = self.world.media();
                media.set_limit(media.len() + u64::from(*slack));
                Ok(())
            }
            Op::Room => {
                give_room(self.world);
                Ok(())
            }
        }
    }

    /// Whether it has worked; an error that is not expected is one.
    fn has_worked<T>(&self, what: &str, outcome: Result<T>) -> std::result::Result<bool, String> {
        match outcome {
            Ok(_) => Ok(true),
            Err(e) if self.errors != Errors::Fail && is_of_the_media(&e) => {
                self.failed.set(true);
                Ok(false)
            }
            Err(e) => Err(format!("{what}: {e}")),
        }
    }

    fn write(
        &mut self,
        ledger: &mut dyn Ledger,
        writes: &[Write],
        how: How<'_>,
    ) -> std::result::Result<(), String> {
        let mut change = Change(Vec::new());
        for (i, write) in writes.iter().enumerate() {
            change.0.push((key(write.key()), write.value(self.stamp * 16 + i as u32)));
        }
        let mut now = None;
        ledger.update(&mut |model| {
            now = model.expected().cloned();
            // Whether junk is still there is all the same: what it replaces is gone.
            let without_junk = |(key, value): &(_, Option<Vec<u8>>)| {
                (Vec::clone(key), value.clone().filter(|value| !is_junk(value)))
            };
            model.begin(Change(change.0.iter().map(without_junk).collect()));
        });
        let outcome = how.carry_out(self.db(), &change, now.as_ref());
        // An ingest of nothing does nothing.
        let done = match (&outcome, how.is_synced() && !writes.is_empty()) {
            (Ok(()), true) => KvModel::acknowledge_synced,
            (Ok(()), false) => KvModel::acknowledge,
            (Err(_), _) => KvModel::fail,
        };
        ledger.update(&mut |model| done(model));
        if !self.has_worked("write", outcome)? {
            // Reads go on, and from now on they say the one or the other.
            self.compare(ledger)?;
        }
        Ok(())
    }

    fn take_snapshot(&mut self, ledger: &mut dyn Ledger) -> std::result::Result<(), String> {
        if self.snapshots.len() == MOST_SNAPSHOTS {
            self.snapshots.pop_front();
        }
        let seen = self.compare(ledger)?;
        self.snapshots.push_back((self.db().snapshot(), seen));
        Ok(())
    }

    fn read_snapshots(&self) -> std::result::Result<(), String> {
        for (snapshot, seen) in &self.snapshots {
            let found = contents_of(snapshot).map_err(|e| format!("reading a snapshot: {e}"))?;
            if found != *seen {
                return Err(format!("a snapshot of {} keys now has {}", seen.len(), found.len()));
            }
            for (k, v) in seen {
                let got = snapshot.get(k).map_err(|e| format!("get from a snapshot: {e}"))?;
                if got.as_deref() != Some(&v[..]) {
                    return Err(format!("a snapshot's get of {k:?} differs from its iteration"));
                }
            }
        }
        Ok(())
    }

    /// Compares the contents with the model; gives them.
    pub fn compare(&self, ledger: &mut dyn Ledger) -> std::result::Result<Map, String> {
        let found = contents(self.db()).map_err(|e| format!("reading: {e}"))?;
        let mut outcome = Ok(());
        ledger.update(&mut |model| outcome = model.observe(&found));
        outcome.map(|()| found)
    }

    fn reopen(&mut self, ledger: &mut dyn Ledger) -> std::result::Result<(), String> {
        self.snapshots.clear();
        if let Some(db) = self.db.take() {
            let outcome = db.close();
            drop(db);
            self.has_worked("close", outcome)?;
        }
        self.start_again(ledger)
    }

    fn kill(&mut self, ledger: &mut dyn Ledger) -> std::result::Result<(), String> {
        // Nothing of a dead process runs again: no destructor may.
        std::mem::forget(std::mem::take(&mut self.snapshots));
        std::mem::forget(self.db.take());
        self.process.died();
        self.start_again(ledger)
    }

    /// Opens the database after its process has ended. What a failed sync had dropped of a log, and nobody has had the
    /// time to put elsewhere, is told then, and a repair brings back what was before it. A first try that was told of
    /// lost pages leaves a torn pool to the second one.
    fn start_again(&mut self, ledger: &mut dyn Ledger) -> std::result::Result<(), String> {
        match self.start() {
            Err(e) if self.may_have_lost_writes(&e) => {
                self.repair(ledger).map_err(|why| format!("{e}; {why}"))
            }
            Ok(()) if self.was_torn || self.errors == Errors::Expected && may_end_early(self.world) => {
                let found = contents(self.db()).map_err(|e| format!("reading: {e}"))?;
                let mut outcome = Ok(());
                ledger.update(&mut |model| {
                    if model.accepts(&found).is_err() {
                        outcome = model.accepts_prefix(&found);
                        *model = KvModel::from(found.clone());
                    }
                });
                outcome
            }
            started => started,
        }
    }

    fn may_have_lost_writes(&self, error: &str) -> bool {
        self.errors == Errors::Expected && self.world.fs().has_dropped_pages() && error.contains("corruption")
    }

    fn repair(&mut self, ledger: &mut dyn Ledger) -> std::result::Result<(), String> {
        let env = Process::new(self.world).env;
        let report = Db::repair_in(env, DIR, self.options.clone()).map_err(|e| format!("repair: {e}"))?;
        if report.lost.is_empty() {
            return Err(format!("a repair of what has lost pages says nothing of it: {:?}", report.actions));
        }
        self.start()?;
        let found = contents(self.db()).map_err(|e| format!("reading what was repaired: {e}"))?;
        let mut outcome = Ok(());
        ledger.update(&mut |model| {
            outcome = model.accepts_prefix(&found);
            *model = KvModel::from(found.clone());
        });
        outcome
    }
}

/// An error that the media may give, as against damage or a store that has given up.
pub fn is_of_the_media(error: &terrace::Error) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::NoSpace | ErrorKind::PoolFull)
}

/// Makes all the room there can be on both media.
pub fn give_room(world: &World) {
    world.fs().set_capacity(None);
    world.media().set_limit(u64::MAX);
}

/// Everything in the database but junk, read forward and backward and by gets.
pub fn contents(db: &Db) -> Result<Map> {
    let found = contents_of(&db.snapshot())?;
    for (k, v) in &found {
        if db.get(k)?.as_deref() != Some(&v[..]) {
            return Err(terrace::Error::invalid(format!("get of {k:?} differs from iteration")));
        }
    }
    Ok(found)
}

pub fn contents_of(snapshot: &Snapshot) -> Result<Map> {
    let owned = |(k, v): (terrace::Bytes, terrace::Bytes)| (k.to_vec(), v.to_vec());
    let forward = snapshot.try_all()?;
    if let Ok(iter) = snapshot.iter() {
        let mut backward: Vec<_> = iter.rev().map(|e| e.map(owned)).collect::<Result<_>>()?;
        backward.reverse();
        if forward != backward || !forward.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(terrace::Error::invalid(
                "iteration backward differs from forward, or is not in order",
            ));
        }
    }
    Ok(forward.into_iter().filter(|(_, value)| !is_junk(value)).collect())
}
