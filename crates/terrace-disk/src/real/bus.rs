//! Faults of mapped files: what the system could not read or has no block for is a signal, `SIGBUS`, which would end the
//! process. Here it becomes an error that whoever mapped the file asks for.
//!
//! A [`Guard`] stands for a mapping. Where a load or store in it faults, the handler puts an anonymous page of zeros in the
//! place of the faulting one and marks the guard as failed. The instruction is then done again, and whoever made it asks
//! [`Guard::has_failed`] before it relies on what was read, or says that anything was written. What becomes of every other
//! `SIGBUS`, `signal.rs` says.
//!
//! What remains: a program that sets a handler of its own afterwards, and does not pass on what is not its own, has
//! none of this; nor has a thread that blocks the signal. And bytes that were given out of a mapping and are looked at
//! later, when nobody asks any more: these are zeros then.
//!
//! The handler runs wherever a fault happens, so it takes no lock and allocates nothing: it reads atomics and makes a
//! system call. Ranges lie in blocks of slots that are never freed and are found by walking a list that only grows.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};

use libc::c_void;
use rustix::mm::{MapFlags, ProtFlags};

use super::signal;

/// Slots of a block.
const SLOTS: usize = 64;

/// Bits of a slot's word that hold how many pages there are; the rest is the number of the first.
const COUNT_BITS: u32 = 19;

/// A range of addresses, if there is one, and whether a page of it was replaced.
///
/// Both ends lie in one word, so that the handler never sees the one of this range and the other of an earlier one.
struct Slot {
    /// Zero where the slot is free.
    range: AtomicU64,
    failed: AtomicBool,
}

struct Block {
    slots: [Slot; SLOTS],
    next: AtomicPtr<Block>,
}

impl Block {
    const fn new() -> Block {
        let slots = [const { Slot { range: AtomicU64::new(0), failed: AtomicBool::new(false) } }; SLOTS];
        Block { slots, next: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The block behind this one.
    fn next(&self) -> Option<&'static Block> {
        // SAFETY: the pointer is null or was leaked from a box, whole before it was stored, and is never freed.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }
}

static FIRST: Block = Block::new();

/// The system's page size, known before a range is.
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Pages that were replaced in this process.
static FAULTS: AtomicU64 = AtomicU64::new(0);

/// How many pages of mappings were replaced in this process until now.
#[inline]
pub(crate) fn faults() -> u64 {
    // As in `Guard::has_failed`.
    fence(Ordering::Acquire);
    FAULTS.load(Ordering::Acquire)
}

/// A mapping whose faults are caught, for as long as this lives.
#[derive(Debug)]
pub(super) struct Guard {
    slot: &'static Slot,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("failed", &self.failed).finish_non_exhaustive()
    }
}

impl Guard {
    /// Catches faults in the `len` bytes at `base`, whole pages, from now on. `None` if that is not to be had.
    ///
    /// # Safety
    ///
    /// The range is a mapping of the caller's, which stays until this is dropped. Nobody relies on any page of it holding
    /// what it held once [`has_failed`](Self::has_failed) is true: pages of it may be others, of zeros.
    pub(super) unsafe fn new(base: *mut u8, len: usize) -> Option<Guard> {
        let page = rustix::param::page_size();
        PAGE_BYTES.store(page, Ordering::Relaxed);
        if !signal::ensure() {
            return None;
        }
        let (first, count) = (base as usize / page, len / page);
        if count == 0 || count >> COUNT_BITS != 0 || (first as u64) >> (64 - COUNT_BITS) != 0 {
            return None;
        }
        Some(Guard { slot: claim((first as u64) << COUNT_BITS | count as u64) })
    }

    /// Whether a load or store in the range has faulted: of those that were made before this is asked, by whomever.
    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        // Whoever has seen a page of zeros sees the mark, which was set before. Loads of bytes are not atomic, so it takes a
        // fence to keep them before this one.
        fence(Ordering::Acquire);
        self.slot.failed.load(Ordering::Acquire)
    }

    /// Does what is done where a load of the byte at `address`, which is in the range, faults.
    pub(super) fn fail(&self, address: usize) {
        let page = PAGE_BYTES.load(Ordering::Relaxed);
        if self.slot.has((address / page) as u64) {
            replace_in(self.slot, address / page * page, page);
        }
    }

    /// Does that for the whole range.
    pub(super) fn fail_all(&self) {
        let page = PAGE_BYTES.load(Ordering::Relaxed);
        let (first, count) = self.slot.pages();
        self.slot.failed.store(true, Ordering::Release);
        put_zeros(first as usize * page, count as usize * page);
    }
}

impl Slot {
    /// The number of the first page, and how many there are.
    fn pages(&self) -> (u64, u64) {
        let range = self.range.load(Ordering::Acquire);
        (range >> COUNT_BITS, range & ((1 << COUNT_BITS) - 1))
    }

