//! Pools under power cuts: whatever is reserved, linked, grown and freed, every byte has one owner after it.

use std::sync::atomic::Ordering;

use terrace_base::rng::Rng;
use terrace_base::{Error, Result};
use terrace_pmem::{Granularity, Kind, Marks, POff, Pool};
use terrace_sim::{Event, Explorer, PmOptions, Recorder, Scenario, World, WorldOptions};

use crate::planted::pool;
use crate::raw::at_events;

const DIRECTORY: Kind = Kind(1);
const OBJECT: Kind = Kind(2);
const ARENA: Kind = Kind(3);
const ROOT: &str = "directory";
/// Words of the directory, each an object's offset or 0; the last quarter is for arenas.
const PLACES: u64 = 64;
const ARENAS_FROM: u64 = 48;

#[derive(Debug, Clone)]
enum Op {
    /// Makes an object of so many bytes in a place, whatever was there being freed.
    Make(u64, u64),
    /// Frees what is in a place.
    Free(u64),
    /// Gives up a reservation.
    Cancel(u64),
}

struct Directory {
    pool: Pool,
    at: u64,
}

impl Directory {
    fn open(world: &World) -> Result<Directory> {
        let pool = pool(world)?;
        let at = match pool.root(ROOT)? {
            Some(at) => at,
            None => {
                let slot = pool.reserve(DIRECTORY, PLACES * 8)?;
                pool.zero(slot.offset, PLACES * 8);
                pool.flush(slot.offset, PLACES * 8);
                pool.activate(&slot);
                pool.drain();
                pool.set_root(ROOT, slot.offset)?;
                slot.offset
            }
        };
        let directory = Directory { pool, at };
        if directory.pool.needs_reclaim() {
            directory.pool.reclaim(&directory.marks()?)?;
            // An event more, at which what was freed may be durable and what it was freed for not.
            directory.pool.drain();
        }
        Ok(directory)
    }

    fn place(&self, place: u64) -> POff<u64> {
        POff::new(self.at + place * 8)
    }

    fn object(&self, place: u64) -> u64 {
        self.pool.atomic(self.place(place)).load(Ordering::Acquire)
    }

    fn carry_out(&self, op: &Op) -> Result<()> {
        match *op {
            Op::Make(place, bytes) => self.make(place, bytes),
            Op::Free(place) => self.replace(place, 0),
            Op::Cancel(bytes) => {
                self.pool.cancel(self.pool.reserve(OBJECT, bytes)?);
                self.pool.cancel(self.pool.reserve_extent(ARENA, bytes)?);
                Ok(())
            }
        }
    }

    /// An object begins with its place and length, and ends with them.
    fn make(&self, place: u64, bytes: u64) -> Result<()> {
        let stamp = [place.to_le_bytes(), bytes.to_le_bytes()].concat();
        let write = |offset: u64| {
            self.pool.copy_flush(offset, &stamp);
            self.pool.copy_flush(offset + bytes - 16, &stamp);
        };
        let offset = if place < ARENAS_FROM {
            let slot = self.pool.reserve(OBJECT, bytes)?;
            write(slot.offset);
            self.pool.activate(&slot);
            slot.offset
        } else {
            let extent = self.pool.reserve_extent(ARENA, bytes)?;
            write(extent.offset);
            self.pool.activate(&extent);
            extent.offset
        };
        self.pool.drain();
        self.replace(place, offset)
    }

    fn replace(&self, place: u64, offset: u64) -> Result<()> {
        let old = self.object(place);
        self.pool.publish(self.place(place), offset);
        match old {
            0 => Ok(()),
            old if place < ARENAS_FROM => self.pool.free(old, OBJECT),
            old => self.pool.free_extent(old, ARENA),
        }
    }

    fn marks(&self) -> Result<Marks> {
        let mut marks = self.pool.marks();
        marks.slot(self.at)?;
        for place in 0..PLACES {
            match self.object(place) {
                0 => {}
                offset if place < ARENAS_FROM => marks.slot(offset)?,
                offset => marks.extent(offset)?,
            }
        }
        Ok(marks)
    }

    /// The length of each object, which must be whole.
    fn read(&self) -> Result<Vec<u64>> {
        let word =
            |at: u64| -> Result<u64> { Ok(self.pool.atomic_checked(POff::new(at))?.load(Ordering::Acquire)) };
        let lengths = (0..PLACES).map(|place| {
            let offset = self.object(place);
            if offset == 0 {
                return Ok(0);
            }
            let bytes = word(offset + 8)?;
            let end = offset + bytes.clamp(16, 1 << 20) - 16;
            if [word(offset)?, word(end)?, word(end + 8)?] != [place, place, bytes] {
                return Err(self.pool.corruption(offset, format!("object {place}"), "other bytes"));
            }
            Ok(bytes)
        });
        lengths.collect()
    }

