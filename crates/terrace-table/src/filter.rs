//! A split-block Bloom filter over all keys of a table.
//!
//! The layout is that of Apache Parquet, over XXH3 hashes: the filter is a row of 32-byte blocks of
//! eight little-endian `u32` words. The high 32 bits of a key's hash choose the block by
//! multiplication; the low 32 bits, times each of eight odd constants, choose by their top five bits
//! one bit in each word. A lookup touches one block, hence one or two cache lines. The bytes are a
//! persistent format, so they are defined here and depend on no library's internals.

use bytes::Bytes;
use terrace_base::checksum::hash64;
use terrace_base::prefetch;

use crate::frame::Malformed;

const BLOCK_BYTES: usize = 32;
/// One GiB of filter; more keys share it.
const MAX_BLOCKS: usize = 1 << 25;
/// The odd multipliers of the Parquet specification.
const SALT: [u32; 8] =
    [0x47b6_137b, 0x4497_4d91, 0x8824_ad5b, 0xa2b7_289d, 0x7054_95c7, 0x2df1_424b, 0x9efc_4947, 0x5c6b_fb31];

fn block_of(hash: u64, blocks: usize) -> usize {
    (((hash >> 32) * blocks as u64) >> 32) as usize
}

/// The bit to look at in each word of the block.
fn bits(hash: u64) -> [u32; 8] {
    SALT.map(|salt| 1 << ((hash as u32).wrapping_mul(salt) >> 27))
}

fn word(block: &[u8], i: usize) -> u32 {
    let bytes = &block[4 * i..4 * i + 4];
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Gathers the hashes of a table's distinct keys and builds the filter when their number is known.
#[derive(Debug, Default)]
pub struct FilterBuilder {
    hashes: Vec<u64>,
}

impl FilterBuilder {
    /// Adds a key.
    pub fn add(&mut self, key: &[u8]) {
        self.hashes.push(hash64(key));
    }

    /// The filter's payload at `bits_per_key`.
    pub fn finish(&self, bits_per_key: u32) -> Vec<u8> {
        let wanted = (self.hashes.len() as u64 * u64::from(bits_per_key)).div_ceil(8 * BLOCK_BYTES as u64);
        let blocks = (wanted as usize).clamp(1, MAX_BLOCKS);
        let mut out = vec![0u8; blocks * BLOCK_BYTES];
        for &hash in &self.hashes {
            let at = block_of(hash, blocks) * BLOCK_BYTES;
            let block = &mut out[at..at + BLOCK_BYTES];
            for (i, bit) in bits(hash).into_iter().enumerate() {
                let set = word(block, i) | bit;
                block[4 * i..4 * i + 4].copy_from_slice(&set.to_le_bytes());
            }
        }
        out
    }
}

/// A filter read from a table.
#[derive(Debug)]
pub struct Filter {
    data: Bytes,
}

impl Filter {
    pub(crate) fn new(data: Bytes) -> Result<Filter, Malformed> {
        if data.is_empty() || !data.len().is_multiple_of(BLOCK_BYTES) {
            return Err(Malformed::new("a filter of whole 32-byte blocks", format!("{} bytes", data.len())));
        }
        Ok(Filter { data })
    }

    /// The filter with the bytes `data`; `None` if these are not a filter's.
    pub fn of(data: Bytes) -> Option<Filter> {
        Filter::new(data).ok()
    }

    /// Where the block of a key with this hash begins.
    #[inline]
    fn at(&self, hash: u64) -> usize {
        block_of(hash, self.data.len() / BLOCK_BYTES) * BLOCK_BYTES
    }

    /// Starts loading what [`may_contain`](Self::may_contain) reads.
    #[inline]
    pub fn prefetch(&self, key: &[u8]) {
        prefetch::line(self.data.as_ptr().wrapping_add(self.at(hash64(key))));
    }

    /// False only if `key` was not added.
    pub fn may_contain(&self, key: &[u8]) -> bool {
        let hash = hash64(key);
        let at = self.at(hash);
        let block = &self.data[at..at + BLOCK_BYTES];
        bits(hash).into_iter().enumerate().all(|(i, bit)| word(block, i) & bit != 0)
    }

    /// Bytes of DRAM.
    pub fn memory_bytes(&self) -> usize {
        self.data.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(keys: u64, bits_per_key: u32) -> Filter {
        let mut builder = FilterBuilder::default();
        (0..keys).for_each(|i| builder.add(&i.to_be_bytes()));
        Filter::new(Bytes::from(builder.finish(bits_per_key))).unwrap()
    }

    #[test]
    fn golden_bytes() {
        let mut builder = FilterBuilder::default();
        builder.add(b"");
        let hash = 0x2d06_8005_38d3_94c2_u64;
        let mut expected = Vec::new();
        for salt in SALT {
            expected.extend((1u32 << ((hash as u32).wrapping_mul(salt) >> 27)).to_le_bytes());
        }
        assert_eq!(builder.finish(10), expected);
    }

    #[test]
    fn no_false_negatives_and_few_false_positives() {
        for keys in [0, 1, 100, 20_000] {
            let filter = built(keys, 10);
            assert!((0..keys).all(|i| filter.may_contain(&i.to_be_bytes())));
            let wrong = (keys..keys + 10_000).filter(|i| filter.may_contain(&i.to_be_bytes())).count();
            assert!(wrong < 250, "{wrong} of 10000 at {keys} keys");
        }
    }

    #[test]
    fn odd_lengths_are_refused() {
        assert!(Filter::new(Bytes::new()).is_err());
        assert!(Filter::new(Bytes::from(vec![0; 33])).is_err());
    }
}
