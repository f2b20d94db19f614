//! A table that is lost, but whose figures are known: a lookup of a key that it may have held is an error.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_disk::ReadFile;

use crate::block::{Block, BlockWriter};
use crate::cache::BlockCache;
use crate::ends::Ends;
use crate::entry::Kind;
use crate::footer::{FOOTER_BYTES, Footer};
use crate::frame::{BlockKind, HEADER_BYTES, Handle, Owner};
use crate::index::encode_handle;
use crate::meta::TableMeta;
use crate::options::Compression;
use crate::position::BLOCK_ALIGN;
use crate::table::Table;

/// No table is shorter; smaller figures are invalid.
const SMALLEST_BYTES: u64 = 4096;

/// A file of which every part is an error to read.
#[derive(Debug)]
struct Gone {
    path: PathBuf,
    error: Error,
    len: u64,
}

impl ReadFile for Gone {
    fn read_at(&self, _offset: u64, _buf: &mut [u8]) -> Result<()> {
        Err(self.error.clone())
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl Table {
    /// Stands for the table with the figures `meta`, which is missing because of `error`. Reading within its range of
    /// keys, or at a position in it, returns that error; keys outside of its range are known not to be in it.
    pub fn missing(meta: TableMeta, error: Error, cache: Arc<BlockCache>) -> Arc<Table> {
        let path = match &error {
            Error::Corruption { file, .. } => file.clone(),
            _ => PathBuf::new(),
        };
        let file_bytes = meta.file_bytes.max(SMALLEST_BYTES);
        let data_end = file_bytes - FOOTER_BYTES as u64;
        let whole = Handle { offset: BLOCK_ALIGN, len: HEADER_BYTES as u64 };
        let footer = Footer {
            root: whole,
            filter: None,
            meta: whole,
            data_end,
            number: meta.number as u32,
            file_bytes,
            origin: 0,
        };
        let file = Arc::new(Gone { path, error, len: file_bytes });
        let ends = Ends { footer, root: Arc::new(root_of(&meta, whole)) };
        Arc::new(Table::made_up(file, cache, meta, ends))
    }
}

/// A root that leads from every key up to the largest to one block, which cannot be read.
fn root_of(meta: &TableMeta, whole: Handle) -> Block {
    let (mut value, mut out) = (Vec::new(), Vec::new());
    encode_handle(whole, &mut value);
    let mut writer = BlockWriter::new(1);
    writer.begin(&mut out);
    // Sequence number 0 is the last of a key: all its versions lie before it.
    writer.add(&mut out, &meta.largest, 0, Kind::Put, &value);
    let nobody = Owner { number: 0, origin: 0 };
    let len = writer.finish(&mut out, BlockKind::Root, nobody, 0, Compression::None) as usize;
    let payload = Bytes::copy_from_slice(&out[HEADER_BYTES..len]);
    Block::new(payload, whole.offset, 0).expect("a block just written is one")
}
