//! Whole suites on a model store.
#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod model;
mod suites;
