//! A store that is driven beside a model while operations of its media are refused.

use std::collections::VecDeque;
use std::ops::Bound;

use terrace::{Bytes, Db, Options, Result, Snapshot, WriteOptions};
use terrace_sim::{Change, KvModel, Map, World};

use crate::crash::env::{DIR, Process};
use crate::crash::judge::is_torn;
use crate::crash::ops::{Op, Write, deletes_between, key};
use crate::crash::run::{contents, contents_of, is_of_the_media};
use crate::crash::writing::How;
use crate::harness::Contents;

/// What a test says of a failure.
pub type Verdict<T = ()> = std::result::Result<T, String>;

/// Snapshots held at a time.
const MOST_SNAPSHOTS: usize = 3;

/// Entries that held iterators are asked for at a time.
const ENTRIES_AT_A_TIME: usize = 3;

/// Attempts at opening while something is refused: more than operations are.
const MOST_OPENINGS: u32 = 200;

/// An open store, and what it must answer.
pub struct Life<'a> {
    world: &'a World,
    options: Options,
    process: Process,
    db: Option<Db>,
    /// What a crash may leave.
    model: KvModel,
    /// What was acknowledged and nothing else.
    now: Map,
    held: VecDeque<Held>,
    stamp: u32,
}

/// A snapshot, and iterators over it that are on their way.
struct Held {
    snapshot: Snapshot,
    seen: Map,
    walks: Vec<Walk>,
}

/// An iterator, and what it is to give.
struct Walk {
    items: Box<dyn Iterator<Item = Result<(Bytes, Bytes)>>>,
    expected: VecDeque<(Vec<u8>, Vec<u8>)>,
}

impl<'a> Life<'a> {
    /// Opens a store in `world`, trying again as long as that is refused.
    pub fn open(world: &'a World, options: Options) -> Verdict<Self> {
        let mut life = Life {
            world,
            options,
            process: Process::new(world),
            db: None,
            model: KvModel::new(),
            now: Map::new(),
            held: VecDeque::new(),
            stamp: 0,
        };
        life.start()?;
        Ok(life)
    }

    pub fn db(&self) -> &Db {
        self.db.as_ref().expect("the store is open between operations")
    }

    pub fn model(&self) -> &KvModel {
        &self.model
    }

    pub fn contents(&self) -> &Map {
        &self.now
    }

    /// Carries `op` out.
    pub fn carry_out(&mut self, op: &Op) -> Verdict {
        self.stamp += 1;
        match op {
            Op::Put { key, len } => self.write(&[Write::Put { key: *key, len: *len }], How::PLAIN),
            Op::PutSynced { key, len } => {
                self.write(&[Write::Put { key: *key, len: *len }], How::Batch(WriteOptions::SYNC))
            }
            Op::Delete { key } => self.write(&[Write::Delete { key: *key }], How::PLAIN),
            Op::Batch(writes) => self.write(writes, How::PLAIN),
            Op::Swap { key, len } => self.write(&[Write::Put { key: *key, len: *len }], How::Swap),
            Op::Transact { reads, writes } => self.write(writes, How::Transaction(reads)),
            Op::Ingest(puts) => self.write(puts, How::Ingest),
            Op::DeleteRange { from, to } => self.write(&deletes_between(*from, *to), How::Range(*from, *to)),
            Op::Sync => {
                if self.call("sync", || self.db().sync())?.is_some() {
                    self.model.synced_so_far();
                }
                Ok(())
            }
            Op::Snapshot => self.take_snapshot(),
            Op::ReadSnapshots => self.read_held(),
            Op::Release => {
                self.held.pop_front();
                Ok(())
            }
            Op::Compare => self.compare("comparing"),
            Op::Flush => self.call("flush", || self.db().flush()).map(drop),
            Op::Compact { from, to } => self.compact(*from, *to),
            Op::CompactAll => self.call("compact all", || self.db().compact_range(..)).map(drop),
            Op::Background => {
                self.process.help();
                Ok(())
            }
            Op::Reopen => self.reopen(),
            Op::Kill => self.kill(),
            Op::PutJunk { .. } | Op::DiskFull { .. } | Op::PoolFull { .. } | Op::Room => {
                Err(format!("{op:?} is no part of this"))
            }
        }
    }

    /// Runs background jobs until there is none.
    pub fn rest(&self) {
        while self.process.help() {}
    }

