//! The options of a table.

/// The options of a table, fixed when it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurboHashOptions {
    /// Shards, rounded up to a power of two, at least 2 and at most 2^24. Each takes 32 bytes of PM and as many of
    /// DRAM, and grows by itself.
    pub shards: u32,
    /// Buckets of a shard when its first key comes, rounded up to a power of two.
    pub initial_buckets: u32,
    /// Most buckets that a search looks at.
    pub probing_scope: u32,
    /// Seed of the keys' hashes; `None`: drawn when the table is made, and kept secret. Someone who knows it can choose
    /// keys that collide; the table then works, but slowly.
    pub seed: Option<u64>,
}

impl Default for TurboHashOptions {
    fn default() -> Self {
        TurboHashOptions { shards: 1 << 13, initial_buckets: 4, probing_scope: 16, seed: None }
    }
}
