//! Tests of the crate through its public interface.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, which the lint cannot see")]

mod crash;
mod damage;
mod kept;
mod lost;
mod model;
mod pool;
mod sizes;
mod stale;
mod support;
mod threads;
mod untouched;
