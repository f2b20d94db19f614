//! Whole suites, on a model store and on Terrace.
#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod compare;
mod db;
mod index;
mod measures;
mod model;
mod suites;
