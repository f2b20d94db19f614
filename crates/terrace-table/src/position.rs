//! Where a block lies, in one word that an index can hold.
//!
//! ```text
//! 63..62  tag, 0b00
//! 61..36  table number
//! 35..8   byte offset of the block / 16
//!  7..0   length code: ceil(block length / 512), or 255 for blocks over 254 x 512 bytes
//! ```
//!
//! Blocks start after a table's 16-byte head, so the offset field, and with it the word, is never 0.

/// Blocks start at multiples of this many bytes.
pub(crate) const BLOCK_ALIGN: u64 = 16;
/// Bytes per step of the length code.
const LENGTH_UNIT: u64 = 512;
/// The length code of long blocks: read [`LONG_FIRST_READ`] bytes; the header in them has the length.
const LONG: u64 = 255;
/// Bytes of the first read of a long block.
const LONG_FIRST_READ: usize = 128 << 10;

/// The place of one block of one table: enough to read and check it without any index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(u64);

impl Position {
    /// Table numbers are below this.
    pub const MAX_TABLES: u64 = 1 << 26;
    /// Blocks that a position can name start below this byte offset.
    pub const MAX_OFFSET: u64 = 1 << 32;

    /// The position of the `len`-byte block at `offset` of table `number`; `None` if a part is out of range.
    pub fn new(number: u64, offset: u64, len: u64) -> Option<Position> {
        let fits = number < Self::MAX_TABLES
            && (BLOCK_ALIGN..Self::MAX_OFFSET).contains(&offset)
            && offset.is_multiple_of(BLOCK_ALIGN)
            && len > 0;
        let code = len.div_ceil(LENGTH_UNIT).min(LONG);
        fits.then_some(Position(number << 36 | (offset / BLOCK_ALIGN) << 8 | code))
    }

    /// The position stored as `word`; `None` if it is not one.
    pub fn from_word(word: u64) -> Option<Position> {
        let position = Position(word);
        let valid = word >> 62 == 0 && position.offset() != 0 && word & 0xff != 0;
        valid.then_some(position)
    }

    /// The word that stores this position; never 0, the two high bits clear.
    pub fn word(self) -> u64 {
        self.0
    }

    /// The table's number.
    pub fn number(self) -> u64 {
        self.0 >> 36
    }

    /// The block's byte offset in the file.
    pub fn offset(self) -> u64 {
        ((self.0 >> 8) & 0xfff_ffff) * BLOCK_ALIGN
    }

    /// Bytes to read at first: all of the block, unless it [is long](Self::is_long).
    pub fn read_len(self) -> usize {
        if self.is_long() { LONG_FIRST_READ } else { ((self.0 & 0xff) * LENGTH_UNIT) as usize }
    }

    /// Whether the block may be longer than [`read_len`](Self::read_len).
    pub fn is_long(self) -> bool {
        self.0 & 0xff == LONG
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_word() {
        let p = Position::new(7, 4096, 1000).unwrap();
        assert_eq!(p.word(), 0x0000_0070_0001_0002);
        assert_eq!((p.number(), p.offset(), p.read_len(), p.is_long()), (7, 4096, 1024, false));
    }

    #[test]
    fn extremes_round_trip() {
        for number in [0, 1, Position::MAX_TABLES - 1] {
            for offset in [16, 32, Position::MAX_OFFSET - 16] {
                for len in [1, 512, 513, 254 * 512, 254 * 512 + 1, 1 << 31] {
                    let p = Position::new(number, offset, len).unwrap();
                    assert_eq!(Position::from_word(p.word()), Some(p));
                    assert_eq!((p.number(), p.offset()), (number, offset));
                    assert!(p.is_long() || p.read_len() as u64 >= len);
                    assert_eq!(p.is_long(), len > 254 * 512);
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert_eq!(Position::new(Position::MAX_TABLES, 16, 1), None);
        assert_eq!(Position::new(0, 0, 1), None);
        assert_eq!(Position::new(0, 24, 1), None);
        assert_eq!(Position::new(0, Position::MAX_OFFSET, 1), None);
        assert_eq!(Position::new(0, 16, 0), None);
        assert_eq!(Position::from_word(0), None);
        assert_eq!(Position::from_word(1 << 62 | 0x101), None);
        assert_eq!(Position::from_word(0x100), None);
    }
}
