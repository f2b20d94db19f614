//! A stretch of a file, mapped to be written.
//!
//! 1. The window's bytes are the file's, from `from` on; all lie within the file and have blocks there.
//! 2. Only the first `ready` bytes are stored to: the system has confirmed that they can be.
//! 3. A fault all the same is caught ([`Guard`]), and the window can no longer be used.
//!
//! Each page that is made ready costs a fault. So a window may ask for large pages, of which the system writes each out
//! as a whole, however little of it was stored to.

use std::fs::File;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::bus::Guard;

/// Bytes that are made ready at a time, unless it is a large page. They are few, since an append waits for them.
const READY_BYTES: usize = 8 << 10;

/// A large page of the system's cache, as most processors have them.
pub(super) const LARGE_BYTES: usize = 2 << 20;

/// Making a large page ready costs fewer faults than this. Otherwise the system has made small pages of it.
const FEW_FAULTS: i64 = 16;

/// Whether a window has large pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Large {
    /// None are asked for.
    Unwanted,
    /// The system makes none.
    Refused,
    /// There is none yet.
    Wanted,
    /// There is one at least.
    There,
}

#[derive(Debug)]
pub(super) struct Window {
    base: *mut u8,
    len: usize,
    /// Where in the file it begins.
    from: u64,
    ready: usize,
    large: Large,
    /// Dropped before the mapping is removed.
    guard: Option<Guard>,
}

// SAFETY: the mapping is the value's own, and is used through `&mut self` alone.
unsafe impl Send for Window {}

impl Window {
    /// Maps the bytes `range` of `file`, which has blocks for them; the whole pages that hold them. Large ones are asked
    /// for if they are `Wanted`, or `There` in another window of the file.
    pub(super) fn map(file: &File, range: Range<u64>, large: Large) -> rustix::io::Result<Window> {
        let page = rustix::param::page_size() as u64;
        let from = range.start / page * page;
        let len =
            usize::try_from(range.end - from).map_err(|_| Errno::OVERFLOW)?.next_multiple_of(page as usize);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base =
            unsafe { rustix::mm::mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, file, from)? };
        let mut window = Window { base: base.cast(), len, from, ready: 0, large, guard: None };
        // SAFETY: the range is this value's mapping, and stays until after the guard is dropped. Once the guard has
        // failed no store counts as made.
        window.guard = Some(unsafe { Guard::new(window.base, len) }.ok_or(Errno::NOTSUP)?);
        window.ask_for_large();
        Ok(window)
    }

    /// Makes the system provide a page for each byte of the file up to `end`; false if the window does not reach so
    /// far.
    pub(super) fn prepare(&mut self, end: u64) -> rustix::io::Result<bool> {
        let end = (end - self.from) as usize;
        if end <= self.ready {
            return Ok(true);
        }
        if end > self.len {
            return Ok(false);
        }
        // From one page's start to another's, however long pages are.
        let to = end.next_multiple_of(READY_BYTES.max(rustix::param::page_size())).min(self.len);
        while self.ready < to {
            match self.large_page_before(to) {
                Some(large) => self.prepare_large(large)?,
                None => {
                    self.populate(self.ready..to)?;
                    self.ready = to;
                }
            }
        }
        Ok(true)
    }

    /// Makes everything up to the end of `large` ready, and that page first: where the system has to make small pages in
    /// front of it, it would make small ones of it, too.
    fn prepare_large(&mut self, large: Range<usize>) -> rustix::io::Result<()> {
        let before = faults();
        self.populate(large.clone())?;
        let is_large = faults() - before < FEW_FAULTS;
        self.populate(self.ready..large.start)?;
        self.ready = large.end;
        if is_large {
            self.large = Large::There;
        } else if self.large == Large::Wanted {
            self.large = Large::Refused;
            let _ = self.advise(Advice::LinuxNoHugepage);
        }
        Ok(())
    }

    /// The large page that begins in front of `to` and is not ready, if it lies within the window.
    fn large_page_before(&self, to: usize) -> Option<Range<usize>> {
        let before = (self.from % LARGE_BYTES as u64) as usize;
        let start = (before + self.ready).next_multiple_of(LARGE_BYTES) - before;
        let page = start..start + LARGE_BYTES;
        let is_wanted = matches!(self.large, Large::Wanted | Large::There);
        (is_wanted && page.start < to && page.end <= self.len).then_some(page)
    }

    /// Has the system provide pages for the bytes `range`, which begin with a page.
    fn populate(&self, range: Range<usize>) -> rustix::io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        loop {
            match self.advise_for(range.clone(), Advice::LinuxPopulateWrite) {
                Err(Errno::INTR) => {}
                done => return done,
            }
        }
    }

    fn ask_for_large(&mut self) {
        let is_wanted = matches!(self.large, Large::Wanted | Large::There);
        if is_wanted && self.advise(Advice::LinuxHugepage).is_err() {
            self.large = Large::Refused;
        }
    }

    fn advise(&self, advice: Advice) -> rustix::io::Result<()> {
        self.advise_for(0..self.len, advice)
    }

    fn advise_for(&self, range: Range<usize>, advice: Advice) -> rustix::io::Result<()> {
        assert!(range.end <= self.len, "the window is what is advised for");
        // SAFETY: the range lies in this value's mapping, from the start of a page on, and such advice changes no byte.
        unsafe { rustix::mm::madvise(self.base.add(range.start).cast(), range.len(), advice) }
    }

    /// Whether it has large pages, or may have some.
    pub(super) fn large(&self) -> Large {
        self.large
    }

    /// Stores `data` at byte `at` of the file, which was prepared; false if the window can no longer be used. A process
    /// that dies meanwhile has stored a first part.
    pub(super) fn store(&mut self, at: u64, data: &[u8]) -> bool {
        let start = (at - self.from) as usize;
        assert!(data.len() <= self.ready.saturating_sub(start), "a store stays within what was prepared");
        // SAFETY: the bytes from `start` on are within the mapping, by the assertion, and are used by this value alone.
        unsafe { store_in_order(self.base.add(start), data) };
        // The handler marks the guard within the stores.
        compiler_fence(Ordering::SeqCst);
        !self.has_failed()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.guard.as_ref().is_none_or(Guard::has_failed)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.guard = None;
        // SAFETY: the mapping is the value's own, and nothing refers to it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Faults of pages of this thread so far.
fn faults() -> i64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the system fills the value that the pointer leads to, and every value of it is sound, zeros too.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_minflt + usage.ru_majflt
}

