//! Lock-free parts under a scheduler that tries many orders of their steps.
//!
//! `limbo`, the commit queue, the empty ranges and the recent writes are the store's own source, compiled here over
//! atomics and locks that give the scheduler a say. The node of the B+-tree works in a mapped pool and cannot be, nor
//! can the lines of the hash memtable, whose slots are words: there the protocol of writer and lock-free reader is
//! checked on small ones that store in the same order. The scheduler knows sequential consistency alone; weaker orders
//! are what the sanitizer and the tests on real threads are for.
//!
//! `MODEL_ROUNDS=100` runs so many times as many orders.
#![cfg(test)]
#![allow(dead_code, missing_docs, reason = "parts of the store stand here without their users")]

mod commits;
mod empty;
mod fast;
mod hash;
mod limbos;
mod recent;
mod sync;

/// What the commit queue needs of a batch.
mod batch {
    #[derive(Debug)]
    pub struct NewRangeTombstone;

    #[derive(Debug, Default)]
    pub struct WriteBatch(pub Vec<u8>);

    impl WriteBatch {
        pub fn encoded(&self) -> &[u8] {
            &self.0
        }

        pub fn give_back(self) {}

        pub fn len(&self) -> usize {
            self.0.len()
        }

        pub fn range_tombstone(&self) -> Option<&NewRangeTombstone> {
            None
        }

        pub fn is_deletion(&self) -> bool {
            false
        }
    }
}

#[path = "../../terrace/src/db/commit.rs"]
mod commit;
#[path = "../../terrace/src/core/empty_ranges.rs"]
mod empty_ranges;
#[path = "../../terrace/src/core/recent_writes.rs"]
mod recent_writes;
#[path = "../../terrace/src/core/request.rs"]
mod request;
/// Where the parts find what they stand on.
mod core {
    pub(crate) use crate::{empty_ranges, recent_writes, request};

    pub(crate) mod engine {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Direction {
            Forward,
            Backward,
        }
    }
}
#[path = "../../terrace-index/src/limbo.rs"]
mod limbo;

/// Runs `scenario` under many orders, random ones and such as need few switches.
fn check(scenario: impl Fn() + Send + Sync + Clone + 'static) {
    let rounds: usize = std::env::var("MODEL_ROUNDS").map_or(1, |text| text.parse().unwrap());
    shuttle::check_random(scenario.clone(), 5_000 * rounds);
    shuttle::check_pct(scenario, 5_000 * rounds, 3);
}
