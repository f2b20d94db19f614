//! A small store of items in slots, which words in persistent memory lead to: crashed at every event of both media,
//! with every operation failing, and refused for a while.

use std::path::Path;
use std::sync::Arc;

use terrace_base::rng::Rng;
use terrace_base::{Error, Result};
use terrace_disk::{BlockBuf, Fs, Slot, Slots};
use terrace_sim::{
    Change, Explorer, KvModel, Map, PmOptions, Recorder, Refusal, Scenario, Trouble, World, WorldOptions,
    kv_scenario,
};

use crate::raw::{load, store_persist};

const PATH: &str = "/db/items";
const SECTOR: usize = 512;
/// The word of key `k` lies at `64 k`.
const KEYS: u64 = 10;

#[derive(Debug, Clone)]
enum Op {
    /// An item of so many sectors, and one beside it in the same submission.
    Put(u64, usize, usize),
    Delete(u64),
    GiveBack,
    Sync,
}

/// What a store does wrong that must be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    /// A word leads to an item that is not durable.
    NotDurable,
    /// An item is freed before the word that leads to it is another.
    FreedFirst,
}

struct Store {
    world: World,
    slots: Arc<Slots>,
    writes: u64,
    bug: Option<Bug>,
}

/// An item that says which it is: its key, its number and its length fill it.
fn item(key: u64, number: u64, sectors: usize) -> BlockBuf {
    let mut data = BlockBuf::zeroed(sectors * SECTOR);
    let words = [key, number, sectors as u64];
    for (word, bytes) in words.iter().cycle().zip(data.chunks_mut(8)) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    data
}

/// What the item of `key` is in a model: its number and its length.
fn value(data: &[u8], key: u64) -> Result<Vec<u8>> {
    let word = |i: usize| u64::from_le_bytes(data[8 * i..8 * i + 8].try_into().unwrap());
    if *data != *item(key, word(1), data.len() / SECTOR) {
        return Err(Error::corruption(Path::new(PATH), 0, format!("an item of {key}"), "another, or a part"));
    }
    Ok(data[8..24].to_vec())
}

fn bytes(key: u64) -> Vec<u8> {
    key.to_le_bytes().to_vec()
}

impl Store {
    fn open(world: &World) -> Result<Store> {
        let (fs, path) = (world.fs(), Path::new(PATH));
        fs.create_dir_all(Path::new("/db"))?;
        let file = fs.open_blocks(path, !fs.exists(path)?)?;
        // Before anything leads into it.
        fs.sync_dir(Path::new("/db"))?;
        let store =
            Store { world: world.clone(), slots: Arc::new(Slots::open(file, 512)?), writes: 0, bug: None };
        store.slots.adopt(store.words().into_iter().map(|(_, slot)| slot))?;
        Ok(store)
    }

    fn word(&self, key: u64) -> Option<Slot> {
        Slot::from_bits(load(&self.world.media(), key * 64))
    }

    fn words(&self) -> Vec<(u64, Slot)> {
        (0..KEYS).filter_map(|key| Some((key, self.word(key)?))).collect()
    }

    fn contents(&self) -> Result<Map> {
        let words = self.words();
        let found = self.slots.ahead(words.iter().map(|(_, slot)| *slot)).collect::<Result<Vec<_>>>()?;
        words.iter().zip(found).map(|((key, _), data)| Ok((bytes(*key), value(&data, *key)?))).collect()
    }

    fn publish(&self, key: u64, slot: Option<Slot>) -> Result<()> {
        let old = self.word(key);
        store_persist(&self.world.media(), key * 64, slot.map_or(0, Slot::to_bits));
        old.map_or(Ok(()), |old| self.slots.retire(old).and_then(|()| self.slots.free(old)))
    }

    /// Writes two items at once; the second one's word is left for later, so nothing leads to it.
    fn put(&mut self, key: u64, sectors: usize, beside: usize) -> Result<()> {
        self.writes += 1;
        let old = self.word(key).filter(|_| self.bug == Some(Bug::FreedFirst));
        if let Some(old) = old {
            self.slots.retire(old)?;
            self.slots.free(old)?;
        }
        let items = vec![item(key, self.writes, sectors), item(KEYS, 0, beside)];
        let written = self.slots.write_all(items, self.bug != Some(Bug::NotDurable))?;
        match old {
            Some(_) => store_persist(&self.world.media(), key * 64, written[0].to_bits()),
            None => self.publish(key, Some(written[0]))?,
        }
        self.slots.retire(written[1])?;
        self.slots.free(written[1])
    }

    /// What each item of `key` is called that `put` writes next.
    fn next(&self, sectors: usize) -> Vec<u8> {
        [(self.writes + 1).to_le_bytes(), (sectors as u64).to_le_bytes()].concat()
    }

    fn apply(&mut self, recorder: &mut Recorder<KvModel>, op: &Op) -> Result<()> {
        match *op {
            Op::Put(key, sectors, beside) => {
                let change = Change::put(bytes(key), self.next(sectors));
                recorder.apply(change, || self.put(key, sectors, beside))
            }
            Op::Delete(key) => recorder.apply(Change::delete(bytes(key)), || self.publish(key, None)),
            Op::GiveBack => self.slots.give_back(16 << 10).map(drop),
            Op::Sync => self.slots.sync(),
        }
    }

