//! Slots: items of a sector to 1 GiB in a file of sectors. Each is written once, and never over the item that it
//! replaces.
//!
//! An item has a [`Slot`], which fits into a word of an index. A writer passes its item, waits, and then stores the
//! slot in its index. Waiting items are written together, one behind the other, with one `sync` for all (`gather.rs`).
//! A replaced item's slot is first *retired*, when nothing leads to it any more. It is *freed* when no snapshot and no
//! reader needs it and its replacement is as durable as required.
//!
//! A drive writes whole blocks, so whole blocks can tear. So only items of one submission share blocks, and a block
//! that holds an item is not written to again, not even to its other sectors, until all of its items are freed.
//!
//! No record is kept of slots except the index entries that lead to them. When the file is opened, nothing is known
//! about it; new items lie behind its end. [`Slots::adopt`] gets all slots that are in use, and the rest is free from
//! then on. An allocator's own records would have to change with the index in one step, and could disagree with it;
//! this can not, costs a write nothing, and the walk over the index can go on beside the first reads and writes.
//!
//! **Space.** Let a block have `B` bytes, a sector `S`. Items of `L` bytes in `n` slots hold at most `L + 2n(B - S)`
//! bytes of blocks, since the first and the last block of each may be held for it alone; `L + n(B - S)` if each was
//! submitted alone. Beside these, free blocks take at most a sixteenth of the held bytes and [`LEAST_SPARE_BYTES`],
//! once [`Slots::tidy`] has been called; further free space is given back to the file system. If the file system cannot
//! take it back, free space is used again, and the file is at most as long as the largest amount of held bytes and the
//! worst fit of free ranges ever required.
//!
//! **Finding room** costs the logarithm of how many free ranges there are, whatever the file's size: they are kept by
//! place and by length (`extents.rs`). Blocks with some live sectors are in no list: they are not written to before
//! they are free. To reclaim their space their live items are moved: [`Slots::share_of`] tells which items are worth
//! moving, and [`Slots::pack`] writes them again.
//!
//! Thread safety: everything may be called from any thread. The file is never read or written under the lock of the
//! map.
//!
//! | file | what it owns |
//! |---|---|
//! | `map.rs` | the owners of blocks |
//! | `gather.rs` | who waits, and who writes for them |
//! | `submit.rs`, `syncs.rs` | writing a submission, and making it durable |
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
use self::gather::{Gather, How};
use self::map::{Map, Wrong};
pub use self::read::SlotReads;
use self::syncs::Syncs;
use crate::block::{BlockBuf, BlockFile, LEAST_SECTOR_BYTES};

/// Bits of a word that a slot takes.
pub const SLOT_BITS: u32 = 60;

/// The lower ones of these, which count sectors.
const COUNT_BITS: u32 = 22;

/// Free space that is kept in any case.
pub const LEAST_SPARE_BYTES: u64 = 4 << 20;

/// The share of the held bytes that is kept free.
const SPARE_PART: u64 = 16;

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
    /// Bytes of blocks that are not available, because they hold items or because their contents are not known.
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
    /// The unit of the drive: its sector, if that is larger.
    unit_bytes: u64,
    block_bytes: u64,
    map: Mutex<Map>,
    gather: Gather,
    syncs: Syncs,
    /// Submissions, and items in them.
    counts: Mutex<(u64, u64)>,
}

impl Slots {
    /// The slots of `file`, in sectors of so many bytes, always the same for one file. On a drive whose sectors are
    /// larger it is read and written in those, which costs copies.
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

    /// Frees all space that the file had when it was opened, except the slots that are `live`. These are all slots that
    /// anything leads to, or has led to since; slots that were retired in this life may be missing. An impossible slot
    /// is `Error::Corruption`; nothing has changed then. One call is enough. A slot behind the end that the file had
    /// when it was opened, because somebody has cut it, is reported as such, unless an item was written to the very
    /// same place since.
    pub fn adopt(&self, live: impl IntoIterator<Item = Slot>) -> Result<()> {
        let live: BTreeSet<Slot> = live.into_iter().collect();
        self.map.lock().adopt(&live).map_err(|wrong| self.wrong(wrong))
    }