    /// Whether the page of number `page` is in the range.
    fn has(&self, page: u64) -> bool {
        let (first, count) = self.pages();
        (first..first + count).contains(&page)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // In this order: whoever claims the slot finds it unmarked.
        self.slot.failed.store(false, Ordering::Relaxed);
        self.slot.range.store(0, Ordering::Release);
    }
}

/// A slot that holds `range`.
fn claim(range: u64) -> &'static Slot {
    let mut block = &FIRST;
    loop {
        // Looked at first: there may be thousands that are taken, and to try one costs more than to look.
        let take = |slot: &&Slot| {
            slot.range.load(Ordering::Relaxed) == 0
                && slot.range.compare_exchange(0, range, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        if let Some(slot) = block.slots.iter().find(take) {
            return slot;
        }
        block = block.next().unwrap_or_else(|| add_behind(block));
    }
}

/// A block behind `last`: a new one, or that of whoever was faster.
fn add_behind(last: &'static Block) -> &'static Block {
    let new = Box::into_raw(Box::new(Block::new()));
    match last.next.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: it was leaked just now, and is never freed once it is in the list.
        Ok(_) => unsafe { &*new },
        Err(other) => {
            // SAFETY: nobody but this call knows of `new`, which came from a box; `other` was leaked and stays.
            unsafe {
                drop(Box::from_raw(new));
                &*other
            }
        }
    }
}

/// The slot whose range has the page of number `page`.
fn find(page: u64) -> Option<&'static Slot> {
    let mut block = Some(&FIRST);
    while let Some(here) = block {
        if let Some(slot) = here.slots.iter().find(|slot| slot.has(page)) {
            return Some(slot);
        }
        block = here.next();
    }
    None
}

/// Puts a page of zeros in the place of the one at `address`, if that is in a guarded range.
pub(super) fn replace_page(address: usize) -> bool {
    let page = PAGE_BYTES.load(Ordering::Relaxed);
    let Some(slot) = (page > 0).then(|| find((address / page) as u64)).flatten() else { return false };
    // The page is there still: this thread faulted in it, so it uses the range, and the owner may not drop the guard and
    // unmap the range before that is over.
    replace_in(slot, address / page * page, page)
}

/// Puts a page of zeros in the place of the one that begins at `start` of the range of `slot`, whose owner keeps it meanwhile.
/// Where the process may have no more mappings, all of the range becomes zeros, which makes fewer of them.
fn replace_in(slot: &Slot, start: usize, page: usize) -> bool {
    // Before, so that whoever sees the mark finds that the count has changed; and after, so that whoever has counted between
    // the two looks again.
    FAULTS.fetch_add(1, Ordering::AcqRel);
    slot.failed.store(true, Ordering::Release);
    FAULTS.fetch_add(1, Ordering::AcqRel);
    let (first, count) = slot.pages();
    put_zeros(start, page) || put_zeros(first as usize * page, count as usize * page)
}

/// Puts pages of zeros in the place of those in the `len` bytes at `start`, which a slot has; whether that was done.
fn put_zeros(start: usize, len: usize) -> bool {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
    // SAFETY: the pages lie in a range that is its owner's mapping for as long as it is in a slot, and the owner agreed
    // that its pages be replaced. The call is a bare system call.
    unsafe { rustix::mm::mmap_anonymous(start as *mut c_void, len, protection, flags).is_ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found_as_long_as_they_are_guarded() {
        let page = rustix::param::page_size();
        let map = |pages: usize| {
            let (protection, flags) = (ProtFlags::READ, MapFlags::PRIVATE);
            // SAFETY: a new mapping at an address of the kernel's choice.
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), pages * page, protection, flags) }.unwrap()
                as usize
        };
        // More than a block has slots; the mappings stay.
        let bases: Vec<usize> = (0..3 * SLOTS).map(|i| map(1 + i % 3)).collect();
        let guard = |(i, &base): (usize, &usize)| {
            // SAFETY: the mapping was made here and stays; nothing relies on it.
            unsafe { Guard::new(base as *mut u8, (1 + i % 3) * page) }.unwrap()
        };
        let guards: Vec<Guard> = bases.iter().enumerate().map(guard).collect();
        for (i, base) in bases.iter().enumerate() {
            for at in 0..1 + i % 3 {
                let found = find((base / page + at) as u64).unwrap();
                assert!(ptr::eq(found, guards[i].slot), "page {at} of range {i}");
            }
        }
        let slot: *const Slot = guards[0].slot;
        drop(guards);
        assert!(bases.iter().all(|base| find((base / page) as u64).is_none()));
        let again = guard((0, &bases[0]));
        assert!(ptr::eq(again.slot, slot) && !again.has_failed());
    }

    #[test]
    fn what_no_word_holds_is_not_guarded() {
        // SAFETY: nothing is mapped there, and nothing is used.
        assert!(unsafe { Guard::new(ptr::null_mut(), 0) }.is_none());
        // SAFETY: as above.
        assert!(unsafe { Guard::new(ptr::null_mut(), usize::MAX) }.is_none());
    }
}
