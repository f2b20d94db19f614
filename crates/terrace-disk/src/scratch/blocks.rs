//! A file of sectors whose changes stay in memory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_base::Result;

use crate::block::{BlockFile, BlockWrite, Geometry};
use crate::fs::ReadFile;

/// Nothing is written to a drive, so its sectors can have any size.
const GEOMETRY: Geometry = Geometry { sector_bytes: 512, block_bytes: 4096, is_volatile: false };
const SECTOR_BYTES: usize = GEOMETRY.sector_bytes as usize;

#[derive(Debug)]
pub(super) struct ScratchBlocks {
    below: Arc<dyn ReadFile>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    len: u64,
    /// Sectors that were changed; without bytes those of zeros.
    changed: BTreeMap<u64, Option<Box<[u8]>>>,
}

impl ScratchBlocks {
    /// The file `below`, as far as it is whole blocks.
    pub(super) fn new(below: Arc<dyn ReadFile>) -> Self {
        let block = u64::from(GEOMETRY.block_bytes);
        let state = State { len: below.len() / block * block, changed: BTreeMap::new() };
        ScratchBlocks { below, state: Mutex::new(state) }
    }

    fn read(&self, state: &State, offset: u64, buf: &mut [u8]) -> Result<()> {
        GEOMETRY.check(self.path(), offset, buf.len() as u64, state.len)?;
        let is_below = self.below.len().saturating_sub(offset).min(buf.len() as u64);
        let (from_below, behind) = buf.split_at_mut(is_below as usize);
        if !from_below.is_empty() {
            self.below.read_at(offset, from_below)?;
        }
        behind.fill(0);
        let first = offset / SECTOR_BYTES as u64;
        for (sector, data) in state.changed.range(first..first + (buf.len() / SECTOR_BYTES) as u64) {
            let to = &mut buf[(sector - first) as usize * SECTOR_BYTES..][..SECTOR_BYTES];
            match data {
                Some(data) => to.copy_from_slice(data),
                None => to.fill(0),
            }
        }
        Ok(())
    }
}

impl BlockFile for ScratchBlocks {
    fn geometry(&self) -> Geometry {
        GEOMETRY
    }

    fn write_many(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let mut state = self.state.lock();
        writes.iter().try_for_each(|write| write.check(&GEOMETRY, self.path(), state.len))?;
        for write in writes {
            let sectors = write.parts.iter().flat_map(|part| part.chunks(SECTOR_BYTES));
            let first = write.offset / SECTOR_BYTES as u64;
            state.changed.extend((first..).zip(sectors.map(|data| Some(data.into()))));
        }
        Ok(())
    }

    fn read_many(&self, reads: &mut [(u64, &mut [u8])]) -> Result<()> {
        let state = self.state.lock();
        reads.iter_mut().try_for_each(|(offset, buf)| self.read(&state, *offset, buf))
    }

    fn sync(&self) -> Result<bool> {
        Ok(false)
    }

    fn grow(&self, len: u64) -> Result<()> {
        GEOMETRY.check_blocks(self.path(), &(0..len), u64::MAX)?;
        let mut state = self.state.lock();
        state.len = state.len.max(len);
        Ok(())
    }

    fn discard(&self, range: Range<u64>) -> Result<bool> {
        let mut state = self.state.lock();
        GEOMETRY.check_blocks(self.path(), &range, state.len)?;
        let sectors = range.start / SECTOR_BYTES as u64..range.end / SECTOR_BYTES as u64;
        state.changed.extend(sectors.map(|sector| (sector, None)));
        Ok(true)
    }

    fn len(&self) -> u64 {
        self.state.lock().len
    }

    fn path(&self) -> &Path {
        self.below.path()
    }
}
