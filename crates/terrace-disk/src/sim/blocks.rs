//! Simulated files of sectors.
//!
//! The content up to the synced length is the present one, and `before` remembers the contents of its sectors since the
//! sync. The bytes behind it, by which the file was grown since, are lost and torn as appended bytes of any file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_base::rng::Rng;
use terrace_base::{Error, Result};

use super::content::Content;
use super::crash::Fate;
use super::fault::FsEvent;
use super::file::draw;
use super::state::{FileId, Inode};
use super::{Disk, Shared};
use crate::block::{BlockBuf, BlockFile, BlockReads, BlockWrite, Geometry, read_later};
use crate::extents::Extents;

/// One in so many blocks that were written to is lost whole at a power cut.
const LOST_ONE_IN: u64 = 12;

/// The state of a file of sectors beside its content.
#[derive(Clone, Default)]
pub(super) struct Blocks {
    sector_bytes: u64,
    block_bytes: u64,
    /// Former contents of the sectors that changed since the last sync, the durable one first; the present one is not
    /// included.
    pub(super) before: BTreeMap<u64, Vec<Arc<Vec<u8>>>>,
    /// Bytes that were given back.
    pub(super) holes: Extents,
}

impl Blocks {
    /// The sectors from `offset` on are about to change; the first `synced` bytes of the file are synced.
    fn note(&mut self, content: &Content, synced: u64, range: Range<u64>) {
        let sectors = range.start / self.sector_bytes..range.end.min(synced).div_ceil(self.sector_bytes);
        for sector in sectors {
            let at = sector * self.sector_bytes;
            let held = Arc::new(content.range(at..at + self.sector_bytes));
            self.before.entry(sector).or_default().push(held);
        }
    }

    /// The content that a power cut leaves.
    pub(super) fn survivor(&self, inode: &Inode, rng: &mut Rng, fate: Fate) -> (Content, Blocks) {
        let mut next = Blocks { before: BTreeMap::new(), ..self.clone() };
        let mut content = inode.content.clone();
        let per_block = self.block_bytes / self.sector_bytes;
        for (&sector, held) in &self.before {
            let survives = match fate {
                Fate::Most => None,
                Fate::Least => held.first(),
                // The present content, for an index behind the former ones.
                Fate::Any => held.get(rng.below(held.len() as u64 + 1) as usize),
            };
            if let Some(old) = survives {
                content.write(sector * self.sector_bytes, old);
                // The space is taken again where any of it is.
                next.holes.remove(&self.block(sector / per_block));
            }
        }
        let blocks: BTreeSet<u64> = self.before.keys().map(|sector| sector / per_block).collect();
        for block in blocks.into_iter().map(|block| self.block(block)) {
            if fate == Fate::Any && rng.one_in(LOST_ONE_IN) && !self.holes.covers(&block) {
                let mut data = vec![0; (block.end.min(inode.synced) - block.start) as usize];
                rng.fill(&mut data);
                content.write(block.start, &data);
            }
        }
        (content, next)
    }

    fn block(&self, block: u64) -> Range<u64> {
        block * self.block_bytes..(block + 1) * self.block_bytes
    }

    /// Loses some of what was not durable, as a failed sync may.
    pub(super) fn drop_writes(&mut self, content: &mut Content, rng: &mut Rng) {
        let per_block = self.block_bytes / self.sector_bytes;
        let blocks: BTreeSet<u64> = self.before.keys().map(|sector| sector / per_block).collect();
        for block in blocks {
            // Ranges that were given back stay so.
            if self.holes.count_in(&self.block(block)) > 0 || rng.one_in(2) {
                continue;
            }
            for sector in block * per_block..(block + 1) * per_block {
                if let Some(durable) = self.before.remove(&sector).and_then(|held| held.into_iter().next()) {
                    content.write(sector * self.sector_bytes, &durable);
                }
            }
        }
    }
}

/// A handle of a file of sectors.
pub(super) struct SimBlockFile {
    shared: Arc<Shared>,
    id: FileId,
    path: PathBuf,
    geometry: Geometry,
}

