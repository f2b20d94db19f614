//! The subcommands, each a file.

pub mod compare;
pub mod index;
pub mod memtables;
pub mod plot;
pub mod reports;

/// What a subcommand comes to.
pub type Outcome = terrace_bench::StoreResult<()>;
