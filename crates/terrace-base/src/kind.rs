//! What a version of a key says, as every format stores it.

use std::path::Path;

use crate::{Error, Result};

/// What a version of a key says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The key was deleted: a tombstone.
    Delete = 0,
    /// The key was given a value.
    Put = 1,
}

impl Kind {
    /// The kind stored as `byte`; `None` if there is no such kind.
    pub fn from_u8(byte: u8) -> Option<Kind> {
        match byte {
            0 => Some(Kind::Delete),
            1 => Some(Kind::Put),
            _ => None,
        }
    }

    /// The kind stored as `byte` in a record at `offset` of `file`. Another byte is damage, or what a later version
    /// has written: it is neither a deletion nor to be passed over.
    pub fn parse(byte: u8, file: &Path, offset: u64) -> Result<Kind> {
        Kind::from_u8(byte).ok_or_else(|| unknown(byte, file, offset))
    }
}

#[cold]
fn unknown(byte: u8, file: &Path, offset: u64) -> Error {
    Error::corruption(file, offset, "a deletion (0) or a put (1)", format!("kind {byte}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn every_other_byte_is_damage() {
        for byte in 0..=255 {
            let parsed = Kind::parse(byte, Path::new("pool"), 64);
            match byte {
                0 => assert_eq!(parsed.unwrap(), Kind::Delete),
                1 => assert_eq!(parsed.unwrap(), Kind::Put),
                _ => assert_eq!(parsed.unwrap_err().kind(), ErrorKind::Corruption),
            }
            assert_eq!(Kind::from_u8(byte).map(|kind| kind as u8), Some(byte).filter(|byte| *byte < 2));
        }
    }
}
