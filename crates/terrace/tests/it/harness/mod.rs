//! What the tests run a database in, and what they compare it with.

mod booted;
mod deferred;
mod engines;
mod files;
mod keyspaces;
mod machine;
mod model;
mod pausable;
mod setups;
mod spans;
mod two_pools;

pub use booted::booted;
pub use deferred::Deferred;
pub use engines::{ENGINES, Engine, engines_in_memory, engines_on_files};
pub(crate) use engines::{each_engine, test_each_engine, test_rows};
pub use files::copy_files;
pub use keyspaces::{all_keyspaces, default_of, key_in, there_is};
pub use machine::Machine;
pub use model::{Contents, Entries, Map, Span, assert_clean, entries, get, in_span, stepped};
pub use pausable::Pausable;
pub use setups::{
    Background, Setup, setups, tiny_engines, tiny_lab, tiny_lsm, tiny_split, tiny_tlsm, tiny_wip,
    with_memtables_of,
};
pub use spans::spans_of;
pub use two_pools::TwoPools;

/// Seed of the hashes of databases under test: a run is the same every time, and keys can be made to collide.
pub const HASH_SEED: u64 = 0x5EED_0000_0000_0001;
