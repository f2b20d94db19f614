//! Random operations on entries that expire, against a map with their deadlines, while time goes on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use terrace::{Bytes, Db, Env, Expiry, Keyspace, MergeOperator, Snapshot, WriteBatch};
use terrace_base::clock::{Clock, ManualClock};
use terrace_base::rng::Rng;
use terrace_pmem::Granularity;

use super::expiry::{SECOND, expiring};
use super::keyspaces::owned;
use super::merging::merging;
use crate::harness::{Deferred, Engine, Machine, assert_clean, setups};

/// Values and their deadlines.
type Model = BTreeMap<Vec<u8>, (Vec<u8>, Duration)>;

const DEFAULT: Duration = Duration::from_secs(8);

fn some_key(rng: &mut Rng) -> Vec<u8> {
    vec![b'k', rng.below(70) as u8]
}

fn value(rng: &mut Rng) -> Vec<u8> {
    let times = if rng.one_in(12) { 700 } else { rng.below(8) };
    rng.below(1 << 30).to_le_bytes().repeat(times as usize)
}

/// A time to live, or none for that of the keyspace.
fn ttl(rng: &mut Rng) -> Option<Duration> {
    match rng.below(5) {
        0 => None,
        1 => Some(Duration::MAX),
        _ => Some(rng.below(12_000) as u32 * Duration::from_millis(1)),
    }
}

struct Run {
    db: Db,
    space: Keyspace,
    clock: Arc<ManualClock>,
    tidying: Arc<Deferred>,
    model: Model,
}

fn open(machine: &Machine, clock: &Arc<ManualClock>) -> (Db, Arc<Deferred>) {
    let tidying = Arc::new(Deferred::default());
    let env = Env { clock: clock.clone(), ..machine.env_on(tidying.clone()) };
    (Db::open_in(env, machine.dir(), machine.options()).unwrap(), tidying)
}

impl Run {
    fn on(machine: &Machine, clock: Arc<ManualClock>, model: Model) -> Run {
        let (db, tidying) = open(machine, &clock);
        expiring(&db, "space", Expiry::After(DEFAULT));
        let space = merging(&db, "space", MergeOperator::append());
        Run { db, space, clock, tidying, model }
    }

    /// In whole milliseconds, as deadlines are. Writers who are throttled have it go on.
    fn now(&self) -> Duration {
        Duration::from_millis(self.clock.now().as_millis() as u64)
    }

    /// The next life of the same database, perhaps on what a crash has left of it.
    fn again_on(self, machine: &Machine) -> Run {
        let Run { db, space, clock, model, .. } = self;
        drop((space, db));
        Run::on(machine, clock, model)
    }

