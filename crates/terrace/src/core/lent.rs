//! A value as an engine has found it.

use std::ops::Deref;

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_table::Entry;

use super::Core;

impl Core {
    /// Why what was shown is not to be relied upon: what could not be read through a mapping is zeros.
    pub fn shown_as_zeros(&self) -> Error {
        let why = "a table could not be read through its mapping while a value was shown";
        Error::io(&self.dir, "read", std::io::Error::other(why))
    }
}

/// A value that a reader is shown.
#[derive(Debug)]
pub(crate) struct Lent<'v> {
    /// The number of its version.
    pub number: u64,
    value: Value<'v>,
}

#[derive(Debug)]
enum Value<'v> {
    /// It stays where it lies as long as it is shown, in a memtable or in the pool.
    InPlace(&'v [u8]),
    /// It was read for this reader, or shares what keeps it.
    Own(Bytes),
    /// There is one, but its operands cannot be folded into it.
    Unknown(Box<Error>),
}

impl<'v> Lent<'v> {
    pub fn in_place(number: u64, value: &'v [u8]) -> Lent<'v> {
        Lent { number, value: Value::InPlace(value) }
    }

    pub fn own(number: u64, value: Bytes) -> Lent<'v> {
        Lent { number, value: Value::Own(value) }
    }

    /// A value that is not known, for whatever reason.
    pub fn unknown(number: u64, why: Error) -> Lent<'v> {
        Lent { number, value: Value::Unknown(Box::new(why)) }
    }

    /// # Errors
    ///
    /// Why the value is not known, if it is not: it seems to be empty then.
    pub fn known(self) -> Result<Lent<'v>> {
        match self.value {
            Value::Unknown(why) => Err(*why),
            _ => Ok(self),
        }
    }

    /// Why the value is not known, if it is not.
    pub fn failure(&self) -> Option<&Error> {
        match &self.value {
            Value::Unknown(why) => Some(why),
            _ => None,
        }
    }

    /// The value of an entry of a table; `None` for a tombstone.
    pub fn of_entry(entry: Entry) -> Option<Lent<'v>> {
        let number = entry.seq;
        entry.into_value().map(|value| Lent::own(number, value))
    }

    /// The value without its first `bytes`, of which it has as many.
    pub fn without(self, bytes: usize) -> Lent<'v> {
        let value = match self.value {
            Value::InPlace(value) => Value::InPlace(&value[bytes..]),
            Value::Own(value) => Value::Own(value.slice(bytes..)),
            unknown @ Value::Unknown(_) => unknown,
        };
        Lent { value, ..self }
    }

    /// Whether it was read for this reader.
    pub fn is_own(&self) -> bool {
        matches!(self.value, Value::Own(_))
    }
}

/// The value, to be kept; it is known.
pub(crate) fn to_keep(lent: Lent<'_>) -> Bytes {
    match lent.value {
        Value::InPlace(value) => Bytes::copy_from_slice(value),
        Value::Own(value) => value,
        Value::Unknown(_) => Bytes::new(),
    }
}

impl Deref for Lent<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.value {
            Value::InPlace(value) => value,
            Value::Own(value) => value,
            Value::Unknown(_) => &[],
        }
    }
}
