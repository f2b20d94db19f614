//! Tests of the file systems: one contract for all, and what is each one's own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod blocks;
mod contract;
mod real;
mod sim_crash;
mod sim_faults;
mod slots;
