//! The kinds of versions of a key, as every format stores them.
//!
//! Its byte, or the lowest bits of a word that holds more than it, is a kind in bits 0 and 1 and, in bit 2, whether
//! further fields follow: an expiry, the number of a keyspace. This version writes puts, deletions and merge operands, all
//! without such fields; operands only where those who read expect them. The others are reserved: a reader that meets one
//! knows that it is sound and that a later version has written it, and refuses it by name. Any other byte is damage.

use std::path::Path;

use crate::{Error, Result};

/// The kind of a version of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The key was deleted: a tombstone.
    Delete = 0,
    /// The key was given a value.
    Put = 1,
    /// An operand was merged into the key's value: what that is depends on the version before.
    Operand = 3,
}

impl Kind {
    /// Bits that a kind takes in a word that holds more than it.
    pub const BITS: u32 = 3;

    /// The kind stored as `byte`; `None` if there is no such kind, or if it is [reserved](Self::reserved).
    #[inline]
    pub fn from_u8(byte: u8) -> Option<Kind> {
        match byte {
            0 => Some(Kind::Delete),
            1 => Some(Kind::Put),
            3 => Some(Kind::Operand),
            _ => None,
        }
    }

    /// The meaning that `byte` is reserved for, if a later version is to use it.
    pub fn reserved(byte: u8) -> Option<&'static str> {
        match byte {
            2 => Some("a deletion of a range"),
            4..=7 => Some("a version with an expiry or a keyspace"),
            _ => None,
        }
    }

    /// The kind's byte of a record that has a byte `fields` beside it. That is 0 in this version: later ones say there
    /// which fields follow, and the kind of such a record is one of theirs.
    #[inline]
    pub fn byte(kind: u8, fields: u8) -> u8 {
        if fields == 0 { kind } else { kind | 4 }
    }

    /// The kind stored as `byte` in a record at `offset` of `file`.
    ///
    /// # Errors
    ///
    /// `InvalidFormat` if the byte is [reserved](Self::reserved): a later version wrote it, and it is neither a
    /// deletion nor to be passed over. `Corruption` for any other.
    pub fn parse(byte: u8, file: &Path, offset: u64) -> Result<Kind> {
        match Kind::parse_any(byte, file, offset)? {
            Kind::Operand => Err(Kind::later("a merge operand", file)),
            kind => Ok(kind),
        }
    }

    /// [`parse`](Self::parse), where there may be operands.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn parse_any(byte: u8, file: &Path, offset: u64) -> Result<Kind> {
        Kind::from_u8(byte).ok_or_else(|| match Kind::reserved(byte) {
            Some(what) => Kind::later(what, file),
            None => {
                let expected = "a deletion (0), a put (1) or an operand (3)";
                Error::corruption(file, offset, expected, format!("kind {byte}"))
            }
        })
    }

    /// Whether a version of this kind alone says which value the key has, or that it has none.
    #[inline]
    pub fn is_whole(self) -> bool {
        self != Kind::Operand
    }

    /// The error for a record of a kind that only a later version knows.
    #[cold]
    pub fn later(what: &'static str, file: &Path) -> Error {
        Error::other_version(file, format!("of a later version (it holds {what})"), "puts and deletions")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_bytes_are_of_a_later_version_and_others_are_damage() {
        for byte in 0..=255 {
            let parsed = Kind::parse(byte, Path::new("pool"), 64);
            match byte {
                0 => assert_eq!(parsed.unwrap(), Kind::Delete),
                1 => assert_eq!(parsed.unwrap(), Kind::Put),
                2..=7 => assert!(parsed.unwrap_err().is_of_another_version()),
                _ => assert!(matches!(parsed, Err(Error::Corruption { .. }))),
            }
            let known = Some(byte).filter(|byte| [0, 1, 3].contains(byte));
            assert_eq!(Kind::from_u8(byte).map(|kind| kind as u8), known);
            assert_eq!(Kind::parse_any(byte, Path::new("pool"), 64).is_ok(), known.is_some());
            assert_eq!(Kind::byte(byte, 0), byte);
            assert_eq!(Kind::reserved(Kind::byte(byte, 1)).is_some(), byte < 8, "fields follow a known kind");
        }
    }
}
