//! Terrace: the store.

pub mod compaction;
pub mod manifest;