    /// Calls the store. An error is none of its own if something was refused and more is to be.
    fn call<T>(&self, what: &str, work: impl FnOnce() -> Result<T>) -> Verdict<Option<T>> {
        let well = self.world.is_well();
        match work() {
            Ok(done) => Ok(Some(done)),
            Err(e) if !well && self.world.refused() > 0 && is_of_the_media(&e) => Ok(None),
            Err(e) => Err(format!("{what}{}: {e}", if well { ", although all is well" } else { "" })),
        }
    }

    fn start(&mut self) -> Verdict {
        for _ in 0..MOST_OPENINGS {
            self.process = Process::new(self.world);
            let env = self.process.env.clone();
            // A try that was told of lost pages leaves a torn pool to the next one.
            let was_torn = is_torn(self.world);
            self.db = self.call("open", || Db::open_in(env, DIR, self.options.clone()))?;
            if self.db.is_some() {
                return if was_torn { self.go_back() } else { self.compare("after opening") };
            }
        }
        Err("opening failed again and again".into())
    }

    /// Goes on from what a torn pool has left: what was not synced may be gone.
    fn go_back(&mut self) -> Verdict {
        for _ in 0..MOST_OPENINGS {
            if let Some(found) = self.call("reading", || contents(self.db()))? {
                self.model.accepts_prefix(&found).map_err(|e| format!("after a torn pool: {e}"))?;
                self.model = KvModel::from(found.clone());
                self.now = found;
                return Ok(());
            }
        }
        Err("reading failed again and again".into())
    }

    fn write(&mut self, writes: &[Write], how: How<'_>) -> Verdict {
        let mut change = Change(Vec::new());
        for (i, write) in writes.iter().enumerate() {
            change.0.push((key(write.key()), write.value(self.stamp * 16 + i as u32)));
        }
        self.model.begin(change.clone());
        let done = self.call("write", || how.carry_out(self.db(), &change, Some(&self.now)))?;
        match (done, how.is_synced()) {
            (Some(()), true) => self.model.acknowledge_synced(),
            (Some(()), false) => self.model.acknowledge(),
            (None, _) => {
                self.model.fail();
                return self.compare("after a refused write");
            }
        }
        change.apply(&mut self.now);
        Ok(())
    }

    /// Compares everything with what was acknowledged, if it can be read.
    fn compare(&mut self, when: &str) -> Verdict {
        let Some(found) = self.call("reading", || contents(self.db()))? else { return Ok(()) };
        if found != self.now {
            // The model finds better words.
            let why = KvModel::from(self.now.clone()).observe(&found);
            return Err(format!("{when}: {}", why.err().unwrap_or_default()));
        }
        self.model.observe(&found).map_err(|e| format!("{when}: {e}"))
    }

    fn take_snapshot(&mut self) -> Verdict {
        if self.held.len() == MOST_SNAPSHOTS {
            self.held.pop_front();
        }
        let snapshot = self.db().snapshot();
        let mut walks = Vec::new();
        if snapshot.iter().is_ok() {
            let forward: VecDeque<_> = self.now.clone().into_iter().collect();
            let backward = self.now.clone().into_iter().rev().collect();
            if let Some(iter) = self.call("iter", || snapshot.iter())? {
                walks.push(Walk { items: Box::new(iter), expected: forward });
            }
            if let Some(iter) = self.call("iter", || snapshot.iter())? {
                walks.push(Walk { items: Box::new(iter.rev()), expected: backward });
            }
        }
        self.held.push_back(Held { snapshot, seen: self.now.clone(), walks });
        Ok(())
    }

    /// Reads every snapshot whole and every iterator a little further.
    pub fn read_held(&mut self) -> Verdict {
        let mut held = std::mem::take(&mut self.held);
        let outcome = held.iter_mut().try_for_each(|one| self.read_one(one));
        self.held = held;
        outcome
    }

    fn read_one(&self, held: &mut Held) -> Verdict {
        if let Some(found) = self.call("reading a snapshot", || contents_of(&held.snapshot))?
            && found != held.seen
        {
            let why = KvModel::from(held.seen.clone()).observe(&found);
            return Err(format!("a snapshot: {}", why.err().unwrap_or_default()));
        }
        for k in (0..40).map(key) {
            let got = self.call("a snapshot's get", || held.snapshot.get(&k))?;
            if got.is_some_and(|got| got.as_deref() != held.seen.get(&k).map(|v| &v[..])) {
                return Err(format!("a snapshot's get of {}", k.escape_ascii()));
            }
        }
        let mut going = Vec::new();
        for mut walk in std::mem::take(&mut held.walks) {
            if self.step(&mut walk, ENTRIES_AT_A_TIME)? {
                going.push(walk);
            }
        }
        held.walks = going;
        Ok(())
    }

