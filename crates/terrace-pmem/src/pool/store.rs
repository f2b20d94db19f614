//! The primitives: the only stores into a pool, and the loads that go with them.
//!
//! Offsets out of range, or misaligned for an atomic, are bugs of the caller in all methods that return no
//! `Result`, and panic. An offset that was read from the pool itself is to be checked by one that does
//! ([`Pool::bytes`], [`Pool::get`], [`Pool::atomic_checked`]).

use std::sync::atomic::{AtomicU64, Ordering};

use terrace_base::{Result, prefetch};

use super::Pool;
use super::digests::Admitted;
use crate::cpu;
use crate::media::Gate;
use crate::offset::{POff, PmSafe};
use crate::stats::blocks_of;

/// A read that has begun.
#[derive(Debug, Clone, Copy)]
pub struct StartedRead {
    done: u64,
}

impl Pool {
    /// Copies `data` to `offset`. Plain stores: neither flushed nor ordered, for bytes nobody else reads yet.
    #[inline]
    pub fn write(&self, offset: u64, data: &[u8]) {
        let at = self.at(offset, data.len() as u64);
        self.inner.digests.changed(offset, data.len() as u64);
        // SAFETY: `at` checked the range; bytes being written are not shared (the pool's contract), so in particular
        // `data` does not lie among them.
        unsafe { at.copy_from_nonoverlapping(data.as_ptr(), data.len()) }
    }

    /// Fills with zeros, like [`write`](Self::write).
    #[inline]
    pub fn zero(&self, offset: u64, len: u64) {
        let at = self.at(offset, len);
        self.inner.digests.changed(offset, len);
        // SAFETY: `at` checked the range; it is not shared (the pool's contract).
        unsafe { at.write_bytes(0, len as usize) }
    }

    /// Whether the medium permits giving out `bytes` more.
    #[inline]
    pub(crate) fn admits(&self, bytes: u64) -> bool {
        self.inner.gate != Gate::Dispatch || self.inner.media.admits(bytes)
    }

    /// Starts writing back the lines of a range. Durable after this thread's next [`drain`](Self::drain).
    #[inline]
    pub fn flush(&self, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        let at = self.at(offset, len);
        self.inner.digests.changed(offset, len);
        self.inner.stats.flushed(offset, len);
        match self.inner.gate {
            // SAFETY: `at` checked the range.
            Gate::Cpu(op) => unsafe { cpu::flush(op, at, len as usize) },
            Gate::Dispatch => self.inner.media.flush(offset, len),
            Gate::Fence | Gate::Nothing => {}
        }
    }

    /// Waits until everything this thread flushed is durable.
    #[inline]
    pub fn drain(&self) {
        self.inner.stats.drained();
        match self.inner.gate {
            Gate::Cpu(_) | Gate::Fence => cpu::fence(),
            Gate::Dispatch => self.inner.media.drain(),
            Gate::Nothing => {}
        }
    }

    /// Flushes a range and drains.
    #[inline]
    pub fn persist(&self, offset: u64, len: u64) {
        self.flush(offset, len);
        self.drain();
    }

    /// Copies `data` to `offset` and flushes it, past the caches where that is cheaper. Until this thread
    /// drains, other threads need not see the bytes, even if they see a later store.
    #[inline]
    pub fn copy_flush(&self, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let at = self.at(offset, data.len() as u64);
        self.inner.digests.changed(offset, data.len() as u64);
        self.inner.stats.flushed(offset, data.len() as u64);
        match self.inner.gate {
            // SAFETY: `at` checked the range; bytes being written are not shared (the pool's contract).
            Gate::Cpu(op) => unsafe { cpu::copy_stream(op, at, data.as_ptr(), data.len()) },
            Gate::Dispatch => self.inner.media.copy_flush(offset, data),
            // SAFETY: as above.
            Gate::Fence | Gate::Nothing => unsafe {
                at.copy_from_nonoverlapping(data.as_ptr(), data.len());
            },
        }
    }

    /// Copies `data` to `offset` and makes it durable.
    #[inline]
    pub fn copy_persist(&self, offset: u64, data: &[u8]) {
        self.copy_flush(offset, data);
        self.drain();
    }

