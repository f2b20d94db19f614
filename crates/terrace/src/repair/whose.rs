//! Whose files lie in a directory: Terrace's or another store's.
//!
//! Names prove nothing: RocksDB and LevelDB name their files as Terrace does. The first or last bytes of a
//! file do. A directory of another store is never touched, and a repair touches nothing if no file is
//! Terrace's. Looking writes nothing and creates no file.

use std::path::{Path, PathBuf};

use terrace_base::{Error, ErrorKind, Result};
use terrace_disk::{Access, Fs, ReadFile};

use crate::env::Env;
use crate::manifest::{self, FileName};
use crate::options::PoolChoice;
use crate::pool;

/// First bytes of Terrace's files: tables, manifests and logs, pools.
const OURS: [&[u8]; 3] = [b"TERRTBL\n", b"TERRALOG", b"TERRPOOL"];

/// Last bytes of a table.
const TABLE_END: &[u8] = b"\nLBTRRET";

/// Offset of the second superblock of a pool.
const SECOND_SUPERBLOCK_AT: u64 = 4096;

/// First bytes of other stores' files, their offsets, and the stores' names. A file name is given where only
/// that makes it certain.
const THEIRS: [(Option<&str>, u64, &[u8], &str); 6] = [
    (None, 0, b"redb\x1a\x0a\xa9\x0d\x0a", "redb"),
    (None, 0, b"SQLite format 3\0", "SQLite"),
    (Some("version"), 0, b"FJL", "fjall"),
    (Some("data.mdb"), 16, &[0xde, 0xc0, 0xef, 0xbe], "LMDB"),
    (Some("data.mdb"), 16, &[0xbe, 0xef, 0xc0, 0xde], "LMDB"),
    (Some("data.mdb"), 24, &[0xde, 0xc0, 0xef, 0xbe], "LMDB"),
];

/// Last bytes of other stores' tables.
const TABLE_ENDS: [(&[u8], &str); 2] = [
    (&[0xf7, 0xcf, 0xf4, 0x85, 0xb7, 0x41, 0xe2, 0x88], "RocksDB"),
    (&[0x57, 0xfb, 0x80, 0x8b, 0x24, 0x75, 0x47, 0xdb], "LevelDB"),
];

/// Longer than any text of a pointer file.
const POINTER_BYTES: u64 = 64;

/// Whose a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// It holds a file that is certainly Terrace's.
    Terrace,
    /// It belongs to another store, named here.
    Another(&'static str),
    /// Nothing in it tells.
    Unknown,
}

impl Whose {
    /// Looks at the files in `dir`, or at `dir` itself if that is a file. Unreadable files tell nothing.
    ///
    /// # Errors
    ///
    /// The directory cannot be listed.
    pub fn is(fs: &dyn Fs, dir: &Path) -> Result<Whose> {
        if !fs.exists(dir)? {
            return Ok(Whose::Unknown);
        }
        if matches!(manifest::locate(fs, dir), Ok(Some(_))) {
            return Ok(Whose::Terrace);
        }
        let files = match fs.list(dir) {
            Ok(files) => files,
            Err(e) => return another(fs, dir).map_or(Err(e), |name| Ok(Whose::Another(name))),
        };
        if files.iter().any(|path| is_ours(fs, path)) {
            return Ok(Whose::Terrace);
        }
        let name = of_many(fs, &files).or_else(|| files.iter().find_map(|path| another(fs, path)));
        Ok(name.map_or(Whose::Unknown, Whose::Another))
    }
}

/// An error if the directory belongs to another store.
pub(crate) fn admit(fs: &dyn Fs, dir: &Path) -> Result<()> {
    match Whose::is(fs, dir)? {
        Whose::Another(name) => {
            let dir = dir.display();
            Err(Error::invalid(format!(
                "{dir} holds a {name} database and not one of Terrace; it is left as it is"
            )))
        }
        Whose::Terrace | Whose::Unknown => Ok(()),
    }
}

/// An error if neither the directory nor its pool, which may lie elsewhere, proves that a database is there.
pub(crate) fn admit_repair(env: &Env, dir: &Path, pool: &PoolChoice) -> Result<()> {
    let fs = &*env.fs;
    admit(fs, dir)?;
    if Whose::is(fs, dir)? == Whose::Terrace || has_pool(env, dir, pool)? {
        return Ok(());
    }
    let found = if fs.list(dir)?.is_empty() { "it is empty" } else { "no file in it is one of Terrace's" };
    Err(Error::invalid(format!("there is no database in {}: {found}", dir.display())))
}

/// Whether a pool lies where the options say.
fn has_pool(env: &Env, dir: &Path, choice: &PoolChoice) -> Result<bool> {
    let path = choice.path_from(dir);
    if !env.pm.exists(&path)? {
        return Ok(false);
    }
    match pool::look_at(env, &path, choice.media()) {
        Err(e @ Error::Locked { .. }) => Err(e),
        // A pool of another version is one, too.
        Err(e) => Ok(e.is_of_another_version() || e.kind() == ErrorKind::Corruption),
        Ok(_) => Ok(true),
    }
}

