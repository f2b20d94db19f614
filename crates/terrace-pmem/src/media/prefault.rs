//! Touching a mapping's pages ahead of their use, in the background.
//!
//! The first store to a page costs microseconds; a pool that is about to be filled takes its pages beforehand.
//! One thread works through the ranges in steps of 2 MiB and looks between steps whether it should stop. Where the
//! system can, it makes each step one huge page: a search then misses the processor's address caches
//! once in a while instead of nearly always, which is a third to a half of its time. A tmpfs gives huge pages
//! of itself only where it is mounted so, hence the collapsing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::mm::{Advice, madvise};
use terrace_base::exec::{Executor, ThreadPool};

const STEP_BYTES: usize = 2 << 20;

const PAGE_BYTES: usize = 4096;

/// Below this the pages are cheaper than the thread.
const WORTH_BYTES: u64 = 4 << 20;

/// A background prefault. Dropping it stops it and waits for its thread: no access outlives the value.
#[derive(Debug)]
pub(super) struct Prefault {
    stop: Arc<AtomicBool>,
    // Dropped after `stop` was set in `drop`; joins the thread.
    threads: ThreadPool,
}

impl Prefault {
    /// Starts on the first `len` bytes at `base` if that is worth it.
    ///
    /// # Safety
    ///
    /// The range stays mapped until the value is dropped.
    pub(super) unsafe fn start(base: *mut u8, len: u64) -> Option<Prefault> {
        if len < WORTH_BYTES {
            return None;
        }
        let prefault = Prefault { stop: Arc::default(), threads: ThreadPool::new("terrace-prefault", 1) };
        // SAFETY: the caller's.
        unsafe { prefault.range(base, len) };
        Some(prefault)
    }

    /// Goes on with another range.
    ///
    /// # Safety
    ///
    /// As [`start`](Self::start).
    pub(super) unsafe fn range(&self, base: *mut u8, len: u64) {
        let stop = self.stop.clone();
        let (start, end) = (base as usize, base as usize + len as usize);
        self.threads.spawn(Box::new(move || {
            let (mut at, mut collapses) = (start, true);
            while at < end && !stop.load(Relaxed) {
                // Steps lie where huge pages do.
                let step = (STEP_BYTES - at % STEP_BYTES).min(end - at);
                // SAFETY: the range is mapped until the value that owns this thread has joined it.
                if !unsafe { populate(at, step, &mut collapses) } {
                    return;
                }
                at += step;
            }
        }));
    }

    /// Stops soon, without waiting.
    pub(super) fn stop(&self) {
        self.stop.store(true, Relaxed);
    }
}

/// Takes the pages of a step, as one if it may be that; false if the medium has no more. Contents stay as they are,
/// also under others that read and write them.
///
/// # Safety
///
/// The range is mapped.
unsafe fn populate(at: usize, len: usize, collapses: &mut bool) -> bool {
    // SAFETY: the caller's; populating changes no contents. A full medium is reported here and not by a signal.
    let take = |len| unsafe { madvise(at as *mut _, len, Advice::LinuxPopulateWrite) }.is_ok();
    if *collapses && len == STEP_BYTES {
        // Only where there is a page table are pages collapsed.
        // SAFETY: the caller's.
        *collapses = take(PAGE_BYTES) && unsafe { collapse(at, len) };
    }
    take(len)
}

/// Makes the pages of the range huge ones; whether that is possible.
///
/// # Safety
///
/// The range is mapped.
#[cfg(target_os = "linux")]
unsafe fn collapse(at: usize, len: usize) -> bool {
    // SAFETY: the caller's; the kernel copies the pages and keeps accesses out meanwhile.
    let done = unsafe { libc::madvise(at as *mut _, len, libc::MADV_COLLAPSE) };
    // There may be a huge page for the next range.
    done == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL)
}

#[cfg(not(target_os = "linux"))]
unsafe fn collapse(_at: usize, _len: usize) -> bool {
    false
}

impl Drop for Prefault {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    use super::*;

    /// On the file system of temporary files, and in memory.
    #[test]
    fn contents_stay_as_they_are_while_pages_are_taken() {
        let len = 3 * STEP_BYTES;
        for dir in [std::env::temp_dir(), "/dev/shm".into()] {
            let Ok(file) = tempfile::tempfile_in(dir) else { continue };
            file.set_len(len as u64).unwrap();
            let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
            // SAFETY: a mapping of its own, unmapped below.
            let base = unsafe { mmap(std::ptr::null_mut(), len, access, flags, file.as_fd(), 0).unwrap() };
            // SAFETY: mapped above; only this thread stores to it.
            let words = unsafe { std::slice::from_raw_parts_mut(base.cast::<u64>(), len / 8) };
            words.iter_mut().zip(0..).step_by(100).for_each(|(word, i)| *word = i);
            // SAFETY: mapped until it is unmapped below.
            let prefault = unsafe { Prefault::start(base.cast(), len as u64).unwrap() };
            words.iter_mut().zip(0..).skip(1).step_by(100).for_each(|(word, i)| *word = i);
            drop(prefault);
            let sum: u64 = words.iter().sum();
            let wanted = (0..len as u64 / 8).filter(|i| i % 100 < 2).sum::<u64>();
            assert_eq!(sum, wanted);
            // SAFETY: mapped above, and not used any more.
            unsafe { munmap(base, len).unwrap() };
        }
    }
}
