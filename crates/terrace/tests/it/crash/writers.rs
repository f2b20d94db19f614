//! Many writers on an ordinary file, some of whose writes are synced: a power cut leaves a prefix of what they
//! did together.
//!
//! Each writer counts its own key up. What may be left follows from when writes began and were
//! acknowledged, by a clock that ticks with each: if a write is there, so is every write of any writer that
//! was acknowledged before it began, and everything acknowledged before a sync began that has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use terrace::{Db, EngineKind, WriteOptions};
use terrace_pmem::Granularity;
use terrace_sim::{PmOptions, Snapshot, Survival, World, WorldOptions};

use super::env::{DIR, ENGINES, Process, runs_on, tiny};

const WRITERS: usize = 4;
const WRITES: usize = 80;

/// An image is taken at every so-manieth event.
const EVERY: u64 = 17;

/// What one writer has done: when each write began and was acknowledged, the first being number one.
#[derive(Debug, Clone, Default)]
struct Deeds {
    began: Vec<u64>,
    acked: Vec<u64>,
    /// So many are synced.
    synced: usize,
}

/// A moment: the event it came before, both media, and what had been done.
type Moment = (u64, Snapshot, [Deeds; WRITERS]);

#[derive(Debug, Default)]
struct Book {
    clock: AtomicU64,
    deeds: Mutex<[Deeds; WRITERS]>,
}

impl Book {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn acknowledged(&self) -> [usize; WRITERS] {
        let deeds = self.deeds.lock();
        std::array::from_fn(|i| deeds[i].acked.len())
    }

    fn synced(&self, least: [usize; WRITERS]) {
        let mut deeds = self.deeds.lock();
        deeds.iter_mut().zip(least).for_each(|(d, n)| d.synced = d.synced.max(n));
    }

    fn write(&self, db: &Db, me: usize, n: usize) {
        let before = self.acknowledged();
        let began = self.tick();
        self.deeds.lock()[me].began.push(began);
        let sync = n % 5 == me % 5;
        let mut value = (n as u32).to_le_bytes().to_vec();
        value.resize(100 + 7 * n, me as u8);
        db.put_with(&[me as u8], &value, WriteOptions { sync }).unwrap();
        let acked = self.tick();
        self.deeds.lock()[me].acked.push(acked);
        if sync {
            self.synced(before);
            self.synced(std::array::from_fn(|i| if i == me { n } else { 0 }));
        }
        if n % 11 == 3 {
            let before = self.acknowledged();
            db.sync().unwrap();
            self.synced(before);
        }
    }
}

fn open(engine: EngineKind, world: &World) -> Db {
    Db::open_in(Process::new(world).env, DIR, tiny(engine)).unwrap()
}

fn judge(engine: EngineKind, world: &World, deeds: &[Deeds; WRITERS], what: &str) {
    let db = open(engine, world);
    let count = |i: usize| {
        let value = db.get(&[i as u8]).unwrap();
        value.map_or(0, |v| u32::from_le_bytes(v[..4].try_into().unwrap()) as usize)
    };
    let found: [usize; WRITERS] = std::array::from_fn(count);
    for (i, (&n, d)) in found.iter().zip(deeds).enumerate() {
        assert!(n <= d.began.len(), "{what}: writer {i} has not come to {n} yet");
        assert!(n >= d.synced, "{what}: writer {i} is at {n} and {} were synced", d.synced);
        assert!(world.lost_power() || n >= d.acked.len(), "{what}: the kill took writes of writer {i}");
        let Some(began) = n.checked_sub(1).map(|last| d.began[last]) else { continue };
        for (j, (&m, other)) in found.iter().zip(deeds).enumerate() {
            let before = other.acked.iter().filter(|&&acked| acked < began).count();
            assert!(m >= before, "{what}: writer {i} is at {n}, writer {j} at {m} and not at {before}");
        }
    }
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{what}: {:#?}", report.problems);
}

/// Must catch a write that is there without one that was acknowledged before it began, and a synced one that is not
/// there.
#[test]
fn a_power_cut_leaves_a_prefix_of_what_many_did() {
    ENGINES.into_iter().filter(|e| runs_on(*e, Granularity::Page)).for_each(leaves_a_prefix);
}

fn leaves_a_prefix(engine: EngineKind) {
    let pm = PmOptions { bytes: 1 << 20, capacity: 2 << 20, granularity: Granularity::Page };
    let world = World::new(3, WorldOptions { pm });
    let book = Arc::new(Book::default());
    let caught: Arc<Mutex<Vec<Moment>>> = Arc::default();
    {
        let db = open(engine, &world);
        let (book, caught) = (book.clone(), caught.clone());
        // Only the leader stores to the pool, and it is the leader that is held here.
        let (seen, noted) = (caught.clone(), book.clone());
        world.on_event(Box::new(move |event, world| {
            if event.index % EVERY == 0 {
                seen.lock().push((event.index, world.capture(), noted.deeds.lock().clone()));
            }
        }));
        std::thread::scope(|threads| {
            for me in 0..WRITERS {
                let (db, book) = (&db, &book);
                threads.spawn(move || (1..=WRITES).for_each(|n| book.write(db, me, n)));
            }
        });
        world.ignore_events();
    }
    let caught = std::mem::take(&mut *caught.lock());
    assert!(caught.len() > 10, "{} images are few", caught.len());
    for (event, snapshot, deeds) in &caught {
        for survival in [Survival::Nothing, Survival::Everything, Survival::Wiped, Survival::Seeded(*event)] {
            judge(engine, &snapshot.power_cut(survival), deeds, &format!("{survival:?} at event {event}"));
        }
        judge(engine, &snapshot.kill(), deeds, &format!("a kill at event {event}"));
    }
}
