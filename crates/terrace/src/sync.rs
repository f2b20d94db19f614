//! The primitives of the model-checked parts. `terrace-model` replaces them.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(crate) use parking_lot::{Condvar, Mutex};
