//! What a repair finds on the SSD.
//!
//! Of tables, those that are sound stay, and of damaged ones the sound blocks go into new ones (`salvage/`). The file of slots
//! stays as it is: each item in it tells for itself whether it is sound. Where the index does not tell which item is a
//! key's, all tables and every sector of the file are read, and of each key the version with the highest number is taken.

use terrace_base::Result;
use terrace_disk::{Access, Slot, Slots};
use terrace_table::{Cursor, Kind};

use super::home::{SECTOR_OPTION, Ssd, create, sector_bytes};
use super::item::{self, HEAD_BYTES, Head};
use super::place::OnSsd;
use super::stamp::{self, Stamp};
use crate::core::Core;
use crate::engine::pm::{Place, Salvaged, Tell};
use crate::manifest::{FileName, Identity, KnownStamp, State};
use crate::salvage::Salvage;

/// Bytes of the file of slots that are read at a time.
const READ_BYTES: u64 = 1 << 20;

/// No file of slots has smaller sectors.
const LEAST_SECTOR_BYTES: usize = 512;

/// Bytes read ahead from a table.
const READAHEAD_BYTES: usize = 1 << 20;

pub(super) fn salvage(
    base: &mut Salvage,
    known: Option<&State>,
    identity: &mut Identity,
) -> Result<Salvaged> {
    let core = base.core.clone();
    let wanted = base.wanted_tables(known);
    let sound = base.sound_tables(wanted)?;
    let renamed = sound.iter().filter(|(number, meta)| *number != meta.number);
    let salvaged = renamed.map(|(number, meta)| (meta.number, *number)).collect();
    let path = FileName::Slots.path(&core.dir);
    if !core.fs().exists(&path)? {
        base.lost(format!("{} is missing, with every large item", path.display()));
        create(core.fs(), &core.dir, identity)?;
    }
    if sector_bytes(identity).is_none() {
        // The manifest knew, and so does the newest stamp.
        let stamped = stamped_sector_bytes(&core, identity.origin())?;
        // Nothing large was written since there are stamps: it is likely the same drive.
        let of_drive = || Ok(core.fs().open_blocks(&path, false)?.geometry().sector_bytes);
        let bytes = stamped.map_or_else(of_drive, Ok)?;
        identity.options.insert(SECTOR_OPTION.into(), bytes.to_string());
    }
    let stamp = sound_stamp(base, known.and_then(|state| state.stamp), identity)?;
    Ok(Salvaged { tables: sound.into_iter().map(|(_, meta)| (0, meta)).collect(), salvaged, stamp })
}

/// The stamp that the manifest knew, if it is in the file of slots; else that is told.
fn sound_stamp(
    base: &mut Salvage,
    known: Option<KnownStamp>,
    identity: &Identity,
) -> Result<Option<KnownStamp>> {
    let (core, Some(sector_bytes)) = (base.core.clone(), sector_bytes(identity)) else { return Ok(None) };
    let file = core.fs().open_blocks(&FileName::Slots.path(&core.dir), false)?;
    match stamp::verify(&Slots::open(file, sector_bytes)?, identity.origin(), known) {
        Ok(()) => Ok(known),
        Err(e) if e.is_system_failure() => Err(e),
        Err(e) => {
            base.lost(format!("{e}: large items that were written last"));
            Ok(None)
        }
    }
}

/// The bytes of a sector that the newest stamp in the file of slots tells.
fn stamped_sector_bytes(core: &Core, origin: u64) -> Result<Option<u32>> {
    let file = core.fs().open(&FileName::Slots.path(&core.dir), Access::Sequential)?;
    let (mut piece, mut newest): (Vec<u8>, Option<Stamp>) = (Vec::new(), None);
    for start in (0..file.len()).step_by(READ_BYTES as usize) {
        piece.resize((file.len() - start).min(READ_BYTES) as usize, 0);
        file.read_at(start, &mut piece)?;
        let found = piece.chunks(LEAST_SECTOR_BYTES).filter_map(|sector| Stamp::decode(origin, sector));
        newest = newest.into_iter().chain(found).max_by_key(|stamp| stamp.number);
    }
    Ok(newest.map(|stamp| stamp.sector_bytes))
}

/// Tells of every version in tables and slots.
pub(super) fn gather(ssd: &Ssd, take: &mut Tell<'_>) -> Result<()> {
    let numbers: Vec<u64> = ssd.manifest.state().tables.keys().copied().collect();
    for number in numbers {
        let mut cursor = ssd.tables.get(number)?.cursor(false, READAHEAD_BYTES);
        cursor.seek_first()?;
        while cursor.valid() {
            if let (Kind::Put, Some(position)) = (cursor.kind(), cursor.position()) {
                take(cursor.key(), cursor.seq(), OnSsd::Run(position).bits())?;
            }
            cursor.next()?;
        }
    }
    gather_slots(ssd, take)
}

/// Looks at every sector of the file of slots for the beginning of an item, but for those within an item that is whole: what
/// is there is the value's. Nothing can have been written over a part of such an item.
fn gather_slots(ssd: &Ssd, take: &mut Tell<'_>) -> Result<()> {
    let file = ssd.core.fs().open(&FileName::Slots.path(&ssd.core.dir), Access::Sequential)?;
    let (len, sector) = (file.len(), u64::from(ssd.sector_bytes()));
    let (mut piece, mut covered) = (Vec::new(), 0);
    for start in (0..len).step_by(READ_BYTES as usize) {
        piece.resize((len - start).min(READ_BYTES) as usize, 0);
        file.read_at(start, &mut piece)?;
        for at in (0..piece.len() as u64).step_by(sector as usize) {
            if start + at < covered {
                continue;
            }
            let front = &piece[at as usize..];
            let Some(head) = front.get(..HEAD_BYTES).and_then(|front| Head::of(ssd.origin(), front)) else {
                continue;
            };
            let (first, bytes) = ((start + at) / sector, head.bytes() as u64);
            if (start + at).checked_add(bytes).is_none_or(|end| end > len) {
                continue;
            }
            let mut item = vec![0; bytes as usize];
            file.read_at(start + at, &mut item)?;
            let slot = Slot::from_bits(first << SECTOR_COUNT_BITS | bytes.div_ceil(sector));
            if let (Some(read), Some(slot)) = (item::decode(ssd.origin(), &item), slot) {
                covered = start + at + bytes;
                take(read.key, read.head.number, OnSsd::Slot(slot).bits())?;
            }
        }
    }
    Ok(())
}

/// Bits of a slot that say how many sectors it has (`docs/formats/slots.md`).
const SECTOR_COUNT_BITS: u32 = 22;
