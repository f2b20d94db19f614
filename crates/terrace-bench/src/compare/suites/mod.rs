//! The scripts of each suite, as data.
//!
//! | file | suites |
//! |---|---|
//! | `general.rs` | quick and full: all stores |
//! | `tlsm.rs` | the evaluation of TLSM, figure by figure |
//! | `lab.rs` | skewed updates with less memory than data |

pub mod general;
pub mod lab;
pub mod tlsm;
