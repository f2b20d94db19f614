//! Integration tests of the indexes: conformance by constructor, crashes in simulated worlds.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod bed;
mod skiplist;
