//! Slots: items of a sector to 1 GiB in a file of sectors, written once and elsewhere than what they replace.
//!
//! An item has a [`Slot`], which fits into a word of an index. Who wants it written gives it here, waits, and puts the
//! slot where it belongs. The items of all who wait are written together, one behind the other, with one `sync` for all
//! (`gather.rs`). What replaces an item is another item; the old one's slot is first *retired*, when nothing leads to it any
//! more, and then *freed*, when no snapshot and no reader needs it and what replaced it is as durable as it has to be.
//!
//! What a drive writes whole, a block, can tear whole. So items of one submission share blocks, and a block that holds an item
//! is not written to again, be it only for the sectors behind it, until all of its items are freed.
//!
//! Nothing is kept about slots but what leads to them. When the file is opened, nothing is known of it; new items lie
//! behind its end. [`Slots::adopt`] is told of all slots that anything leads to, and the rest is free from then on. An allocator's own
//! records would have to change with the index in one step, and could disagree with it; this can not, costs a write nothing, and
//! the walk over the index can go on beside the first reads and writes.
//!
//! **Space.** Let a block have `B` bytes, a sector `S`. Items of `L` bytes in `n` slots hold at most `L + 2n(B - S)` bytes
//! of blocks, `L + n(B - S)` if each was submitted alone: the first and the last block of each may be held for it
//! alone. Beside these, free blocks take at most an eighth of what is held and [`LEAST_SPARE_BYTES`], once [`Slots::tidy`] has been called; what is
//! free beyond that is given back to the file system. Where that has no way to take it, all that was free once
//! is used again, and the file is at most as long as it had to be when most was held and free ranges fitted worst.
//!
//! **Finding room** costs the logarithm of how many free ranges there are, whatever the file has: these are kept by place and by
//! length (`extents.rs`). Blocks of which only some sectors live are in no list: nothing is written to them before they are
//! free. Whoever wants their space moves what lives in them ([`Slots::held_alone`] says of which items that is worth it).
//!
//! Thread safety: everything may be called from any thread. Nothing reads or writes the file under the lock of the map.
//!
//! | file | what it owns |
//! |---|---|
//! | `map.rs` | which blocks are whose |
//! | `gather.rs` | who waits, and who writes for them |
//! | `submit.rs`, `syncs.rs` | writing a submission, and having it be durable |
//! | `read.rs`, `ahead.rs` | reading, at once, begun, and in order ahead |

mod ahead;
mod gather;
mod map;
mod read;
mod submit;
mod syncs;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_base::{Error, Result};

pub use self::ahead::{Ahead, WINDOW_BYTES};
use self::gather::Gather;
use self::map::{Map, Wrong};
pub use self::read::SlotReads;
use self::syncs::Syncs;
use crate::block::{BlockBuf, BlockFile};

/// No drive has smaller sectors.
const LEAST_SECTOR_BYTES: u32 = 512;

/// Bits of a word that a slot takes.
pub const SLOT_BITS: u32 = 60;

/// Of these, the bits of how many sectors there are, the lower ones.
const COUNT_BITS: u32 = 22;

/// Free space that is kept in any case.
pub const LEAST_SPARE_BYTES: u64 = 4 << 20;

/// Of what is held, the part that is kept free.
const SPARE_PART: u64 = 8;

/// Bytes that the file is grown by, at least and at most, where there are so many.
const LEAST_GROWTH_BYTES: u64 = 1 << 20;
const MOST_GROWTH_BYTES: u64 = 64 << 20;

/// Bytes that are given back in one call.
const DISCARD_BYTES: u64 = 64 << 20;

/// Where an item lies: consecutive sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    first: u64,
    sectors: u32,
}

impl Slot {
    /// `sectors` sectors from `first` on, which is within bounds.
    fn of(first: u64, sectors: u64) -> Slot {
        Slot { first, sectors: sectors as u32 }
    }

    /// The number of its first sector.
    pub fn first(self) -> u64 {
        self.first
    }

    /// How many sectors it has.
    pub fn sectors(self) -> u64 {
        u64::from(self.sectors)
    }

    fn end(self) -> u64 {
        self.first + self.sectors()
    }

    /// Its [`SLOT_BITS`] bits.
    pub fn to_bits(self) -> u64 {
        self.first << COUNT_BITS | self.sectors()
    }

    /// The slot that has these bits; `None` if none has.
    pub fn from_bits(bits: u64) -> Option<Slot> {
        let sectors = bits & ((1 << COUNT_BITS) - 1);
        (sectors > 0 && bits >> SLOT_BITS == 0).then(|| Slot::of(bits >> COUNT_BITS, sectors))
    }
}

