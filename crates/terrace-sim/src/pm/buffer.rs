//! The bytes a simulated medium maps: page-aligned, never moving, handed on from world to world.
//!
//! Crash tests make thousands of short-lived worlds. Fresh memory costs a page fault for every page touched,
//! far more than copying the page, so buffers are kept and used again; their old contents are never
//! visible, because a medium writes every byte below its length before anyone reads it.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use parking_lot::Mutex;
use rustix::mm::{Advice, madvise};

use super::PAGE_BYTES;

/// Buffers kept for the next world, over all capacities.
const KEPT_BUFFERS: usize = 8;

static KEPT: Mutex<Vec<Buffer>> = Mutex::new(Vec::new());

/// A page-aligned block of `capacity` bytes with unspecified contents.
#[derive(Debug)]
pub(super) struct Buffer {
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: a `Buffer` is the sole owner of its block; all access through `base()` is the medium's business.
unsafe impl Send for Buffer {}
// SAFETY: `&Buffer` gives out nothing but the address and the size.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer of exactly `capacity` bytes, a positive multiple of the page size.
    pub(super) fn take(capacity: usize) -> Buffer {
        let mut kept = KEPT.lock();
        if let Some(at) = kept.iter().rposition(|b| b.capacity == capacity) {
            return kept.swap_remove(at);
        }
        drop(kept);
        let layout = Self::layout(capacity);
        // SAFETY: the layout has a non-zero size, which `layout` asserts.
        let start = NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        Buffer { start, capacity }
    }

    /// Keeps `self` for a later [`take`](Self::take), or frees it when enough are kept.
    pub(super) fn give_back(self) {
        let mut kept = KEPT.lock();
        if kept.len() >= KEPT_BUFFERS {
            // The oldest goes: it is the least likely to be of the capacity in use now.
            drop(kept.remove(0));
        }
        kept.push(self);
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Gives the memory back while the address stays good: the bytes read as zeros from then on.
    pub(super) fn empty(&self) {
        // SAFETY: the block is whole pages of private memory that nobody else owns, and lives on. Its bytes may change
        // at any time for readers, as those of every medium may. If the kernel refuses, the pages stay.
        let _ = unsafe { madvise(self.base().cast(), self.capacity, Advice::LinuxDontNeed) };
    }

    fn layout(capacity: usize) -> Layout {
        assert!(capacity > 0 && capacity.is_multiple_of(PAGE_BYTES), "capacity is whole pages");
        Layout::from_size_align(capacity, PAGE_BYTES).expect("the page size is a power of two")
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: `start` came from `alloc` with this very layout and is freed once, here.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.capacity)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_used_again() {
        let capacity = 7 * PAGE_BYTES;
        let first = Buffer::take(capacity);
        let at = first.base();
        assert_eq!(at as usize % PAGE_BYTES, 0);
        assert_eq!(first.capacity(), capacity);
        first.give_back();
        let second = Buffer::take(capacity);
        assert_eq!(second.base(), at);
    }
}
