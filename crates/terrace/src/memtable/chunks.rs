//! Memory for memtables: chunks from regions that request huge pages.
//!
//! A thousand small memtables are written at a thousand places, and a large one is searched at as many. As many pages
//! would miss in the translation buffers. So chunks lie side by side in regions, each of which is one huge page if the
//! system has them. The memory of a memtable that is gone serves the next one: new pages would be faults, and the
//! system clears them. The first region has ordinary pages, so that a small database takes no more memory than
//! it writes.
//!
//! 1. A chunk has a power of two bytes and is aligned to them. It is divided into halves and joined with its other
//!    half again (a buddy system), so that freed chunks become whole regions.
//! 2. No two chunks overlap. A taken one belongs to its [`Chunk`] alone, until that is dropped.
//! 3. Wholly free regions go back to the system, except as many as are to be kept, which supply the next chunks.
//! 4. Every [`Chunk`] keeps the [`Chunks`] it came from. So when the [`Chunks`] are dropped, all regions are
//!    wholly free.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// The smallest chunk.
pub(super) const MIN_CHUNK_BYTES: usize = 4 << 10;

/// The largest chunk, which is a region: a huge page.
pub(super) const REGION_BYTES: usize = 2 << 20;

/// Sizes of chunks: each is twice the one before.
const ORDERS: usize = (REGION_BYTES / MIN_CHUNK_BYTES).ilog2() as usize + 1;

/// The source of memtables' memory.
#[derive(Debug)]
pub(crate) struct Chunks {
    stock: Mutex<Stock>,
    pages: Pages,
    /// Wholly free regions that are kept.
    spare_regions: usize,
    given: AtomicU64,
    reserved: AtomicU64,
}

/// The kind of pages to request.
#[derive(Debug, Clone, Copy)]
enum Pages {
    Huge,
    Ordinary,
}

/// Free chunks, by order. The lowest is given out first, which keeps the others together.
#[derive(Debug, Default)]
struct Stock {
    free: [BTreeSet<NonNull<u8>>; ORDERS],
    /// Whether there was a region before.
    had_regions: bool,
}

// SAFETY: the stock owns the memory that its pointers lead to, and nothing of it is tied to a thread.
unsafe impl Send for Stock {}

/// A piece of memory; dropping it returns it to its source.
#[derive(Debug)]
pub(super) struct Chunk {
    at: NonNull<u8>,
    bytes: usize,
    /// The layout of a chunk outside all regions.
    apart: Option<Layout>,
    of: Arc<Chunks>,
}

// SAFETY: a chunk is memory that belongs to it alone (invariant 2), on any thread.
unsafe impl Send for Chunk {}

impl Chunks {
    /// No memory yet. One region at most is kept while it is free.
    pub fn new() -> Arc<Chunks> {
        Chunks::with(Pages::Huge, 1)
    }

    /// The same, but what is kept may be as much as `bytes`.
    pub fn keeping(bytes: u64) -> Arc<Chunks> {
        Chunks::with(Pages::Huge, (bytes as usize / REGION_BYTES).max(1))
    }

    /// The same as [`new`](Self::new) without huge pages, to measure their benefit.
    pub fn in_ordinary_pages() -> Arc<Chunks> {
        Chunks::with(Pages::Ordinary, 1)
    }

    fn with(pages: Pages, spare_regions: usize) -> Arc<Chunks> {
        let (stock, given, reserved) = Default::default();
        Arc::new(Chunks { stock, pages, spare_regions, given, reserved })
    }

    /// Bytes that memtables hold now.
    pub fn given_bytes(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    /// Bytes that were taken from the system and not given back.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    /// Bytes that memtables hold now, and of the wholly free regions that are kept.
    pub fn held_bytes(&self) -> u64 {
        let spare = self.stock.lock().free[ORDERS - 1].len() * REGION_BYTES;
        self.given_bytes() + spare as u64
    }

    /// A chunk of `bytes`, a power of two from the smallest chunk to a region. It is not initialised.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Chunk {
        let order = order_of(bytes);
        let mut stock = self.stock.lock();
        let at = stock.take(order).unwrap_or_else(|| {
            let region = take_region();
            // The first byte of a huge page makes all of it resident.
            let is_first = !std::mem::replace(&mut stock.had_regions, true);
            advise(region, REGION_BYTES, if is_first { Pages::Ordinary } else { self.pages });
            stock.give(region, ORDERS - 1);
            self.reserved.fetch_add(REGION_BYTES as u64, Ordering::Relaxed);
            stock.take(order).expect("a region is there, and no chunk is larger")
        });
        drop(stock);
        self.given.fetch_add(bytes as u64, Ordering::Relaxed);
        Chunk { at, bytes, apart: None, of: self.clone() }
    }