fn is_ours(fs: &dyn Fs, path: &Path) -> bool {
    let Ok(file) = fs.open(path, Access::Random) else { return false };
    let begins = |at| OURS.iter().any(|magic| has(&*file, at, magic));
    let ends = file.len().checked_sub(TABLE_END.len() as u64).is_some_and(|at| has(&*file, at, TABLE_END));
    begins(0) || ends || has(&*file, SECOND_SUPERBLOCK_AT, OURS[2])
}

/// The store that a file belongs to, if it is known to be another one.
fn another(fs: &dyn Fs, path: &Path) -> Option<&'static str> {
    let file = fs.open(path, Access::Random).ok()?;
    let is_named = |name: Option<&str>| name.is_none_or(|name| path.file_name().is_some_and(|n| n == name));
    let begun = THEIRS.iter().find(|(name, at, magic, _)| is_named(*name) && has(&*file, *at, magic));
    let end = file.len().saturating_sub(8);
    let ended = || TABLE_ENDS.iter().find(|(magic, _)| has(&*file, end, magic));
    begun.map(|(.., whose)| *whose).or_else(|| ended().map(|(_, whose)| *whose))
}

/// The store that a directory's files together belong to: the pointer of RocksDB and LevelDB names a manifest
/// and holds nothing else.
fn of_many(fs: &dyn Fs, files: &[PathBuf]) -> Option<&'static str> {
    let names: Vec<&str> = files.iter().filter_map(|path| path.file_name()?.to_str()).collect();
    if names.iter().any(|name| is_numbered(name, "OPTIONS-")) {
        return Some("RocksDB");
    }
    let current = files.iter().find(|path| FileName::parse(path) == Some(FileName::Current))?;
    let file = fs.open(current, Access::Random).ok().filter(|file| file.len() <= POINTER_BYTES)?;
    let mut text = vec![0; file.len() as usize];
    file.read_at(0, &mut text).ok()?;
    let manifest = std::str::from_utf8(&text).ok()?.strip_suffix('\n')?;
    let is_theirs = is_numbered(manifest, "MANIFEST-") && names.contains(&manifest);
    is_theirs.then(|| if names.contains(&"IDENTITY") { "RocksDB" } else { "LevelDB" })
}

fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| rest.len() >= 6 && rest.bytes().all(|b| b.is_ascii_digit()))
}

fn has(file: &dyn ReadFile, at: u64, magic: &[u8]) -> bool {
    let mut found = vec![0; magic.len()];
    at.checked_add(magic.len() as u64).is_some_and(|end| end <= file.len())
        && file.read_at(at, &mut found).is_ok()
        && found == magic
}

#[cfg(test)]
mod tests {
    use terrace_disk::SimFs;

    use super::*;

    /// A file's name and bytes.
    type File<'a> = (&'a str, &'a [u8]);

    fn whose(files: &[File<'_>]) -> Whose {
        let (fs, dir) = (SimFs::new(), Path::new("/d"));
        fs.create_dir_all(dir).unwrap();
        files.iter().for_each(|(name, bytes)| fs.plant(&dir.join(name), bytes).unwrap());
        Whose::is(&fs, dir).unwrap()
    }

    #[test]
    fn other_stores_are_told_by_what_they_write() {
        let manifest = ("MANIFEST-000005", &b"whatever"[..]);
        let pointer = ("CURRENT", &b"MANIFEST-000005\n"[..]);
        let lmdb = [&[0; 16][..], &[0xde, 0xc0, 0xef, 0xbe]].concat();
        let table = [&[1; 90][..], TABLE_ENDS[0].0].concat();
        let cases: [(&[File<'_>], Whose); 9] = [
            (&[manifest, pointer], Whose::Another("LevelDB")),
            (&[manifest, pointer, ("IDENTITY", b"x")], Whose::Another("RocksDB")),
            (&[("OPTIONS-000007", b"[Version]")], Whose::Another("RocksDB")),
            (&[("000009.sst", &table)], Whose::Another("RocksDB")),
            (&[("data.mdb", &lmdb)], Whose::Another("LMDB")),
            (&[("version", b"FJL\x03")], Whose::Another("fjall")),
            (&[("mine", b"redb\x1a\x0a\xa9\x0d\x0a and more")], Whose::Another("redb")),
            (&[("CURRENT", b"MANIFEST-000005\n")], Whose::Unknown),
            (&[], Whose::Unknown),
        ];
        for (files, expected) in cases {
            assert_eq!(whose(files), expected, "{files:?}");
        }
    }

    #[test]
    fn one_file_of_ours_is_proof() {
        let pool = [&[0; 4096][..], b"TERRPOOL"].concat();
        for bytes in [&b"TERRTBL\n"[..], b"TERRALOG....", b"....\nLBTRRET", &pool] {
            assert_eq!(whose(&[("a", bytes), ("CURRENT", b"")]), Whose::Terrace);
        }
    }
}
