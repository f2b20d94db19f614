//! The costs of choices, by the order of the keys.

use terrace_base::rng::Rng;

use super::simulation::{CAPACITY, Life, MEMTABLE, SPEED};

const WRITES: u64 = 500_000;

/// The bound on writes of a byte in the head of the module.
const BOUND: f64 = 3.0 + 8.0 / 7.0;

impl Life {
    /// What holds in any order of the keys.
    fn assert_sound(&self, what: &str) {
        self.report(what);
        // A due level waits for running jobs, a whole bucket in each slot, and for its turn.
        let whole = CAPACITY * 11 / 8 / SPEED;
        assert!(self.cost.longest_wait < 2 * whole, "a level that is due waits");
        let most = 2 * (self.options.threshold() + self.options.jitter);
        assert!(self.cost.deepest <= most, "{} sublevels", self.cost.deepest);
        let largest = self.figures.iter().map(|f| f.bytes).max().unwrap_or(0);
        assert!(largest < 2 * CAPACITY, "a bucket of {largest} bytes");
        let buckets = self.buckets.len() as u64;
        assert!(
            buckets <= 1 + 16 * self.bytes() / CAPACITY,
            "buckets of less than half of what a split makes"
        );
    }
}

fn exponential(rng: &mut Rng) -> u64 {
    let x = -(1.0 - rng.unit()).ln() / 16.0;
    (x.min(0.999) * u64::MAX as f64) as u64
}

#[test]
fn inserts_are_written_no_more_often_than_promised() {
    let mut rng = Rng::new(1);
    let uniform = Life::new(false).run(WRITES, |_| rng.next_u64());
    uniform.assert_sound("uniform");
    let uneven = Life::new(false).run(WRITES, |_| exponential(&mut rng));
    uneven.assert_sound("exponential");
    for life in [uniform, uneven] {
        assert!(life.cost.splits > 4 && life.cost.amplification() <= BOUND);
    }
}

#[test]
fn keys_in_order_are_written_twice() {
    let ascending = Life::new(false).run(WRITES, |i| i << 30);
    ascending.assert_sound("ascending");
    let descending = Life::new(false).run(WRITES, |i| u64::MAX - (i << 30));
    descending.assert_sound("descending");
    for life in [ascending, descending] {
        assert!(life.cost.splits > 4 && life.cost.amplification() <= 2.0);
    }
}

#[test]
fn hot_keys_are_written_no_more_often_and_leave_little_garbage() {
    let mut rng = Rng::new(3);
    let life = Life::new(true).run(WRITES, |_| {
        let rank = (100_000f64.powf(rng.unit())) as u64;
        rank.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    life.assert_sound("zipfian");
    assert!(life.cost.amplification() <= BOUND);
    assert!(life.bytes() <= 2 * life.live());
}

/// All memtables together are four that one bucket may have.
#[test]
fn splitting_ends_though_memtables_become_small() {
    let mut rng = Rng::new(4);
    let mut key = |_| rng.below(200_000) << 40;
    let mut life = Life::new(true);
    life.budget = 4 * MEMTABLE;
    let life = life.run(WRITES, &mut key);
    life.report("small memtables");
    let (splits, buckets) = (life.cost.splits, life.buckets.len() as u64);
    assert!(life.average < MEMTABLE as f64 / 2.0 && buckets <= 16 * 200_000 / CAPACITY);
    let life = life.run(WRITES, key);
    life.assert_sound("small memtables, later");
    assert_eq!(life.cost.splits, splits, "nothing has come that is new");
}

/// Levels that are read much are merged sooner, and others wait no longer than allowed.
#[test]
fn what_is_read_lies_on_fewer_sublevels() {
    let looked = |read_aware| {
        let mut rng = Rng::new(5);
        let mut life = Life::new(false).run(WRITES / 4, |_| rng.next_u64());
        life.options.read_aware = read_aware;
        life.cost.looked = (0, 0);
        for _ in 0..WRITES / 4 {
            life.write(rng.next_u64());
            life.read(exponential(&mut rng));
        }
        life.assert_sound("reads");
        assert!(life.cost.amplification() <= BOUND);
        life.cost.looked.0 as f64 / life.cost.looked.1 as f64
    };
    let (aware, unaware) = (looked(true), looked(false));
    assert!(aware < 0.8 * unaware, "{aware} sublevels a read, {unaware} if reads count for nothing");
}
