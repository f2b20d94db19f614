//! Integration tests of the indexes: conformance by constructor, crashes in simulated worlds.
//!
//! An index joins by one line, `conformance!(name, Case)`, where a case says how the index is made.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, which the lint cannot see")]

mod bed;
mod changes;
mod conformance;
mod create;
mod displaced;
mod displacing;
mod fastfair;
mod pmlist;
mod pmlist_damage;
mod skiplist;
mod skiplist_crashes;
mod skiplist_salvage;
mod sptree;
mod stray;
mod subjects;
mod turbohash;

use conformance::conformance;

conformance!(skip_index, crate::subjects::Skip);
conformance!(fastfair_4, crate::subjects::Fair<4>);
conformance!(fastfair_5, crate::subjects::Fair<5>);
conformance!(fastfair_28, crate::subjects::Fair<28>);
conformance!(sptree_4, crate::sptree::Sp<4, false, 0>);
conformance!(sptree_4_buffered, crate::sptree::Sp<4, false, 2>);
conformance!(sptree_6_buffered_lagging, crate::sptree::Sp<6, true, 4>);
conformance!(sptree_5_lagging, crate::sptree::Sp<5, true, 0>);
conformance!(turbohash_tiny, crate::subjects::Turbo<1, 1, 2>);
conformance!(turbohash_small, crate::subjects::Turbo<4, 2, 3>);
conformance!(turbohash_usual, crate::subjects::Turbo<64, 4, 16>);
