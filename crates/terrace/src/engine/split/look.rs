//! Finds the contents of a file of slots by examining every sector: for repairs, and for people. Only the
//! index knows whether anything leads to an item; an item that nothing leads to stays until it is overwritten
//! or its space is given back.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_base::checksum::crc32c_append;
use terrace_base::{Error, Result};
use terrace_disk::{Access, Fs, ReadFile, Slot};

use super::home;
use super::item::{self, HEAD_BYTES, Head};
use super::stamp::Stamp;
use crate::manifest::{KnownStamp, Manifest};

/// Bytes read at a time.
const READ_BYTES: u64 = 1 << 20;

/// No file of slots has smaller sectors.
const LEAST_SECTOR_BYTES: u32 = 512;

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
        let told = state.and_then(|state| {
            let bytes = home::sector_bytes(&state.identity).filter(|bytes| are_sectors(*bytes))?;
            Some((state.identity.origin(), bytes, state.stamp))
        });
        let told = match told {
            None => newest_stamp(&*file, |_| true)?.map(|(origin, stamp)| (origin, stamp.sector_bytes, None)),
            told => told,
        };
        let Some((origin, sector_bytes, known)) = told else {
            return Err(Error::InvalidFormat {
                file: path.to_path_buf(),
                found: "no stamp in it, and no manifest of the engine split beside it".into(),
                supported: "the file SLOTS of a database of the engine split".into(),
            });
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
    /// no part of a sound item can have been overwritten. It shows nothing of other databases.
    ///
    /// # Errors
    ///
    /// `InvalidFormat` for a sound item that a later version wrote; at the end `Corruption` if the
    /// stamp that the manifest knows is not in its place, or if the file ends before its length; the system's
    /// error for a failed read; and the errors of `see`.
    ///
    /// An unsound item is read to its end, and so is everything that begins within it: a file made up of many
    /// such items may take long.
    pub fn visit<E: From<Error>>(&self, see: &mut dyn FnMut(InSlots<'_>) -> Result<(), E>) -> Result<(), E> {
        let (len, sector) = (self.file.len(), self.sector_bytes as usize);
        let (mut piece, mut covered, mut is_there) = (Vec::new(), 0, self.known.is_none());
        for start in (0..len).step_by(READ_BYTES as usize) {
            piece.resize((len - start).min(READ_BYTES) as usize, 0);
            self.file.read_at(start, &mut piece)?;
            for at in (0..piece.len()).step_by(sector) {
                let (offset, front) = (start + at as u64, &piece[at..]);
                if offset < covered {
                    continue;
                }
                if let Some(stamp) = Stamp::decode(self.origin, front) {
                    let is_known = self.is_known(offset, stamp.number);
                    is_there |= is_known;
                    see(InSlots::Stamp { offset, number: stamp.number, is_known })?;
                } else if let Some(head) = Head::of(self.origin, front) {
                    let (key, is_sound) = self.read_item(offset, &head, front)?;
                    if is_sound && head.is_later {
                        return Err(item::later(&self.path).into());
                    }
                    if is_sound {
                        covered = offset + head.bytes() as u64;
                    }
                    see(self.item(offset, &head, &key, is_sound))?;
                }
            }
        }
        if is_there { Ok(()) } else { Err(self.unstamped().into()) }
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

    /// The key of the item with this head at `offset`, and whether the item is sound. It may be long: it is
    /// read piece by piece.
    fn read_item(&self, offset: u64, head: &Head, front: &[u8]) -> Result<(Vec<u8>, bool)> {
        let (from, end) = (offset + HEAD_BYTES as u64, offset + head.bytes() as u64);
        let is_whole = end <= self.file.len();
        let end = end.min(self.file.len());
        let key_end = end.min(from + head.key_len as u64);
        let mut key = vec![0; key_end.saturating_sub(from) as usize];
        self.file.read_at(from, &mut key)?;
        if !is_whole {
            return Ok((key, false));
        }
        let mut crc = crc32c_append(item::crc(&front[..HEAD_BYTES]), &key);
        let mut piece = Vec::new();
        for start in (key_end..end).step_by(READ_BYTES as usize) {
            piece.resize((end - start).min(READ_BYTES) as usize, 0);
            self.file.read_at(start, &mut piece)?;
            crc = crc32c_append(crc, &piece);
        }
        let is_sound = front[8..12] == crc.to_le_bytes();
        Ok((key, is_sound))
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
