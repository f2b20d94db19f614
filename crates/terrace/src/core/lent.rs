//! A value as an engine has found it.

use std::ops::Deref;

use bytes::Bytes;
use terrace_table::Entry;

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
}

impl<'v> Lent<'v> {
    pub fn in_place(number: u64, value: &'v [u8]) -> Lent<'v> {
        Lent { number, value: Value::InPlace(value) }
    }

    pub fn own(number: u64, value: Bytes) -> Lent<'v> {
        Lent { number, value: Value::Own(value) }
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
        };
        Lent { value, ..self }
    }

    /// Whether it was read for this reader.
    pub fn is_own(&self) -> bool {
        matches!(self.value, Value::Own(_))
    }
}

/// The value, to be kept.
pub(crate) fn to_keep(lent: Lent<'_>) -> Bytes {
    match lent.value {
        Value::InPlace(value) => Bytes::copy_from_slice(value),
        Value::Own(value) => value,
    }
}

impl Deref for Lent<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.value {
            Value::InPlace(value) => value,
            Value::Own(value) => value,
        }
    }
}
