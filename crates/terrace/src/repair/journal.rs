//! The record of a repair that only has to put its files in place: `docs/formats/repair.md` has its bytes.
//!
//! It is written as one file and takes its name by a rename. From then on the repair has happened: the next
//! opening or repair that finds the record puts the rest in place, however often it has to start over.

use std::path::{Path, PathBuf};

use terrace_base::Result;
use terrace_base::codec::{Reader, put_bytes, put_varint};
use terrace_disk::Fs;

use super::sealed::{Sort, path_of, put_path, some_path};
use crate::manifest::REPAIR_RECORD;

const SORT: Sort = Sort { magic: *b"TERREPAR", version: 3, what: "the record of a repair" };

/// What remains to be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Journal {
    /// The identity of the database that was repaired.
    pub database: [u8; 16],
    /// The manifest that is to be in force.
    pub manifest: u64,
    /// Files, by their paths in the directory, and the additional names they get.
    pub links: Vec<(PathBuf, PathBuf)>,
    /// Names in the directory that are removed.
    pub removes: Vec<PathBuf>,
    /// The pool's place, if another pool or none is to lie there.
    pub pool: Option<PoolMove>,
    /// What could not be recovered.
    pub lost: Vec<String>,
}

/// What happens to a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PoolMove {
    /// Where it lies or is to lie.
    pub place: PathBuf,
    /// The pool that is to lie there; `None`: no pool.
    pub new: Option<PathBuf>,
    /// Where the previous pool goes; `None`: it is dropped.
    pub aside: Option<PathBuf>,
}

impl Journal {
    pub fn encode(&self) -> Vec<u8> {
        let mut body = self.database.to_vec();
        put_varint(&mut body, self.manifest);
        put_varint(&mut body, self.links.len() as u64);
        for (from, to) in &self.links {
            put_path(&mut body, from);
            put_path(&mut body, to);
        }
        put_varint(&mut body, self.removes.len() as u64);
        self.removes.iter().for_each(|name| put_path(&mut body, name));
        put_varint(&mut body, u64::from(self.pool.is_some()));
        if let Some(pool) = &self.pool {
            put_path(&mut body, &pool.place);
            // No path is empty.
            put_path(&mut body, pool.new.as_deref().unwrap_or(Path::new("")));
            put_path(&mut body, pool.aside.as_deref().unwrap_or(Path::new("")));
        }
        put_varint(&mut body, self.lost.len() as u64);
        self.lost.iter().for_each(|line| put_bytes(&mut body, line.as_bytes()));
        SORT.seal(&body)
    }

    /// The record in `data`, the contents of `path`.
    pub fn decode(path: &Path, data: &[u8]) -> Result<Journal> {
        decode_body(SORT.unseal(path, data)?).ok_or_else(|| SORT.damaged(path, "bytes that do not decode"))
    }

    /// The record of the directory `dir`, which must exist.
    pub fn read(fs: &dyn Fs, dir: &Path) -> Result<Journal> {
        let path = dir.join(REPAIR_RECORD);
        Journal::decode(&path, &SORT.read(fs, &path)?)
    }
}

/// Decodes a possible record, for the fuzzer; encoding what was decoded must decode to the same.
pub(crate) fn decode_record(data: &[u8]) {
    if let Ok(journal) = Journal::decode(Path::new(REPAIR_RECORD), data) {
        let again = Journal::decode(Path::new(REPAIR_RECORD), &journal.encode());
        assert!(again.is_ok_and(|again| again == journal));
    }
}

/// A record with one of everything.
pub(crate) fn sound_record() -> Vec<u8> {
    let pool = PoolMove { place: "/p".into(), new: Some("/p.repair".into()), aside: None };
    let journal = Journal {
        database: std::array::from_fn(|i| i as u8),
        manifest: 9,
        links: vec![("repair/000012.sst".into(), "000012.sst".into())],
        removes: vec!["000003.log".into()],
        pool: Some(pool),
        lost: vec!["x".into()],
    };
    journal.encode()
}

fn decode_body(body: &[u8]) -> Option<Journal> {
    let mut r = Reader::new(body);
    let database = r.take(16)?.try_into().ok()?;
    let mut journal = Journal { database, manifest: r.varint()?, ..Journal::default() };
    for _ in 0..r.varint()? {
        journal.links.push((path_of(&mut r)?, path_of(&mut r)?));
    }
    for _ in 0..r.varint()? {
        journal.removes.push(path_of(&mut r)?);
    }
    if r.varint()? == 1 {
        let (place, new, aside) = (path_of(&mut r)?, path_of(&mut r)?, path_of(&mut r)?);
        journal.pool = Some(PoolMove { place, new: some_path(new), aside: some_path(aside) });
    }
    for _ in 0..r.varint()? {
        journal.lost.push(String::from_utf8(r.bytes()?.to_vec()).ok()?);
    }
    r.is_empty().then_some(journal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repair::sealed::assert_golden;

    #[test]
    fn golden_and_every_flip_is_found() {
        let bytes = sound_record();
        let journal = Journal::decode(Path::new("r"), &bytes).unwrap();
        assert_eq!((journal.encode(), journal.pool.is_some()), (bytes.clone(), true));
        assert_golden(&bytes, GOLDEN, |data| Journal::decode(Path::new("r"), data).map(drop));
    }

    const GOLDEN: &str = "5445525245504152030000004ed0c675000102030405060708090a0b0c0d0e0f0901117265706169722f3030303031322e7373740a3030303031322e737374010a3030303030332e6c6f6701022f70092f702e72657061697200010178";
}
