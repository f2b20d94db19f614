//! What the tests run a database in, and what they compare it with.

mod booted;
mod machine;
mod model;
mod pausable;
mod setups;
mod two_pools;

pub use booted::booted;
pub use machine::Machine;
pub use model::{Contents, Entries, Map, Span, assert_clean, entries, get, in_span};
pub use pausable::Pausable;
pub use setups::{
    Background, Setup, setups, tiny_lab, tiny_lsm, tiny_split, tiny_sptree, tiny_tlsm, tiny_turbo, tiny_wip,
    with_memtables_of,
};
use terrace::EngineKind;
pub use two_pools::TwoPools;

/// Seed of the hashes of databases under test: a run is the same every time, and keys can be made to collide.
pub const HASH_SEED: u64 = 0x5EED_0000_0000_0001;

/// An engine, and what it promises beyond the store's semantics.
#[derive(Debug, Clone, Copy)]
pub struct Engine {
    /// The engine.
    pub kind: EngineKind,
    /// Drains that a group of writes costs on media flushed by cache line, where it is a fixed number.
    pub drains_per_group: Option<u64>,
}
