//! Slots: against a model, on real files, beside each other; and in trouble.

mod drives;
mod trouble;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use terrace_base::rng::Rng;
use terrace_base::{ErrorKind, Result};
use terrace_disk::slots::LEAST_SPARE_BYTES;
use terrace_disk::{BlockBuf, Fs, MeteredFs, RealFs, SimFs, Slot, Slots};

const SECTOR: u64 = 512;
const BLOCK: u64 = 4096;
const PATH: &str = "/slots";

/// An item of so many sectors, of which no two are alike.
fn item(id: u64, sectors: u64) -> BlockBuf {
    let mut data = BlockBuf::zeroed((sectors * SECTOR) as usize);
    for (i, word) in data.chunks_mut(8).enumerate() {
        word.copy_from_slice(&((id << 24) + i as u64 + 1).to_le_bytes());
    }
    data
}

fn open(fs: &dyn Fs) -> Arc<Slots> {
    let path = Path::new(PATH);
    let is_new = !fs.exists(path).unwrap();
    let file = fs.open_blocks(path, is_new).unwrap();
    if is_new {
        fs.sync_dir(Path::new("/")).unwrap();
    }
    Arc::new(Slots::open(file, SECTOR as u32).unwrap())
}

/// What an index holds: a slot and what was written there.
type Index = BTreeMap<u64, (Slot, u64)>;

fn slots_of(index: &Index) -> impl Iterator<Item = Slot> + '_ {
    index.values().map(|(slot, _)| *slot)
}

fn assert_holds(slots: &Slots, index: &Index, what: &str) {
    for (key, &(slot, id)) in index {
        let found = slots.read(slot).unwrap();
        assert!(*found == *item(id, slot.sectors()), "{what}: key {key}, {slot:?}");
    }
}

/// Slots with the index that leads to them, and what was retired.
struct Store {
    slots: Arc<Slots>,
    index: Index,
    retired: Index,
    ids: u64,
}

impl Store {
    fn open(fs: &dyn Fs) -> Store {
        let slots = open(fs);
        slots.adopt([]).unwrap();
        Store { slots, index: Index::new(), retired: Index::new(), ids: 0 }
    }

    /// Writes an item for each of `keys`, in one submission; what they replace is retired.
    fn put(&mut self, keys: &[(u64, u64)]) -> Result<()> {
        let first = self.ids;
        self.ids += keys.len() as u64;
        let items = keys.iter().enumerate().map(|(i, (_, sectors))| item(first + i as u64, *sectors));
        let written = self.slots.write_all(items.collect(), true)?;
        for (i, ((key, _), slot)) in keys.iter().zip(written).enumerate() {
            self.publish(*key, Some((slot, first + i as u64)))?;
        }
        Ok(())
    }

    fn publish(&mut self, key: u64, entry: Option<(Slot, u64)>) -> Result<()> {
        let old = match entry {
            Some(entry) => self.index.insert(key, entry),
            None => self.index.remove(&key),
        };
        if let Some(old) = old {
            self.retired.insert(old.1, old);
            self.slots.retire(old.0)?;
        }
        Ok(())
    }

    fn free(&mut self, nth: u64) -> Result<()> {
        let nth = nth as usize % self.retired.len().max(1);
        let Some(id) = self.retired.keys().nth(nth).copied() else { return Ok(()) };
        let Some((slot, _)) = self.retired.remove(&id) else { return Ok(()) };
        self.slots.free(slot)
    }

    /// Everything is there, has one owner, and takes no more space than it may.
    fn check(&self) {
        assert_holds(&self.slots, &self.index, "live");
        assert_holds(&self.slots, &self.retired, "retired");
        assert_eq!(self.slots.check(slots_of(&self.index)).unwrap(), 0);
        let stats = self.slots.stats();
        let all = || slots_of(&self.index).chain(slots_of(&self.retired));
        let bytes: u64 = all().map(|slot| slot.sectors() * SECTOR).sum();
        assert_eq!((stats.items, stats.item_bytes), (all().count() as u64, bytes));
        assert!(stats.held_bytes <= bytes + 2 * stats.items * (BLOCK - SECTOR), "{stats:?}");
        assert_eq!(stats.held_bytes + stats.free_bytes + stats.hole_bytes, stats.file_bytes);
    }

    /// The next life: what was retired is nobody's.
    fn reopen(self, fs: &dyn Fs) -> Store {
        let Store { slots, index, ids, .. } = self;
        drop(slots);
        let slots = open(fs);
        slots.adopt(slots_of(&index)).unwrap();
        Store { slots, index, retired: Index::new(), ids }
    }
}

#[derive(Debug, Clone)]
enum Op {
    Put(Vec<(u64, u64)>),
    Delete(u64),
    Free(u64),
    Tidy,
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let sizes = prop_oneof![6 => 1..20u64, 2 => 8..9u64, 1 => 100..400u64];
    prop_oneof![
        6 => prop::collection::vec((0..12u64, sizes), 1..6).prop_map(Op::Put),
        3 => (0..12u64).prop_map(Op::Delete),
        8 => (0..20u64).prop_map(Op::Free),
        1 => Just(Op::Tidy),
        1 => Just(Op::Reopen),
    ]
}

