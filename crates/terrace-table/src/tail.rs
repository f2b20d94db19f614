//! The parts that opening a table reads: the two ends of its file, and blocks in them, checked.

use bytes::Bytes;
use terrace_base::codec::Reader;
use terrace_base::{Error, Result};
use terrace_disk::ReadFile;

use crate::block::Block;
use crate::footer::{FOOTER_BYTES, Footer, HEAD_BYTES};
use crate::frame::{BlockKind, HEADER_BYTES, Handle, Header, Malformed, Owner};
use crate::meta::TableMeta;

/// Opening reads this much of the file's end at once: the footer, the figures, and most roots.
const TAIL_BYTES: u64 = 8 << 10;
const _: () = assert!(HEADER_BYTES < TAIL_BYTES as usize);

/// Checks the bytes of the block at `handle` and returns its payload.
pub(crate) fn open_payload(
    file: &dyn ReadFile,
    bytes: Bytes,
    handle: Handle,
    kind: BlockKind,
    owner: Owner,
) -> Result<Bytes> {
    let at = |m: Malformed| m.at(file.path(), handle.offset);
    let header = Header::decode(&bytes, handle.offset, owner.origin).map_err(at)?;
    if header.number != owner.number || header.kind != kind || header.block_len() != handle.len {
        let found =
            format!("{:?} block of {} bytes of table {}", header.kind, header.block_len(), header.number);
        let expected = format!("{kind:?} block of {} bytes of table {}", handle.len, owner.number);
        return Err(Error::corruption(file.path(), handle.offset, expected, found));
    }
    header.open_payload(&bytes).map_err(at)
}

/// Checks the bytes of the entry-holding block at `handle`.
pub(crate) fn decode_block(
    file: &dyn ReadFile,
    bytes: Bytes,
    handle: Handle,
    kind: BlockKind,
    owner: Owner,
) -> Result<Block> {
    let stored = bytes.len();
    let payload = open_payload(file, bytes, handle, kind, owner)?;
    let held = payload.len().max(stored.min(handle.len as usize));
    Block::new(payload, handle.offset, held).map_err(|m| m.at(file.path(), handle.offset))
}

/// The two ends of a file being opened.
#[derive(Debug)]
pub(crate) struct Tail {
    head: Vec<u8>,
    bytes: Bytes,
    start: u64,
}

impl Tail {
    pub fn read(file: &dyn ReadFile) -> Result<Tail> {
        let len = file.len();
        let mut head = vec![0; len.min(HEAD_BYTES as u64) as usize];
        let mut bytes = vec![0; len.min(TAIL_BYTES) as usize];
        let start = len - bytes.len() as u64;
        file.read_many(&mut [(0, &mut head), (start, &mut bytes)])?;
        Ok(Tail { head, bytes: Bytes::from(bytes), start })
    }

    pub fn footer(&self, file: &dyn ReadFile) -> Result<Footer> {
        let enough = file.len() >= (HEAD_BYTES + FOOTER_BYTES) as u64;
        let foot_at = if enough { self.bytes.len() - FOOTER_BYTES } else { self.bytes.len() };
        Footer::decode(file.path(), &self.head, &self.bytes[foot_at..], file.len())
    }

    /// The bytes of the block at `handle`, which the footer has bounded by the file.
    fn bytes(&self, file: &dyn ReadFile, handle: Handle) -> Result<Bytes> {
        if handle.offset >= self.start {
            let start = (handle.offset - self.start) as usize;
            // Copied, so that a root of a few bytes does not hold the whole tail.
            return Ok(Bytes::copy_from_slice(&self.bytes[start..start + handle.len as usize]));
        }
        let mut buf = vec![0; handle.len as usize];
        file.read_at(handle.offset, &mut buf)?;
        Ok(Bytes::from(buf))
    }

    pub fn meta(&self, file: &dyn ReadFile, footer: &Footer) -> Result<TableMeta> {
        let bytes = self.bytes(file, footer.meta)?;
        let payload = open_payload(file, bytes, footer.meta, BlockKind::Meta, footer.owner())?;
        let mut r = Reader::new(&payload);
        TableMeta::decode(&mut r)
            .filter(|meta| {
                r.is_empty()
                    && meta.number == u64::from(footer.number)
                    && meta.file_bytes == footer.file_bytes
            })
            .ok_or_else(|| {
                Error::corruption(file.path(), footer.meta.offset, "the table's figures", "other bytes")
            })
    }

    pub fn block(
        &self,
        file: &dyn ReadFile,
        footer: &Footer,
        handle: Handle,
        kind: BlockKind,
    ) -> Result<Block> {
        decode_block(file, self.bytes(file, handle)?, handle, kind, footer.owner())
    }
}
