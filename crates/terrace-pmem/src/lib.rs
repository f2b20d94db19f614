//! Persistent memory: the only crate that stores to it.

pub mod media;

pub use media::{Granularity, LINE_BYTES, Media, XPLINE_BYTES};
