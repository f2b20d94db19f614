//! The whole store under power cuts, kills and faults: every acknowledged write is there, nothing else is.
//!
//! `docs/simulator.md` tells how the simulator works and how to replay a failure.

mod batches;
mod env;
mod faults;
mod judge;
mod ops;
mod regressions;
mod room;
mod run;
mod scenarios;
mod writers;