/// How full a file of slots is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlotStats {
    /// Items that were not freed, as far as the file was adopted.
    pub items: u64,
    /// Bytes of their sectors.
    pub item_bytes: u64,
    /// Of these, bytes of those that are retired.
    pub retired_bytes: u64,
    /// Bytes of blocks that nobody else can have, because of items or because it is not known what lies there.
    pub held_bytes: u64,
    /// Bytes of blocks that are free and take space.
    pub free_bytes: u64,
    /// Bytes that are given back, of the file's length.
    pub hole_bytes: u64,
    /// The file's length.
    pub file_bytes: u64,
    /// Submissions so far, and items in them.
    pub submissions: u64,
    /// See [`submissions`](Self::submissions).
    pub submitted: u64,
    /// Syncs of the file for which the device had to be asked.
    pub syncs: u64,
}

/// Items in a file of sectors. The module's head says how they are kept.
///
/// ```
/// use std::path::Path;
/// use terrace_disk::{BlockBuf, Fs, SimFs, Slots};
/// let disk = SimFs::new();
/// let file = disk.open_blocks(Path::new("/slots"), true)?;
/// let slots = Slots::open(file.clone(), 512)?;
/// slots.adopt([])?;                               // nothing leads to anything yet
/// let old = slots.write(BlockBuf::holding(b"an item", 512), true)?;
/// assert!(slots.read(old)?.starts_with(b"an item"));
/// let new = slots.write(BlockBuf::holding(b"what replaces it", 512), true)?;
/// slots.retire(old)?;                             // an index leads to `new` now,
/// slots.free(old)?;                               // and nobody reads `old` any more
/// assert_eq!(slots.check([new])?, 0);
///
/// let again = Slots::open(file, 512)?;            // another life, after a crash or not
/// again.adopt([new])?;
/// assert!(again.read(new)?.starts_with(b"what replaces it"));
/// # Ok::<(), terrace_base::Error>(())
/// ```
#[derive(Debug)]
pub struct Slots {
    file: Arc<dyn BlockFile>,
    sector_bytes: u64,
    /// What the drive reads and writes: a sector of it, if that is larger.
    unit_bytes: u64,
    block_bytes: u64,
    map: Mutex<Map>,
    gather: Gather,
    syncs: Syncs,
    /// Submissions, and items in them.
    counts: Mutex<(u64, u64)>,
}

impl Slots {
    /// The slots of `file`, in sectors of so many bytes, always the same for one file. On a drive whose sectors are larger it is
    /// read and written in those, which costs copies.
    pub fn open(file: Arc<dyn BlockFile>, sector_bytes: u32) -> Result<Slots> {
        let geometry = file.geometry();
        if !sector_bytes.is_power_of_two() || sector_bytes < LEAST_SECTOR_BYTES {
            return Err(Error::invalid(format!(
                "{}: sectors of {sector_bytes} bytes",
                file.path().display()
            )));
        }
        let unit_bytes = u64::from(geometry.sector_bytes.max(sector_bytes));
        let block_bytes = u64::from(geometry.block_bytes).max(unit_bytes);
        let sector_bytes = u64::from(sector_bytes);
        // The last block may be there in part.
        let map = Map::unknown(block_bytes / sector_bytes, file.len().div_ceil(block_bytes));
        Ok(Slots {
            file,
            sector_bytes,
            unit_bytes,
            block_bytes,
            map: Mutex::new(map),
            gather: Gather::default(),
            syncs: Syncs::default(),
            counts: Mutex::default(),
        })
    }

    /// Has all space that the file had when it was opened be free, but for the slots that are `live`. These are all that
    /// anything leads to or has led to since; those may be missing that were retired in this life. A slot that cannot be is
    /// `Error::Corruption`; nothing has changed then. Once is enough. One that lies where the file had nothing when it was
    /// opened, because somebody has cut it, is told as such, unless an item was written to the very same place since.
    pub fn adopt(&self, live: impl IntoIterator<Item = Slot>) -> Result<()> {
        let live: BTreeSet<Slot> = live.into_iter().collect();
        self.map.lock().adopt(&live).map_err(|wrong| self.wrong(wrong))
    }

    /// Whether [`adopt`](Self::adopt) has been called. Until then nothing is used again.
    pub fn is_adopted(&self) -> bool {
        self.map.lock().is_known()
    }

    /// Writes an item, whole sectors, with those of others who wait. It is there for every reader of its slot then, and if it
    /// `is_durable`, after a power cut, too. `NoSpace` may be tried again. When another one's durable write fails to be
    /// synced, that may take along what was written and not made durable before.
    pub fn write(&self, item: BlockBuf, is_durable: bool) -> Result<Slot> {
        let slots = self.write_all(vec![item], is_durable)?;
        slots.first().copied().ok_or_else(|| Error::invalid("no item"))
    }

