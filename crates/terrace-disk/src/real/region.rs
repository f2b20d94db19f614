//! A stretch of addresses that whole files are read through.
//!
//! 1. The first `len` bytes are the file's, or those that the region was filled with; they are only read.
//! 2. A page that the system cannot read is replaced by one of zeros, and the region is marked ([`Guard`]). It stays
//!    so.
//! 3. The region stays until the value is dropped, whatever becomes of the file's name and descriptor.
//!
//! So the bytes are those of the file as long as the region is not marked and nobody writes to the file or cuts it,
//! which the contract of [`fs`](crate::fs) forbids.

use std::fs::File;
use std::ops::Range;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::Resource;

use super::bus::Guard;
use super::memory;

/// The assumed limit of mappings of a process if the system does not tell.
const COMMON_MOST_MAPS: usize = 65_530;

/// Regions that there are in this process, and bytes of addresses that they take.
static REGIONS: AtomicUsize = AtomicUsize::new(0);
static REGION_BYTES: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
pub(crate) struct Region {
    base: *mut u8,
    len: usize,
    /// Dropped before the addresses are unmapped.
    guard: Option<Guard>,
    /// Whether the bytes are a file's; then the page cache decides how many of them are in memory.
    is_file: bool,
}

// SAFETY: the addresses are the value's own and stay mapped for its life. They are only read, except that `Guard`
// replaces pages, by a system call that any thread may make.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// The `len` bytes of `file`, which is that long. `None` if they cannot be mapped.
    pub(crate) fn of_file(file: &File, len: u64) -> Option<Region> {
        if !may_be_one_of(len) {
            return None;
        }
        let len = usize::try_from(len).ok().filter(|&len| len > 0)?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0).ok()?
        };
        let region = Region::guarded(base.cast(), len, true)?;
        // Random reads do not need the neighbouring pages.
        region.advise(0..len, Advice::Random);
        Some(region)
    }

    /// A region of `len` bytes that `fill` fills, in place of a mapped file.
    pub(crate) fn of_bytes(len: usize, fill: impl FnOnce(&mut [u8])) -> Option<Region> {
        if !may_be_one_of(len as u64) {
            return None;
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len.max(1), protection, flags).ok()? };
        // SAFETY: the mapping was made just now, has as many bytes, all zero, and nobody else knows of it yet.
        fill(unsafe { std::slice::from_raw_parts_mut(base.cast(), len) });
        Region::guarded(base.cast(), len, false)
    }

    /// Takes over a mapping that was just made.
    fn guarded(base: *mut u8, len: usize, is_file: bool) -> Option<Region> {
        let mut region = Region { base, len, guard: None, is_file };
        REGIONS.fetch_add(1, Ordering::Relaxed);
        REGION_BYTES.fetch_add(region.mapped_len() as u64, Ordering::Relaxed);
        // SAFETY: the range is this value's mapping, of whole pages, and stays until after the guard is dropped.
        // Readers ask `has_failed` before relying on its bytes.
        region.guard = Some(unsafe { Guard::new(base, region.mapped_len()) }?);
        Some(region)
    }

    /// Bytes of whole pages.
    fn mapped_len(&self) -> usize {
        self.len.max(1).next_multiple_of(rustix::param::page_size())
    }

    /// Whether a page was replaced; then no byte that was read so far may be relied on.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.guard.as_ref().is_none_or(Guard::has_failed)
    }

    /// Makes the page with byte `at` one that the system cannot read.
    pub(crate) fn fail(&self, at: usize) {
        if let Some(guard) = &self.guard {
            guard.fail(self.base as usize + at.min(self.len.saturating_sub(1)));
        }
    }

    /// Makes all of it unreadable: it takes no memory then.
    pub(crate) fn fail_all(&self) {
        if let Some(guard) = &self.guard {
            guard.fail_all();
        }
    }

    /// Asks the system to read bytes `range` soon, together.
    pub(crate) fn will_need(&self, range: Range<usize>) {
        self.advise(range, Advice::WillNeed);
    }

    /// Advice only: a system that has no use for it reads all the same.
    fn advise(&self, range: Range<usize>, advice: Advice) {
        let page = rustix::param::page_size();
        let (from, to) = (range.start / page * page, range.end.min(self.len));
        if self.is_file && from < to {
            // SAFETY: the range lies in this value's mapping, from the start of a page on, and the advice changes no
            // byte.
            let _ = unsafe { rustix::mm::madvise(self.base.add(from).cast(), to - from, advice) };
        }
    }

    /// Bytes that are in memory now, as the system counts them.
    pub(crate) fn resident_bytes(&self) -> u64 {
        const PAGES: usize = 16 << 10;
        if !self.is_file {
            return self.len as u64;
        }
        let page = rustix::param::page_size();
        let mut resident = vec![0u8; PAGES.min(self.mapped_len() / page)];
        let mut pages = 0u64;
        for from in (0..self.mapped_len()).step_by(PAGES * page) {
            let count = PAGES.min((self.mapped_len() - from) / page);
            // SAFETY: the range is of whole pages of this value's mapping, and `told` has a byte for each of them.
            let is_told = unsafe {
                libc::mincore(self.base.add(from).cast(), count * page, resident.as_mut_ptr().cast()) == 0
            };
            if is_told {
                pages += resident[..count].iter().map(|byte| u64::from(byte & 1)).sum::<u64>();
            }
        }
        (pages * page as u64).min(self.len as u64)
    }
}

