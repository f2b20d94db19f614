//! `SimPm`: a simulated persistent-memory medium that can lose power.
//!
//! Programs store straight into one buffer, as they do on a mapped pool; a second image has the durable contents. A
//! power cut decides over the difference between the two and over the journal of flushes and orderings since the last
//! drain. No store is instrumented.
//!
//! Invariants:
//! 1. The durable image changes only in `drain`, `sync` and `grow`, each of which is an event: the hook has
//!    run, with no lock held, before anything changes.
//! 2. Only a thread's own drain makes its flushes durable.
//! 3. On `Page` media flushing and draining make nothing durable; only `sync` does.
//!
//! Thread safety: everything may be called from any thread. Capturing reads the whole buffer and is for
//! moments when no other thread stores to it, such as within an event of a single-threaded scenario.

mod buffer;
mod capture;
mod halt;
mod image;
mod journal;
mod survive;

use std::fmt;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use terrace_base::{Error, Result};
use terrace_pmem::{Granularity, LINE_BYTES, Media};

use buffer::Buffer;
use image::{Image, Page};
use journal::Journal;

pub use capture::PmSnapshot;
pub use halt::{Halting, Stopped};
pub use survive::Survival;

/// Bytes in a page, the unit of copying and, on `Page` media, of loss.
const PAGE_BYTES: usize = 4096;
/// [`LINE_BYTES`] as a length in memory.
const LINE: usize = LINE_BYTES as usize;

/// The properties of a simulated medium.
#[derive(Debug, Clone, Copy)]
pub struct PmOptions {
    /// Bytes at first, durable from the start; rounded up to whole pages.
    pub bytes: u64,
    /// Bytes it may grow to; rounded up to whole pages. Address space only, until it is used.
    pub capacity: u64,
    /// How a store is flushed to be durable.
    pub granularity: Granularity,
}

impl Default for PmOptions {
    fn default() -> Self {
        PmOptions { bytes: 1 << 20, capacity: 16 << 20, granularity: Granularity::CacheLine }
    }
}

/// An operation of the medium that is about to take effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PmOp {
    /// The flushes of this thread are about to be durable.
    Drain,
    /// All stores are about to be durable.
    Sync,
    /// The medium is about to grow.
    Grow {
        /// To this many bytes.
        to: u64,
    },
    /// The pool is about to give bytes out. Durable state does not change.
    Reserve,
}

/// Called before each [`PmOp`]; an error makes the operation fail (a drain cannot, and goes on).
pub type PmHook = Box<dyn Fn(PmOp) -> Result<()> + Send + Sync>;

/// Called with the offset of each thing that a walk is about to mark as reachable.
pub type MarkHook = Arc<dyn Fn(u64) + Send + Sync>;

/// A simulated medium.
pub struct SimPm {
    /// Taken only by `drop`.
    buffer: ManuallyDrop<Buffer>,
    len: AtomicU64,
    limit: AtomicU64,
    granularity: Granularity,
    durable: Mutex<Durable>,
    hook: OnceLock<PmHook>,
    at_marks: Mutex<Option<MarkHook>>,
}

/// The durable contents, and stores on their way there.
#[derive(Debug, Clone)]
struct Durable {
    image: Image,
    journal: Journal,
    /// A sync has failed in this boot: what the system could not write is told once.
    sync_failed: bool,
}

impl SimPm {
    /// A medium of zeroes.
    pub fn new(options: PmOptions) -> SimPm {
        let page = PAGE_BYTES as u64;
        let bytes = options.bytes.max(1).next_multiple_of(page);
        let capacity = options.capacity.max(bytes).next_multiple_of(page);
        let image = Image::zeroed(bytes);
        let durable = Durable { image: image.clone(), journal: Journal::default(), sync_failed: false };
        SimPm::over(&image, durable, capacity, options.granularity)
    }