    /// Stores a word so that a thread that sees it also sees all earlier stores, and makes it durable. Objects that it
    /// makes reachable must have been drained already: the word may reach the media at any moment from now on.
    #[inline]
    pub fn publish(&self, at: POff<u64>, value: u64) {
        self.atomic(at).store(value, Ordering::Release);
        self.inner.digests.changed(at.get(), 8);
        self.inner.stats.published_word(at.get());
        match self.inner.gate {
            // SAFETY: the word that was stored lies there.
            Gate::Cpu(op) => unsafe {
                cpu::flush(op, self.inner.base.add(at.get() as usize), 8);
                cpu::fence();
            },
            Gate::Dispatch => {
                self.inner.media.flush(at.get(), 8);
                self.inner.media.drain();
            }
            Gate::Fence => cpu::fence(),
            Gate::Nothing => {}
        }
    }

    /// [`publish`](Self::publish) without the drain, which the caller makes for several at once.
    #[inline]
    pub fn store_flush(&self, at: POff<u64>, value: u64) {
        self.atomic(at).store(value, Ordering::Release);
        self.flush(at.get(), 8);
    }

    /// Stores a word after every earlier store to its cache line, on the media too; not flushed. Several such
    /// stores to one line and a flush at the end leave, after a crash, some prefix of them.
    #[inline]
    pub fn store_ordered(&self, at: POff<u64>, value: u64) {
        let word = self.atomic(at);
        self.inner.digests.changed(at.get(), 8);
        match self.inner.gate {
            Gate::Dispatch => self.inner.media.order(at.get()),
            Gate::Cpu(_) | Gate::Fence | Gate::Nothing => cpu::order(),
        }
        word.store(value, Ordering::Release);
    }

    /// Starts writing back all of a range, including stores of other threads; not counted.
    pub(super) fn flush_uncounted(&self, offset: u64, len: u64) {
        match self.inner.gate {
            // SAFETY: `at` checks the range.
            Gate::Cpu(op) => unsafe { cpu::flush(op, self.at(offset, len), len as usize) },
            Gate::Dispatch => self.inner.media.flush(offset, len),
            Gate::Fence | Gate::Nothing => {}
        }
    }

    /// The word at `at`.
    #[inline]
    pub fn atomic(&self, at: POff<u64>) -> &AtomicU64 {
        let offset = at.get();
        assert!(offset.is_multiple_of(8), "a word at {offset:#x} is not aligned");
        // SAFETY: in range (`at`), aligned, mapped for as long as the pool lives; any bytes are a valid word.
        unsafe { &*self.at(offset, 8).cast::<AtomicU64>() }
    }

    /// The word at an offset that is not trusted.
    #[inline]
    pub fn atomic_checked(&self, at: POff<u64>) -> Result<&AtomicU64> {
        self.get(at.cast())
    }

    /// The bytes of a range; out of range is corruption, since the offset came from the pool.
    ///
    /// # Safety
    ///
    /// Nobody stores to the range while the borrow lasts: it is published, immutable, and not freed meanwhile.
    #[inline]
    pub unsafe fn bytes(&self, offset: u64, len: u64) -> Result<&[u8]> {
        let at = self.at_checked(offset, len)?;
        // SAFETY: in range, and immutable by the caller's promise.
        Ok(unsafe { std::slice::from_raw_parts(at, len as usize) })
    }

    /// The object at an offset; out of range or misaligned is corruption, since the offset came from the pool.
    #[inline]
    pub fn get<T: PmSafe>(&self, at: POff<T>) -> Result<&T> {
        const { T::LAYOUT };
        let offset = at.get();
        let ptr = self.at_checked(offset, size_of::<T>() as u64)?;
        if !offset.is_multiple_of(align_of::<T>() as u64) {
            return Err(self.corruption(offset, format!("an offset aligned to {}", align_of::<T>()), "none"));
        }
        // SAFETY: in range and aligned; `PmSafe` promises that any bytes are a valid `T` and that what changes
        // under the borrow is atomic.
        Ok(unsafe { &*ptr.cast::<T>() })
    }

    /// Charges and counts a read that follows a pointer to this range.
    #[inline]
    pub fn charge_read(&self, offset: u64, len: u64) {
        self.inner.stats.read(offset, len);
        if self.inner.charges_reads {
            self.inner.media.charge_read(offset, len);
        }
    }

