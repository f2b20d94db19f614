//! Integration tests of the indexes: conformance by constructor, crashes in simulated worlds.
//!
//! An ordered index joins by one line: `conformance!(name, Constructor)`; a hash index by
//! `hash_conformance!(name, Constructor)`.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, which the lint cannot see")]

mod bed;
mod cceh;
mod changes;
mod conformance;
mod create;
mod displaced;
mod fastfair;
mod skiplist;
mod skiplist_salvage;
mod spot_on;
mod sptree;
mod stray;
mod turbohash;

use conformance::{conformance, hash_conformance};

conformance!(skip_index, crate::conformance::Skip);
conformance!(fastfair_4, crate::conformance::Fair<4>);
conformance!(fastfair_5, crate::conformance::Fair<5>);
conformance!(fastfair_28, crate::conformance::Fair<28>);
conformance!(sptree_4, crate::sptree::Sp<4, false, 0>);
conformance!(sptree_4_buffered, crate::sptree::Sp<4, false, 2>);
conformance!(sptree_6_buffered_lagging, crate::sptree::Sp<6, true, 4>);
conformance!(sptree_5_lagging, crate::sptree::Sp<5, true, 0>);
hash_conformance!(turbohash_tiny, crate::conformance::Turbo<1, 1, 2>);
hash_conformance!(turbohash_small, crate::conformance::Turbo<4, 2, 3>);
hash_conformance!(turbohash_usual, crate::conformance::Turbo<64, 4, 16>);
hash_conformance!(cceh_1, crate::conformance::Extendible<1, 1>);
hash_conformance!(cceh_4, crate::conformance::Extendible<4, 2>);
hash_conformance!(cceh_256, crate::conformance::Extendible<256, 4>);
conformance!(fastfair_b, crate::conformance::Buffered<terrace_index::FastFair<4>>);
conformance!(fastfair_bo, crate::conformance::Uncached<terrace_index::FastFair<5>>);
conformance!(fastfair_boc, crate::conformance::Replaced<terrace_index::FastFair<6>>);
conformance!(skip_b, crate::conformance::Buffered<terrace_index::SkipIndex>);
conformance!(skip_bo, crate::conformance::Replaced<terrace_index::SkipIndex>);
hash_conformance!(cceh_b, crate::conformance::Buffered<terrace_index::Cceh<2, 1>>);
hash_conformance!(cceh_bo, crate::conformance::Uncached<terrace_index::Cceh<2, 2>>);
hash_conformance!(cceh_boc, crate::conformance::Replaced<terrace_index::Cceh<4, 2>>);
