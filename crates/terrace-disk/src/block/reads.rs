//! Reads that were begun.

use std::fmt::Debug;
use std::sync::Arc;

use terrace_base::Result;

use super::{BlockBuf, BlockFile};

/// Reads of a file of sectors that go on in the background. Dropping them waits for their end.
pub trait BlockReads: Send + Sync + Debug {
    /// Waits for their end. Gives back the memory, filled, in order; fails as [`BlockFile::read_many`] does.
    fn finish(self: Box<Self>) -> Result<Vec<BlockBuf>>;
}

/// Reads that are made when they are waited for.
#[derive(Debug)]
struct Later {
    file: Arc<dyn BlockFile>,
    reads: Vec<(u64, BlockBuf)>,
}

impl BlockReads for Later {
    fn finish(mut self: Box<Self>) -> Result<Vec<BlockBuf>> {
        let mut reads: Vec<(u64, &mut [u8])> =
            self.reads.iter_mut().map(|(offset, buf)| (*offset, &mut **buf)).collect();
        self.file.read_many(&mut reads)?;
        Ok(self.reads.into_iter().map(|(_, buf)| buf).collect())
    }
}

/// [`BlockFile::begin_reads`] for a file that cannot read in the background.
pub(crate) fn read_later(file: Arc<dyn BlockFile>, reads: Vec<(u64, BlockBuf)>) -> Box<dyn BlockReads> {
    Box::new(Later { file, reads })
}
