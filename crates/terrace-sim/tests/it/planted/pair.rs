//! A total and a count that must agree: two words, switched as one.

use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_pmem::{Granularity, Kind, POff, Pool};
use terrace_sim::{Recorder, Scenario, World};

use super::{Bug, explorer, must_catch, pool};

const ROOT: &str = "pair";

/// Where the words lie: the selector, then two copies of (count, total), all in one line.
struct Pair {
    pool: Pool,
    at: u64,
    bug: Option<Bug>,
}

impl Pair {
    fn open(world: &World, bug: Option<Bug>) -> Result<Pair> {
        let pool = pool(world)?;
        let at = match pool.root(ROOT)? {
            Some(at) => at,
            None => {
                let slot = pool.reserve(Kind(1), 64)?;
                pool.zero(slot.offset, 64);
                pool.flush(slot.offset, 64);
                pool.activate(&slot);
                pool.drain();
                pool.set_root(ROOT, slot.offset)?;
                slot.offset
            }
        };
        Ok(Pair { pool, at, bug })
    }

    fn word(&self, index: u64) -> POff<u64> {
        POff::new(self.at + index * 8)
    }

    fn load(&self, index: u64) -> u64 {
        self.pool.atomic(self.word(index)).load(Ordering::Acquire)
    }

    fn get(&self) -> (u64, u64) {
        let copy = 1 + self.load(0) % 2 * 2;
        (self.load(copy), self.load(copy + 1))
    }

    fn set(&self, (count, total): (u64, u64)) {
        let selector = self.load(0);
        let in_place = self.bug == Some(Bug::TornPair);
        let copy = if in_place { 1 + selector % 2 * 2 } else { 1 + (selector + 1) % 2 * 2 };
        self.pool.store_flush(self.word(copy), count);
        self.pool.store_flush(self.word(copy + 1), total);
        self.pool.drain();
        if !in_place {
            self.pool.publish(self.word(0), selector + 1);
        }
    }
}

/// The pair that was acknowledged and the one in flight.
#[derive(Debug, Default)]
struct Known {
    acknowledged: (u64, u64),
    in_flight: Option<(u64, u64)>,
}

struct Sum(Option<Bug>);

impl Scenario for Sum {
    type Op = u64;
    type Model = Known;

    fn model(&self) -> Known {
        Known::default()
    }

    fn run(&self, world: &World, recorder: &mut Recorder<Known>, ops: &[u64]) -> Result<(), String> {
        let pair = Pair::open(world, self.0).map_err(|e| e.to_string())?;
        for &op in ops {
            let (count, total) = pair.get();
            let next = (count + 1, total + op);
            recorder.update(|known| known.in_flight = Some(next));
            pair.set(next);
            recorder.update(|known| *known = Known { acknowledged: next, in_flight: None });
        }
        Ok(())
    }

    fn verify(&self, world: &World, known: &Known) -> Result<(), String> {
        let found = Pair::open(world, self.0).map_err(|e| e.to_string())?.get();
        if found == known.acknowledged || Some(found) == known.in_flight {
            return Ok(());
        }
        Err(format!("found {found:?}, which is neither {known:?}"))
    }
}

#[test]
fn a_correct_pair_passes() {
    for granularity in [Granularity::CacheLine, Granularity::Byte] {
        explorer(granularity).must_pass(Sum(None), (1..20).collect());
    }
}

#[test]
fn a_torn_pair_is_caught() {
    must_catch(Sum, &(1..20).collect::<Vec<_>>(), Bug::TornPair);
}