    /// As [`charge_read`](Self::charge_read) for ranges that were requested together, none depending on another.
    pub fn charge_reads(&self, ranges: impl Iterator<Item = (u64, u64)>) {
        let (mut reads, mut blocks) = (0, 0);
        for (offset, len) in ranges.filter(|(_, len)| *len > 0) {
            self.inner.stats.read(offset, len);
            reads += 1;
            blocks += blocks_of(offset, len);
        }
        if self.inner.charges_reads {
            self.inner.media.charge_reads(reads, blocks);
        }
    }

    /// [Prefetches](Self::prefetch) a range that is read later: it is counted now and charged by
    /// [`await_read`](Self::await_read), less the time that has gone by until then.
    #[inline]
    pub fn start_read(&self, offset: u64, len: u64) -> StartedRead {
        self.prefetch(offset, len);
        self.inner.stats.read(offset, len);
        let done =
            if self.inner.charges_reads { self.inner.media.start_read(blocks_of(offset, len)) } else { 0 };
        StartedRead { done }
    }

    /// Waits for a range whose reading was started.
    #[inline]
    pub fn await_read(&self, started: StartedRead) {
        if self.inner.charges_reads {
            self.inner.media.await_read(started.done);
        }
    }

    /// As [`charge_read`](Self::charge_read) for `len` bytes that follow directly on the last ones read.
    #[inline]
    pub fn charge_rest(&self, offset: u64, len: u64) {
        self.inner.stats.read(offset, len);
        if self.inner.charges_reads {
            self.inner.media.charge_rest(blocks_of(offset, len) - 1);
        }
    }

    /// Starts loading a range into the processor's caches, so that its lines come at once instead of one after the
    /// other. Neither charged nor counted: the later read is.
    #[inline]
    pub fn prefetch(&self, offset: u64, len: u64) {
        prefetch::lines(self.inner.base.wrapping_add(offset as usize), len as usize);
    }

    /// A copy of `N` bytes that are not being changed.
    #[inline]
    pub(crate) fn copy_out<const N: usize>(&self, offset: u64) -> [u8; N] {
        let at = self.at(offset, N as u64);
        // SAFETY: `at` checked the range; the callers hold the lock under which it changes.
        unsafe { at.cast::<[u8; N]>().read_unaligned() }
    }

    #[inline]
    fn at(&self, offset: u64, len: u64) -> *mut u8 {
        match self.in_reach(offset, len) {
            Some(at) => at,
            None => self.at_slowly(offset, len),
        }
    }

    #[inline]
    fn at_checked(&self, offset: u64, len: u64) -> Result<*mut u8> {
        match self.in_reach(offset, len) {
            Some(at) => Ok(at),
            None => self.at_checked_slowly(offset, len),
        }
    }

    #[inline]
    fn in_reach(&self, offset: u64, len: u64) -> Option<*mut u8> {
        // Relaxed: the holder of an offset into the grown part got it through a lock or a publish.
        let reach = self.inner.reach.load(Ordering::Relaxed);
        let fits = offset.checked_add(len).is_some_and(|end| end <= reach);
        // SAFETY: at most the pool's size, which is inside the mapping.
        fits.then(|| unsafe { self.inner.base.add(offset as usize) })
    }

    #[cold]
    fn at_slowly(&self, offset: u64, len: u64) -> *mut u8 {
        match self.admit_range(offset, len) {
            Admitted::Yes => {}
            Admitted::Damaged(unit) => self.reached_damage(unit),
            Admitted::Outside => out_of_range(offset, len, self.size()),
        }
        // SAFETY: inside the pool, or the call above does not return.
        unsafe { self.inner.base.add(offset as usize) }
    }

    #[cold]
    fn at_checked_slowly(&self, offset: u64, len: u64) -> Result<*mut u8> {
        match self.admit_range(offset, len) {
            // SAFETY: inside the pool.
            Admitted::Yes => Ok(unsafe { self.inner.base.add(offset as usize) }),
            Admitted::Damaged(unit) => Err(self.not_what_was_closed(unit)),
            Admitted::Outside => {
                let found = format!("{len} bytes at {offset:#x}");
                Err(self.corruption(offset, format!("a range within {} bytes", self.size()), found))
            }
        }
    }
}

#[cold]
fn out_of_range(offset: u64, len: u64, size: u64) -> ! {
    panic!("{len} bytes at {offset:#x} are outside the pool of {size} bytes")
}
