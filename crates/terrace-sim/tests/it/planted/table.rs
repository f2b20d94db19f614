//! The ledger's files: one table of everything that was flushed, and a manifest that names it.

use std::path::{Path, PathBuf};

use terrace_base::checksum::crc32c;
use terrace_base::codec::{Reader, put_bytes, put_varint};
use terrace_base::{Error, Result};
use terrace_disk::{Fs, SimFs};
use terrace_sim::Map;

use super::Bug;

/// The manifest's directory.
const DIR: &str = "/db";
/// The tables' own: names of one directory become durable in order, which would hide a missing sync.
const TABLES: &str = "/db/tables";

fn manifest() -> PathBuf {
    Path::new(DIR).join("MANIFEST")
}

fn new_manifest() -> PathBuf {
    Path::new(DIR).join("MANIFEST.new")
}

fn table(number: u64) -> PathBuf {
    Path::new(TABLES).join(format!("{number:06}.tbl"))
}

/// The files of one ledger.
pub(super) struct Tables {
    fs: SimFs,
    current: u64,
    bug: Option<Bug>,
}

impl Tables {
    pub(super) fn open(fs: SimFs, bug: Option<Bug>) -> Result<(Tables, Map)> {
        fs.create_dir_all(Path::new(TABLES))?;
        let current = if fs.exists(&manifest())? { read_number(&fs)? } else { 0 };
        let map = if current == 0 { Map::new() } else { read_table(&fs, &table(current))? };
        for path in fs.list(Path::new(TABLES))? {
            if path != table(current) {
                fs.remove(&path)?;
            }
        }
        if fs.exists(&new_manifest())? {
            fs.remove(&new_manifest())?;
        }
        Ok((Tables { fs, current, bug }, map))
    }

    /// Replaces the table by one of `map`.
    pub(super) fn replace(&mut self, map: &Map) -> Result<()> {
        let (old, number) = (self.current, self.current + 1);
        let mut file = self.fs.create(&table(number))?;
        file.append(&encode(map))?;
        if self.bug != Some(Bug::ManifestBeforeTable) {
            file.sync()?;
        }
        if self.bug != Some(Bug::NoDirSyncAfterCreate) {
            self.fs.sync_dir(Path::new(TABLES))?;
        }
        self.switch(number)?;
        file.sync()?;
        self.current = number;
        if old != 0 { self.fs.remove(&table(old)) } else { Ok(()) }
    }

    fn switch(&self, number: u64) -> Result<()> {
        let mut file = self.fs.create(&new_manifest())?;
        file.append(&number.to_le_bytes())?;
        file.append(&crc32c(&number.to_le_bytes()).to_le_bytes())?;
        file.sync()?;
        self.fs.rename(&new_manifest(), &manifest())?;
        if self.bug == Some(Bug::NoDirSyncAfterRename) {
            return Ok(());
        }
        self.fs.sync_dir(Path::new(DIR))
    }
}

fn damaged(path: &Path) -> Error {
    Error::corruption(path, 0, "a whole file", "another checksum")
}

fn read_number(fs: &SimFs) -> Result<u64> {
    let data = fs.read(&manifest())?;
    let mut reader = Reader::new(&data);
    let number = reader.u64().ok_or_else(|| damaged(&manifest()))?;
    let crc = reader.u32().ok_or_else(|| damaged(&manifest()))?;
    if crc == crc32c(&number.to_le_bytes()) { Ok(number) } else { Err(damaged(&manifest())) }
}

fn encode(map: &Map) -> Vec<u8> {
    let mut body = Vec::new();
    put_varint(&mut body, map.len() as u64);
    for (key, value) in map {
        put_bytes(&mut body, key);
        put_bytes(&mut body, value);
    }
    let mut data = crc32c(&body).to_le_bytes().to_vec();
    data.extend(body);
    data
}

fn read_table(fs: &SimFs, path: &Path) -> Result<Map> {
    let data = fs.read(path)?;
    let mut reader = Reader::new(&data);
    if reader.u32() != Some(crc32c(reader.rest())) {
        return Err(damaged(path));
    }
    let mut map = Map::new();
    for _ in 0..reader.varint().ok_or_else(|| damaged(path))? {
        let (Some(key), Some(value)) = (reader.bytes(), reader.bytes()) else { return Err(damaged(path)) };
        map.insert(key.to_vec(), value.to_vec());
    }
    Ok(map)
}
