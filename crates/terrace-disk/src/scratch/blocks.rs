//! A file of sectors whose changes stay in memory.
//!
//! Thread safety: everything may be called from any thread. The file below is read under no lock.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_base::{Error, Result};

use crate::block::{BlockBuf, BlockFile, BlockReads, BlockWrite, Geometry, read_later};
use crate::fs::ReadFile;

/// No drive is written to, so its sectors can have any size.
const GEOMETRY: Geometry = Geometry { sector_bytes: 512, block_bytes: 4096, is_volatile: false };
const SECTOR_BYTES: u64 = GEOMETRY.sector_bytes as u64;

/// Sectors that were changed; without bytes those of zeros.
type Changed = BTreeMap<u64, Option<Arc<[u8]>>>;

#[derive(Debug)]
pub(super) struct ScratchBlocks {
    below: Arc<dyn ReadFile>,
    state: Mutex<State>,
}

#[derive(Debug, Clone)]
struct State {
    /// Its length in whole sectors.
    len: u64,
    changed: Changed,
}

impl State {
    /// The changed sectors of so many bytes from `offset` on.
    fn changed_in(&self, offset: u64, bytes: u64) -> Changed {
        let sectors = offset / SECTOR_BYTES..(offset + bytes).div_ceil(SECTOR_BYTES);
        self.changed.range(sectors).map(|(sector, data)| (*sector, data.clone())).collect()
    }
}

/// Overwrites those parts of `buf`, the bytes from `offset` on, that `changed` has.
fn lay(changed: &Changed, offset: u64, buf: &mut [u8]) {
    let end = offset + buf.len() as u64;
    for (sector, data) in changed {
        let at = sector * SECTOR_BYTES;
        let (from, to) = (at.max(offset), (at + SECTOR_BYTES).min(end));
        let into = &mut buf[(from - offset) as usize..(to - offset) as usize];
        match data {
            Some(data) => into.copy_from_slice(&data[(from - at) as usize..(to - at) as usize]),
            None => into.fill(0),
        }
    }
}

/// Reads `below` up to its end, and zeros behind it.
fn read_below(below: &dyn ReadFile, reads: &mut [(u64, &mut [u8])]) -> Result<()> {
    let mut there: Vec<(u64, &mut [u8])> = Vec::with_capacity(reads.len());
    for (offset, buf) in reads {
        let count = below.len().saturating_sub(*offset).min(buf.len() as u64);
        let (from_below, behind) = buf.split_at_mut(count as usize);
        behind.fill(0);
        if !from_below.is_empty() {
            there.push((*offset, from_below));
        }
    }
    below.read_many(&mut there)
}

impl ScratchBlocks {
    /// The file `below`, as far as it is whole sectors.
    pub(super) fn new(below: Arc<dyn ReadFile>) -> Self {
        let state = State { len: below.len() / SECTOR_BYTES * SECTOR_BYTES, changed: BTreeMap::new() };
        ScratchBlocks { below, state: Mutex::new(state) }
    }

    /// The file as it is now, to be read at `path`.
    pub(super) fn view(&self, path: &Path) -> ScratchView {
        let state = self.state.lock().clone();
        ScratchView { below: self.below.clone(), path: path.to_path_buf(), state }
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
            let sectors = write.parts.iter().flat_map(|part| part.chunks(SECTOR_BYTES as usize));
            let first = write.offset / SECTOR_BYTES;
            state.changed.extend((first..).zip(sectors.map(|data| Some(data.into()))));
        }
        Ok(())
    }

    fn read_many(&self, reads: &mut [(u64, &mut [u8])]) -> Result<()> {
        let mut changed = Vec::with_capacity(reads.len());
        {
            let state = self.state.lock();
            for (offset, buf) in reads.iter() {
                GEOMETRY.check(self.path(), *offset, buf.len() as u64, state.len)?;
                changed.push(state.changed_in(*offset, buf.len() as u64));
            }
        }
        read_below(&*self.below, reads)?;
        reads.iter_mut().zip(&changed).for_each(|((offset, buf), changed)| lay(changed, *offset, buf));
        Ok(())
    }

    fn begin_reads(self: Arc<Self>, reads: Vec<(u64, BlockBuf)>) -> Box<dyn BlockReads> {
        read_later(self, reads)
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
        let sectors = range.start / SECTOR_BYTES..range.end / SECTOR_BYTES;
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

/// A file of sectors as it was when it was opened to be read.
#[derive(Debug)]
pub(super) struct ScratchView {
    below: Arc<dyn ReadFile>,
    path: PathBuf,
    state: State,
}

impl ReadFile for ScratchView {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_many(&mut [(offset, buf)])
    }

    fn read_many(&self, reads: &mut [(u64, &mut [u8])]) -> Result<()> {
        let len = self.len();
        for (offset, buf) in reads.iter() {
            if offset.checked_add(buf.len() as u64).is_none_or(|end| end > len) {
                let expected = format!("{} bytes", buf.len());
                return Err(Error::corruption(
                    &self.path,
                    *offset,
                    expected,
                    format!("the file's end at {len}"),
                ));
            }
        }
        read_below(&*self.below, reads)?;
        for (offset, buf) in reads {
            lay(&self.state.changed_in(*offset, buf.len() as u64), *offset, buf);
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.state.len.max(self.below.len())
    }

    fn path(&self) -> &Path {
        &self.path
    }
}
