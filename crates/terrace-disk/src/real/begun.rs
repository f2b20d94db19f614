//! Direct reads in the background.
//!
//! 1. While anything is under way, nobody touches the memory that it is read into, and file, ring and memory stay.
//! 2. A failed read is made again, in another way, when it is waited for: the system cancels a thread's reads when that
//!    thread ends.

use std::sync::Arc;

use terrace_base::Result;

use super::blocks::RealBlockFile;
use super::queue::{Flight, Pieces, Way};
use super::ring::Ring;
use crate::block::{BlockBuf, BlockFile, BlockReads};

#[derive(Debug)]
pub(super) struct BegunReads {
    file: Arc<RealBlockFile>,
    reads: Vec<(u64, BlockBuf)>,
    /// The reads under way, and their ring.
    flight: Option<(Ring, Flight<'static>)>,
}

// SAFETY: the pointers in the flight lead to memory of `reads`, which this owns and which nobody uses while they are in
// use.
unsafe impl Send for BegunReads {}
// SAFETY: a shared reference allows no operation.
unsafe impl Sync for BegunReads {}

impl BegunReads {
    /// Begins `reads` of whole sectors within the file, if the file is read past the page cache and there is a ring.
    pub(super) fn begin(file: Arc<RealBlockFile>, mut reads: Vec<(u64, BlockBuf)>) -> BegunReads {
        let Some((direct, mut ring)) = file.direct_with_ring() else {
            return BegunReads { file, reads, flight: None };
        };
        let mut pieces = Pieces::default();
        for (offset, buf) in &mut reads {
            // SAFETY: the memory is that of `reads`, which does not move when that does. It is kept until nothing is
            // under way, and not touched before: `end` is all that is done then, and is called before anything else.
            let memory = unsafe { std::slice::from_raw_parts_mut(buf.as_mut_ptr(), buf.len()) };
            pieces.read(*offset, memory);
        }
        let mut flight = Flight::new(Way::Read, pieces, file.geometry().sector_bytes as usize);
        flight.begin(&mut ring, direct);
        ring.send();
        BegunReads { reads, flight: Some((ring, flight)), file }
    }

    /// Waits until nothing is under way; whether all has been read.
    fn end(&mut self, is_wanted: bool) -> bool {
        let Some((mut ring, mut flight)) = self.flight.take() else { return false };
        let direct = self.file.direct_file();
        loop {
            let is_under_way = match direct.filter(|_| is_wanted) {
                Some(file) => flight.begin(&mut ring, file),
                None => flight.is_under_way(),
            };
            if !is_under_way {
                break;
            }
            flight.wait(&mut ring);
        }
        self.file.rings().put_back(ring);
        is_wanted && flight.is_done()
    }
}

impl BlockReads for BegunReads {
    fn finish(mut self: Box<Self>) -> Result<Vec<BlockBuf>> {
        let is_read = self.end(true);
        let mut reads = std::mem::take(&mut self.reads);
        if !is_read {
            let mut again: Vec<(u64, &mut [u8])> =
                reads.iter_mut().map(|(offset, buf)| (*offset, &mut **buf)).collect();
            self.file.read_many(&mut again)?;
        }
        Ok(reads.into_iter().map(|(_, buf)| buf).collect())
    }
}

impl Drop for BegunReads {
    fn drop(&mut self) {
        self.end(false);
    }
}
