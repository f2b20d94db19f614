//! Named roots: up to 60 names, each with a 48-bit value that one 8-byte publish changes.
//!
//! The word's checksum covers the name, so that a damaged name, a damaged value and a word under the wrong name
//! are all found. A lookup that finds nothing looks at every entry: a name that is not there must not be one
//! that cannot be read.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use terrace_base::{Error, Result};

use super::Pool;
use crate::alloc::Problem;
use crate::layout::{ROOT_COUNT, ROOT_NAME_BYTES, ROOTS_AT, RootEntry};
use crate::offset::POff;
use crate::word;

const ENTRY_BYTES: u64 = size_of::<RootEntry>() as u64;

type Name = [u8; ROOT_NAME_BYTES];

impl Pool {
    /// The value of a root, or `None` if there is none of that name.
    pub fn root(&self, name: &str) -> Result<Option<u64>> {
        let name = padded(name)?;
        let _shared = self.inner.roots.read();
        Ok(self.find_root(&name)?.map(|(_, value)| value))
    }

    /// Sets a root, durably and at once. `value` is below 2^48; at most 60 names of 1 to 23 bytes.
    pub fn set_root(&self, name: &str, value: u64) -> Result<()> {
        let name = padded(name)?;
        if value > word::VALUE_MAX {
            return Err(Error::invalid(format!("root value {value:#x} does not fit into 48 bits")));
        }
        let _exclusive = self.inner.roots.write();
        let at = match self.find_root(&name)? {
            Some((at, _)) => at,
            None => self.name_free_root(&name)?,
        };
        self.publish(word_at(at), word::seal_named(trimmed(&name), value));
        Ok(())
    }

    /// Removes a root, durably and at once; nothing happens if there is none of that name.
    pub fn clear_root(&self, name: &str) -> Result<()> {
        let name = padded(name)?;
        let _exclusive = self.inner.roots.write();
        if let Some((at, _)) = self.find_root(&name)? {
            self.publish(word_at(at), 0);
        }
        Ok(())
    }

    /// Names and values of all roots.
    pub fn roots(&self) -> Result<Vec<(String, u64)>> {
        let _shared = self.inner.roots.read();
        let mut roots = Vec::new();
        for at in entries() {
            if let Some((name, value)) = self.read_root(at)? {
                roots.push((String::from_utf8_lossy(trimmed(&name)).into_owned(), value));
            }
        }
        Ok(roots)
    }

    pub(crate) fn check_roots(&self) -> Vec<Problem> {
        let _shared = self.inner.roots.read();
        entries().filter_map(|at| self.read_root(at).err().map(|e| Problem::new(at, e.to_string()))).collect()
    }

    /// Gives a free entry its name; it stays free until its word is published.
    fn name_free_root(&self, name: &Name) -> Result<u64> {
        let free = entries().find(|&at| self.atomic(word_at(at)).load(Ordering::Acquire) == 0);
        let at =
            free.ok_or_else(|| Error::invalid(format!("all {ROOT_COUNT} roots of the pool are taken")))?;
        self.copy_persist(at, name);
        Ok(at)
    }

    fn find_root(&self, name: &Name) -> Result<Option<(u64, u64)>> {
        let mut damaged = None;
        for at in entries() {
            match self.read_root(at) {
                Ok(Some((found, value))) if found == *name => return Ok(Some((at, value))),
                Ok(_) => {}
                Err(e) => damaged = Some(e),
            }
        }
        damaged.map_or(Ok(None), Err)
    }

    fn read_root(&self, at: u64) -> Result<Option<(Name, u64)>> {
        let stored = self.atomic(word_at(at)).load(Ordering::Acquire);
        if stored == 0 {
            return Ok(None);
        }
        let name: Name = self.copy_out(at);
        match word::unseal_named(trimmed(&name), stored) {
            Some(value) => Ok(Some((name, value))),
            None => Err(self.corruption(at, "a root word that fits its name", format!("{stored:#018x}"))),
        }
    }
}

fn entries() -> impl Iterator<Item = u64> {
    (0..ROOT_COUNT).map(|i| ROOTS_AT + i * ENTRY_BYTES)
}

fn word_at(entry: u64) -> POff<u64> {
    POff::new(entry + offset_of!(RootEntry, word) as u64)
}

fn padded(name: &str) -> Result<Name> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() >= ROOT_NAME_BYTES || bytes.contains(&0) {
        return Err(Error::invalid(format!("root name {name:?}: 1 to 23 bytes without zeros")));
    }
    let mut padded = [0; ROOT_NAME_BYTES];
    padded[..bytes.len()].copy_from_slice(bytes);
    Ok(padded)
}

fn trimmed(name: &Name) -> &[u8] {
    let len = name.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1);
    &name[..len]
}
