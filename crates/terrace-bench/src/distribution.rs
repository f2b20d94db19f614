//! Which key number comes next. YCSB's generators with YCSB's constants, so that figures compare
//! with published ones.
//!
//! - **Zipfian** (Gray et al., "Quickly generating billion-record synthetic databases"): number 0 is
//!   the most popular, number k about `1 / (k + 1)^0.99` as popular.
//! - **Scrambled zipfian**: the zipfian rank over ten billion items, hashed onto the key numbers, so
//!   that the popular ones lie anywhere. YCSB draws from ten billion whatever the number of records,
//!   so that the popularity of a record does not change when records are added.
//! - **Latest**: the zipfian rank counted back from the newest record.
//! - A [`Shape`] over a range of numbers, as WipDB's authors draw them.

use std::f64::consts::TAU;

use serde::{Deserialize, Serialize};
use terrace_base::rng::Rng;

/// YCSB's skew.
pub const ZIPFIAN_THETA: f64 = 0.99;

/// Items behind YCSB's scrambled zipfian, and their zeta sum for [`ZIPFIAN_THETA`], which would take
/// minutes to add up.
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;

/// Zipfian ranks `0..items`.
#[derive(Debug, Clone)]
pub struct Zipfian {
    items: u64,
    theta: f64,
    /// Sum of `1 / i^theta` for i from 1 to `items`.
    zeta: f64,
    alpha: f64,
    eta: f64,
    /// Up to where a draw is rank 1.
    second: f64,
}

impl Zipfian {
    /// Over `items` ranks (at least one); adds up as many terms, once.
    pub fn new(items: u64) -> Self {
        let items = items.max(1);
        Self::with_zeta(items, ZIPFIAN_THETA, zeta(0, items, ZIPFIAN_THETA))
    }

    fn with_zeta(items: u64, theta: f64, zeta_items: f64) -> Self {
        let (alpha, second) = (1.0 / (1.0 - theta), 1.0 + 0.5f64.powf(theta));
        let mut z = Zipfian { items, theta, zeta: zeta_items, alpha, eta: 0.0, second };
        z.set_eta();
        z
    }

    fn set_eta(&mut self) {
        let zeta_2 = zeta(0, 2, self.theta);
        self.eta = (1.0 - (2.0 / self.items as f64).powf(1.0 - self.theta)) / (1.0 - zeta_2 / self.zeta);
    }

    /// Makes room for ranks up to `items`; the cost is in the ranks added. Never shrinks.
    pub fn grow(&mut self, items: u64) {
        if items > self.items {
            self.zeta += zeta(self.items, items, self.theta);
            self.items = items;
            self.set_eta();
        }
    }

    /// A rank below the number of items.
    pub fn next(&self, rng: &mut Rng) -> u64 {
        let u = rng.unit();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < self.second {
            return 1.min(self.items - 1);
        }
        let rank = self.items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.items - 1)
    }
}

fn zeta(from: u64, to: u64, theta: f64) -> f64 {
    (from..to).map(|i| 1.0 / ((i + 1) as f64).powf(theta)).sum()
}

/// YCSB's scrambled zipfian over `0..items`.
#[derive(Debug, Clone)]
pub struct Scrambled {
    zipfian: Zipfian,
    items: u64,
}

impl Scrambled {
    /// Over `items` key numbers (at least one).
    pub fn new(items: u64) -> Self {
        let zipfian = Zipfian::with_zeta(SCRAMBLED_ITEMS, ZIPFIAN_THETA, SCRAMBLED_ZETA);
        Scrambled { zipfian, items: items.max(1) }
    }

    /// A key number.
    pub fn next(&self, rng: &mut Rng) -> u64 {
        fnv(self.zipfian.next(rng)) % self.items
    }
}

/// FNV-1a over the eight bytes of `number`, with YCSB's absolute value at the end.
fn fnv(number: u64) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325u64;
    for byte in number.to_le_bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211);
    }
    (hash as i64).unsigned_abs()
}

/// Key numbers near the newest.
#[derive(Debug, Clone)]
pub struct Latest {
    zipfian: Zipfian,
}

impl Latest {
    /// Ready for `items` records.
    pub fn new(items: u64) -> Self {
        Latest { zipfian: Zipfian::new(items) }
    }

    /// A key number below `items`, which may have grown since the last call.
    pub fn next(&mut self, items: u64, rng: &mut Rng) -> u64 {
        self.zipfian.grow(items);
        let newest = items.saturating_sub(1);
        newest.saturating_sub(self.zipfian.next(rng))
    }
}

/// How draws lie over a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// Evenly.
    Uniform,
    /// 95 in 100 in the first 15 hundredths.
    Exponential,
    /// The same from the other end.
    ReversedExponential,
    /// Around the middle, with a standard deviation of a tenth.
    Normal,
}