    /// Memory of any size outside all regions, aligned to 64 bytes. It is not initialised.
    pub(super) fn take_apart(self: &Arc<Self>, bytes: usize) -> Chunk {
        let huge = bytes > 0 && bytes.is_multiple_of(REGION_BYTES);
        let layout = Layout::from_size_align(bytes.max(64), if huge { REGION_BYTES } else { 64 });
        let layout = layout.expect("a memtable is far below the address space");
        // SAFETY: the layout's size is not zero.
        let at = unsafe { alloc(layout) };
        let Some(at) = NonNull::new(at) else { handle_alloc_error(layout) };
        if huge {
            advise(at, bytes, self.pages);
        }
        self.given.fetch_add(layout.size() as u64, Ordering::Relaxed);
        self.reserved.fetch_add(layout.size() as u64, Ordering::Relaxed);
        Chunk { at, bytes: layout.size(), apart: Some(layout), of: self.clone() }
    }

    fn give(&self, at: NonNull<u8>, bytes: usize) {
        let mut stock = self.stock.lock();
        stock.give(at, order_of(bytes));
        while let Some(region) = stock.beyond(self.spare_regions) {
            // SAFETY: wholly free, and no longer in the stock.
            unsafe { give_region(region) };
            self.reserved.fetch_sub(REGION_BYTES as u64, Ordering::Relaxed);
        }
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        for region in &self.stock.get_mut().free[ORDERS - 1] {
            // SAFETY: wholly free, and nobody takes from these chunks any more.
            unsafe { give_region(*region) };
        }
    }
}

impl Chunk {
    pub fn start(&self) -> NonNull<u8> {
        self.at
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.of.given.fetch_sub(self.bytes as u64, Ordering::Relaxed);
        let Some(layout) = self.apart else { return self.of.give(self.at, self.bytes) };
        self.of.reserved.fetch_sub(self.bytes as u64, Ordering::Relaxed);
        // SAFETY: allocated with this layout, and owned by this chunk alone.
        unsafe { dealloc(self.at.as_ptr(), layout) }
    }
}

impl Stock {
    fn take(&mut self, order: usize) -> Option<NonNull<u8>> {
        let from = (order..ORDERS).find(|larger| !self.free[*larger].is_empty())?;
        let chunk = self.free[from].pop_first()?;
        for half in (order..from).rev() {
            // SAFETY: the chunk has two halves of that order; the upper one begins inside of it.
            self.free[half].insert(unsafe { chunk.add(MIN_CHUNK_BYTES << half) });
        }
        Some(chunk)
    }

    /// Puts a chunk back and joins it with its other half, repeatedly if that is free.
    fn give(&mut self, mut chunk: NonNull<u8>, mut order: usize) {
        while order + 1 < ORDERS {
            let bytes = MIN_CHUNK_BYTES << order;
            let upper = chunk.addr().get() & bytes != 0;
            // SAFETY: below the order of a region, both halves lie in one, whose whole extent the pointer may reach.
            let other = unsafe { if upper { chunk.sub(bytes) } else { chunk.add(bytes) } };
            if !self.free[order].remove(&other) {
                break;
            }
            chunk = chunk.min(other);
            order += 1;
        }
        self.free[order].insert(chunk);
    }

    /// A region to give back to the system, if there are more than are kept.
    fn beyond(&mut self, kept: usize) -> Option<NonNull<u8>> {
        let regions = &mut self.free[ORDERS - 1];
        if regions.len() > kept { regions.pop_last() } else { None }
    }
}

/// The order of the size `bytes`.
fn order_of(bytes: usize) -> usize {
    let sound = bytes.is_power_of_two() && (MIN_CHUNK_BYTES..=REGION_BYTES).contains(&bytes);
    assert!(sound, "{bytes} bytes are no chunk");
    (bytes / MIN_CHUNK_BYTES).ilog2() as usize
}

/// Requests such pages; everything works without them, too.
fn advise(at: NonNull<u8>, bytes: usize, pages: Pages) {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        use rustix::mm::{Advice, madvise};
        let advice = match pages {
            Pages::Huge => Advice::LinuxHugepage,
            Pages::Ordinary => Advice::LinuxNoHugepage,
        };
        // SAFETY: the range is ours, and this kind of advice changes none of its contents.
        let _ = unsafe { madvise(at.as_ptr().cast(), bytes, advice) };
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = (at, bytes, pages);
}

const REGION: Layout = match Layout::from_size_align(REGION_BYTES, REGION_BYTES) {
    Ok(layout) => layout,
    Err(_) => panic!("the size of a region is a power of two"),
};

