//! Integration tests of the indexes: conformance by constructor, crashes in simulated worlds.
//!
//! An index joins by one line, `conformance!(name, Case)`, where a case says how the index is made.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, which the lint cannot see")]

mod bed;
mod cceh;
mod changes;
mod conformance;
mod create;
mod displaced;
mod extra_subjects;
mod fastfair;
mod skiplist;
mod skiplist_salvage;
mod spot_on;
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
conformance!(cceh_1, crate::extra_subjects::Extendible<1, 1>);
conformance!(cceh_4, crate::extra_subjects::Extendible<4, 2>);
conformance!(cceh_256, crate::extra_subjects::Extendible<256, 4>);
conformance!(fastfair_b, crate::extra_subjects::Buffered<terrace_index::FastFair<4>>);
conformance!(fastfair_bo, crate::extra_subjects::Uncached<terrace_index::FastFair<5>>);
conformance!(fastfair_boc, crate::extra_subjects::Replaced<terrace_index::FastFair<6>>);
conformance!(skip_b, crate::extra_subjects::Buffered<terrace_index::SkipIndex>);
conformance!(skip_bo, crate::extra_subjects::Replaced<terrace_index::SkipIndex>);
conformance!(cceh_b, crate::extra_subjects::Buffered<terrace_index::Cceh<2, 1>>);
conformance!(cceh_bo, crate::extra_subjects::Uncached<terrace_index::Cceh<2, 2>>);
conformance!(cceh_boc, crate::extra_subjects::Replaced<terrace_index::Cceh<4, 2>>);
