//! What must hold for a write to take place.

use std::cell::RefCell;

use bytes::Bytes;
use terrace_base::Result;

use super::engine::Engine;

/// Asks, while nothing else is written, whether a group takes place. It may be asked again where an attempt has
/// found no room.
pub(crate) type Check<'a> = &'a dyn Fn() -> Result<bool>;

/// The condition for a write of one key to take place.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Condition<'a> {
    None,
    /// The key does not exist.
    IfAbsent,
    /// The key exists.
    IfExists,
    /// The key has this value.
    IfIs(&'a Expected<'a>),
}

impl Condition<'_> {
    pub fn is_none(self) -> bool {
        matches!(self, Condition::None)
    }

    /// Whether it holds for what `engine` has of `key` now.
    pub fn holds(self, engine: &dyn Engine, key: &[u8]) -> Result<bool> {
        match self {
            Condition::None => Ok(true),
            Condition::IfAbsent => engine.contains(key).map(|exists| !exists),
            Condition::IfExists => engine.contains(key),
            Condition::IfIs(expected) => engine.get(key, None).map(|value| expected.accepts(value)),
        }
    }
}

/// The value that a key is expected to have, and the one that it had instead.
#[derive(Debug)]
pub(crate) struct Expected<'a> {
    value: Option<&'a [u8]>,
    found: RefCell<Option<Bytes>>,
}

impl<'a> Expected<'a> {
    /// `None`: the key does not exist.
    pub fn new(value: Option<&'a [u8]>) -> Self {
        Expected { value, found: RefCell::new(None) }
    }

    /// Bytes of the expected value.
    pub fn len(&self) -> usize {
        self.value.map_or(0, <[u8]>::len)
    }

    /// Whether `value` is the expected one.
    pub fn is(&self, value: Option<&[u8]>) -> bool {
        self.value == value
    }

    /// Whether `value` is the expected one; another is kept.
    pub fn accepts(&self, value: Option<Bytes>) -> bool {
        let is_expected = self.is(value.as_deref());
        if !is_expected {
            self.found.replace(value);
        }
        is_expected
    }

    /// The value that was not accepted.
    pub fn into_found(self) -> Option<Bytes> {
        self.found.into_inner()
    }
}