/// A region from the system, aligned to its size.
#[cfg(not(miri))]
fn take_region() -> NonNull<u8> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // Most systems align what is as long as a huge page. Regions then lie side by side, and are few mappings together.
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing, and is this function's own.
    unsafe {
        if let Ok(start) = mmap_anonymous(std::ptr::null_mut(), REGION_BYTES, access, flags) {
            if start.addr().is_multiple_of(REGION_BYTES) {
                return NonNull::new(start.cast()).unwrap_or_else(|| handle_alloc_error(REGION));
            }
            let _ = munmap(start, REGION_BYTES);
        }
    }
    // SAFETY: the same. The mapping is two regions long, and one aligned region of it is kept. The unmapped parts lie
    // inside the mapping, before and after that region.
    let region = unsafe {
        let Ok(start) = mmap_anonymous(std::ptr::null_mut(), 2 * REGION_BYTES, access, flags) else {
            handle_alloc_error(REGION)
        };
        let before = start.addr().wrapping_neg() % REGION_BYTES;
        let region = start.cast::<u8>().add(before);
        // A part that cannot be unmapped only wastes addresses: nobody touches it.
        if before > 0 {
            let _ = munmap(start, before);
        }
        let _ = munmap(region.add(REGION_BYTES).cast(), REGION_BYTES - before);
        region
    };
    NonNull::new(region).unwrap_or_else(|| handle_alloc_error(REGION))
}

/// # Safety
/// The region came from [`take_region`], and nobody has a piece of it.
#[cfg(not(miri))]
unsafe fn give_region(region: NonNull<u8>) {
    // SAFETY: the caller's promise. A region that cannot be unmapped is lost, and does no harm.
    let _ = unsafe { rustix::mm::munmap(region.as_ptr().cast(), REGION_BYTES) };
}

#[cfg(miri)]
fn take_region() -> NonNull<u8> {
    // SAFETY: the layout's size is not zero.
    NonNull::new(unsafe { alloc(REGION) }).unwrap_or_else(|| handle_alloc_error(REGION))
}

/// # Safety
/// The region came from [`take_region`], and nobody has a piece of it.
#[cfg(miri)]
unsafe fn give_region(region: NonNull<u8>) {
    // SAFETY: the caller's promise.
    unsafe { dealloc(region.as_ptr(), REGION) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Take(usize),
        Apart(usize),
        Drop(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..ORDERS).prop_map(Step::Take),
            1 => (0usize..100_000).prop_map(Step::Apart),
            4 => any::<usize>().prop_map(Step::Drop),
        ];
        prop::collection::vec(step, 0..60)
    }

    proptest! {
        #[test]
        fn chunks_are_apart_and_come_back(steps in steps()) {
            let chunks = Chunks::new();
            let mut held: Vec<Chunk> = Vec::new();
            for step in steps {
                match step {
                    Step::Take(order) => held.push(chunks.take(MIN_CHUNK_BYTES << order)),
                    Step::Apart(bytes) => held.push(chunks.take_apart(bytes)),
                    Step::Drop(which) if !held.is_empty() => drop(held.swap_remove(which % held.len())),
                    Step::Drop(_) => {}
                }
                // SAFETY: the chunk has its stated length and belongs to nobody else.
                held.last().inspect(|c| unsafe { c.start().as_ptr().write_bytes(0xa5, c.bytes()) });
                let sum: usize = held.iter().map(Chunk::bytes).sum();
                prop_assert_eq!(chunks.given_bytes(), sum as u64);
                prop_assert!(chunks.reserved_bytes() >= sum as u64);
                let mut ends: Vec<_> = held.iter().map(|c| (c.start().addr().get(), c.bytes())).collect();
                ends.sort_unstable();
                prop_assert!(ends.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
                let aligned = |c: &Chunk| c.apart.is_some() || c.start().addr().get().is_multiple_of(c.bytes());
                prop_assert!(held.iter().all(aligned));
            }
            drop(held);
            prop_assert_eq!(chunks.given_bytes(), 0);
            prop_assert!(chunks.reserved_bytes() <= REGION_BYTES as u64, "one region is kept at most");
        }
    }

    #[test]
    fn regions_are_shared_and_come_back_but_for_one() {
        let chunks = Chunks::new();
        let many: Vec<Chunk> =
            (0..2 * REGION_BYTES / MIN_CHUNK_BYTES).map(|_| chunks.take(MIN_CHUNK_BYTES)).collect();
        assert_eq!((chunks.given_bytes(), chunks.reserved_bytes()), (4 << 20, 4 << 20));
        drop(many);
        assert_eq!((chunks.given_bytes(), chunks.reserved_bytes()), (0, 2 << 20));
        let whole = chunks.take(REGION_BYTES);
        assert_eq!((whole.bytes(), chunks.reserved_bytes()), (REGION_BYTES, 2 << 20));
    }
}
