//! A sorted node in one cache line, inserted into by shifting, as FAST & FAIR does.
//!
//! Readers, and recovery, take a word that equals its left neighbour for one entry: that is what a shift
//! that was cut short leaves, provided that its stores reach the media in order.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_pmem::{Granularity, Kind, POff, Pool};
use terrace_sim::{Recorder, Scenario, World};

use super::{Bug, explorer, must_catch, pool};

const ROOT: &str = "node";
const SLOTS: u64 = 8;

struct Node {
    pool: Pool,
    at: u64,
    bug: Option<Bug>,
}

impl Node {
    fn open(world: &World, bug: Option<Bug>) -> Result<Node> {
        let pool = pool(world)?;
        let at = match pool.root(ROOT)? {
            Some(at) => at,
            None => {
                let slot = pool.reserve(Kind(1), SLOTS * 8)?;
                pool.zero(slot.offset, SLOTS * 8);
                pool.flush(slot.offset, SLOTS * 8);
                pool.activate(&slot);
                pool.drain();
                pool.set_root(ROOT, slot.offset)?;
                slot.offset
            }
        };
        Ok(Node { pool, at, bug })
    }

    fn word(&self, slot: u64) -> POff<u64> {
        POff::new(self.at + slot * 8)
    }

    fn load(&self, slot: u64) -> u64 {
        self.pool.atomic(self.word(slot)).load(Ordering::Acquire)
    }

    fn store(&self, slot: u64, value: u64) {
        if self.bug == Some(Bug::UnorderedShift) {
            self.pool.atomic(self.word(slot)).store(value, Ordering::Release);
        } else {
            self.pool.store_ordered(self.word(slot), value);
        }
    }

    fn entries(&self) -> BTreeSet<u64> {
        (0..SLOTS).map(|slot| self.load(slot)).take_while(|&word| word != 0).collect()
    }

    /// Puts a new `value` in its place; one store makes it seen.
    fn insert(&self, value: u64) {
        let mut slot = self.entries().len() as u64;
        while slot > 0 && self.load(slot - 1) > value {
            self.store(slot, self.load(slot - 1));
            slot -= 1;
        }
        self.store(slot, value);
        self.pool.persist(self.at, SLOTS * 8);
    }
}

/// The values that were acknowledged and the one in flight.
#[derive(Debug, Default)]
struct Known {
    acknowledged: BTreeSet<u64>,
    in_flight: Option<u64>,
}

struct Sorted(Option<Bug>);

impl Scenario for Sorted {
    type Op = u64;
    type Model = Known;

    fn model(&self) -> Known {
        Known::default()
    }

    fn run(&self, world: &World, recorder: &mut Recorder<Known>, ops: &[u64]) -> Result<(), String> {
        let node = Node::open(world, self.0).map_err(|e| e.to_string())?;
        for &op in ops {
            recorder.update(|known| known.in_flight = Some(op));
            node.insert(op);
            recorder.update(|known| {
                known.acknowledged.insert(op);
                known.in_flight = None;
            });
        }
        Ok(())
    }

    fn verify(&self, world: &World, known: &Known) -> Result<(), String> {
        let found = Node::open(world, self.0).map_err(|e| e.to_string())?.entries();
        let mut with = known.acknowledged.clone();
        with.extend(known.in_flight);
        if found == known.acknowledged || found == with {
            return Ok(());
        }
        Err(format!("found {found:?}, and knew {known:?}"))
    }
}

fn values() -> Vec<u64> {
    vec![50, 20, 60, 10, 40, 30, 5]
}

#[test]
fn a_correct_node_passes() {
    for granularity in [Granularity::CacheLine, Granularity::Byte] {
        explorer(granularity).must_pass(Sorted(None), values());
    }
}

#[test]
fn an_unordered_shift_is_caught() {
    must_catch(Sorted, &values(), Bug::UnorderedShift);
}
