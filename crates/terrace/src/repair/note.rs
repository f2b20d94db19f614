//! The note in the folder of a repair: it says that the folder belongs to a repair, and names the pool.
//! `docs/formats/repair.md` has its bytes.
//!
//! It is the first file in the folder and the last to go. Without it nobody knows that the other files, and
//! the pool, were a repair's.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use terrace_base::Result;
use terrace_base::codec::Reader;
use terrace_disk::{Access, Fs};

use super::pools::POOL_SUFFIX;
use super::sealed::{Sort, path_of, put_path, some_path};
use crate::pool::inside;

/// The note's name.
pub(super) const NAME: &str = "NOTE";

/// Its name while it is written. A power cut may leave anything in it.
const NEW_NAME: &str = "NOTE.new";

/// No note is longer: it has two paths.
const MOST_BYTES: u64 = 16 << 10;

const SORT: Sort = Sort { magic: *b"TERRNOTE", version: 3, what: "the note of a repair" };

/// What a repair records before it writes anything else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Note {
    /// The database's absolute directory: if all of it was copied to another directory, the pool is not the
    /// repair's.
    pub dir: PathBuf,
    /// The new pool, if its place was empty when the repair began.
    pub pool: Option<PathBuf>,
}

impl Note {
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        put_path(&mut body, &self.dir);
        put_path(&mut body, self.pool.as_deref().unwrap_or(Path::new("")));
        SORT.seal(&body)
    }

    /// The note in `data`, the contents of `path`.
    pub fn decode(path: &Path, data: &[u8]) -> Result<Note> {
        let mut r = Reader::new(SORT.unseal(path, data)?);
        let note = (|| Some(Note { dir: path_of(&mut r)?, pool: some_path(path_of(&mut r)?) }))();
        note.filter(|note| r.is_empty() && note.pool.as_deref().is_none_or(is_beside))
            .ok_or_else(|| SORT.damaged(path, "bytes that do not decode"))
    }

    /// The note in `folder`, if there is one. An error if the file is no note: nobody knows that the folder is a
    /// repair's.
    pub fn read(fs: &dyn Fs, folder: &Path) -> Result<Option<Note>> {
        let path = folder.join(NAME);
        if !fs.exists(&path)? {
            return Ok(None);
        }
        Note::decode(&path, &SORT.read(fs, &path)?).map(Some)
    }

    /// Writes it into `folder`, which is empty. It is there whole or not at all.
    pub fn write(&self, fs: &dyn Fs, folder: &Path) -> Result<()> {
        let new = folder.join(NEW_NAME);
        let mut file = fs.create(&new)?;
        file.append(&self.encode())?;
        file.sync()?;
        drop(file);
        fs.rename(&new, &folder.join(NAME))?;
        fs.sync_dir(folder)
    }

    /// The pool that may be removed with what the repair of `dir` has left, by a path valid from `dir`.
    pub fn pool_of(&self, dir: &Path) -> Option<&Path> {
        // It may be spelt in another way, with links or parts `..`.
        let real = |dir: &Path| dir.canonicalize().or_else(|_| std::path::absolute(dir));
        let is_here = real(&self.dir).ok().zip(real(dir).ok()).is_some_and(|(noted, dir)| noted == dir);
        // A copy of a link leads to the original's.
        let was_copied = |pool: &Path| pool.is_relative() && inside(&dir.join(pool), dir).is_some();
        self.pool.as_deref().filter(|pool| is_here || was_copied(pool))
    }
}

/// Removes what a repair has left that was cut short while it wrote the note: nothing lies beside that.
pub(super) fn discard_unwritten(fs: &dyn Fs, folder: &Path) -> Result<()> {
    let new = folder.join(NEW_NAME);
    let is_alone = fs.exists(&new)? && fs.list(folder)?.len() == 1;
    if is_alone && fs.open(&new, Access::Sequential)?.len() <= MOST_BYTES {
        fs.remove(&new)?;
        fs.sync_dir(folder)?;
    }
    Ok(())
}

/// Whether a pool is named like one that a repair makes, and lies where such a pool may.
pub(super) fn is_beside(pool: &Path) -> bool {
    let has_suffix = pool.as_os_str().as_bytes().ends_with(POOL_SUFFIX.as_bytes());
    has_suffix && !pool.components().any(|part| part.as_os_str() == OsStr::new(".."))
}

/// Decodes a possible note, for the fuzzer; encoding what was decoded must decode to the same.
pub(crate) fn decode_note(data: &[u8]) {
    let path = Path::new(NAME);
    if let Ok(note) = Note::decode(path, data) {
        assert!(Note::decode(path, &note.encode()).is_ok_and(|again| again == note));
    }
}

/// A note with one of everything.
pub(crate) fn sound_note() -> Vec<u8> {
    Note { dir: "/db".into(), pool: Some("/p.repair".into()) }.encode()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repair::sealed::assert_golden;

    #[test]
    fn golden_and_every_flip_is_found() {
        assert_golden(&sound_note(), GOLDEN, |data| Note::decode(Path::new("n"), data).map(drop));
    }

    const GOLDEN: &str = "544552524e4f544503000000a09782c2032f6462092f702e726570616972";

    #[test]
    fn a_pool_is_the_repairs_only_under_its_name_and_where_the_repair_was() {
        let note = |dir: &str, pool: &str| Note { dir: dir.into(), pool: Some(pool.into()) };
        let decoded = |note: &Note| Note::decode(Path::new("n"), &note.encode()).ok();
        for pool in ["/p", "pool", "../p.repair", "/d/../p.repair", "/home/.repair.txt"] {
            assert_eq!(decoded(&note("/db", pool)), None, "{pool}");
        }
        let (here, elsewhere) = (note("/db", "pool.repair"), note("/db", "/p.repair"));
        assert_eq!(decoded(&here), Some(here.clone()));
        let of = |note: &Note, dir: &str| note.pool_of(Path::new(dir)).is_some();
        assert_eq!(
            (of(&here, "/db"), of(&here, "/copy")),
            (true, true),
            "what lies in the directory was copied with it"
        );
        assert_eq!((of(&elsewhere, "/db"), of(&elsewhere, "/copy")), (true, false));
    }
}
