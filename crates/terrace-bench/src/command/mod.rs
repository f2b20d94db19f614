//! The subcommands, each a file.

pub mod index;
pub mod plot;

/// What a subcommand comes to.
pub type Outcome = Result<(), Box<dyn std::error::Error>>;