impl SimBlockFile {
    /// A handle of the file `id`, which is held.
    pub(super) fn open(shared: Arc<Shared>, id: FileId, path: &Path) -> Self {
        let mut disk = shared.disk.lock();
        let (sector_bytes, block_bytes) = disk.state.sectors;
        let (sector, block) = (u64::from(sector_bytes), u64::from(block_bytes));
        if let Some(inode) = disk.state.inode_mut(id) {
            inode.end_room();
            let blocks = inode.blocks.get_or_insert_default();
            // Sectors of another size would have other bounds.
            assert!(blocks.before.is_empty() || blocks.sector_bytes == sector);
            (blocks.sector_bytes, blocks.block_bytes) = (sector, block);
        }
        drop(disk);
        let geometry = Geometry { sector_bytes, block_bytes, is_volatile: true };
        SimBlockFile { shared, id, path: path.to_path_buf(), geometry }
    }

    /// Writes a part of a write, of which, where it is to fail, only some sectors.
    fn write_part(&self, disk: &mut Disk, offset: u64, data: &[u8], refused: Result<()>) -> Result<()> {
        let outcome = disk.faults.step(&self.path, "write", true).and(refused);
        self.find_space(disk, offset, data.len() as u64)?;
        let seed = disk.faults.changes;
        let Some(inode) = disk.state.inode_mut(self.id) else { return outcome };
        for (i, sector) in data.chunks(self.geometry.sector_bytes as usize).enumerate() {
            let at = offset + (i * self.geometry.sector_bytes as usize) as u64;
            if outcome.is_ok() || draw(seed, at, 2) {
                inode.write_sectors(at, sector);
            }
        }
        outcome
    }

    /// Does some of the writes that were submitted with a failed one, some of them in part.
    fn write_some(&self, disk: &mut Disk, others: &[&BlockWrite<'_>], seed: u64) {
        let sector = self.geometry.sector_bytes as usize;
        for other in others.iter().filter(|other| draw(seed, other.offset, 2)) {
            let fits = self.find_space(disk, other.offset, other.len()).is_ok();
            let (data, is_whole) = (other.parts.concat(), draw(seed, other.offset + 1, 2));
            let some = (other.offset..).step_by(sector).zip(data.chunks(sector));
            for (at, data) in some.filter(|(at, _)| fits && (is_whole || draw(seed, at + 2, 2))) {
                if let Some(inode) = disk.state.inode_mut(self.id) {
                    inode.write_sectors(at, data);
                }
            }
        }
    }

    /// Refuses a write for which given-back space cannot be taken again.
    fn find_space(&self, disk: &Disk, offset: u64, bytes: u64) -> Result<()> {
        let blocks = disk.state.files.get(&self.id).and_then(|inode| inode.blocks.as_ref());
        let needed = blocks.map_or(0, |blocks| blocks.holes_under(offset..offset + bytes).total());
        match needed > disk.free() {
            true => Err(Error::NoSpace { path: self.path.clone() }),
            false => Ok(()),
        }
    }
}

impl Blocks {
    /// The given-back bytes of the blocks that hold `range`.
    fn holes_under(&self, range: Range<u64>) -> Extents {
        let block = self.block_bytes;
        let blocks = range.start / block * block..range.end.next_multiple_of(block);
        let mut under = Extents::default();
        for hole in self.holes.overlapping(&blocks) {
            under.insert(hole.start.max(blocks.start)..hole.end.min(blocks.end));
        }
        under
    }
}

impl Inode {
    /// From now on room behind the appended bytes is content like any other.
    fn end_room(&mut self) {
        self.content.append_zeros(std::mem::take(&mut self.room));
    }

    /// Puts `data`, whole sectors, at `offset`.
    fn write_sectors(&mut self, offset: u64, data: &[u8]) {
        let range = offset..offset + data.len() as u64;
        if let Some(blocks) = &mut self.blocks {
            blocks.note(&self.content, self.synced, range.clone());
            for hole in blocks.holes_under(range).iter() {
                blocks.holes.remove(&hole);
            }
        }
        self.content.write(offset, data);
    }

