//! The commands, each a struct of arguments that can be run.

pub mod bench;
pub mod check;
pub mod completions;
pub mod dump;
pub mod explain;
pub mod export;
pub mod import;
pub mod keyspaces;
pub mod man;
pub mod merge;
pub mod options;
pub mod point;
pub mod scan;
pub mod stat;
mod swept;
pub mod tour;
