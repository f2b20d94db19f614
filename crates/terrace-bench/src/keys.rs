//! How a key number becomes key bytes, without allocation.
//!
//! A key is `width` bytes: a fixed prefix and the number in hexadecimal, 16 digits or as many as
//! fit. Two orders of numbers:
//!
//! - [`KeyOrder::Ordered`]: the number itself, so that numbers and keys sort alike (db_bench).
//! - [`KeyOrder::Hashed`]: the number mixed by a bijection of its digits' bits, so that keys come in
//!   random order and no two numbers share one (YCSB's `insertorder=hashed`, without its collisions).

/// Fewest bytes of a key.
pub const MIN_KEY_BYTES: usize = 4;
/// Most bytes of a key.
pub const MAX_KEY_BYTES: usize = 65_534;

const DIGITS: usize = 16;
const HEX: &[u8; 16] = b"0123456789abcdef";
/// Sorts inside the range of the keys, and is no digit: a key that ends in it was never written.
const ABSENT: u8 = b'.';

/// How key numbers relate to key order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyOrder {
    /// Ascending numbers are ascending keys.
    Ordered,
    /// Ascending numbers are keys in random order.
    Hashed,
}

/// Writes keys into one buffer.
#[derive(Debug, Clone)]
pub struct KeyMaker {
    /// The key, and one byte more for a key that is not there.
    buffer: Vec<u8>,
    order: KeyOrder,
    digits: usize,
}

impl KeyMaker {
    /// Keys of `width` bytes; a width out of range is moved to the nearest in range.
    pub fn new(width: usize, order: KeyOrder) -> Self {
        let width = width.clamp(MIN_KEY_BYTES, MAX_KEY_BYTES);
        let digits = width.min(DIGITS);
        let mut buffer: Vec<u8> =
            b"user".iter().copied().chain(std::iter::repeat(b'0')).take(width).collect();
        buffer.push(ABSENT);
        KeyMaker { buffer, order, digits }
    }

    /// How many different keys of `width` bytes there are.
    pub fn capacity(width: usize) -> u64 {
        match width.clamp(MIN_KEY_BYTES, MAX_KEY_BYTES) {
            wide if wide >= DIGITS => u64::MAX,
            narrow => 1 << (4 * narrow),
        }
    }

    /// The key of `number`.
    pub fn key(&mut self, number: u64) -> &[u8] {
        self.write(number);
        &self.buffer[..self.buffer.len() - 1]
    }

    /// A key beside that of `number` which no number has.
    pub fn absent(&mut self, number: u64) -> &[u8] {
        self.write(number);
        &self.buffer
    }

    /// Where the key of `number` lies among all: keys sort as their places do.
    pub fn place(&self, number: u64) -> u64 {
        match self.order {
            KeyOrder::Ordered => number,
            KeyOrder::Hashed => mix(number, 4 * self.digits as u32),
        }
    }

    fn write(&mut self, number: u64) {
        let mut bits = self.place(number);
        let end = self.buffer.len() - 1;
        for byte in self.buffer[end - self.digits..end].iter_mut().rev() {
            *byte = HEX[(bits & 15) as usize];
            bits >>= 4;
        }
    }
}

/// A bijection of the lowest `bits` bits: odd multiplications and right shifts can both be undone.
fn mix(number: u64, bits: u32) -> u64 {
    let mask = u64::MAX >> (64 - bits);
    let shift = bits / 2;
    let mut x = number & mask;
    for multiplier in [0xbf58_476d_1ce4_e5b9u64, 0x94d0_49bb_1331_11eb, 0x9e37_79b9_7f4a_7c15] {
        x = (x ^ (x >> shift)).wrapping_mul(multiplier) & mask;
    }
    x ^ (x >> shift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn golden_keys() {
        assert_eq!(KeyMaker::new(16, KeyOrder::Ordered).key(255), b"00000000000000ff");
        assert_eq!(KeyMaker::new(20, KeyOrder::Ordered).key(1), b"user0000000000000001");
        assert_eq!(KeyMaker::new(8, KeyOrder::Ordered).absent(1), b"00000001.");
        assert_eq!(KeyMaker::new(24, KeyOrder::Hashed).key(7).len(), 24);
    }

    #[test]
    fn ordered_numbers_are_ordered_keys() {
        let mut maker = KeyMaker::new(16, KeyOrder::Ordered);
        let keys: Vec<Vec<u8>> = (0..1000u64).map(|i| maker.key(i * 7919).to_vec()).collect();
        assert!(keys.is_sorted());
        assert!(maker.absent(5).to_vec() > maker.key(5).to_vec());
        assert!(maker.absent(5).to_vec() < maker.key(6).to_vec());
    }

    #[test]
    fn keys_sort_as_their_places_do() {
        for order in [KeyOrder::Ordered, KeyOrder::Hashed] {
            for width in [6, 16, 24] {
                let mut maker = KeyMaker::new(width, order);
                let mut numbers: Vec<u64> = (0..1000).collect();
                numbers.sort_by_key(|&number| maker.place(number));
                let keys: Vec<Vec<u8>> = numbers.iter().map(|&number| maker.key(number).to_vec()).collect();
                assert!(keys.is_sorted(), "{order:?} {width}");
            }
        }
    }

    #[test]
    fn hashing_never_collides() {
        let mut maker = KeyMaker::new(4, KeyOrder::Hashed);
        let all: HashSet<Vec<u8>> = (0..KeyMaker::capacity(4)).map(|i| maker.key(i).to_vec()).collect();
        assert_eq!(all.len(), 65_536);
    }

    #[test]
    fn hashing_spreads_neighbours() {
        let mut maker = KeyMaker::new(16, KeyOrder::Hashed);
        let leading: HashSet<u8> = (0..256u64).map(|i| maker.key(i)[0]).collect();
        assert_eq!(leading.len(), 16);
    }
}