impl Shape {
    /// All of them.
    pub const ALL: [Shape; 4] =
        [Shape::Uniform, Shape::Exponential, Shape::ReversedExponential, Shape::Normal];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Uniform => "uniform",
            Shape::Exponential => "exponential",
            Shape::ReversedExponential => "reversed exponential",
            Shape::Normal => "normal",
        }
    }

    /// A number below `items` (at least one).
    pub fn below(self, items: u64, rng: &mut Rng) -> u64 {
        let items = items.max(1);
        if self == Shape::Uniform {
            return rng.below(items);
        }
        let place = loop {
            let place = self.place(rng);
            if (0.0..1.0).contains(&place) {
                break place;
            }
        };
        ((place * items as f64) as u64).min(items - 1)
    }

    /// A place; one outside of 0 to 1 is drawn again.
    fn place(self, rng: &mut Rng) -> f64 {
        // Not zero, which has no logarithm.
        let unit = 1.0 - rng.unit();
        match self {
            Shape::Uniform => rng.unit(),
            Shape::Exponential => 0.15 * unit.ln() / 0.05f64.ln(),
            Shape::ReversedExponential => 1.0 - Shape::Exponential.place(rng),
            Shape::Normal => 0.5 + 0.1 * (-2.0 * unit.ln()).sqrt() * (TAU * rng.unit()).cos(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 200_000;

    fn shares(items: u64, mut draw: impl FnMut(&mut Rng) -> u64) -> Vec<f64> {
        let mut rng = Rng::new(42);
        let mut counts = vec![0u64; items as usize];
        for _ in 0..DRAWS {
            counts[draw(&mut rng) as usize] += 1;
        }
        counts.iter().map(|&c| c as f64 / DRAWS as f64).collect()
    }

    #[test]
    fn zipfian_mass_follows_the_power_law() {
        let items = 1000;
        let zipfian = Zipfian::new(items);
        let seen = shares(items, |rng| zipfian.next(rng));
        let total = zeta(0, items, ZIPFIAN_THETA);
        // The first two ranks are drawn exactly; the others by an approximation of the inverse.
        assert!((seen[0] - 1.0 / total).abs() < 0.005, "{}", seen[0]);
        assert!((seen[1] - 0.5f64.powf(ZIPFIAN_THETA) / total).abs() < 0.005, "{}", seen[1]);
        let head: f64 = seen[..100].iter().sum();
        let expected = zeta(0, 100, ZIPFIAN_THETA) / total;
        assert!((head - expected).abs() < 0.03, "{head} against {expected}");
    }

    #[test]
    fn growing_equals_starting_large() {
        let mut grown = Zipfian::new(10);
        grown.grow(5000);
        let fresh = Zipfian::new(5000);
        assert!((grown.zeta - fresh.zeta).abs() < 1e-9);
        assert!((grown.eta - fresh.eta).abs() < 1e-12);
    }

    #[test]
    fn scrambling_spreads_the_popular_keys_and_keeps_the_skew() {
        let items = 1000;
        let scrambled = Scrambled::new(items);
        let seen = shares(items, |rng| scrambled.next(rng));
        let mut by_share: Vec<(usize, f64)> = seen.iter().copied().enumerate().collect();
        by_share.sort_by(|a, b| b.1.total_cmp(&a.1));
        // Rank 0 has 1 / zeta of the draws, and in addition the ranks of the long tail that hash there.
        assert!((by_share[0].1 - 1.0 / SCRAMBLED_ZETA).abs() < 0.005, "{}", by_share[0].1);
        let top: Vec<usize> = by_share[..10].iter().map(|p| p.0).collect();
        assert!(top.iter().any(|&i| i > 500) && top.iter().any(|&i| i < 500), "{top:?}");
        assert!(seen.iter().all(|&s| s > 0.0));
    }

    #[test]
    fn latest_prefers_the_newest_and_follows_growth() {
        let mut latest = Latest::new(100);
        let mut rng = Rng::new(7);
        let mut newest = 0;
        for _ in 0..1000 {
            assert!(latest.next(100, &mut rng) < 100);
        }
        for _ in 0..10_000 {
            let number = latest.next(2000, &mut rng);
            assert!(number < 2000);
            newest += u64::from(number >= 1900);
        }
        // The newest 100 of 2000 hold about 63% of a zipfian's mass.
        assert!((5500..7200).contains(&newest), "{newest}");
    }

    #[test]
    fn shapes_are_those_of_their_names() {
        for shape in Shape::ALL {
            let seen = shares(100, |rng| shape.below(100, rng));
            let sum = |from: usize, to: usize| seen[from..to].iter().sum::<f64>();
            let (from, to, share) = match shape {
                Shape::Uniform => (20, 50, 0.3),
                Shape::Exponential => (0, 15, 0.95),
                Shape::ReversedExponential => (85, 100, 0.95),
                Shape::Normal => (40, 60, 0.683),
            };
            assert!((sum(from, to) - share).abs() < 0.01, "{} {}", shape.name(), sum(from, to));
        }
        // Numbers near the ends of their range.
        let mut rng = Rng::new(3);
        for shape in Shape::ALL {
            assert!((0..1000).all(|_| shape.below(u64::MAX, &mut rng) < u64::MAX));
        }
    }

    #[test]
    fn one_item_is_always_chosen() {
        let mut rng = Rng::new(1);
        assert!(
            Shape::ALL.iter().all(|shape| shape.below(1, &mut rng) == 0 && shape.below(0, &mut rng) == 0)
        );
        let zipfian = Zipfian::new(1);
        assert!((0..1000).all(|_| zipfian.next(&mut rng) == 0));
        assert_eq!(Latest::new(0).next(0, &mut rng), 0);
    }
}