    fn alive(model: &Model, now: Duration) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let alive = model.iter().filter(|(_, (_, deadline))| *deadline > now);
        alive.map(|(key, (value, _))| (key.clone(), value.clone())).collect()
    }

    fn value_of(&self, key: &[u8]) -> Option<&Vec<u8>> {
        self.model.get(key).filter(|(_, deadline)| *deadline > self.now()).map(|(value, _)| value)
    }

    /// Notes what was put at a moment.
    fn note(&mut self, at: Duration, key: Vec<u8>, value: Vec<u8>, ttl: Option<Duration>) {
        self.model.insert(key, (value, at.saturating_add(ttl.unwrap_or(DEFAULT))));
    }

    fn put(&mut self, rng: &mut Rng) {
        let (at, key, value, ttl) = (self.now(), some_key(rng), value(rng), ttl(rng));
        match ttl {
            None => self.space.put(&key, &value).unwrap(),
            Some(ttl) => self.space.put_with_ttl(&key, &value, ttl).unwrap(),
        }
        self.note(at, key, value, ttl);
    }

    /// The value of `key` with `operand` behind it, or that alone.
    fn appended(&self, key: &[u8], operand: &[u8]) -> Vec<u8> {
        [self.value_of(key).map_or(&[][..], |value| value), operand].concat()
    }

    fn batch(&mut self, rng: &mut Rng) {
        let mut batch = WriteBatch::new();
        for _ in 0..rng.below(6) {
            if rng.one_in(3) {
                let (key, operand) = (some_key(rng), value(rng));
                batch.merge_in(&self.space, &key, &operand);
                self.note(self.now(), key.clone(), self.appended(&key, &operand), None);
                continue;
            }
            let (key, value, ttl) = (some_key(rng), value(rng), ttl(rng));
            match ttl {
                None => batch.put_in(&self.space, &key, &value),
                Some(ttl) => batch.put_in_with_ttl(&self.space, &key, &value, ttl),
            }
            self.note(self.now(), key, value, ttl);
        }
        if rng.one_in(3) {
            let (from, to) = (some_key(rng), some_key(rng));
            self.model.retain(|key, _| !(from <= *key && *key < to));
            batch.delete_range_in(&self.space, &from[..]..&to[..]);
        }
        self.db.write(batch).unwrap();
    }

    fn conditional(&mut self, rng: &mut Rng) {
        let (at, key, new) = (self.now(), some_key(rng), value(rng));
        let current = self.value_of(&key).cloned();
        match rng.below(5) {
            4 => {
                self.space.merge(&key, &new).unwrap();
                self.note(at, key.clone(), self.appended(&key, &new), None);
            }
            0 => {
                assert_eq!(self.space.put_if_absent(&key, &new).unwrap(), current.is_none(), "{key:02x?}");
                if current.is_none() {
                    self.note(at, key, new, None);
                }
            }
            1 => {
                let done = self.space.update_if_exists(&key, &new).unwrap();
                assert_eq!(done, current.is_some(), "{key:02x?}");
                if done {
                    self.note(at, key, new, None);
                }
            }
            2 => {
                let swapped = self.space.compare_and_swap(&key, current.as_deref(), Some(&new)).unwrap();
                assert!(swapped.is_ok(), "{key:02x?}: {swapped:?}");
                self.note(at, key, new, None);
            }
            _ => {
                let old = self.db.transact(|tx| {
                    let space = tx.keyspace(&self.space)?;
                    let old = space.get(&key)?;
                    space.put_with_ttl(&key, &new, SECOND)?;
                    Ok(old)
                });
                assert_eq!(old.unwrap().as_deref(), current.as_deref());
                self.note(at, key, new, Some(SECOND));
            }
        }
    }

    fn compare(&self, rng: &mut Rng, snapshot: &Snapshot, model: &Model) {
        let alive = Self::alive(model, self.now());
        let keys: Vec<Vec<u8>> = (0..6).map(|_| some_key(rng)).collect();
        let wanted: Vec<Option<Bytes>> =
            keys.iter().map(|key| alive.get(key).cloned().map(Bytes::from)).collect();
        assert_eq!(snapshot.multi_get(&keys).unwrap(), wanted, "{keys:02x?}");
        keys.iter().zip(&wanted).for_each(|(key, wanted)| assert_eq!(snapshot.get(key).unwrap(), *wanted));
        match snapshot.iter() {
            Ok(iter) => assert!(owned(iter).into_iter().eq(alive)),
            Err(_) => assert_eq!(snapshot.entries().unwrap().count(), alive.len()),
        }
    }

    fn compare_now(&self, rng: &mut Rng) {
        self.compare(rng, &self.space.snapshot().unwrap(), &self.model);
        let key = some_key(rng);
        assert_eq!(self.space.get(&key).unwrap().as_deref(), self.value_of(&key).map(|value| &value[..]));
        assert_eq!(self.space.contains_key(&key).unwrap(), self.value_of(&key).is_some());
    }

    fn operate(&mut self, rng: &mut Rng) {
        match rng.below(16) {
            0..=6 => self.put(rng),
            7 | 8 => self.batch(rng),
            9 => {
                let key = some_key(rng);
                self.space.delete(&key).unwrap();
                self.model.remove(&key);
            }
            10 | 11 => self.conditional(rng),
            12 | 13 => self.clock.advance(rng.below(1500) as u32 * Duration::from_millis(1)),
            14 => self.db.put(some_key(rng), value(rng)).unwrap(),
            _ => self.db.flush().unwrap(),
        }
    }
}

/// Must catch any entry that is there and should not be, or the other way round, for any reader at any time.
pub fn expiring_entries_match_a_map(engine: &Engine) {
    for (round, setup) in setups(engine).into_iter().enumerate() {
        let (mut machine, mut rng) = (Machine::new(&setup), Rng::new(7000 + round as u64));
        let mut run = Run::on(&machine, Arc::default(), Model::new());
        let mut snapshots: Vec<(Snapshot, Model)> = Vec::new();
        for step in 0..500 {
            run.operate(&mut rng);
            match rng.below(40) {
                0 => snapshots.push((run.space.snapshot().unwrap(), run.model.clone())),
                1 => {
                    snapshots.clear();
                    run.db.close().unwrap();
                    run = run.again_on(&machine);
                }
                2 if setup.granularity != Granularity::Page => {
                    snapshots.clear();
                    machine = machine.kill();
                    run = run.again_on(&machine);
                }
                3..=6 => while run.tidying.tidy() && rng.one_in(2) {},
                7 => run.db.sweep().unwrap(),
                8..=15 => run.compare_now(&mut rng),
                16 | 17 => {
                    snapshots.iter().for_each(|(snapshot, model)| run.compare(&mut rng, snapshot, model))
                }
                18 if !snapshots.is_empty() => drop(snapshots.remove(0)),
                19 if step % 3 == 0 => run.space.compact_range(..).unwrap(),
                _ => {}
            }
        }
        snapshots.iter().for_each(|(snapshot, model)| run.compare(&mut rng, snapshot, model));
        while run.tidying.tidy() {}
        run.db.sweep().unwrap();
        run.compare_now(&mut rng);
        assert_clean(&run.db);
    }
}