impl AsRef<[u8]> for Region {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: so many bytes are mapped to be read for as long as this value is there, and are not written to (see
        // the module's head). Pages that the system could not read turn into zeros under their readers: `has_failed`
        // reports that, and every decoder checks the lengths that it reads from here.
        unsafe { std::slice::from_raw_parts(self.base, self.len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.guard = None;
        // SAFETY: the mapping is the value's own, and nothing refers to it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.base.cast(), self.mapped_len()) };
        debug_assert!(matches!(unmapped, Ok(()) | Err(Errno::NOMEM)));
        REGIONS.fetch_sub(1, Ordering::Relaxed);
        REGION_BYTES.fetch_sub(self.mapped_len() as u64, Ordering::Relaxed);
    }
}

/// Whether there may be one more region, of `len` bytes.
fn may_be_one_of(len: u64) -> bool {
    if REGIONS.load(Ordering::Relaxed) >= most_regions() {
        return false;
    }
    let Some(bound) = rustix::process::getrlimit(Resource::As).current else { return true };
    let taken = memory::addresses().unwrap_or(bound);
    leaves_addresses(bound, taken, REGION_BYTES.load(Ordering::Relaxed), len)
}

/// Whether regions may take `len` more bytes of addresses. The process may have `bound` bytes and has taken `taken`, of
/// which `regions` are in regions. Other memory needs addresses, too, and the program ends if there are none left,
/// while files can be read by calls. So regions take an eighth at most, and leave half of all free.
fn leaves_addresses(bound: u64, taken: u64, regions: u64, len: u64) -> bool {
    regions.saturating_add(len) <= bound / 8 && taken.saturating_add(len) <= bound / 2
}

/// Half of the process's mappings: the rest is for the program.
fn most_regions() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    *MOST.get_or_init(|| {
        let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
        most.and_then(|text| text.trim().parse().ok()).unwrap_or(COMMON_MOST_MAPS) / 2
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::exit;

    use rustix::process::{Rlimit, setrlimit};

    use super::super::signal::alone::{WELL, ended};
    use super::*;

    fn region_of(data: &[u8]) -> (tempfile::NamedTempFile, Region) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(data).unwrap();
        let region = Region::of_file(file.as_file(), data.len() as u64).unwrap();
        (file, region)
    }

    #[test]
    fn a_region_is_its_file_and_outlives_it() {
        let data: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        let (file, region) = region_of(&data);
        drop(file);
        assert_eq!(region.as_ref(), data);
        assert!(!region.has_failed() && region.resident_bytes() == 100_000);
        region.will_need(5000..90_000);
    }

    #[test]
    fn what_is_cut_off_reads_as_zeros_and_is_told() {
        let page = rustix::param::page_size();
        let (file, region) = region_of(&vec![7; 8 * page]);
        file.as_file().set_len(3 * page as u64).unwrap();
        assert!(region.as_ref()[..3 * page].iter().all(|&b| b == 7) && !region.has_failed());
        assert_eq!((region.as_ref()[5 * page + 9], region.has_failed()), (0, true));
        assert_eq!(region.as_ref()[2 * page], 7, "the others stay");
        assert!(region.as_ref()[3 * page..].iter().all(|&b| b == 0));
    }

    #[test]
    fn a_region_without_a_file_can_be_made_to_fail() {
        let page = rustix::param::page_size();
        let region = Region::of_bytes(3 * page, |bytes| bytes.fill(9)).unwrap();
        assert!(region.as_ref().iter().all(|&b| b == 9) && !region.has_failed());
        region.fail(page + 5);
        assert!(region.has_failed());
        assert_eq!([0, page, 2 * page].map(|at| region.as_ref()[at]), [9, 0, 9]);
    }

    #[test]
    fn addresses_are_left_where_they_are_bounded() {
        assert!(leaves_addresses(8000, 1000, 500, 500) && !leaves_addresses(8000, 1000, 501, 500));
        assert!(leaves_addresses(8000, 3000, 0, 1000) && !leaves_addresses(8000, 3001, 0, 1000));
        assert!(!leaves_addresses(8000, u64::MAX, 0, 1) && !leaves_addresses(8000, 0, u64::MAX, 1));
    }

    #[test]
    fn the_bound_of_a_process_counts() {
        let Some(status) = ended("region", "the_bound_of_a_process_counts") else {
            let (file, len) = (tempfile::tempfile().unwrap(), 1 << 30);
            file.set_len(len).unwrap();
            assert!(Region::of_file(&file, len).is_some());
            let bounded = |bytes| {
                let bound = Rlimit { current: Some(bytes), maximum: None };
                setrlimit(Resource::As, bound).unwrap();
                Region::of_file(&file, len)
            };
            let taken = memory::addresses().unwrap();
            assert!(bounded(taken + (4 << 30)).is_none() && bounded(2 * taken + (16 << 30)).is_some());
            exit(WELL);
        };
        assert_eq!(status.code(), Some(WELL), "{status}");
    }

    #[test]
    fn nothing_of_nothing_is_mapped() {
        let file = tempfile::tempfile().unwrap();
        assert!(Region::of_file(&file, 0).is_none());
        let count = REGIONS.load(Ordering::Relaxed);
        drop(Region::of_bytes(0, |_| ()).unwrap());
        assert!(count <= most_regions());
    }
}
