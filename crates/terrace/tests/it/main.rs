//! Tests of the store through its public interface.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod smoke;
