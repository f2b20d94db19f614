//! Faults of mapped files. If the system cannot read a page, or has no block for it, it sends a signal, `SIGBUS`, which
//! would end the process. Here it becomes an error that the owner of the mapping asks for.
//!
//! A [`Guard`] stands for a mapping. If a load or store in it faults, the handler replaces the faulting page by an
//! anonymous page of zeros and marks the guard as failed. The instruction is then repeated, and its caller asks
//! [`Guard::has_failed`] before it relies on bytes read, or acknowledges a write. Every other `SIGBUS` is described in
//! `signal.rs`.
//!
//! Limits: a program that sets a handler of its own afterwards, and does not pass foreign signals on, is not protected;
//! nor is a thread that blocks the signal. And bytes of a mapping that are read later, without asking again, may be
//! zeros by then.
//!
//! The handler runs at any point of the program, so it takes no lock and allocates nothing: it reads atomics and makes
//! a system call. Ranges lie in blocks of slots that are never freed and are found by walking a list that only grows.

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
/// Both ends lie in one word, so that the handler never combines an end of this range with one of an earlier range.
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
    /// Catches faults in the `len` bytes at `base`, whole pages, from now on. `None` if that is not possible.
    ///
    /// # Safety
    ///
    /// The range is a mapping of the caller's, which stays until this is dropped. Nobody relies on the contents of its
    /// pages once [`has_failed`](Self::has_failed) is true: any of them may have been replaced by zeros.
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

    /// Whether a load or store in the range, by any thread before this call, has faulted.
    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        // The mark was set before the page was replaced, so a thread that has seen zeros sees the mark. Loads of bytes
        // are not atomic; a fence keeps them before this load.
        fence(Ordering::Acquire);
        self.slot.failed.load(Ordering::Acquire)
    }

    /// Acts as if a load of the byte at `address`, which is in the range, had faulted.
    pub(super) fn fail(&self, address: usize) {
        let page = PAGE_BYTES.load(Ordering::Relaxed);
        if self.slot.has((address / page) as u64) {
            replace_in(self.slot, address / page * page, page);
        }
    }

    /// The same for the whole range.
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
        // In this order, so that the next owner of the slot finds it unmarked.
        self.slot.failed.store(false, Ordering::Relaxed);
        self.slot.range.store(0, Ordering::Release);
    }
}

/// A slot that holds `range`.
fn claim(range: u64) -> &'static Slot {
    let mut block = &FIRST;
    loop {
        // It is read first: thousands of slots may be taken, and a load is cheaper than an attempt to claim one.
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

/// A block behind `last`: a new one, or that of a faster thread.
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
    // The range is still mapped: this thread faulted in it and so uses it, and the owner does not drop the guard or
    // unmap the range before that use ends.
    replace_in(slot, address / page * page, page)
}

/// Puts a page of zeros in the place of the one that begins at `start` of the range of `slot`, whose owner keeps it
/// meanwhile. If the process has reached its limit of mappings, all of the range becomes zeros, which needs fewer
/// mappings.
fn replace_in(slot: &Slot, start: usize, page: usize) -> bool {
    // The count is raised before the mark, so that a thread that sees the mark sees a changed count. It is raised again
    // afterwards, so that a thread that has counted in between counts again.
    FAULTS.fetch_add(1, Ordering::AcqRel);
    slot.failed.store(true, Ordering::Release);
    FAULTS.fetch_add(1, Ordering::AcqRel);
    let (first, count) = slot.pages();
    put_zeros(start, page) || put_zeros(first as usize * page, count as usize * page)
}

/// Replaces the pages in the `len` bytes at `start`, which belong to a slot, by pages of zeros; whether that succeeded.
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
        drop(guards);
        assert!(bases.iter().all(|base| find((base / page) as u64).is_none()));
    }

    #[test]
    fn slots_are_free_and_unmarked_when_their_guards_are_gone() {
        let page = rustix::param::page_size();
        let map = |_| {
            // SAFETY: a new mapping at an address of the kernel's choice.
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), page, ProtFlags::READ, MapFlags::PRIVATE) }
                .unwrap()
        };
        let bases: Vec<_> = (0..2 * SLOTS).map(map).collect();
        let blocks = || std::iter::successors(Some(&FIRST), |block| block.next()).count();
        let before = blocks();
        for _ in 0..50 {
            // SAFETY: the mappings were made here and stay; nothing relies on them.
            let guard = |base: &*mut c_void| unsafe { Guard::new(base.cast(), page) }.unwrap();
            let guards: Vec<Guard> = bases.iter().map(guard).collect();
            assert!(guards.iter().all(|guard| !guard.has_failed()));
            guards.iter().for_each(Guard::fail_all);
            assert!(guards.iter().all(Guard::has_failed));
        }
        // Other tests hold slots meanwhile, but not fifty times as many as this one.
        assert!(blocks() < before + 50);
    }

    #[test]
    fn what_no_word_holds_is_not_guarded() {
        // SAFETY: nothing is mapped there, and nothing is used.
        assert!(unsafe { Guard::new(ptr::null_mut(), 0) }.is_none());
        // SAFETY: as above.
        assert!(unsafe { Guard::new(ptr::null_mut(), usize::MAX) }.is_none());
    }
}
