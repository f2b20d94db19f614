//! Reading a table block by block, without its index.

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_disk::ReadFile;

use crate::footer::{FOOTER_BYTES, HEAD_BYTES};
use crate::frame::{HEADER_BYTES, Handle, Header};

/// Bytes read at once, unless a block is longer.
const WINDOW_BYTES: u64 = 1 << 20;

/// Reads a file roughly in sequence, in large pieces.
///
/// Invariant: `window` holds the file's bytes from `start`.
#[derive(Debug)]
pub(crate) struct Scanner<'a> {
    file: &'a dyn ReadFile,
    window: Bytes,
    start: u64,
}

impl<'a> Scanner<'a> {
    pub fn new(file: &'a dyn ReadFile) -> Self {
        Scanner { file, window: Bytes::new(), start: 0 }
    }

    /// The `len` bytes at `offset`; `Corruption` if the file is shorter.
    pub fn bytes(&mut self, offset: u64, len: u64) -> Result<Bytes> {
        let rest = self.file.len().saturating_sub(offset);
        if len > rest {
            let found = format!("{rest} before the end of the file");
            return Err(Error::corruption(self.file.path(), offset, format!("{len} bytes"), found));
        }
        if offset < self.start || offset + len > self.start + self.window.len() as u64 {
            self.window = Bytes::new();
            // A piece of the window that cannot be read must not cost the rest of it.
            self.window =
                self.read(offset, rest.min(WINDOW_BYTES.max(len))).or_else(|_| self.read(offset, len))?;
            self.start = offset;
        }
        let at = (offset - self.start) as usize;
        Ok(self.window.slice(at..at + len as usize))
    }

    fn read(&self, offset: u64, len: u64) -> Result<Bytes> {
        let mut buf = vec![0; len as usize];
        self.file.read_at(offset, &mut buf)?;
        Ok(Bytes::from(buf))
    }

    /// The header at `offset` of a table of `origin`.
    pub fn header(&mut self, offset: u64, origin: u64) -> Result<Header> {
        let bytes = self.bytes(offset, HEADER_BYTES as u64)?;
        Header::decode(&bytes, offset, origin).map_err(|m| m.at(self.file.path(), offset))
    }
}

/// Visits every block of a table of `origin` from the first to the footer, which starts at `limit`: its place, its
/// header and its bytes, not yet checked. Blocks must follow each other without a gap but zeros.
pub(crate) fn walk(
    file: &dyn ReadFile,
    origin: u64,
    mut visit: impl FnMut(Handle, &Header, Bytes) -> Result<()>,
) -> Result<()> {
    let limit = file.len().saturating_sub(FOOTER_BYTES as u64);
    let mut scanner = Scanner::new(file);
    let mut offset = HEAD_BYTES as u64;
    while offset < limit {
        let header = scanner.header(offset, origin)?;
        let handle = Handle { offset, len: header.block_len() };
        if handle.end() > limit {
            let found = format!("{} bytes", handle.len);
            return Err(Error::corruption(file.path(), offset, "a block before the footer", found));
        }
        let padded = scanner.bytes(offset, handle.end() - offset)?;
        if padded[handle.len as usize..].iter().any(|&b| b != 0) {
            let at = offset + handle.len;
            return Err(Error::corruption(file.path(), at, "zeros up to the next block", "other bytes"));
        }
        visit(handle, &header, padded.slice(..handle.len as usize))?;
        offset = handle.end();
    }
    Ok(())
}
