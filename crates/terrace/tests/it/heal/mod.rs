//! Faults that heal: operations of the disk or the pool are refused, once or for a while, and then all is well again.
//!
//! | file | what it does |
//! |---|---|
//! | `scenarios.rs` | what a store does while something is refused |
//! | `cases.rs` | which operations are refused, and how many; runs one case after the other |
//! | `life.rs` | drives a store beside a model, with snapshots and iterators held |
//! | `space.rs` | whether a store that is at rest takes no more room than a fresh one |
//! | `known.rs` | cases that were found, each kept as it was |
//!
//! Each case asks: what is answered is right, always, for the present and for every snapshot and iterator;
//! a refused write is not there; once all is well every operation succeeds, without reopening; the check is clean, the
//! room is back; and whatever then happens to process or power, what was acknowledged is there.

mod cases;
mod known;
mod life;
mod scenarios;
mod space;