/// Stores `data` at `to`, each byte after those before it, so that a thread which ends within it has stored a first
/// part. The compiler may neither reorder nor merge these stores, and a thread's own stores take effect in order.
///
/// # Safety
///
/// As many bytes at `to` may be written, and nobody else uses them.
unsafe fn store_in_order(to: *mut u8, data: &[u8]) {
    const WORD: usize = size_of::<u64>();
    let (head, rest) = data.split_at(to.align_offset(WORD).min(data.len()));
    let (words, tail) = rest.as_chunks::<WORD>();
    // SAFETY: `head`, `words` and `tail` are `data` in order, so all stores are to the bytes that may be written; those
    // of words are aligned, since `head` ends where a word begins unless there is nothing behind it.
    unsafe {
        head.iter().enumerate().for_each(|(i, &byte)| to.add(i).write_volatile(byte));
        let to = to.add(head.len());
        let at = to.cast::<u64>();
        words.iter().enumerate().for_each(|(i, &word)| at.add(i).write_volatile(u64::from_ne_bytes(word)));
        let to = to.add(words.len() * WORD);
        tail.iter().enumerate().for_each(|(i, &byte)| to.add(i).write_volatile(byte));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_in_order_are_stores() {
        let data: Vec<u8> = (1..=60).collect();
        for from in 0..10 {
            for len in 0..=50 {
                let mut to = vec![0u8; 70];
                // SAFETY: `to` has more bytes than `from` and `len` together.
                unsafe { store_in_order(to.as_mut_ptr().add(from), &data[..len]) };
                assert_eq!(to[from..from + len], data[..len]);
                assert!(to[..from].iter().chain(&to[from + len..]).all(|&byte| byte == 0), "{from}+{len}");
            }
        }
    }
}
