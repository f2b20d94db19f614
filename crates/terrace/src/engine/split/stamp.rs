//! A stamp in the file of slots, which distinguishes the file from an older copy. `docs/formats/split.md`
//! describes the bytes.
//!
//! A session writes one before its first large item, and records its place and number in the manifest; then
//! the previous stamp is removed. An older copy has something else in that place: no other stamp has that
//! number. A session that writes nothing large leaves the file and its stamp unchanged.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use terrace_base::checksum::{crc32c, crc32c_append};
use terrace_base::{Error, Result};
use terrace_disk::{BlockBuf, Slot, Slots};

use crate::manifest::{Edit, KnownStamp, Manifest};

/// Bytes of a stamp; zeros follow, up to the end of its sector.
pub(super) const STAMP_BYTES: usize = 32;

const MAGIC: [u8; 8] = *b"TERSTAMP";

const _: () = assert!(STAMP_BYTES == 8 + 4 + 4 + 8 + 8 && STAMP_BYTES <= 512);

/// The contents of a stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub number: u64,
    /// Bytes of a sector of the file.
    pub sector_bytes: u32,
}

impl Stamp {
    /// Encodes the stamp in the file of the database with this `origin`, in a sector.
    pub fn encode(&self, origin: u64) -> BlockBuf {
        let mut out = BlockBuf::zeroed(self.sector_bytes as usize);
        out[..8].copy_from_slice(&MAGIC);
        out[12..16].copy_from_slice(&self.sector_bytes.to_le_bytes());
        out[16..24].copy_from_slice(&self.number.to_le_bytes());
        out[24..32].copy_from_slice(&origin.to_le_bytes());
        let crc = crc(&out);
        out[8..12].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The stamp of that database at the beginning of `bytes`, if there is one.
    pub fn decode(origin: u64, bytes: &[u8]) -> Option<Stamp> {
        Stamp::with_origin(bytes).and_then(|(found, stamp)| (found == origin).then_some(stamp))
    }

    /// The stamp at the beginning of `bytes`, if there is one, with the origin of the database that wrote it.
    pub fn with_origin(bytes: &[u8]) -> Option<(u64, Stamp)> {
        let front: &[u8; STAMP_BYTES] = bytes.first_chunk()?;
        let word =
            |at: usize| front[at..at + 8].iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        let is_one = front[..8] == MAGIC && front[8..12] == crc(front).to_le_bytes();
        let stamp = Stamp { number: word(16), sector_bytes: (word(8) >> 32) as u32 };
        is_one.then_some((word(24), stamp))
    }
}

/// The checksum of the magic and everything after the checksum.
fn crc(stamp: &[u8]) -> u32 {
    crc32c_append(crc32c(&stamp[..8]), &stamp[12..STAMP_BYTES])
}

/// The stamps in the file of an open database.
#[derive(Debug, Default)]
pub(super) struct Stamps {
    /// One was written since the opening.
    is_stamped: AtomicBool,
    /// The stamp that the manifest knows, or those that it may know after one of its groups has failed.
    slots: Mutex<Vec<Slot>>,
}

impl Stamps {
    /// The stamps of a file that matches the manifest.
    pub fn of(known: Option<KnownStamp>) -> Stamps {
        let slots = known.and_then(|known| Slot::from_bits(known.slot)).into_iter().collect();
        Stamps { is_stamped: AtomicBool::new(false), slots: Mutex::new(slots) }
    }

    /// How many of the items that `slots` counts are stamps.
    pub fn counted(&self, slots: &Slots) -> u64 {
        let are_counted = slots.is_adopted() || self.is_stamped.load(Ordering::Acquire);
        if are_counted { self.slots.lock().len() as u64 } else { 0 }
    }

    /// Runs `work` with the slots of stamps, which do not change meanwhile.
    pub fn with<T>(&self, work: impl FnOnce(&[Slot]) -> T) -> T {
        work(&self.slots.lock())
    }

    /// Writes the stamp `number`, which nothing used before, unless one was written since the opening.
    pub fn write(
        &self,
        (slots, sector_bytes): (&Slots, u32),
        manifest: &Manifest,
        number: u64,
    ) -> Result<()> {
        if self.is_stamped.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut stamps = self.slots.lock();
        if self.is_stamped.load(Ordering::Acquire) {
            return Ok(());
        }
        let stamp = Stamp { number, sector_bytes }.encode(manifest.state().identity.origin());
        let slot = slots.write(stamp, true)?;
        stamps.push(slot);
        manifest.apply(&[Edit::Stamp(KnownStamp { slot: slot.to_bits(), number })])?;
        self.is_stamped.store(true, Ordering::Release);
        stamps.pop();
        // Only an opening reads stamps, and it follows the manifest.
        let gone = std::mem::replace(&mut *stamps, vec![slot]);
        gone.into_iter().try_for_each(|old| slots.retire(old).and_then(|()| slots.free(old)))
    }
}

/// An error unless the file of `slots` has the stamp that the manifest knows.
pub(super) fn verify(slots: &Slots, origin: u64, known: Option<KnownStamp>) -> Result<()> {
    let Some(known) = known else { return Ok(()) };
    let found = match Slot::from_bits(known.slot).map(|slot| slots.read(slot)) {
        Some(Err(e)) if !matches!(e, Error::Corruption { .. }) => return Err(e),
        Some(Ok(sector)) => Stamp::decode(origin, &sector),
        _ => None,
    };
    match found {
        Some(stamp) if stamp.number == known.number => Ok(()),
        _ => Err(Error::corruption(
            slots.path(),
            Slot::from_bits(known.slot).map_or(0, |slot| slots.offset(slot)),
            format!("the stamp {} of the newest file of slots of this database", known.number),
            "another file, or an older copy; run repair",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { number: 0x0102_0304, sector_bytes: 512 };

    #[test]
    fn golden_stamp() {
        let bytes = STAMP.encode(0x1122_3344);
        let shown: String = bytes[..STAMP_BYTES].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(shown, GOLDEN);
        assert_eq!((bytes.len(), &bytes[STAMP_BYTES..]), (512, &[0; 480][..]));
    }

    #[test]
    fn every_bit_of_a_stamp_counts() {
        let bytes = STAMP.encode(7);
        assert_eq!(Stamp::decode(7, &bytes), Some(STAMP));
        assert_eq!(Stamp::decode(8, &bytes), None, "another database's");
        for bit in 0..STAMP_BYTES * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Stamp::decode(7, &damaged), None, "bit {bit}");
        }
        assert_eq!(Stamp::decode(7, &bytes[..STAMP_BYTES - 1]), None);
    }

    const GOLDEN: &str = "5445525354414d506c9252350002000004030201000000004433221100000000";
}