    /// Writes `items`, as [`write`](Self::write) does, and all or none of them.
    pub fn write_all(&self, items: Vec<BlockBuf>, is_durable: bool) -> Result<Vec<Slot>> {
        for item in &items {
            let (len, sector) = (item.len() as u64, self.sector_bytes);
            if len == 0 || !len.is_multiple_of(sector) || len / sector >= 1 << COUNT_BITS {
                return Err(Error::invalid(format!("an item of {len} bytes in sectors of {sector}")));
            }
        }
        if items.is_empty() {
            return Ok(Vec::new());
        }
        self.gather.write(self, items, is_durable)
    }

    /// Makes durable all items that were written before. Once a sync has failed that some of these needed, whoever it was for,
    /// they may be lost, and this fails from then on; what is written durably does not suffer from it.
    pub fn sync(&self) -> Result<()> {
        self.syncs.sync(&*self.file)
    }

    /// Nothing leads to `slot` any more, but somebody may still read it. It stays as it is. A slot that cannot be, because
    /// nothing is there or it was retired before, is `Error::Corruption`.
    pub fn retire(&self, slot: Slot) -> Result<()> {
        self.map.lock().retire(slot).map_err(|wrong| self.wrong(wrong))
    }

    /// Nobody reads the retired `slot` any more, in this life or, if what replaced it can be lost, in the next.
    pub fn free(&self, slot: Slot) -> Result<()> {
        self.map.lock().free(slot).map_err(|wrong| self.wrong(wrong))
    }

    /// Gives back what is free beyond what is kept. To be called now and then, beside everything else. Says how many bytes
    /// these were.
    pub fn tidy(&self) -> Result<u64> {
        let counts = self.map.lock().counts();
        let held = counts.end - counts.free - counts.holes;
        self.give_back((held * self.block_bytes / SPARE_PART).max(LEAST_SPARE_BYTES))
    }

    /// Gives back what is free beyond so many bytes, as [`tidy`](Self::tidy) does.
    pub fn give_back(&self, spare_bytes: u64) -> Result<u64> {
        let (spare, mut given_back) = (spare_bytes / self.block_bytes, 0);
        loop {
            let blocks = self.map.lock().take_spare(spare, DISCARD_BYTES / self.block_bytes);
            let Some(blocks) = blocks else { return Ok(given_back) };
            let range = blocks.start * self.block_bytes..blocks.end * self.block_bytes;
            let done = self.reach(blocks.end).and_then(|()| self.file.discard(range));
            let are_holes = *done.as_ref().unwrap_or(&false);
            let bytes = (blocks.end - blocks.start) * self.block_bytes;
            self.map.lock().end_spare(blocks, are_holes);
            if !done? {
                return Ok(given_back);
            }
            given_back += bytes;
        }
    }

    /// Reads the items at `slots` in order, several at once and before they are asked for.
    pub fn ahead<I: Iterator<Item = Slot>>(self: &Arc<Self>, slots: I) -> Ahead<I> {
        Ahead::new(self.clone(), slots)
    }

    /// Bytes of blocks that would be free if the item at `slot` lay elsewhere: less than its own where it shares its blocks, more
    /// where it has them alone. Whoever wants the space that sparse blocks take moves those of which this is most.
    pub fn held_alone(&self, slot: Slot) -> u64 {
        self.map.lock().held_alone(slot) * self.block_bytes
    }

    /// Whether each slot has one owner: those that are `live` are all that something leads to. Says how many bytes of blocks
    /// nobody owns: while others write, those of items that nothing leads to yet; else it is zero.
    pub fn check(&self, live: impl IntoIterator<Item = Slot>) -> Result<u64> {
        let mut all = BTreeSet::new();
        for slot in live {
            if !all.insert(slot) {
                return Err(self.wrong((slot, "two lead to it")));
            }
        }
        let nobodys = self.map.lock().check(&all).map_err(|wrong| self.wrong(wrong))?;
        Ok(nobodys * self.block_bytes)
    }

    /// How full the file is.
    pub fn stats(&self) -> SlotStats {
        let counts = self.map.lock().counts();
        let (submissions, submitted) = *self.counts.lock();
        SlotStats {
            items: counts.items,
            item_bytes: counts.sectors * self.sector_bytes,
            retired_bytes: counts.retired_sectors * self.sector_bytes,
            held_bytes: (counts.end - counts.free - counts.holes) * self.block_bytes,
            free_bytes: counts.free * self.block_bytes,
            hole_bytes: counts.holes * self.block_bytes,
            file_bytes: counts.end * self.block_bytes,
            submissions,
            submitted,
            syncs: self.syncs.asked(),
        }
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The byte of the file at which `slot` begins.
    pub fn offset(&self, slot: Slot) -> u64 {
        slot.first() * self.sector_bytes
    }

    fn wrong(&self, (slot, why): Wrong) -> Error {
        let expected = format!("a slot of {} sectors", slot.sectors());
        Error::corruption(self.path(), self.offset(slot), expected, why)
    }
}
