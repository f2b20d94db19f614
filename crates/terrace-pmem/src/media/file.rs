//! Files and devices mapped as they are: DAX files, device-dax, and ordinary files.

use std::path::Path;

use terrace_base::{Error, Result};

use super::mapping::{Backing, Mapping};
use super::{Gate, Granularity, Media, probe};
use crate::cpu::{self, FlushOp};

/// A mapped file or device.
#[derive(Debug)]
pub struct FileMedia {
    map: Mapping,
    granularity: Granularity,
    op: Option<FlushOp>,
    note: Option<String>,
}

impl FileMedia {
    /// Maps the file or device `path` and finds its granularity, unless `force` gives it. A file is made if `len` is
    /// not zero and none is there, and extended to `len` bytes; it may grow to `capacity`. `name` stands for it in
    /// messages.
    pub fn open(
        path: &Path,
        name: &Path,
        len: u64,
        capacity: u64,
        force: Option<Granularity>,
    ) -> Result<Self> {
        Self::over(Mapping::open(path, name, len, capacity)?, force)
    }

    /// Maps the file `path` as it is, for as long as it is not written to: what is stored here stays in this process.
    /// That needs no permission to write the file. Otherwise as [`open`](Self::open).
    pub fn open_private(path: &Path, name: &Path, capacity: u64, force: Option<Granularity>) -> Result<Self> {
        Self::over(Mapping::open_private(path, name, capacity)?, force)
    }

    fn over(map: Mapping, force: Option<Granularity>) -> Result<Self> {
        let op = FlushOp::detect();
        let (granularity, note) = match (force, map.backing()) {
            (Some(forced), _) => (forced, Some("granularity set by request, not found".to_owned())),
            (None, Backing::Disk | Backing::Tmpfs) => (Granularity::Page, None),
            (None, Backing::Dax) => probe::direct_granularity(Path::new("/sys")),
            (None, Backing::DevDax { major, minor }) => {
                probe::devdax_granularity(Path::new("/sys"), major, minor)
            }
        };
        let (granularity, note) = match (granularity, op) {
            (Granularity::CacheLine, None) => {
                (Granularity::Page, Some("no flush instruction known for this processor".to_owned()))
            }
            found => (found.0, note),
        };
        refuse_volatile(map.name(), map.backing(), granularity, note.as_deref())?;
        Ok(FileMedia { map, granularity, op, note })
    }

    /// Touches the pages ahead of use, in the background, until the pool closes. Does nothing on a disk file.
    pub fn prefault(&self) {
        self.map.start_prefault();
    }
}

/// A device has no file system that could write stores back: if its memory does not keep flushed lines it can promise
/// nothing, and cannot hold a pool.
fn refuse_volatile(
    name: &Path,
    backing: Backing,
    granularity: Granularity,
    note: Option<&str>,
) -> Result<()> {
    if granularity != Granularity::Page || !matches!(backing, Backing::DevDax { .. }) {
        return Ok(());
    }
    let why = note.unwrap_or("pages of a device cannot be synced");
    let what = "cannot hold a pool: nothing stored there could be made durable";
    Err(Error::invalid(format!("{} {what} ({why}); an emulated pool may lie there", name.display())))
}

impl Media for FileMedia {
    fn base(&self) -> *mut u8 {
        self.map.base()
    }

    fn len(&self) -> u64 {
        self.map.len()
    }

    fn capacity(&self) -> u64 {
        self.map.capacity()
    }

    fn grow(&self, len: u64) -> Result<()> {
        self.map.grow(len)
    }

    fn granularity(&self) -> Granularity {
        self.granularity
    }

    fn flush(&self, offset: u64, len: u64) {
        if let (Gate::Cpu(op), true) = (self.gate(), offset.saturating_add(len) <= self.len()) {
            // SAFETY: the range was just found inside the mapping.
            unsafe { cpu::flush(op, self.base().add(offset as usize), len as usize) }
        }
    }

    fn drain(&self) {
        if self.granularity != Granularity::Page {
            cpu::fence();
        }
    }

    fn order(&self, _offset: u64) {
        cpu::order();
    }

    fn charge_read(&self, _offset: u64, _len: u64) {}

    fn sync(&self) -> Result<()> {
        self.sync_range(0, self.map.len())
    }

    fn sync_range(&self, offset: u64, len: u64) -> Result<()> {
        if matches!(self.map.backing(), Backing::DevDax { .. }) {
            // A device has no file system.
            self.flush(offset, len);
            self.drain();
            return Ok(());
        }
        self.map.sync_range(offset, len)
    }

    fn describe(&self) -> String {
        let what = match self.map.backing() {
            Backing::Disk => "ordinary file",
            Backing::Tmpfs => "file in memory (tmpfs: gone after a reboot)",
            Backing::Dax => "DAX file",
            Backing::DevDax { .. } => "device-dax",
        };
        let mut text = format!("{what}, {}", self.granularity.words());
        if let Gate::Cpu(op) = self.gate() {
            text += &format!(" with {}", op.name());
        }
        if let Some(note) = &self.note {
            text += &format!("; {note}");
        }
        text
    }

    fn gate(&self) -> Gate {
        match (self.granularity, self.op) {
            (Granularity::CacheLine, Some(op)) => Gate::Cpu(op),
            (Granularity::Byte, _) => Gate::Fence,
            (Granularity::Page | Granularity::CacheLine, _) => Gate::Nothing,
        }
    }

    fn instance(&self) -> u64 {
        self.map.instance()
    }

    fn closed(&self) {
        self.map.stop_prefault();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_keeps_nothing_is_no_place_for_a_pool() {
        let dax = Backing::DevDax { major: 252, minor: 0 };
        let refused = |backing, granularity| {
            refuse_volatile(Path::new("/dev/dax0.0"), backing, granularity, Some("memory")).err()
        };
        let error = refused(dax, Granularity::Page).unwrap();
        assert!(error.to_string().contains("nothing stored there could be made durable (memory)"), "{error}");
        assert!(refused(dax, Granularity::CacheLine).is_none());
        assert!(refused(dax, Granularity::Byte).is_none());
        assert!(refused(Backing::Disk, Granularity::Page).is_none());
    }
}
