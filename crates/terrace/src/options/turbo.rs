//! Options of the engine `turbo`.

use super::settings::{EngineOptions, Setting, Slot};

/// Options of the `turbo` engine; fixed when the database is created.
#[derive(Debug, Clone)]
pub struct TurboOptions {
    /// Shards, rounded up to a power of two. Each takes 32 bytes of PM and as many of DRAM and grows by itself; one for
    /// about 2,000 keys is right.
    pub shards: u32,
    /// Buckets of a shard at its first key, rounded up to a power of two.
    pub initial_buckets: u32,
    /// Most buckets that a search examines.
    pub probing_scope: u32,
}

impl Default for TurboOptions {
    fn default() -> Self {
        TurboOptions { shards: 1 << 13, initial_buckets: 4, probing_scope: 16 }
    }
}

impl EngineOptions for TurboOptions {
    fn settings(&mut self) -> Vec<Setting<'_>> {
        let set = |name, slot| Setting { name, slot };
        vec![
            set("turbo.shards", Slot::Whole(&mut self.shards, 2..=1 << 24)),
            set("turbo.initial_buckets", Slot::Whole(&mut self.initial_buckets, 1..=1 << 20)),
            set("turbo.probing_scope", Slot::Whole(&mut self.probing_scope, 1..=1 << 20)),
        ]
    }
}
