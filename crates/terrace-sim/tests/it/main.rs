//! The simulator from outside: worlds, exploration, and the bugs it must find.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod contract;
mod explore;
mod growth;
mod planted;
mod pool;
mod raw;
mod slots;
mod world;
