//! The names in a store's directory, and the pointer to its manifest.
//!
//! | name | what it is |
//! |---|---|
//! | `CURRENT` | names the manifest in force, with a checksum |
//! | `CURRENT.tmp` | a `CURRENT` being written; worthless |
//! | `MANIFEST-000007` | a manifest; the one that `CURRENT` names counts, others are leftovers |
//! | `000012.sst` | table 12 |
//! | `000012.sst.new` | table 12 of an ingest that has not taken place; worthless |
//! | `000012.ingest` | names the tables of an ingest that is taking place, table 12 first: they count if the manifest names them |
//! | `000003.log` | commit log 3 |
//! | `000003.log.new` | commit log 3 being begun; worthless |
//! | `SLOTS` | large items in slots |
//! | `LOCK` | held while the store is open |
//! | `REPAIR`, `REPAIR.tmp`, `repair`, `lost` | a repair's: its record, what it writes beside, what it set aside |
//!
//! Numbers have six digits or as many as they need. Any other name is foreign and left alone.

use std::fmt;
use std::path::{Path, PathBuf};

use terrace_base::checksum::crc32c;
use terrace_base::{Error, Result};
use terrace_disk::Fs;
use terrace_table::Position;

/// The pointer file's name.
const CURRENT: &str = "CURRENT";
const CURRENT_TEMP: &str = "CURRENT.tmp";

/// The record of a repair that only has to put its files in place.
pub(crate) const REPAIR_RECORD: &str = "REPAIR";
/// A record being written; worthless.
pub(crate) const REPAIR_RECORD_TEMP: &str = "REPAIR.tmp";
/// The folder in which a repair writes beside the existing files.
pub(crate) const REPAIR_FOLDER: &str = "repair";
/// The folder for files that were damaged or not the database's.
pub(crate) const LOST_FOLDER: &str = "lost";

/// Whether a path ends with a name that a repair makes in a database's directory.
pub(crate) fn is_of_repair(path: &Path) -> bool {
    let names = [REPAIR_RECORD, REPAIR_RECORD_TEMP, LOST_FOLDER, REPAIR_FOLDER];
    path.file_name().is_some_and(|name| names.iter().any(|own| name == *own))
}

/// The meaning of a name in the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileName {
    /// The pointer to the manifest in force.
    Current,
    /// A pointer being written.
    CurrentTemp,
    /// A manifest, by its number.
    Manifest(u64),
    /// A table, by its file number.
    Table(u64),
    /// A table of an ingest that has not taken place, by its file number.
    TableHidden(u64),
    /// Names the tables of an ingest that is taking place; the number is the first one's.
    Ingest(u64),
    /// A commit log, by its file number.
    Log(u64),
    /// A commit log being begun, by its file number.
    LogBegun(u64),
    /// The file of slots.
    Slots,
    /// The lock file.
    Lock,
}

/// File numbers are lower, so that an index can name each table: a higher number is in no name of ours.
const MOST_FILES: u64 = Position::MAX_TABLES;

/// A file whose number lies this far behind all others is nobody's: numbers are handed out in order, and few are ahead of
/// what the manifest knows.
const GAP: u64 = 1 << 20;

/// The first number behind `next` and behind all those of `numbers` that follow it without a [`GAP`].
pub(crate) fn behind_all(next: u64, numbers: impl IntoIterator<Item = u64>) -> u64 {
    let mut numbers: Vec<u64> = numbers.into_iter().collect();
    numbers.sort_unstable();
    numbers.into_iter().fold(next, |next, number| {
        if number < next.saturating_add(GAP) { next.max(number + 1) } else { next }
    })
}

impl FileName {
    /// The meaning of `path`'s last component; `None` if it is no name of ours.
    pub fn parse(path: &Path) -> Option<FileName> {
        let name = path.file_name()?.to_str()?;
        let parsed = match name {
            CURRENT => FileName::Current,
            CURRENT_TEMP => FileName::CurrentTemp,
            "LOCK" => FileName::Lock,
            "SLOTS" => FileName::Slots,
            _ => Self::parse_numbered(name)?,
        };
        // One name, one meaning: "+7.sst" or "0000012.sst" parse as numbers but were not written by us.
        (parsed.to_string() == name).then_some(parsed)
    }

    fn parse_numbered(name: &str) -> Option<FileName> {
        if let Some(number) = name.strip_prefix("MANIFEST-") {
            return number.parse().ok().filter(|number| *number < MOST_FILES).map(FileName::Manifest);
        }
        let (number, extension) = name.split_once('.')?;
        let number = number.parse().ok().filter(|number| *number < MOST_FILES)?;
        match extension {
            "sst" => Some(FileName::Table(number)),
            "sst.new" => Some(FileName::TableHidden(number)),
            "ingest" => Some(FileName::Ingest(number)),
            "log" => Some(FileName::Log(number)),
            "log.new" => Some(FileName::LogBegun(number)),
            _ => None,
        }
    }

    /// The file of this name in `dir`.
    pub fn path(self, dir: &Path) -> PathBuf {
        dir.join(self.to_string())
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileName::Current => f.write_str(CURRENT),
            FileName::CurrentTemp => f.write_str(CURRENT_TEMP),
            FileName::Manifest(number) => write!(f, "MANIFEST-{number:06}"),
            FileName::Table(number) => write!(f, "{number:06}.sst"),
            FileName::TableHidden(number) => write!(f, "{number:06}.sst.new"),
            FileName::Ingest(number) => write!(f, "{number:06}.ingest"),
            FileName::Log(number) => write!(f, "{number:06}.log"),
            FileName::LogBegun(number) => write!(f, "{number:06}.log.new"),
            FileName::Slots => f.write_str("SLOTS"),
            FileName::Lock => f.write_str("LOCK"),
        }
    }
}