    /// Takes up to `count` items; says whether there may be more.
    fn step(&self, walk: &mut Walk, count: usize) -> Verdict<bool> {
        for _ in 0..count {
            let Some(item) = self.call("an iterator", || walk.items.next().transpose())? else {
                // It gives nothing more after an error.
                return Ok(false);
            };
            let expected = walk.expected.pop_front();
            let item = item.map(|(k, v)| (k.to_vec(), v.to_vec()));
            if item != expected {
                let key =
                    |entry: Option<(Vec<u8>, Vec<u8>)>| entry.map(|(k, _)| k.escape_ascii().to_string());
                return Err(format!("an iterator gives {:?} in place of {:?}", key(item), key(expected)));
            }
            if item.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn compact(&mut self, from: u16, to: u16) -> Verdict {
        let (from, to) = (key(from), key(to));
        let last: &[u8] = if from <= to { &to } else { b"\xff" };
        let range = (Bound::Included(&from[..]), Bound::Included(last));
        self.call("compact", || self.db().compact_range(range)).map(drop)
    }

    fn reopen(&mut self) -> Verdict {
        self.held.clear();
        if let Some(db) = self.db.take() {
            self.call("close", || db.close())?;
        }
        self.start()
    }

    fn kill(&mut self) -> Verdict {
        // Nothing of a dead process runs again: no destructor may.
        std::mem::forget(std::mem::take(&mut self.held));
        std::mem::forget(self.db.take());
        self.process.died();
        self.start()
    }

    /// All is well: the store goes on as if nothing had been, and answers what it must.
    pub fn goes_on(&mut self) -> Verdict {
        let said = |e| format!("when all is well: {e}");
        for op in [
            Op::Put { key: 1, len: 30 },
            Op::ReadSnapshots,
            Op::Batch(vec![Write::Put { key: 2, len: 40 }, Write::Delete { key: 3 }]),
            Op::Compare,
        ] {
            self.carry_out(&op).map_err(said)?;
        }
        for op in [Op::Flush, Op::ReadSnapshots, Op::PutSynced { key: 2, len: 400 }, Op::COMPACT_LONG_KEYS] {
            self.carry_out(&op).map_err(said)?;
        }
        self.rest();
        let held = std::mem::take(&mut self.held);
        for mut one in held {
            self.read_one(&mut one).map_err(said)?;
            for walk in &mut one.walks {
                self.step(walk, usize::MAX).map_err(said)?;
            }
        }
        self.prove().map_err(said)
    }

    /// Compares and checks.
    pub fn prove(&mut self) -> Verdict {
        self.compare("at rest")?;
        let report = self.db().check().map_err(|e| format!("check: {e}"))?;
        if report.is_clean() { Ok(()) } else { Err(format!("check finds {:#?}", report.problems)) }
    }

    /// Brings the store to rest with nothing held: what it takes now it needs.
    pub fn comes_to_rest(&mut self) -> Verdict {
        self.held.clear();
        for op in [Op::Put { key: 1, len: 31 }, Op::Flush, Op::CompactAll, Op::Flush] {
            self.carry_out(&op).map_err(|e| format!("coming to rest: {e}"))?;
            self.rest();
        }
        Ok(())
    }

    /// Closes and opens, is killed and opens.
    pub fn lives_again(&mut self) -> Verdict {
        for op in [Op::Reopen, Op::Put { key: 5, len: 50 }, Op::Kill, Op::Compare] {
            self.carry_out(&op).map_err(|e| format!("in another life: {e}"))?;
        }
        self.rest();
        self.prove().map_err(|e| format!("in another life: {e}"))
    }
}

/// Everything of `map`, written to a new store in `world`, which is brought to rest.
pub fn fresh<'a>(world: &'a World, options: Options, map: &Map) -> Verdict<Life<'a>> {
    let mut life = Life::open(world, options)?;
    for (k, v) in map {
        life.db().put(k, v).map_err(|e| format!("a fresh copy: {e}"))?;
    }
    life.now = map.clone();
    life.model = KvModel::from(map.clone());
    life.comes_to_rest()?;
    let found: Map = life.db().try_all().map_err(|e| e.to_string())?.into_iter().collect();
    if found == life.now { Ok(life) } else { Err("a fresh copy is another".into()) }
}
