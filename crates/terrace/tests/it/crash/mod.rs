//! The whole store under power cuts, kills and faults: every acknowledged write is there, nothing else is.
//!
//! `docs/simulator.md` tells how the simulator works and how to replay a failure.

mod batches;
mod buckets;
pub mod env;
mod faults;
mod filters;
mod ingests;
pub mod judge;
mod keyspaces;
mod lists;
pub mod mixes;
mod moments;
pub mod ops;
mod ranges;
mod refused;
mod regressions;
mod repairs;
mod room;
pub mod run;
mod scenarios;
mod spaces;
mod sparse;
mod split;
mod trees;
mod writers;
pub mod writing;
