//! Finds the contents of a file of slots by examining every sector: for repairs, and for people. Only the
//! index knows whether anything leads to an item; an item that nothing leads to stays until it is overwritten
//! or its space is given back.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_base::{Error, Result};
use terrace_disk::{Access, Fs, LEAST_SECTOR_BYTES, ReadFile, Slot};

use super::home;
use super::item::{self, Head};
use super::sift::{Begins, Sift};
use super::stamp::Stamp;
use crate::manifest::{KnownStamp, Manifest};

/// Bytes read at a time.
const READ_BYTES: u64 = 1 << 20;

/// The file `SLOTS` of a database of the engine `split`, for examination. Nothing is written, and no index is
/// needed.
///
/// ```
/// use terrace::{Db, EngineKind, InSlots, Options, PoolChoice, Profile, SlotsFile};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path();
/// let profile = Profile::parse("dram")?;
/// let pool = PoolChoice::Emulated { path: None, profile };
/// let options = Options { engine: EngineKind::Split, pool, ..Options::default() };
/// let db = Db::open(dir, options)?;
/// db.put("photo", vec![1; 100_000])?;
/// db.close()?;
///
/// let slots = SlotsFile::open(&terrace_disk::RealFs, &dir.join("SLOTS"))?;
/// let mut keys = Vec::new();
/// slots.visit(&mut |found| {
///     if let InSlots::Item { key, is_sound: true, .. } = found {
///         keys.push(key.to_vec());
///     }
///     Ok::<(), terrace::Error>(())
/// })?;
/// assert_eq!(keys, [b"photo"]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SlotsFile {
    file: Arc<dyn ReadFile>,
    path: PathBuf,
    origin: u64,
    sector_bytes: u32,
    known: Option<KnownStamp>,
}

/// What begins at a sector of a file of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum InSlots<'a> {
    /// A stamp, which distinguishes the file from an older copy.
    Stamp {
        /// Its offset in the file.
        offset: u64,
        /// The number of the first large item of the session that wrote it.
        number: u64,
        /// Whether it is the one that the manifest knows.
        is_known: bool,
    },
    /// A version of a key.
    Item {
        /// Its offset in the file.
        offset: u64,
        /// Its size in sectors.
        sectors: u64,
        /// The key; only its beginning if the file ends within it.
        key: &'a [u8],
        /// The version's number.
        number: u64,
        /// Bytes of the value.
        value_bytes: u64,
        /// Whether all of it is there and its checksum holds. It does not if part of an item that nothing
        /// leads to any more was overwritten.
        is_sound: bool,
    },
}

/// Whether a file may have sectors of this size.
fn are_sectors(bytes: u32) -> bool {
    // A piece that is read consists of whole sectors.
    bytes.is_power_of_two() && (LEAST_SECTOR_BYTES..=READ_BYTES as u32).contains(&bytes)
}

impl SlotsFile {
    /// Opens the file at `path`. The manifest beside it names its owner or, if no manifest can be read, the
    /// newest stamp in it.
    ///
    /// # Errors
    ///
    /// `InvalidFormat` if neither does, and the system's error for a file or directory that cannot be
    /// read.
    pub fn open(fs: &dyn Fs, path: &Path) -> Result<SlotsFile> {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let state = match Manifest::state_in(fs, dir) {
            Err(e) if e.is_system_failure() => return Err(e),
            read => read.ok().flatten(),
        };
        let file = fs.open(path, Access::Sequential)?;
        let stamped = state.and_then(|state| {
            let bytes = home::sector_bytes(&state.identity).filter(|bytes| are_sectors(*bytes))?;
            Some((state.identity.origin(), bytes, state.stamp))
        });
        let stamped = match stamped {
            None => newest_stamp(&*file, |_| true)?.map(|(origin, stamp)| (origin, stamp.sector_bytes, None)),
            stamped => stamped,
        };
        let Some((origin, sector_bytes, known)) = stamped else {
            return Err(Error::foreign(
                path,
                "no stamp in it, and no manifest of the engine split beside it",
                "the file SLOTS of a database of the engine split",
            ));
        };
        Ok(SlotsFile { file, path: path.to_path_buf(), origin, sector_bytes, known })
    }

    /// The file of the database with this `origin`.
    pub(super) fn of(fs: &dyn Fs, path: &Path, origin: u64, sector_bytes: u32) -> Result<SlotsFile> {
        let file = fs.open(path, Access::Sequential)?;
        Ok(SlotsFile { file, path: path.to_path_buf(), origin, sector_bytes, known: None })
    }

    /// Its length.
    pub fn file_bytes(&self) -> u64 {
        self.file.len()
    }

    /// Bytes of a sector.
    pub fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    /// The origin that its items and stamps name.
    pub fn origin(&self) -> u64 {
        self.origin
    }

