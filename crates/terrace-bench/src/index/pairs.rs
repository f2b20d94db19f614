//! The pairs that indexes are measured with, made without allocation.
//!
//! A pair has a number; its key is that number mixed by a bijection, so that ascending numbers are keys in
//! random order and no two share one. Numbers from [`ABSENT_FROM`] on are never inserted.

/// The first number that no insertion reaches.
pub const ABSENT_FROM: u64 = 1 << 46;

/// The first bytes of string keys.
const PREFIX: &[u8; 16] = b"table/users/name";

/// The bytes behind the mixed number in a 15-byte key.
const TAIL: [u8; 7] = *b"-suffix";

/// The shape of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pairs {
    /// Keys of 8 bytes, words of 8.
    Eight,
    /// Keys of 15 bytes; values of 15 where the index takes bytes, else words of 8.
    Fifteen,
    /// Keys of 24 bytes, of which the first 16 are the same in all; words of 8.
    Strings,
}

impl Pairs {
    /// The shapes by name.
    pub const ALL: [(&'static str, Pairs); 3] =
        [("8+8", Pairs::Eight), ("15+15", Pairs::Fifteen), ("string24", Pairs::Strings)];

    /// The shape's name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, shape)| *shape == self).map_or("", |(name, _)| name)
    }

    /// Bytes of a key.
    pub fn key_bytes(self) -> usize {
        match self {
            Pairs::Eight => 8,
            Pairs::Fifteen => 15,
            Pairs::Strings => 24,
        }
    }
}

/// Writes keys into a buffer of its own.
#[derive(Debug, Clone)]
pub struct PairKeys {
    shape: Pairs,
    buffer: [u8; 24],
}

impl PairKeys {
    /// Keys of a shape.
    pub fn new(shape: Pairs) -> Self {
        let mut buffer = [0; 24];
        match shape {
            Pairs::Eight => {}
            Pairs::Fifteen => buffer[8..15].copy_from_slice(&TAIL),
            Pairs::Strings => buffer[..16].copy_from_slice(PREFIX),
        }
        PairKeys { shape, buffer }
    }

    /// The key of `number`.
    #[inline]
    pub fn key(&mut self, number: u64) -> &[u8] {
        let mixed = mix(number).to_be_bytes();
        match self.shape {
            Pairs::Eight => {
                self.buffer[..8].copy_from_slice(&mixed);
                &self.buffer[..8]
            }
            Pairs::Fifteen => {
                self.buffer[..8].copy_from_slice(&mixed);
                &self.buffer[..15]
            }
            Pairs::Strings => {
                self.buffer[16..].copy_from_slice(&mixed);
                &self.buffer[..24]
            }
        }
    }
}

/// A bijection of 64 bits, so that numbers in order are keys in none.
#[inline]
pub fn mix(number: u64) -> u64 {
    let x = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Visits the numbers `0..count`, each once, in an order that is not the one of insertion: steps of a fixed
/// width that shares no divisor with `count`.
#[derive(Debug, Clone)]
pub struct Permutation {
    at: u64,
    step: u64,
    count: u64,
}

impl Permutation {
    /// The part of the order that begins `skip` numbers in.
    pub fn new(count: u64, skip: u64) -> Self {
        let count = count.max(1);
        let mut step = (count as f64 * 0.618_033_988_749_895) as u64 | 1;
        while divisor(step, count) != 1 {
            step += 2;
        }
        let step = step % count;
        let at = (u128::from(skip) * u128::from(step) % u128::from(count)) as u64;
        Permutation { at, step, count }
    }

    /// The next number; after `count` of them it begins anew.
    #[inline]
    pub fn step(&mut self) -> u64 {
        let number = self.at;
        self.at += self.step;
        if self.at >= self.count {
            self.at -= self.count;
        }
        number
    }
}

fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_number_comes_once() {
        for count in [1u64, 2, 3, 10, 999, 1000, 4096] {
            let mut order = Permutation::new(count, 0);
            let seen: HashSet<u64> = (0..count).map(|_| order.step()).collect();
            assert_eq!(seen.len() as u64, count);
            assert!(seen.iter().all(|&n| n < count));
        }
    }

    #[test]
    fn parts_make_up_the_whole() {
        let mut whole = Permutation::new(1000, 0);
        let all: Vec<u64> = (0..1000).map(|_| whole.step()).collect();
        let mut part = Permutation::new(1000, 400);
        assert_eq!(part.step(), all[400]);
        assert_eq!(part.step(), all[401]);
    }

    #[test]
    fn keys_have_their_shape_and_differ() {
        for (name, shape) in Pairs::ALL {
            assert_eq!(shape.name(), name);
            let mut keys = PairKeys::new(shape);
            let all: HashSet<Vec<u8>> = (0..1000).map(|i| keys.key(i).to_vec()).collect();
            assert_eq!(all.len(), 1000);
            assert!(all.iter().all(|k| k.len() == shape.key_bytes()));
        }
        assert_eq!(&PairKeys::new(Pairs::Strings).key(1)[..16], PREFIX);
    }
}
