//! Writing the items of a submission.

use terrace_base::{Error, Result};

use super::gather::How;
use super::map::Run;
use super::{COUNT_BITS, LEAST_GROWTH_BYTES, MOST_GROWTH_BYTES, SLOT_BITS, SPARE_PART, Slot, Slots};
use crate::block::{BlockBuf, BlockWrite};

/// The file's length is a multiple of this if there is room, so that a drive with larger sectors can use all of it.
const LENGTH_UNIT_BYTES: u64 = 64 << 10;

impl Slots {
    /// Writes the items of several writers at once; returns the slots in order.
    pub(super) fn submit(&self, items: &[&BlockBuf], how: How) -> Result<Vec<Slot>> {
        let outcome = match self.try_submit(items, how) {
            // Free ranges do not fit here, but the file system can use their space elsewhere.
            Err(e) if e.is_out_of_space() => match self.give_back(0) {
                Ok(1..) => self.try_submit(items, how),
                _ => Err(e),
            },
            outcome => outcome,
        };
        if outcome.is_ok() {
            let mut counts = self.counts.lock();
            *counts = (counts.0 + 1, counts.1 + items.len() as u64);
        }
        outcome
    }

    fn try_submit(&self, items: &[&BlockBuf], how: How) -> Result<Vec<Slot>> {
        let runs = self.place(items, how.is_packed)?;
        let write = self.syncs.begin(how.is_durable);
        let written = self.write_runs(&runs, items);
        let done = self.syncs.end(&*self.file, &write, written);
        let mut map = self.map.lock();
        match done {
            Ok(()) => runs.iter().for_each(|run| map.give_out(run)),
            Err(_) => runs.iter().for_each(|run| map.put_back(run)),
        }
        done.map(|()| runs.into_iter().flat_map(|run| run.slots).collect())
    }

    fn write_runs(&self, runs: &[Run], items: &[&BlockBuf]) -> Result<()> {
        self.reach(runs.iter().map(|run| run.blocks.end).max().unwrap_or(0))?;
        let mut left = items;
        let mut parts_of = |run: &Run| {
            let (now, later) = left.split_at(run.slots.len());
            left = later;
            now
        };
        if self.unit_bytes == self.sector_bytes {
            let write = |run: &Run| BlockWrite {
                offset: run.blocks.start * self.block_bytes,
                parts: parts_of(run).iter().map(|item| &***item).collect(),
            };
            let writes: Vec<BlockWrite<'_>> = runs.iter().map(write).collect();
            return self.file.write_many(&writes);
        }
        let joined: Vec<BlockBuf> = runs.iter().map(|run| self.join(parts_of(run))).collect();
        let write = |(run, data)| {
            let run: &Run = run;
            BlockWrite { offset: run.blocks.start * self.block_bytes, parts: vec![data] }
        };
        let writes: Vec<BlockWrite<'_>> =
            runs.iter().zip(joined.iter().map(|data| &**data)).map(write).collect();
        self.file.write_many(&writes)
    }

    /// Items one behind the other, up to the end of a sector of the drive, which is larger than theirs.
    fn join(&self, items: &[&BlockBuf]) -> BlockBuf {
        let bytes: usize = items.iter().map(|item| item.len()).sum();
        let mut joined = BlockBuf::zeroed(bytes.next_multiple_of(self.unit_bytes as usize));
        let mut at = 0;
        for item in items {
            joined[at..at + item.len()].copy_from_slice(item);
            at += item.len();
        }
        joined
    }

    /// Finds places for `items`; grows the file if necessary.
    fn place(&self, items: &[&BlockBuf], is_packed: bool) -> Result<Vec<Run>> {
        let sizes: Vec<u64> = items.iter().map(|item| item.len() as u64 / self.sector_bytes).collect();
        loop {
            let (missing, end) = {
                let mut map = self.map.lock();
                match map.place(&sizes, is_packed) {
                    Ok(runs) => return Ok(runs),
                    Err(missing) => (missing, map.counts().end),
                }
            };
            self.grow(end, missing.max(1))?;
        }
    }

    fn grow(&self, end: u64, missing: u64) -> Result<()> {
        let most = (1 << (SLOT_BITS - COUNT_BITS)) / (self.block_bytes / self.sector_bytes);
        if end + missing > most {
            return Err(Error::NoSpace { path: self.file.path().to_path_buf() });
        }
        let piece = (end * self.block_bytes / SPARE_PART).clamp(LEAST_GROWTH_BYTES, MOST_GROWTH_BYTES);
        let unit = (LENGTH_UNIT_BYTES / self.block_bytes).max(1);
        let round = |blocks: u64| blocks.next_multiple_of(unit).min(most);
        let (ample, needed) = (end + missing.max(piece / self.block_bytes), end + missing);
        let grow = |blocks: u64| self.file.grow(blocks * self.block_bytes).map(|()| blocks);
        let is_full = |grown: &Result<u64>| grown.as_ref().is_err_and(|e| e.is_out_of_space());
        let mut grown = grow(round(ample));
        for less in [round(needed), needed] {
            grown = if is_full(&grown) { grow(less) } else { grown };
        }
        self.map.lock().grown(grown?);
        Ok(())
    }

    /// Makes the file so many blocks long. A file that was made on a drive with smaller blocks may end within its last
    /// block.
    pub(super) fn reach(&self, end: u64) -> Result<()> {
        let bytes = end * self.block_bytes;
        if self.file.len() < bytes { self.file.grow(bytes) } else { Ok(()) }
    }
}