    /// A medium with the stores `current` and the durable contents `durable`.
    fn over(current: &Image, durable: Durable, capacity: u64, granularity: Granularity) -> SimPm {
        let buffer = Buffer::take(capacity as usize);
        for (i, page) in current.pages().iter().enumerate() {
            // SAFETY: `capacity >= current.len()`, so page `i` lies within the buffer, which nobody else
            // has yet; a boxed page cannot overlap it.
            unsafe { buffer.base().add(i * PAGE_BYTES).copy_from_nonoverlapping(page.as_ptr(), PAGE_BYTES) }
        }
        SimPm {
            buffer: ManuallyDrop::new(buffer),
            len: AtomicU64::new(current.len()),
            limit: AtomicU64::new(capacity),
            granularity,
            durable: Mutex::new(durable),
            hook: OnceLock::new(),
            at_marks: Mutex::default(),
        }
    }

    /// Calls `hook` before every operation. Only the first call of this counts.
    pub fn set_hook(&self, hook: PmHook) {
        let _ = self.hook.set(hook);
    }

    /// Calls `hook` at every mark; `None` ends that. The hook may write, but not mark.
    pub fn at_marks(&self, hook: Option<MarkHook>) {
        *self.at_marks.lock() = hook;
    }

    /// Makes the medium full at `bytes`: growing past it fails with [`Error::NoSpace`].
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Gives back the memory it takes: a medium of zeroes of the same length, all of them durable. For one that is no
    /// longer used, but that a leaked object still holds.
    pub(crate) fn empty(&self) {
        let mut durable = self.durable.lock();
        *durable =
            Durable { image: Image::zeroed(self.len()), journal: Journal::default(), sync_failed: false };
        self.buffer.empty();
    }

    /// Whether any store is not yet certain to survive a power cut.
    pub fn is_dirty(&self) -> bool {
        self.capture().is_dirty()
    }

    /// The name errors give it.
    pub(crate) fn path() -> PathBuf {
        PathBuf::from("simulated-pm")
    }

    fn before(&self, op: PmOp) -> Result<()> {
        self.hook.get().map_or(Ok(()), |hook| hook(op))
    }

    fn before_sync(&self) -> Result<()> {
        self.before(PmOp::Sync).inspect_err(|_| self.durable.lock().sync_failed = true)
    }

    /// Whether a sync has failed in this boot.
    pub fn has_failed_sync(&self) -> bool {
        self.durable.lock().sync_failed
    }

    /// The content of line number `line` now.
    fn current_line(&self, line: u64) -> [u8; LINE] {
        let words: [u64; LINE / 8] = std::array::from_fn(|i| {
            let at = line as usize * LINE + i * 8;
            // SAFETY: `line` is below `len` (callers check), the base is page-aligned and `at` a multiple
            // of 8, so this is an aligned word within the buffer. Atomic, since other threads may be
            // storing to the very line being flushed.
            unsafe { AtomicU64::from_ptr(self.buffer.base().add(at).cast()) }.load(Ordering::Relaxed)
        });
        let mut content = [0; LINE];
        content.as_chunks_mut().0.iter_mut().zip(words).for_each(|(bytes, word)| *bytes = word.to_ne_bytes());
        content
    }

    /// The content of page `index` now.
    fn current_page(&self, index: usize) -> &Page {
        debug_assert!(((index + 1) * PAGE_BYTES) as u64 <= self.len());
        // SAFETY: the page lies below `len`, so it is inside the buffer and was written when the medium was
        // made or grown. No thread stores to it while the reference lives: see the module's note on capturing.
        unsafe { &*self.buffer.base().add(index * PAGE_BYTES).cast::<Page>() }
    }

    /// The numbers of the lines that `len` bytes at `offset` touch.
    ///
    /// # Panics
    /// When the range is not inside the medium: the program under test computed a wild offset.
    fn lines(&self, offset: u64, len: u64) -> std::ops::Range<u64> {
        let end = offset.checked_add(len).filter(|&end| end <= self.len());
        let end = end.unwrap_or_else(|| panic!("flush of {len} bytes at {offset} of {}", self.len()));
        if len == 0 { 0..0 } else { offset / LINE_BYTES..end.div_ceil(LINE_BYTES) }
    }

    /// Makes every store durable.
    fn make_all_durable(&self, durable: &mut Durable) {
        durable.journal.clear();
        self.make_pages_durable(durable, 0..self.len());
    }

