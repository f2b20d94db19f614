//! An ordinary file treated as cache-line media, at the latency and bandwidth of a named profile.
//!
//! It is asked for by name and says so in [`Media::describe`]. It behaves like persistent memory in cost and in the
//! code that runs, but not in durability: after a reboot its contents are whatever reached the file.
//!
//! Its costs are in [`CostModel`].

use std::path::Path;

use terrace_base::Result;

use super::mapping::{Backing, Mapping};
use super::{CostModel, Gate, Granularity, Media, Profile};
use crate::cpu::{self, FlushOp};

/// Emulated persistent memory over a file.
#[derive(Debug)]
pub struct EmulatedMedia {
    map: Mapping,
    profile: Profile,
    op: Option<FlushOp>,
    /// `None` for a profile that costs nothing: then the pool does not even call.
    model: Option<CostModel>,
}

impl EmulatedMedia {
    /// Maps `path` as [`FileMedia::open`](super::FileMedia::open) does and charges by `profile`.
    pub fn open(path: &Path, name: &Path, len: u64, capacity: u64, profile: Profile) -> Result<Self> {
        Ok(Self::over(Mapping::open(path, name, len, capacity)?, profile))
    }

    /// Maps `path` as [`FileMedia::open_private`](super::FileMedia::open_private) does and charges by `profile`.
    pub fn open_private(path: &Path, name: &Path, capacity: u64, profile: Profile) -> Result<Self> {
        Ok(Self::over(Mapping::open_private(path, name, capacity)?, profile))
    }

    fn over(map: Mapping, profile: Profile) -> Self {
        let model = (!profile.is_free()).then(|| CostModel::new(profile));
        EmulatedMedia { map, profile, op: FlushOp::detect(), model }
    }

    /// Touches the pages ahead of use, in the background, until the pool closes. Does nothing on a disk file.
    pub fn prefault(&self) {
        self.map.start_prefault();
    }

    /// The profile charged.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    fn check(&self, offset: u64, len: u64) {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len()), "range past the medium's end");
    }
}

impl Media for EmulatedMedia {
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
        Granularity::CacheLine
    }

    fn flush(&self, offset: u64, len: u64) {
        self.check(offset, len);
        if let Some(op) = self.op {
            // SAFETY: the range was just found inside the mapping.
            unsafe { cpu::flush(op, self.base().add(offset as usize), len as usize) }
        }
        if let Some(model) = &self.model {
            model.flushed(offset, len);
        }
    }

    fn drain(&self) {
        match &self.model {
            Some(model) => model.drain(),
            None => cpu::fence(),
        }
    }

    fn order(&self, _offset: u64) {
        cpu::order();
    }

    fn charge_read(&self, offset: u64, len: u64) {
        if let Some(model) = &self.model {
            model.read(offset, len);
        }
    }

    fn charge_reads(&self, reads: u64, blocks: u64) {
        if let Some(model) = &self.model {
            model.reads(reads, blocks);
        }
    }

    fn start_read(&self, blocks: u64) -> u64 {
        self.model.as_ref().map_or(0, |model| model.start_read(blocks))
    }

    fn await_read(&self, done: u64) {
        if let Some(model) = &self.model {
            model.await_read(done);
        }
    }

    fn charge_rest(&self, blocks: u64) {
        if let Some(model) = &self.model {
            model.rest(blocks);
        }
    }

    fn sync(&self) -> Result<()> {
        self.sync_range(0, self.map.len())
    }

    fn sync_range(&self, offset: u64, len: u64) -> Result<()> {
        if let (Backing::DevDax { .. }, Some(op)) = (self.map.backing(), self.op) {
            // There is no file system to ask.
            self.check(offset, len);
            // SAFETY: the range was just found inside the mapping.
            unsafe { cpu::flush(op, self.base().add(offset as usize), len as usize) }
            cpu::fence();
            return Ok(());
        }
        self.map.sync_range(offset, len)
    }

    fn describe(&self) -> String {
        let over = match self.map.backing() {
            Backing::Disk => "a disk file (whose writing back disturbs the figures)",
            Backing::Tmpfs => "a file in memory",
            Backing::Dax | Backing::DevDax { .. } => "real persistent memory",
        };
        format!("EMULATED persistent memory over {over}, profile {}", self.profile)
    }

    fn gate(&self) -> Gate {
        match (&self.model, self.op) {
            (Some(_), _) => Gate::Dispatch,
            (None, Some(op)) => Gate::Cpu(op),
            (None, None) => Gate::Fence,
        }
    }

    fn copy_flush(&self, offset: u64, data: &[u8]) {
        self.check(offset, data.len() as u64);
        // SAFETY: the range was just found inside the mapping; `data` does not overlap it by the contract of
        // the pool's stores. Without a flush instruction the copy is all that the emulation needs.
        unsafe {
            let to = self.base().add(offset as usize);
            match self.op {
                Some(op) => cpu::copy_stream(op, to, data.as_ptr(), data.len()),
                None => to.copy_from_nonoverlapping(data.as_ptr(), data.len()),
            }
        }
        if let Some(model) = &self.model {
            model.flushed(offset, data.len() as u64);
        }
    }

    fn power_safe(&self) -> bool {
        false
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
    fn a_free_profile_is_reached_without_calls_and_says_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pm");
        let free = EmulatedMedia::open(&path, &path, 1 << 16, 1 << 20, Profile::DRAM).unwrap();
        assert_ne!(free.gate(), Gate::Dispatch);
        assert!(free.describe().contains("EMULATED"));
        assert!(!free.power_safe());
        drop(free);
        let slow = EmulatedMedia::open(&path, &path, 0, 1 << 20, Profile::CXL).unwrap();
        assert_eq!(slow.gate(), Gate::Dispatch);
        slow.copy_flush(100, b"charged");
        slow.drain();
        slow.charge_read(0, 1000);
        assert!(slow.describe().contains("cxl"));
    }
}
