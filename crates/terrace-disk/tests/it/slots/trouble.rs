//! Slots that are crashed at every event, on full disks and on disks that fail.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use terrace_base::ErrorKind;
use terrace_base::rng::Rng;
use terrace_disk::{Fault, FsEvent, Observer, SimFs};

use super::{BLOCK, Index, Store, assert_holds, open, slots_of};

/// At every event of a run power goes, several times differently. What was published before is there, and the next life
/// writes beside it.
#[derive(Debug)]
struct Crashing {
    fs: SimFs,
    /// What was published at this moment.
    index: Mutex<Index>,
    images: Mutex<u64>,
}

impl Observer for Crashing {
    fn before(&self, event: FsEvent<'_>) {
        let index = self.index.lock().unwrap().clone();
        let mut survivors = vec![self.fs.crash_losing_all(), self.fs.crash_keeping_all(), self.fs.fork()];
        let images = *self.images.lock().unwrap();
        survivors.extend((0..3).map(|i| self.fs.crash(&mut Rng::new(images + i))));
        for fs in survivors {
            *self.images.lock().unwrap() += 1;
            let slots = open(&fs);
            assert_holds(&slots, &index, &format!("at {event:?}"));
            slots.adopt(slots_of(&index)).unwrap();
            let mut store = Store { slots, index: index.clone(), retired: Index::new(), ids: 1 << 20 };
            store.check();
            // The next life writes, and loses its power in turn.
            store.put(&[(1, 3), (100, 20)]).unwrap();
            (0..3).for_each(|nth| store.free(nth).unwrap());
            store.put(&[(101, 9)]).unwrap();
            store.check();
            let last = open(&fs.crash(&mut Rng::new(images)));
            assert_holds(&last, &store.index, "after two crashes");
        }
    }
}

#[test]
fn a_power_cut_at_any_event_takes_nothing_that_was_published() {
    let mut images = 0;
    for seed in 0..6 {
        let fs = SimFs::new();
        let mut store = Store::open(&fs);
        let watch = Crashing { fs: fs.clone(), index: Mutex::default(), images: Mutex::new(seed << 20) };
        let watch = Arc::new(watch);
        fs.observe(Some(watch.clone()));
        let mut rng = Rng::new(seed);
        for _ in 0..25 {
            let draw = |rng: &mut Rng| (rng.below(8), 1 + rng.below(24));
            let keys: BTreeMap<u64, u64> = (0..1 + rng.below(4)).map(|_| draw(&mut rng)).collect();
            store.put(&Vec::from_iter(keys)).unwrap();
            *watch.index.lock().unwrap() = store.index.clone();
            for _ in 0..rng.below(5) {
                store.free(rng.below(9)).unwrap();
            }
            if rng.one_in(8) {
                store.slots.give_back(4 * BLOCK).unwrap();
            }
        }
        fs.observe(None);
        images += *watch.images.lock().unwrap() - (seed << 20);
    }
    assert!(images > 2000, "{images}");
}

/// Whatever fails, nothing that was published is lost and nothing leaks; afterwards all goes on.
#[test]
fn any_operation_may_fail() {
    let mut failures = 0;
    for after in 0..70 {
        for only_changes in [true, false] {
            let fs = SimFs::new();
            let mut store = Store::open(&fs);
            let mut rng = Rng::new(after);
            fs.inject(Some(Fault { after, only_changes, sticky: false }));
            for _ in 0..20 {
                let keys = [(rng.below(8), 1 + rng.below(24)), (8 + rng.below(8), 1 + rng.below(24))];
                let before = store.index.clone();
                if store.put(&keys).is_err() {
                    failures += 1;
                    assert_eq!(store.index, before);
                    store.put(&keys).unwrap();
                }
                store.free(rng.below(9)).unwrap();
                if rng.one_in(5) && store.slots.give_back(4 * BLOCK).is_err() {
                    failures += 1;
                }
            }
            fs.inject(None);
            store.check();
            let least = fs.crash_losing_all();
            assert_holds(&open(&least), &store.index, "after a fault and a power cut");
            store.reopen(&fs).check();
        }
    }
    assert!(failures > 60, "{failures}");
}

/// A disk that is full at any moment refuses, loses nothing, and takes more when there is room; what was freed is room.
#[test]
fn a_full_disk_refuses_until_there_is_room() {
    let mut refusals = 0;
    for capacity in (8..400).step_by(7) {
        let fs = SimFs::new();
        let mut store = Store::open(&fs);
        fs.set_capacity(Some(capacity * BLOCK));
        let mut rng = Rng::new(capacity);
        for key in 0..60 {
            let (keys, before) = ([(key, 1 + rng.below(60)), (100 + key, 9)], store.index.clone());
            match store.put(&keys) {
                Ok(()) => continue,
                Err(e) => assert_eq!(e.kind(), ErrorKind::NoSpace),
            }
            refusals += 1;
            assert_eq!(store.index, before);
            store.check();
            // Room is made here by freeing, there by the disk.
            if rng.one_in(2) && !store.index.is_empty() {
                let doomed: Vec<u64> = store.index.keys().copied().collect();
                doomed.iter().for_each(|key| store.publish(*key, None).unwrap());
                assert_eq!(store.put(&keys).unwrap_err().kind(), ErrorKind::NoSpace, "it is retired only");
                doomed.iter().for_each(|_| store.free(0).unwrap());
            }
            if store.put(&keys).is_err() {
                fs.set_capacity(Some(1000 * BLOCK));
                store.put(&keys).unwrap();
                fs.set_capacity(Some(capacity.max(fs.used_bytes() / BLOCK) * BLOCK));
            }
        }
        store.check();
        store.reopen(&fs).check();
    }
    assert!(refusals > 50, "{refusals}");
}
