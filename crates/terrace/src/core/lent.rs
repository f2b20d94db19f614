//! A value as an engine has found it.

use std::ops::Deref;

use bytes::Bytes;

/// A value that a reader is shown.
#[derive(Debug)]
pub(crate) enum Lent<'v> {
    /// It stays where it lies as long as it is shown, in a memtable or in the pool.
    InPlace(&'v [u8]),
    /// It was read for this reader, or shares what keeps it.
    Own(Bytes),
}

/// The value, to be kept.
pub(crate) fn to_keep(value: Lent<'_>) -> Bytes {
    match value {
        Lent::InPlace(value) => Bytes::copy_from_slice(value),
        Lent::Own(value) => value,
    }
}

impl Deref for Lent<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Lent::InPlace(value) => value,
            Lent::Own(value) => value,
        }
    }
}