    /// Makes the pages that `range` touches durable.
    fn make_pages_durable(&self, durable: &mut Durable, range: std::ops::Range<u64>) {
        let last = (range.end as usize).div_ceil(PAGE_BYTES).min(durable.image.pages().len());
        for index in range.start as usize / PAGE_BYTES..last {
            let now = self.current_page(index);
            if durable.image.pages()[index].as_ref() != now {
                *durable.image.page_mut(index) = *now;
            }
        }
    }

    /// The error with which growing to `to` bytes must fail, if it must.
    fn refuse_growth(&self, to: u64) -> Result<()> {
        if to > self.limit.load(Ordering::Relaxed).min(self.capacity()) {
            return Err(Error::NoSpace { path: Self::path() });
        }
        Ok(())
    }
}

impl Media for SimPm {
    fn base(&self) -> *mut u8 {
        self.buffer.base()
    }

    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn capacity(&self) -> u64 {
        self.buffer.capacity() as u64
    }

    fn grow(&self, len: u64) -> Result<()> {
        let to = len.next_multiple_of(PAGE_BYTES as u64);
        if to <= self.len() {
            return Ok(());
        }
        self.before(PmOp::Grow { to })?;
        self.refuse_growth(to)?;
        let mut durable = self.durable.lock();
        let from = self.len();
        if to > from {
            // SAFETY: `from..to` lies within the capacity, and nobody may touch bytes past `len` before it
            // is raised below, under the lock that makes growing exclusive.
            unsafe { self.buffer.base().add(from as usize).write_bytes(0, (to - from) as usize) }
            if self.granularity != Granularity::Page {
                durable.image.resize(to);
            }
            self.len.store(to, Ordering::Release);
        }
        Ok(())
    }

    fn admits(&self, _bytes: u64) -> bool {
        self.before(PmOp::Reserve).is_ok()
    }

    fn granularity(&self) -> Granularity {
        self.granularity
    }

    fn flush(&self, offset: u64, len: u64) {
        let lines = self.lines(offset, len);
        if self.granularity == Granularity::Page {
            return;
        }
        let me = std::thread::current().id();
        let mut durable = self.durable.lock();
        for line in lines {
            durable.journal.flushed(line, self.current_line(line), me);
        }
    }

    fn drain(&self) {
        // A fence cannot fail; a fault planned for it waits for the next operation that can.
        let _ = self.before(PmOp::Drain);
        let mut durable = self.durable.lock();
        match self.granularity {
            Granularity::Byte => self.make_all_durable(&mut durable),
            Granularity::CacheLine => {
                let Durable { image, journal, .. } = &mut *durable;
                journal.drain(std::thread::current().id(), image);
            }
            Granularity::Page => {}
        }
    }

    fn order(&self, offset: u64) {
        let lines = self.lines(offset, 1);
        if self.granularity != Granularity::Page {
            self.durable.lock().journal.ordered(lines.start, self.current_line(lines.start));
        }
    }

    fn charge_read(&self, _offset: u64, _len: u64) {}

    fn sync(&self) -> Result<()> {
        self.before_sync()?;
        let mut durable = self.durable.lock();
        durable.image.resize(self.len());
        self.make_all_durable(&mut durable);
        Ok(())
    }

    /// On an ordinary file the pages of the range, and no others.
    fn sync_range(&self, offset: u64, len: u64) -> Result<()> {
        if self.granularity != Granularity::Page {
            return self.sync();
        }
        self.before_sync()?;
        let mut durable = self.durable.lock();
        durable.image.resize(self.len());
        self.make_pages_durable(&mut durable, offset..offset.saturating_add(len).min(self.len()));
        Ok(())
    }

    fn marking(&self, offset: u64) {
        let hook = self.at_marks.lock().clone();
        if let Some(hook) = hook {
            hook(offset);
        }
    }

    fn describe(&self) -> String {
        format!("simulated persistent memory, {:?} granularity", self.granularity)
    }
}

impl fmt::Debug for SimPm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimPm")
            .field("len", &self.len())
            .field("granularity", &self.granularity)
            .finish_non_exhaustive()
    }
}

impl Drop for SimPm {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used after.
        unsafe { ManuallyDrop::take(&mut self.buffer) }.give_back();
    }
}

#[cfg(test)]
mod tests;
