//! A file of sectors that existed before a repair: the repair may read it and does not change it.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use terrace_base::{Error, Result};
use terrace_disk::{BlockBuf, BlockFile, BlockReads, BlockWrite, Geometry};

/// Writes to it and growth are refused: a copy beside it would take its space twice, and what a repair finds
/// in it stays where it is. Space that is given back stays allocated.
#[derive(Debug)]
pub(super) struct KeptBlocks(pub Arc<dyn BlockFile>);

impl KeptBlocks {
    fn refuse(&self, operation: &'static str) -> Result<()> {
        Err(Error::io(self.path(), operation, std::io::ErrorKind::Unsupported.into()))
    }
}

impl BlockFile for KeptBlocks {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn write_many(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        if writes.iter().all(BlockWrite::is_empty) { Ok(()) } else { self.refuse("write") }
    }

    fn read_many(&self, reads: &mut [(u64, &mut [u8])]) -> Result<()> {
        self.0.read_many(reads)
    }

    fn begin_reads(self: Arc<Self>, reads: Vec<(u64, BlockBuf)>) -> Box<dyn BlockReads> {
        self.0.clone().begin_reads(reads)
    }

    fn sync(&self) -> Result<bool> {
        self.0.sync()
    }

    fn grow(&self, len: u64) -> Result<()> {
        if len <= self.len() { Ok(()) } else { self.refuse("grow") }
    }

    fn discard(&self, _range: Range<u64>) -> Result<bool> {
        Ok(false)
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}
