//! Randomness, from one place and always seeded: the same seed gives the same numbers.

use std::hash::{BuildHasher, RandomState};

/// A small fast generator; not for secrets.
#[derive(Debug, Clone)]
pub struct Rng(fastrand::Rng);

impl Rng {
    /// A generator that repeats for the same `seed`.
    pub fn new(seed: u64) -> Self {
        Rng(fastrand::Rng::with_seed(seed))
    }

    /// A seed that differs from run to run, for pool identities and unseeded benchmarks.
    pub fn fresh_seed() -> u64 {
        fastrand::u64(..)
    }

    /// A seed that nobody outside of the process can guess: from the randomness of the operating system. For hashes of
    /// keys that an enemy may choose.
    pub fn secret_seed() -> u64 {
        RandomState::new().hash_one(Self::fresh_seed())
    }

    /// Any 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A number below `bound`; zero when `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.0.u64(..bound) }
    }

    /// True once in `n` times on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        self.0.f64()
    }

    /// Fills `out` with random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        self.0.fill(out);
    }

    /// Shuffles `items`.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        self.0.shuffle(items);
    }
}