    /// Every slot has one owner.
    fn check(&self) -> Result<(), String> {
        let nobodys = self.slots.check(self.words().into_iter().map(|(_, slot)| slot));
        match nobodys.map_err(|e| e.to_string())? {
            0 => Ok(()),
            bytes => Err(format!("{bytes} bytes are nobody's")),
        }
    }
}

fn judge(world: &World, model: &KvModel) -> Result<(), String> {
    let text = |e: Error| e.to_string();
    let mut store = Store::open(world).map_err(text)?;
    model.accepts_in(world, &store.contents().map_err(text)?)?;
    store.check()?;
    world.recovery_done();
    // It goes on, and nothing that lives is written over.
    let before = store.contents().map_err(text)?;
    store.writes = 1 << 32;
    for round in 0..3 {
        store.put(KEYS - 1, 7 + round, 5).map_err(text)?;
    }
    store.slots.give_back(0).map_err(text)?;
    let mut after = store.contents().map_err(text)?;
    let probe = after.remove(&bytes(KEYS - 1));
    if probe.is_none() || after != before {
        return Err("what was there before the crash was written over".into());
    }
    store.check()
}

/// `bears` errors, which are then no failure of the scenario, or has them end it.
fn scenario(bears: bool, bug: Option<Bug>) -> impl Scenario<Op = Op, Model = KvModel> {
    kv_scenario(
        move |world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]| {
            let mut store = match Store::open(world) {
                Err(_) if bears => return Ok(()),
                opened => opened.map_err(|e| e.to_string())?,
            };
            store.bug = bug;
            for op in ops {
                match store.apply(recorder, op) {
                    Err(e) if !bears => return Err(e.to_string()),
                    _ => {}
                }
            }
            store.check()
        },
        judge,
    )
}

fn ops(seed: u64, count: usize) -> Vec<Op> {
    let mut rng = Rng::new(seed);
    let op = |rng: &mut Rng| match rng.below(10) {
        0 => Op::Delete(rng.below(KEYS - 1)),
        1 => Op::GiveBack,
        2 if rng.one_in(2) => Op::Sync,
        _ => Op::Put(rng.below(KEYS - 1), 1 + rng.below(20) as usize, 1 + rng.below(12) as usize),
    };
    (0..count).map(|_| op(&mut rng)).collect()
}

fn explorer(seed: u64) -> Explorer {
    let pm = PmOptions { bytes: 16384, ..PmOptions::default() };
    Explorer::new(seed).world(WorldOptions { pm }).images(800)
}

#[test]
fn crashes_at_every_event_leave_every_item() {
    for seed in 0..4 {
        let summary = explorer(seed).must_pass(scenario(false, None), ops(seed, 30));
        assert!(summary.images > 500, "{summary:?}");
    }
}

#[test]
fn what_a_store_does_wrong_is_found() {
    for bug in [Bug::NotDurable, Bug::FreedFirst] {
        let failure = explorer(1).shrink_runs(0).explore(scenario(false, Some(bug)), ops(1, 30));
        assert!(failure.is_err(), "{bug:?}");
    }
}

#[test]
fn operations_that_fail_leave_every_item() {
    for seed in 0..4 {
        let faults = explorer(seed).explore_faults(scenario(true, None), ops(seed, 20));
        let summary = faults.unwrap_or_else(|failure| panic!("{failure}"));
        assert!(summary.images > 300, "{summary:?}");
    }
}

/// Whatever is refused for a while, and for however long: what was acknowledged stays, what was not can be asked for
/// again, and no space is lost.
#[test]
fn what_is_refused_for_a_while_heals() {
    let mut refused = 0;
    for trouble in Trouble::ALL {
        for case in 0..60u64 {
            let pm = PmOptions { bytes: 16384, ..PmOptions::default() };
            let world = World::new(case, WorldOptions { pm });
            let mut store = Store::open(&world).unwrap();
            let mut model = Map::new();
            world.refuse(Refusal { trouble, after: case, count: 1 + case % 5 });
            for op in ops(case, 40) {
                for attempt in 0.. {
                    assert!(attempt < 20, "{trouble:?}, case {case}: {op:?} is refused for ever");
                    let (next, before) = (store.writes + 1, store.words());
                    let done = match op {
                        Op::Put(key, sectors, beside) => store.put(key, sectors, beside),
                        Op::Delete(key) => store.publish(key, None),
                        Op::GiveBack => store.slots.give_back(0).map(drop),
                        Op::Sync => store.slots.sync(),
                    };
                    match (done, &op) {
                        (Err(_), _) => assert_eq!(store.words(), before, "{trouble:?}, case {case}"),
                        (Ok(()), Op::Put(key, sectors, _)) => {
                            let found = [next.to_le_bytes(), (*sectors as u64).to_le_bytes()].concat();
                            model.insert(bytes(*key), found);
                            break;
                        }
                        (Ok(()), Op::Delete(key)) => {
                            model.remove(&bytes(*key));
                            break;
                        }
                        (Ok(()), _) => break,
                    }
                }
            }
            refused += world.refused();
            world.heal();
            assert!(store.contents().unwrap() == model, "{trouble:?}, case {case}");
            store.check().unwrap_or_else(|e| panic!("{trouble:?}, case {case}: {e}"));
            let cut = Store::open(&world.crash(case)).unwrap();
            assert!(cut.contents().unwrap() == model, "{trouble:?}, case {case}, after a power cut");
        }
    }
    assert!(refused > 200, "{refused}");
}