    fn discard(&mut self, range: Range<u64>) {
        if let Some(blocks) = &mut self.blocks {
            blocks.note(&self.content, self.synced, range.clone());
            blocks.holes.insert(range.clone());
        }
        self.content.write(range.start, &vec![0; (range.end - range.start) as usize]);
    }
}

impl BlockFile for SimBlockFile {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The writes are done in an order of their own, and some are seen half done.
    fn write_many(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let len = self.len();
        writes.iter().try_for_each(|write| write.check(&self.geometry, &self.path, len))?;
        let mut order: Vec<&BlockWrite<'_>> = writes.iter().filter(|write| !write.is_empty()).collect();
        let seed = self.shared.disk.lock().faults.changes;
        Rng::new(seed).shuffle(&mut order);
        for (at, write) in order.iter().enumerate() {
            let data = write.parts.concat();
            let sectors = data.len() / self.geometry.sector_bytes as usize;
            let first = if draw(seed, write.offset, 3) { sectors / 2 } else { 0 };
            let (first, rest) = data.split_at(first * self.geometry.sector_bytes as usize);
            let parts = [(write.offset, first), (write.offset + first.len() as u64, rest)];
            for (offset, data) in parts.into_iter().filter(|(_, data)| !data.is_empty()) {
                self.shared.announce(FsEvent::Write { path: &self.path, bytes: data.len() as u64 });
                let refused = self.shared.refused(&self.path, "write");
                let mut disk = self.shared.disk.lock();
                let done = self.write_part(&mut disk, offset, data, refused);
                if done.is_err() {
                    self.write_some(&mut disk, &order[at + 1..], seed);
                    return done;
                }
            }
        }
        Ok(())
    }

    fn read_many(&self, reads: &mut [(u64, &mut [u8])]) -> Result<()> {
        let len = self.len();
        for (offset, buf) in reads {
            self.geometry.check(&self.path, *offset, buf.len() as u64, len)?;
            self.shared.look(&self.path, "read", |disk| {
                let inode = disk.state.files.get(&self.id);
                inode.map(|inode| inode.content.read(*offset, buf));
                Ok(())
            })?;
        }
        Ok(())
    }

    fn begin_reads(self: Arc<Self>, reads: Vec<(u64, BlockBuf)>) -> Box<dyn BlockReads> {
        read_later(self, reads)
    }

    fn sync(&self) -> Result<bool> {
        self.shared.sync(&self.path, true, |_| Ok(self.id)).map(|()| true)
    }

    fn grow(&self, len: u64) -> Result<()> {
        self.geometry.check_blocks(&self.path, &(0..len), u64::MAX)?;
        let more = len.saturating_sub(self.len());
        if more == 0 {
            return Ok(());
        }
        let event = FsEvent::Write { path: &self.path, bytes: 0 };
        self.shared.change(event, &self.path, "write", |disk| {
            if more > disk.free() {
                return Err(Error::NoSpace { path: self.path.clone() });
            }
            if let Some(inode) = disk.state.inode_mut(self.id) {
                // An incomplete sector at its end is the beginning of a whole one now.
                inode.content.append_zeros(len.saturating_sub(inode.content.len()));
                inode.longest = inode.longest.max(len);
            }
            Ok(())
        })
    }

    fn discard(&self, range: Range<u64>) -> Result<bool> {
        self.geometry.check_blocks(&self.path, &range, self.len())?;
        let event = FsEvent::Write { path: &self.path, bytes: 0 };
        self.shared.change(event, &self.path, "discard", |disk| {
            if disk.state.without_holes {
                return Ok(false);
            }
            if let Some(inode) = disk.state.inode_mut(self.id) {
                inode.discard(range);
            }
            Ok(true)
        })
    }

    fn len(&self) -> u64 {
        let sector = u64::from(self.geometry.sector_bytes);
        let disk = self.shared.disk.lock();
        disk.state.files.get(&self.id).map_or(0, |inode| inode.content.len() / sector * sector)
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SimBlockFile {
    fn drop(&mut self) {
        self.shared.disk.lock().let_go(self.id);
    }
}

impl fmt::Debug for SimBlockFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimBlockFile").field("path", &self.path).finish_non_exhaustive()
    }
}
