//! The primitives of the parts that are model-checked. `terrace-model` replaces them.

pub(crate) use parking_lot::Mutex;
pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