    fn check(&self) -> Result<(), String> {
        let problems = self.marks().map(|marks| self.pool.check(&marks)).map_err(|e| e.to_string())?;
        if problems.is_empty() { Ok(()) } else { Err(format!("{problems:?}")) }
    }
}

/// Lengths by place: as acknowledged, and with the operation in flight.
#[derive(Debug, Clone, Default)]
struct Known {
    now: Vec<u64>,
    next: Vec<u64>,
}

struct Allocations;

impl Scenario for Allocations {
    type Op = Op;
    type Model = Known;

    fn model(&self) -> Known {
        Known { now: vec![0; PLACES as usize], next: vec![0; PLACES as usize] }
    }

    fn run(&self, world: &World, recorder: &mut Recorder<Known>, ops: &[Op]) -> Result<(), String> {
        let directory = Directory::open(world).map_err(|e| e.to_string())?;
        for op in ops {
            recorder.update(|known| match *op {
                Op::Make(place, bytes) => known.next[place as usize] = bytes,
                Op::Free(place) => known.next[place as usize] = 0,
                Op::Cancel(_) => {}
            });
            match directory.carry_out(op) {
                Ok(()) => recorder.update(|known| known.now.clone_from(&known.next)),
                Err(Error::PoolFull { .. } | Error::NoSpace { .. }) => {
                    recorder.update(|known| known.next.clone_from(&known.now));
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        directory.check()?;
        directory.pool.close().map_err(|e| e.to_string())
    }

    fn verify(&self, world: &World, known: &Known) -> Result<(), String> {
        let text = |e: Error| e.to_string();
        let directory = Directory::open(world).map_err(text)?;
        let found = directory.read().map_err(text)?;
        if found != known.now && found != known.next {
            return Err(format!("found {found:?}, knew {known:?}"));
        }
        directory.check()?;
        world.recovery_done();
        for place in 0..8 {
            match directory.make(place, 104 + place * 296) {
                Ok(()) | Err(Error::PoolFull { .. }) => {}
                Err(error) => return Err(error.to_string()),
            }
            directory.replace(place + 1, 0).map_err(text)?;
        }
        directory.read().map_err(text)?;
        directory.check()
    }
}

fn ops(seed: u64, count: u64) -> Vec<Op> {
    let mut rng = Rng::new(seed);
    let one = |_| match rng.below(8) {
        0..=4 => Op::Make(rng.below(ARENAS_FROM), [16, 40, 200, 904, 4000, 9000][rng.below(6) as usize]),
        5 => Op::Make(ARENAS_FROM + rng.below(PLACES - ARENAS_FROM), 4096 * (1 + rng.below(6))),
        6 => Op::Free(rng.below(PLACES)),
        _ => Op::Cancel(16 + rng.below(5000)),
    };
    (0..count).map(one).collect()
}

/// A pool that has to grow soon.
fn explorer(seed: u64, granularity: Granularity) -> Explorer {
    let pm = PmOptions { bytes: 64 << 10, capacity: 512 << 10, granularity };
    Explorer::new(seed).world(WorldOptions { pm }).images(3000)
}

#[test]
fn every_byte_has_one_owner_after_a_crash() {
    explorer(1, Granularity::CacheLine).must_pass(Allocations, ops(1, 60));
    explorer(2, Granularity::Byte).must_pass(Allocations, ops(2, 40));
}

#[test]
fn a_pool_that_cannot_grow_says_so_and_stays_whole() {
    let pm = PmOptions { bytes: 64 << 10, capacity: 80 << 10, granularity: Granularity::CacheLine };
    let full = Explorer::new(3).world(WorldOptions { pm }).images(2000);
    full.must_pass(Allocations, ops(3, 60));
}

/// Killed at every event of opening and closing, and cut off at every event of the next opening: a pool stays one.
#[test]
fn killed_and_then_cut_off_it_opens() {
    for granularity in [Granularity::Page, Granularity::CacheLine, Granularity::Byte] {
        let pm = PmOptions { bytes: 64 << 10, capacity: 512 << 10, granularity };
        let world = World::new(5, WorldOptions { pm });
        pool(&world).unwrap().close().unwrap();
        let lives = |world: &World| {
            for _ in 0..2 {
                if let Ok(pool) = pool(world) {
                    pool.close().unwrap();
                }
            }
        };
        let survivors = at_events(&world, lives, move |event, world| {
            let cuts = |event: &Event, world: &World| {
                let seeds = event.index..event.index + 8;
                seeds.map(|seed| world.crash(seed)).collect::<Vec<World>>()
            };
            (event.index, at_events(&world.kill(), lives, cuts))
        });
        for (_, (killed, survivors)) in survivors {
            for (event, worlds) in survivors {
                for (image, world) in worlds.iter().enumerate() {
                    if let Err(e) = pool(world) {
                        panic!(
                            "{granularity:?}, killed at {killed}, cut off at {event:?}, image {image}: {e}"
                        );
                    }
                }
            }
        }
    }
}
