//! What the parts that are model-checked are made of. `tests/model` puts others in their place.

pub(crate) use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use parking_lot::{Condvar, Mutex};
