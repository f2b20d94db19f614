//! The base of every Terrace crate: the error type, codecs, checksums, the kinds of versions, time, randomness and the
//! executor of background work.
//!
//! Nothing here knows of persistent memory or of files. Time, randomness and threads are reached
//! through this crate alone, so that a simulated run with one seed is one history.

pub mod alarm;
mod calm;
pub mod checksum;
pub mod clock;
pub mod codec;
pub mod error;
pub mod exec;
pub mod key_filter;
mod kind;
pub mod prefetch;
pub mod prefix;
pub mod rng;
pub mod size;
pub mod trail;

pub use calm::Calm;
pub use error::{Error, ErrorKind, Result};
pub use kind::Kind;
