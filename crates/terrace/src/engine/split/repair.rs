//! What a repair finds on the SSD.
//!
//! Sound tables stay; the sound blocks of damaged ones go into new ones (`salvage/`). The file of slots stays
//! as it is: each item in it shows by itself whether it is sound. If the index does not tell which item is a
//! key's, all tables and every sector of the file are read, and for each key the version with the highest
//! number is taken.

use terrace_base::Result;
use terrace_disk::{Access, Slot, Slots};
use terrace_table::{Cursor, Kind};

use super::home::{SECTOR_OPTION, Ssd, create, sector_bytes};
use super::look::{InSlots, SlotsFile, newest_stamp};
use super::place::OnSsd;
use super::stamp;
use crate::core::Core;
use crate::engine::pm::{Place, Salvaged, Tell};
use crate::manifest::{FileName, Identity, KnownStamp, State};
use crate::salvage::Salvage;

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
        // The manifest knew the size, and so does the newest stamp.
        let stamped = stamped_sector_bytes(&core, identity.origin())?;
        // Nothing large was written since stamps exist: it is likely the same drive.
        let of_drive = || Ok(core.fs().open_blocks(&path, false)?.geometry().sector_bytes);
        let bytes = stamped.map_or_else(of_drive, Ok)?;
        identity.options.insert(SECTOR_OPTION.into(), bytes.to_string());
    }
    let stamp = sound_stamp(base, known.and_then(|state| state.stamp), identity)?;
    Ok(Salvaged { tables: sound.into_iter().map(|(_, meta)| (0, meta)).collect(), salvaged, stamp })
}

/// The stamp that the manifest knew, if it is in the file of slots; otherwise that is reported.
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

/// The sector size in the newest stamp of the file of slots.
fn stamped_sector_bytes(core: &Core, origin: u64) -> Result<Option<u32>> {
    let file = core.fs().open(&FileName::Slots.path(&core.dir), Access::Sequential)?;
    Ok(newest_stamp(&*file, |of| of == origin)?.map(|(_, stamp)| stamp.sector_bytes))
}

/// Reports every version in tables and slots.
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

fn gather_slots(ssd: &Ssd, take: &mut Tell<'_>) -> Result<()> {
    let (path, sector) = (FileName::Slots.path(&ssd.core.dir), u64::from(ssd.sector_bytes()));
    let file = SlotsFile::of(ssd.core.fs(), &path, ssd.origin(), ssd.sector_bytes())?;
    file.visit(&mut |found| match found {
        InSlots::Item { offset, sectors, key, number, is_sound: true, .. } => {
            match Slot::from_bits((offset / sector) << SECTOR_COUNT_BITS | sectors) {
                Some(slot) => take(key, number, OnSsd::Slot(slot).bits()),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    })
}

/// Bits of a slot that hold its number of sectors (`docs/formats/slots.md`).
const SECTOR_COUNT_BITS: u32 = 22;