fn apply(mut store: Store, fs: &dyn Fs, op: &Op) -> Store {
    match op {
        Op::Put(keys) => {
            let keys: BTreeMap<u64, u64> = keys.iter().copied().collect();
            store.put(&Vec::from_iter(keys)).unwrap();
        }
        Op::Delete(key) => store.publish(*key, None).unwrap(),
        Op::Free(nth) => store.free(*nth).unwrap(),
        Op::Tidy => {
            store.slots.tidy().unwrap();
            let stats = store.slots.stats();
            assert!(stats.free_bytes <= LEAST_SPARE_BYTES.max(stats.held_bytes / 8), "{stats:?}");
        }
        Op::Reopen => return store.reopen(fs),
    }
    store
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn it_is_a_map_of_items(ops in prop::collection::vec(op(), 1..60)) {
        let fs = SimFs::new();
        let mut store = Store::open(&fs);
        for op in &ops {
            store = apply(store, &fs, op);
            store.check();
        }
    }
}

#[test]
fn on_real_files_too() {
    let dir = tempfile::tempdir().unwrap();
    let fs = MeteredFs::new(Arc::new(RealFs));
    let file = fs.open_blocks(&dir.path().join("slots"), true).unwrap();
    let slots = Arc::new(Slots::open(file, 4096).unwrap());
    let items = |from: u64| (from..from + 40).map(|id| item(id, 8 * (1 + id % 30)));
    let mut index: Index = Index::new();
    for round in 0..4 {
        let written = slots.write_all(items(40 * round).collect(), round % 2 == 0).unwrap();
        index.extend(written.into_iter().zip(40 * round..).map(|(slot, id)| (id, (slot, id))));
    }
    let before = fs.stats();
    let found: Vec<BlockBuf> = slots.ahead(slots_of(&index)).map(|item| item.unwrap()).collect();
    assert!(found.iter().zip(0..).all(|(found, id)| **found == *item(id, 8 * (1 + id % 30))));
    let read = fs.stats().since(&before);
    let bytes: u64 = slots_of(&index).map(|slot| slot.sectors() * 4096).sum();
    assert_eq!((read.bytes_read, read.reads), (bytes, 160), "exactly their sectors");
    for (slot, _) in index.split_off(&40).into_values() {
        slots.retire(slot).unwrap();
        slots.free(slot).unwrap();
    }
    assert_eq!(slots.check(slots_of(&index)).unwrap(), 0);
    slots.tidy().unwrap();
    assert_eq!(slots.read_many(&Vec::from_iter(slots_of(&index))).unwrap().len(), 40);
}

/// Items that stay hold blocks that others have left; and space is bounded, however items come and go.
#[test]
fn fragmentation_is_bounded() {
    let fs = SimFs::new();
    let mut store = Store::open(&fs);
    for round in 0..40u64 {
        store.put(&Vec::from_iter((0..16).map(|i| (round * 16 + i, 9)))).unwrap();
    }
    let packed = store.slots.stats();
    assert!(packed.held_bytes < packed.item_bytes + 40 * BLOCK);
    for key in (0..640).filter(|key| key % 8 != 0) {
        store.publish(key, None).unwrap();
    }
    (0..560).for_each(|_| store.free(0).unwrap());
    store.check();
    let mut rng = Rng::new(3);
    let (mut most_held, mut most_taken) = (0, 0);
    for round in 0..1500 {
        let size = [9, 9, 17, 200, 2000][rng.below(5) as usize];
        store.put(&[(rng.below(40), size)]).unwrap();
        store.free(0).unwrap();
        store.slots.tidy().unwrap();
        let stats = store.slots.stats();
        most_held = most_held.max(stats.held_bytes);
        most_taken = most_taken.max(stats.file_bytes - stats.hole_bytes);
        assert!(stats.free_bytes <= LEAST_SPARE_BYTES.max(stats.held_bytes / 8));
        if round % 100 == 0 {
            store.check();
        }
    }
    assert_eq!(fs.used_bytes(), { store.slots.stats().file_bytes - store.slots.stats().hole_bytes });
    assert!(most_taken <= most_held + most_held / 8 + LEAST_SPARE_BYTES, "{most_taken} {most_held}");
    let all: Vec<u64> = store.index.keys().copied().collect();
    all.iter().for_each(|key| store.publish(*key, None).unwrap());
    all.iter().for_each(|_| store.free(0).unwrap());
    assert_eq!((store.slots.stats().held_bytes, store.slots.stats().items), (0, 0));
}