/// Every file of ours in `dir`, and the paths of the rest.
pub(super) fn list(fs: &dyn Fs, dir: &Path) -> Result<(Vec<FileName>, Vec<PathBuf>)> {
    let mut ours = Vec::new();
    let mut foreign = Vec::new();
    for path in fs.list(dir)? {
        match FileName::parse(&path) {
            Some(name) => ours.push(name),
            None => foreign.push(path),
        }
    }
    Ok((ours, foreign))
}

/// The numbers of the manifests in `dir`, ascending.
pub(super) fn manifests(fs: &dyn Fs, dir: &Path) -> Result<Vec<u64>> {
    let (ours, _) = list(fs, dir)?;
    let mut numbers: Vec<u64> = ours
        .into_iter()
        .filter_map(|name| match name {
            FileName::Manifest(number) => Some(number),
            _ => None,
        })
        .collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// The number of the manifest in force in `dir`; `None` if there is no database there.
///
/// # Errors
///
/// `Corruption` where there is a database but `CURRENT` is missing or damaged, or names a missing
/// manifest: a case for `repair`.
pub fn locate(fs: &dyn Fs, dir: &Path) -> Result<Option<u64>> {
    if !fs.exists(dir)? {
        return Ok(None);
    }
    let current = FileName::Current.path(dir);
    if !fs.exists(&current)? {
        return absent_or_damaged(fs, dir, &current);
    }
    let text = fs.read(&current)?;
    let number = parse_current(&text).ok_or_else(|| {
        let found = format!("\"{}\"; run repair", text[..text.len().min(64)].escape_ascii());
        Error::corruption(&current, 0, "the name of the manifest in force and its checksum", found)
    })?;
    let manifest = FileName::Manifest(number).path(dir);
    if !fs.exists(&manifest)? {
        let expected = "the manifest that CURRENT names";
        return Err(Error::corruption(&manifest, 0, expected, "no such file; run repair"));
    }
    Ok(Some(number))
}

/// Without `CURRENT`: the first manifest alone is left from a creation that was cut short before the store
/// existed; a table, a log or a later manifest is left from a database.
fn absent_or_damaged(fs: &dyn Fs, dir: &Path, current: &Path) -> Result<Option<u64>> {
    let (ours, _) = list(fs, dir)?;
    let rest = ours.iter().find(|name| match name {
        FileName::Table(_) | FileName::Log(_) => true,
        FileName::Manifest(number) => *number > 1,
        _ => false,
    });
    match rest {
        None => Ok(None),
        Some(name) => Err(Error::corruption(
            current,
            0,
            "the name of the manifest in force",
            format!("no such file beside {name}: a damaged database; run repair"),
        )),
    }
}

/// The contents of `CURRENT` for manifest `number`.
pub(super) fn current_text(number: u64) -> String {
    let name = FileName::Manifest(number).to_string();
    format!("{name} {:08x}\n", crc32c(name.as_bytes()))
}

fn parse_current(text: &[u8]) -> Option<u64> {
    let (name, _) = std::str::from_utf8(text).ok()?.split_once(' ')?;
    let FileName::Manifest(number) = FileName::parse(Path::new(name))? else { return None };
    (current_text(number).as_bytes() == text).then_some(number)
}

/// Puts manifest `number` of `dir` in force, atomically and durably. The manifest and its name must
/// be durable already.
pub(crate) fn set_current(fs: &dyn Fs, dir: &Path, number: u64) -> Result<()> {
    let temp = FileName::CurrentTemp.path(dir);
    if fs.exists(&temp)? {
        fs.remove(&temp)?;
    }
    let mut file = fs.create(&temp)?;
    file.append(current_text(number).as_bytes())?;
    file.sync()?;
    drop(file);
    fs.rename(&temp, &FileName::Current.path(dir))?;
    fs.sync_dir(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_behind_a_gap_do_not_count() {
        assert_eq!(behind_all(5, []), 5);
        assert_eq!(behind_all(5, [3, 9, 7, 4]), 10);
        assert_eq!(behind_all(5, [9 + GAP, 9, 60_000_000]), 10 + GAP);
        assert_eq!(behind_all(0, [GAP, MOST_FILES - 1]), 0);
    }

    #[test]
    fn names_round_trip_and_strangers_are_foreign() {
        use FileName::*;
        for name in [
            Current,
            CurrentTemp,
            Lock,
            Manifest(1),
            Manifest(12_345_678),
            Table(7),
            TableHidden(7),
            Ingest(12),
            Log(1_000_000),
            Table(MOST_FILES - 1),
            LogBegun(12),
        ] {
            assert_eq!(FileName::parse(&name.path(Path::new("/d"))), Some(name));
        }
        for stranger in [
            "current",
            "7.log.new",
            "7.sst.new",
            "12.ingest",
            "MANIFEST-7",
            "MANIFEST-+00007",
            "7.sst",
            "000007.sst.bak",
            "0000007.sst",
            "67108864.sst",
            "67108864.log",
            "18446744073709551615.log",
            "MANIFEST-18446744073709551615",
            "a",
        ] {
            assert_eq!(FileName::parse(Path::new(stranger)), None, "{stranger}");
        }
    }

    #[test]
    fn current_is_golden_and_every_flip_is_found() {
        let text = current_text(7);
        assert_eq!(text, "MANIFEST-000007 5872ce62\n");
        assert_eq!(parse_current(text.as_bytes()), Some(7));
        for bit in 0..text.len() * 8 {
            let mut flipped = text.clone().into_bytes();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse_current(&flipped), None);
        }
        assert_eq!(parse_current(b""), None);
    }
}
