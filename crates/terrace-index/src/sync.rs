//! What the parts that are model-checked are made of. `crates/terrace/tests/model` puts others in their place.

pub(crate) use parking_lot::Mutex;
pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