/// Before it is known what lives, nothing is used again, what is written lies behind it all, and what is freed waits.
#[test]
fn it_is_adopted_beside_writes() {
    let fs = SimFs::new();
    let mut store = Store::open(&fs);
    store.put(&[(0, 9), (1, 9), (2, 9), (3, 30), (4, 9), (5, 9)]).unwrap();
    let (index, file_bytes) = (store.index.clone(), store.slots.stats().file_bytes);
    drop(store);
    let slots = open(&fs);
    assert!(!slots.is_adopted());
    let mut store = Store { slots, index, retired: Index::new(), ids: 100 };
    let walked: Vec<Slot> = slots_of(&store.index).collect();
    store.put(&[(0, 9), (3, 4)]).unwrap();
    store.publish(4, None).unwrap();
    assert!(store.index[&0].0.first() * SECTOR >= file_bytes);
    store.free(0).unwrap();
    assert_holds(&store.slots, &store.index, "before it was adopted");
    assert_eq!(store.slots.check(slots_of(&store.index)).unwrap(), 0);
    // The walk saw some before they were replaced and some after.
    let seen = walked[1..].iter().copied().chain([store.index[&0].0]);
    store.slots.adopt(seen).unwrap();
    assert!(store.slots.is_adopted());
    store.check();
    (0..2).for_each(|_| store.free(0).unwrap());
    store.put(&[(7, 20)]).unwrap();
    assert!(store.index[&7].0.first() * SECTOR < file_bytes, "what was freed is used again");
    store.check();
}

#[test]
fn lists_that_cannot_be_are_told() {
    let fs = SimFs::new();
    let mut store = Store::open(&fs);
    store.put(&[(0, 9), (1, 9)]).unwrap();
    let [one, two] = [store.index[&0].0, store.index[&1].0];
    let slot = |first: u64, sectors: u64| Slot::from_bits(first << 22 | sectors).unwrap();
    let slots = open(&fs);
    let wrong =
        [vec![one, slot(one.first() + 1, 3)], vec![slot(1 << 30, 1)], vec![two, slot(two.first(), 1)]];
    for list in wrong {
        let error = slots.adopt(list.clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
        assert!(!slots.is_adopted());
        assert_eq!(store.slots.check(list).unwrap_err().kind(), ErrorKind::Corruption);
    }
    slots.adopt([one, two]).unwrap();
    slots.adopt([one, two]).unwrap();
    assert_eq!(slots.check([one, two]).unwrap(), 0);
    assert!(slots.check([one]).unwrap() > 0, "of the other nobody knows");
    assert!(slots.check([one, two, two]).is_err());
    assert!(slots.free(one).is_err() && slots.retire(slot(20_000, 1)).is_err());
    slots.retire(one).unwrap();
    assert!(slots.retire(one).is_err() && slots.retire(slot(one.first(), 1)).is_err());
    assert!(slots.check([one, two]).is_err(), "it is retired");
    slots.free(one).unwrap();
    assert!(slots.free(one).is_err());
    assert!(slots.read(slot(1 << 30, 4_000_000)).is_err());
    assert!(
        slots.write(BlockBuf::zeroed(0), true).is_err() && slots.write(BlockBuf::zeroed(100), true).is_err()
    );
    assert_eq!(slots.check([two]).unwrap(), 0);
    let file = fs.open_blocks(Path::new(PATH), false).unwrap();
    assert!(Slots::open(file.clone(), 256).is_err() && Slots::open(file, 1000).is_err());
    // Nothing lies in a file that was cut to nothing, or made anew.
    fs.damage(Path::new(PATH), Vec::clear).unwrap();
    assert_eq!(open(&fs).adopt([two]).unwrap_err().kind(), ErrorKind::Corruption);
}

#[test]
fn a_slot_is_sixty_bits() {
    let fs = SimFs::new();
    let mut store = Store::open(&fs);
    store.put(&[(0, 9), (1, 300)]).unwrap();
    let [one, two] = [store.index[&0].0, store.index[&1].0];
    assert_eq!((one.to_bits(), two.to_bits()), (9, 9 << 22 | 300));
    for slot in [one, two] {
        assert_eq!(Slot::from_bits(slot.to_bits()), Some(slot));
    }
    assert_eq!(
        (Slot::from_bits(0), Slot::from_bits(1 << 22), Slot::from_bits(1 << 60 | 1)),
        (None, None, None)
    );
}

#[test]
fn writers_side_by_side_get_what_they_wrote() {
    let fs = SimFs::new();
    let slots = open(&fs);
    slots.adopt([]).unwrap();
    let index = Mutex::new(Index::new());
    std::thread::scope(|scope| {
        for t in 0..4 {
            let (slots, index) = (&slots, &index);
            scope.spawn(move || {
                for i in 0..100 {
                    let id = t * 1000 + i;
                    let slot = slots.write(item(id, 1 + id % 20), i % 3 == 0).unwrap();
                    if i % 4 == 0 {
                        slots.retire(slot).unwrap();
                        slots.free(slot).unwrap();
                    } else {
                        index.lock().unwrap().insert(id, (slot, id));
                    }
                }
            });
        }
    });
    let index = index.into_inner().unwrap();
    assert_holds(&slots, &index, "of threads");
    assert_eq!(slots.check(slots_of(&index)).unwrap(), 0);
    let stats = slots.stats();
    assert!(stats.submitted == 400 && stats.submissions <= 400 && stats.syncs <= 400);
}
