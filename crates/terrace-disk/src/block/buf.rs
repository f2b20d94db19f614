//! Memory that a drive reads and writes directly.

use std::fmt;
use std::ops::{Deref, DerefMut};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The alignment of such memory: a multiple of every sector size in use.
pub const BLOCK_ALIGN_BYTES: usize = 4096;

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; BLOCK_ALIGN_BYTES]);

const _: () = assert!(size_of::<Page>() == BLOCK_ALIGN_BYTES && align_of::<Page>() == BLOCK_ALIGN_BYTES);

/// Bytes that lie on a multiple of [`BLOCK_ALIGN_BYTES`].
#[derive(Clone, Default)]
pub struct BlockBuf {
    pages: Vec<Page>,
    len: usize,
}

impl BlockBuf {
    /// Zeros of this length.
    pub fn zeroed(len: usize) -> Self {
        BlockBuf { pages: vec![Page([0; BLOCK_ALIGN_BYTES]); len.div_ceil(BLOCK_ALIGN_BYTES)], len }
    }

    /// `data`, and zeros up to the end of its last sector.
    pub fn holding(data: &[u8], sector_bytes: u32) -> Self {
        let mut buf = Self::zeroed(data.len().next_multiple_of(sector_bytes as usize));
        buf[..data.len()].copy_from_slice(data);
        buf
    }
}

impl Deref for BlockBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.pages.as_slice().as_bytes()[..self.len]
    }
}

impl DerefMut for BlockBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.pages.as_mut_slice().as_mut_bytes()[..self.len]
    }
}

impl AsRef<[u8]> for BlockBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for BlockBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockBuf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_aligned_and_padded() {
        for len in [0, 1, 511, 512, 513, 4096, 4097, 100_000] {
            let data: Vec<u8> = (1..=255).cycle().take(len).collect();
            let buf = BlockBuf::holding(&data, 512);
            assert_eq!((buf.len() % 512, &buf[..len]), (0, &data[..]));
            assert!(buf.len() - len < 512 && buf[len..].iter().all(|&byte| byte == 0));
            assert!((buf.as_ptr() as usize).is_multiple_of(BLOCK_ALIGN_BYTES));
        }
    }
}
