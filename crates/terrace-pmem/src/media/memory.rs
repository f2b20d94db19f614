//! Plain memory as a medium: for tests and for structures that want no persistence.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_base::{Error, Result};

use super::mapping::{PAGE_BYTES, reserve_range};
use super::{Gate, Granularity, Media};

/// Anonymous memory. Flushing and draining cost nothing; the contents go with the value.
#[derive(Debug)]
pub struct MemMedia {
    base: *mut u8,
    capacity: u64,
    len: AtomicU64,
    granularity: Granularity,
}

// SAFETY: `base` is an address range that the value owns alone; `len` is atomic.
unsafe impl Send for MemMedia {}
// SAFETY: as above; the contract of the pool's stores governs the bytes in the range.
unsafe impl Sync for MemMedia {}

impl MemMedia {
    /// `len` zero bytes that may grow to `capacity` and call themselves `granularity`.
    pub fn new(len: u64, capacity: u64, granularity: Granularity) -> Result<Self> {
        let capacity = capacity.max(len).div_ceil(PAGE_BYTES).max(1) * PAGE_BYTES;
        let base = reserve_range(capacity, PAGE_BYTES).map_err(memory_error)?;
        let media = MemMedia { base, capacity, len: AtomicU64::new(0), granularity };
        media.grow(len)?;
        Ok(media)
    }
}

fn memory_error(e: rustix::io::Errno) -> Error {
    Error::io(&PathBuf::from("memory"), "map", e.into())
}

impl Media for MemMedia {
    fn base(&self) -> *mut u8 {
        self.base
    }

    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn grow(&self, len: u64) -> Result<()> {
        if len > self.capacity {
            let path = Path::new("memory").to_path_buf();
            return Err(Error::PoolFull { path, requested: len, size: self.capacity });
        }
        let len = len.div_ceil(PAGE_BYTES) * PAGE_BYTES;
        // SAFETY: the range lies inside the reservation that the value owns; making accessible what already is
        // changes nothing.
        unsafe {
            rustix::mm::mprotect(
                self.base.cast(),
                len as usize,
                rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE,
            )
        }
        .map_err(memory_error)?;
        self.len.fetch_max(len, Ordering::AcqRel);
        Ok(())
    }

    fn granularity(&self) -> Granularity {
        self.granularity
    }

    fn flush(&self, _offset: u64, _len: u64) {}

    fn drain(&self) {}

    fn order(&self, _offset: u64) {}

    fn charge_read(&self, _offset: u64, _len: u64) {}

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn describe(&self) -> String {
        format!("plain memory (nothing persists), treated as {}", self.granularity.words())
    }

    fn gate(&self) -> Gate {
        Gate::Nothing
    }
}

impl Drop for MemMedia {
    fn drop(&mut self) {
        // SAFETY: the reservation is this value's own and nothing borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.capacity as usize) };
    }
}
