//! What a table is made with.

/// Keys to a shard for which a table is laid out: 256 buckets, three fifths full. Fewer and larger shards keep the mirror
/// in the processor's caches; more and smaller ones are rehashed in less time.
const KEYS_A_SHARD: u64 = 2000;

/// What a table is made with; fixed for its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurboOptions {
    /// Shards, rounded up to a power of two, at least 2 and at most 2^24. Each takes 32 bytes of PM and as many of DRAM, and
    /// grows by itself.
    pub shards: u32,
    /// Buckets of a shard when its first key comes, rounded up to a power of two.
    pub initial_buckets: u32,
    /// Most buckets that a search looks at.
    pub probing_scope: u32,
    /// Seed of the keys' hashes; `None`: drawn when the table is made, and told nobody. Whoever knows it can choose
    /// keys that collide, which the table bears, but slowly.
    pub seed: Option<u64>,
}

impl Default for TurboOptions {
    fn default() -> Self {
        TurboOptions { shards: 1 << 13, initial_buckets: 4, probing_scope: 16, seed: None }
    }
}

impl TurboOptions {
    /// Options for a table that is expected to hold `keys` keys; it may hold any number.
    pub fn for_keys(keys: u64) -> Self {
        let shards = (keys / KEYS_A_SHARD).next_power_of_two().clamp(2, 1 << 20);
        TurboOptions { shards: shards as u32, ..Self::default() }
    }
}
