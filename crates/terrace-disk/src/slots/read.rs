//! Reading items, one or many at once, now or begun before they are wanted.

use std::sync::Arc;

use terrace_base::Result;

use super::{Slot, Slots};
use crate::block::{BlockBuf, BlockReads};

/// Reads of items that were begun. Dropping them waits for their end.
#[derive(Debug)]
pub struct SlotReads {
    slots: Arc<Slots>,
    wanted: Vec<Slot>,
    reads: Box<dyn BlockReads>,
}

impl SlotReads {
    /// Waits for their end; the items, in order.
    pub fn finish(self) -> Result<Vec<BlockBuf>> {
        let found = self.reads.finish()?;
        Ok(self.wanted.iter().zip(found).map(|(slot, read)| self.slots.part(*slot, read)).collect())
    }
}

impl Slots {
    /// Reads the item at `slot`: exactly its sectors, if the drive has such sectors.
    pub fn read(&self, slot: Slot) -> Result<BlockBuf> {
        self.require(&[slot])?;
        let (offset, mut read) = self.memory(slot);
        self.file.read_many(&mut [(offset, &mut read)])?;
        Ok(self.part(slot, read))
    }

    /// Reads the items at `slots`, all at once.
    pub fn read_many(&self, slots: &[Slot]) -> Result<Vec<BlockBuf>> {
        self.require(slots)?;
        let mut items: Vec<(u64, BlockBuf)> = slots.iter().map(|slot| self.memory(*slot)).collect();
        let mut reads: Vec<(u64, &mut [u8])> =
            items.iter_mut().map(|(offset, read)| (*offset, &mut **read)).collect();
        self.file.read_many(&mut reads)?;
        Ok(slots.iter().zip(items).map(|(slot, (_, read))| self.part(*slot, read)).collect())
    }

    /// Begins to read the items at `slots`, and returns at once where the system can do that.
    pub fn begin_reads(self: &Arc<Self>, slots: &[Slot]) -> Result<SlotReads> {
        self.require(slots)?;
        let reads = slots.iter().map(|slot| self.memory(*slot)).collect();
        let reads = self.file.clone().begin_reads(reads);
        Ok(SlotReads { slots: self.clone(), wanted: slots.to_vec(), reads })
    }

    /// Refuses a place behind the end of the file before memory is allocated: it may not be a slot.
    fn require(&self, slots: &[Slot]) -> Result<()> {
        let end = self.file.len() / self.sector_bytes;
        match slots.iter().find(|slot| slot.end() > end) {
            Some(slot) => Err(self.wrong((*slot, "it ends behind the end of the file"))),
            None => Ok(()),
        }
    }

    /// Memory for the drive's sectors in which `slot` lies, and where they begin.
    fn memory(&self, slot: Slot) -> (u64, BlockBuf) {
        let start = slot.first() * self.sector_bytes / self.unit_bytes * self.unit_bytes;
        let end = (slot.end() * self.sector_bytes).next_multiple_of(self.unit_bytes);
        (start, BlockBuf::zeroed((end - start) as usize))
    }

    /// The item at `slot`, from the sectors that were read for it.
    fn part(&self, slot: Slot, read: BlockBuf) -> BlockBuf {
        let bytes = (slot.sectors() * self.sector_bytes) as usize;
        if read.len() == bytes {
            return read;
        }
        let skew = (slot.first() * self.sector_bytes % self.unit_bytes) as usize;
        BlockBuf::holding(&read[skew..skew + bytes], self.sector_bytes as u32)
    }
}