    /// Whether [`adopt`](Self::adopt) has been called. Until then no space is used again.
    pub fn is_adopted(&self) -> bool {
        self.map.lock().is_known()
    }

    /// Writes an item, whole sectors, with those of others who wait. On return every reader of its slot finds it, and
    /// if it `is_durable`, a power cut does not take it. `NoSpace` may be tried again. When the sync of another durable
    /// write fails, earlier items that were not made durable may be lost.
    pub fn write(&self, item: BlockBuf, is_durable: bool) -> Result<Slot> {
        let slots = self.write_all(vec![item], is_durable)?;
        slots.first().copied().ok_or_else(|| Error::invalid("no item"))
    }

    /// Writes `items`, as [`write`](Self::write) does, and all or none of them.
    pub fn write_all(&self, items: Vec<BlockBuf>, is_durable: bool) -> Result<Vec<Slot>> {
        self.write_items(items, How { is_durable, is_packed: false })
    }

    fn write_items(&self, items: Vec<BlockBuf>, how: How) -> Result<Vec<Slot>> {
        for item in &items {
            let (len, sector) = (item.len() as u64, self.sector_bytes);
            if len == 0 || !len.is_multiple_of(sector) || len / sector >= 1 << COUNT_BITS {
                return Err(Error::invalid(format!("an item of {len} bytes in sectors of {sector}")));
            }
        }
        if items.is_empty() {
            return Ok(Vec::new());
        }
        self.gather.write(self, items, how)
    }

    /// Writes `items`, as [`write_all`](Self::write_all) does, durable, one behind the other and apart from those of
    /// others, so that no more than a block is held beside them.
    pub fn pack(&self, items: Vec<BlockBuf>) -> Result<Vec<Slot>> {
        self.write_items(items, How { is_durable: true, is_packed: true })
    }

    /// Makes durable all items that were written before. Once any sync has failed before they were durable, they may be
    /// lost, and this fails from then on. Durable writes are not affected.
    pub fn sync(&self) -> Result<()> {
        self.syncs.sync(&*self.file)
    }

    /// Notes that nothing leads to `slot` any more, but that somebody may still read it. Its contents stay. An
    /// impossible slot, because nothing is there or because it was retired before, is `Error::Corruption`.
    pub fn retire(&self, slot: Slot) -> Result<()> {
        self.map.lock().retire(slot).map_err(|wrong| self.wrong(wrong))
    }

    /// Notes that nobody reads the retired `slot` any more, neither in this life nor, if its replacement can be lost,
    /// in the next.
    pub fn free(&self, slot: Slot) -> Result<()> {
        self.map.lock().free(slot).map_err(|wrong| self.wrong(wrong))
    }

    /// Gives back free space beyond the spare. To be called now and then; may run beside everything else. Returns how
    /// many bytes these were.
    pub fn tidy(&self) -> Result<u64> {
        let counts = self.map.lock().counts();
        let held = counts.end - counts.free - counts.holes;
        self.give_back((held * self.block_bytes / SPARE_PART).max(LEAST_SPARE_BYTES))
    }

    /// Gives back free space beyond so many bytes, as [`tidy`](Self::tidy) does.
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

    /// Bytes of a block, the unit that is held, freed and given back.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Bytes of blocks that the item at `slot` takes: more than its own if its blocks have room that is not used again
    /// before all their items are freed. An item within one block has an equal share of it with the others in it. To
    /// reclaim that room, the items with the largest shares for their sizes are [packed](Self::pack).
    pub fn share_of(&self, slot: Slot) -> u64 {
        self.map.lock().share_of(slot) * self.sector_bytes
    }

    /// Checks that each slot has one owner; `live` has all slots that something leads to. Returns how many bytes of
    /// blocks nobody owns: zero, unless others are writing items that nothing leads to yet.
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