    /// Shows what begins at each sector, except within a sound item: such a sector belongs to the value, and
    /// no part of a sound item can have been overwritten. It shows nothing of other databases. The file is
    /// read once, and the keys in it once more.
    ///
    /// # Errors
    ///
    /// `InvalidFormat` for a sound item that a later version wrote; at the end `Corruption` if the
    /// stamp that the manifest knows is not in its place, or if the file ends before its length; the system's
    /// error for a failed read; and the errors of `see`.
    pub fn visit<E: From<Error>>(&self, see: &mut dyn FnMut(InSlots<'_>) -> Result<(), E>) -> Result<(), E> {
        let (len, sector) = (self.file.len(), self.sector_bytes as usize);
        let (mut piece, mut sift) = (Vec::new(), Sift::new(self.origin, len));
        let mut is_there = self.known.is_none();
        for start in (0..len).step_by(READ_BYTES as usize) {
            piece.resize((len - start).min(READ_BYTES) as usize, 0);
            self.file.read_at(start, &mut piece)?;
            for (i, sector_bytes) in piece.chunks(sector).enumerate() {
                sift.take(start + (i * sector) as u64, sector_bytes);
                while let Some((offset, begins)) = sift.next() {
                    is_there |= self.show(offset, begins, see)?;
                }
            }
        }
        if is_there { Ok(()) } else { Err(self.unstamped().into()) }
    }

    /// Shows what begins at `offset`; returns whether that is the stamp that the manifest knows.
    fn show<E: From<Error>>(
        &self,
        offset: u64,
        begins: Begins,
        see: &mut dyn FnMut(InSlots<'_>) -> Result<(), E>,
    ) -> Result<bool, E> {
        match begins {
            Begins::Stamp(Stamp { number, .. }) => {
                let is_known = self.is_known(offset, number);
                see(InSlots::Stamp { offset, number, is_known }).map(|()| is_known)
            }
            Begins::Item(head, true) if head.is_later => Err(item::later(&self.path).into()),
            Begins::Item(head, is_sound) => {
                let key = self.key(offset, &head)?;
                see(self.item(offset, &head, &key, is_sound)).map(|()| false)
            }
        }
    }

    fn item<'a>(&self, offset: u64, head: &Head, key: &'a [u8], is_sound: bool) -> InSlots<'a> {
        InSlots::Item {
            offset,
            sectors: head.bytes().div_ceil(self.sector_bytes as usize) as u64,
            key,
            number: head.number,
            value_bytes: head.value_len as u64,
            is_sound,
        }
    }

    /// The key of the item with this head at `offset`, as far as the file has it.
    fn key(&self, offset: u64, head: &Head) -> Result<Vec<u8>> {
        let there = (self.file.len() - offset).min(head.value_from() as u64) as usize;
        let mut front = vec![0; there];
        self.file.read_at(offset, &mut front)?;
        head.unmask(&mut front);
        Ok(front.split_off(head.key_from().min(there)))
    }

    fn is_known(&self, offset: u64, number: u64) -> bool {
        let place = |known: KnownStamp| Some(Slot::from_bits(known.slot)?.first() * self.sector_bytes as u64);
        self.known.is_some_and(|known| known.number == number && place(known) == Some(offset))
    }

    fn unstamped(&self) -> Error {
        let known = self.known.unwrap_or(KnownStamp { slot: 0, number: 0 });
        let at = Slot::from_bits(known.slot).map_or(0, |slot| slot.first() * u64::from(self.sector_bytes));
        let expected = format!("the stamp {} that the manifest knows", known.number);
        Error::corruption(&self.path, at, expected, "another file, an older copy, or damage")
    }
}

/// The newest stamp in the file among those whose origin is wanted, with its origin.
pub(super) fn newest_stamp(
    file: &dyn ReadFile,
    is_wanted: impl Fn(u64) -> bool,
) -> Result<Option<(u64, Stamp)>> {
    let (mut piece, mut newest): (Vec<u8>, Option<(u64, Stamp)>) = (Vec::new(), None);
    for start in (0..file.len()).step_by(READ_BYTES as usize) {
        piece.resize((file.len() - start).min(READ_BYTES) as usize, 0);
        file.read_at(start, &mut piece)?;
        let found = piece.chunks(LEAST_SECTOR_BYTES as usize).filter_map(Stamp::with_origin);
        let found = found.filter(|(origin, stamp)| is_wanted(*origin) && are_sectors(stamp.sector_bytes));
        newest = newest.into_iter().chain(found).max_by_key(|(_, stamp)| stamp.number);
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Counts the bytes that are read of it.
    #[derive(Debug)]
    struct Counted(Vec<u8>, AtomicU64);

    impl ReadFile for Counted {
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
            self.1.fetch_add(buf.len() as u64, Ordering::Relaxed);
            buf.copy_from_slice(&self.0[offset as usize..][..buf.len()]);
            Ok(())
        }

        fn len(&self) -> u64 {
            self.0.len() as u64
        }

        fn path(&self) -> &Path {
            Path::new("SLOTS")
        }
    }

    /// Must catch a pass that reads to the end of every item that is not sound.
    #[test]
    fn a_file_of_items_that_reach_to_its_end_is_read_once() {
        const SECTOR: usize = 512;
        let mut file = vec![0; 2000 * SECTOR];
        for at in (0..file.len()).step_by(SECTOR) {
            let value = vec![1; file.len() - at - 100];
            let item = crate::engine::pm::Item { key: b"key", value: &value, number: 9 };
            file[at..at + SECTOR].copy_from_slice(&item::encode(7, &item, SECTOR as u32)[..SECTOR]);
        }
        let (len, counted) = (file.len() as u64, Arc::new(Counted(file, AtomicU64::new(0))));
        let slots = SlotsFile {
            file: counted.clone(),
            path: "SLOTS".into(),
            origin: 7,
            sector_bytes: SECTOR as u32,
            known: None,
        };
        let mut found = 0;
        slots
            .visit(&mut |in_slots| {
                found += u64::from(matches!(in_slots, InSlots::Item { is_sound: false, key: b"key", .. }));
                Ok::<(), Error>(())
            })
            .unwrap();
        // The last one ends within its sector.
        assert_eq!(found, len / SECTOR as u64 - 1);
        let read = counted.1.load(Ordering::Relaxed);
        assert!(read < len + len / 4, "{read} bytes of {len}");
    }
}
