//! Integration tests: the suite that the indexes of `terrace-index` pass, for those of this crate, and what is
//! particular to each of them.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, which the lint cannot see")]

#[allow(dead_code, reason = "shared; each crate uses some of it")]
#[path = "../../../terrace-index/tests/it/bed.rs"]
mod bed;
mod buffered;
mod cceh;
mod changes;
#[allow(dead_code, unused_imports, reason = "shared; each crate uses some of it")]
#[path = "../../../terrace-index/tests/it/conformance/mod.rs"]
mod conformance;
mod create;
mod subjects;

use conformance::conformance;

conformance!(cceh_1, crate::subjects::Extendible<1, 1>);
conformance!(cceh_4, crate::subjects::Extendible<4, 2>);
conformance!(cceh_256, crate::subjects::Extendible<256, 4>);
conformance!(fastfair_b, crate::subjects::Buffered<terrace_index::FastFair<4>>);
conformance!(fastfair_bo, crate::subjects::Uncached<terrace_index::FastFair<5>>);
conformance!(fastfair_boc, crate::subjects::Replaced<terrace_index::FastFair<6>>);
conformance!(skip_b, crate::subjects::Buffered<terrace_index::SkipIndex>);
conformance!(skip_bo, crate::subjects::Replaced<terrace_index::SkipIndex>);
conformance!(cceh_b, crate::subjects::Buffered<terrace_index_extra::Cceh<2, 1>>);
conformance!(cceh_bo, crate::subjects::Uncached<terrace_index_extra::Cceh<2, 2>>);
conformance!(cceh_boc, crate::subjects::Replaced<terrace_index_extra::Cceh<4, 2>>);
