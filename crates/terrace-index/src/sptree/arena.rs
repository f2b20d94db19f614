//! The memory of middle nodes.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::bound::Bytes;
use super::mnode::{MNODE_BYTES, Mnode};

/// Nodes allocated at once, at first.
const FIRST_CHUNK: usize = 64;

/// From which size on chunks are huge pages, as far as the system has them: a search touches nodes at random, and
/// would miss in the translation buffers as often as in the caches.
const HUGE_BYTES: usize = 2 << 20;

/// Asks for huge pages, which make searches faster; they are optional.
fn advise_huge(at: NonNull<u8>, bytes: usize) {
    #[cfg(target_os = "linux")]
    // SAFETY: the range is ours, and advice of this sort changes nothing of what is in it.
    let _ = unsafe { rustix::mm::madvise(at.as_ptr().cast(), bytes, rustix::mm::Advice::LinuxHugepage) };
    #[cfg(not(target_os = "linux"))]
    let _ = (at, bytes);
}

/// The words behind each node of an arena.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// 1, 2 or 4, the one in the node included.
    pub filter_words: usize,
    /// Words of the write buffer, 0 without one.
    pub buffer_words: usize,
}

impl Shape {
    /// Words behind each node.
    pub fn tail_words(&self) -> usize {
        self.filter_words - 1 + self.buffer_words
    }

    fn node_bytes(&self) -> usize {
        (MNODE_BYTES + self.tail_words() * 8).next_multiple_of(64)
    }
}

/// The memory of nodes. It goes back to the system only with the arena.
#[derive(Debug)]
pub(super) struct Arena {
    pub shape: Shape,
    inner: Mutex<Stock>,
}

#[derive(Debug, Default)]
struct Stock {
    /// Where each chunk begins, and the nodes in it.
    chunks: Vec<(NonNull<u8>, usize)>,
    free: Vec<NonNull<Mnode>>,
    /// Nodes of the last chunk handed out.
    used: usize,
}

// SAFETY: the pointers are to memory that the arena owns; nodes are words that any thread may look at.
unsafe impl Send for Stock {}

impl Arena {
    pub fn new(shape: Shape) -> Arena {
        Arena { shape, inner: Mutex::default() }
    }

    /// An unused node. It is zero, or has the contents of an earlier one.
    pub fn take(&self) -> &Mnode {
        let mut stock = self.inner.lock();
        let node = match stock.free.pop() {
            Some(node) => node,
            None => self.fresh(&mut stock),
        };
        // SAFETY: it lies in a chunk, which lives as long as the arena; zeros are valid in every field.
        unsafe { node.as_ref() }
    }

    fn fresh(&self, stock: &mut Stock) -> NonNull<Mnode> {
        let (chunk, nodes) = match stock.chunks.last() {
            Some((chunk, nodes)) if stock.used < *nodes => (*chunk, *nodes),
            last => {
                let before = last.map_or(0, |(_, nodes)| *nodes);
                let huge = HUGE_BYTES / self.shape.node_bytes();
                let nodes = (before * 2).clamp(FIRST_CHUNK, huge);
                let chunk = self.chunk(nodes);
                stock.chunks.push((chunk, nodes));
                stock.used = 0;
                (chunk, nodes)
            }
        };
        debug_assert!(stock.used < nodes);
        let offset = stock.used * self.shape.node_bytes();
        stock.used += 1;
        // SAFETY: inside the chunk.
        unsafe { chunk.add(offset).cast() }
    }

    /// A chunk of zeros.
    fn chunk(&self, nodes: usize) -> NonNull<u8> {
        let layout = self.layout(nodes);
        // SAFETY: the layout has a size.
        let at = unsafe { alloc(layout) };
        let Some(at) = NonNull::new(at) else { handle_alloc_error(layout) };
        if layout.align() == HUGE_BYTES {
            // Before the first access.
            advise_huge(at, layout.size());
        }
        // SAFETY: ours, and as large as the layout.
        unsafe { at.write_bytes(0, layout.size()) };
        at
    }

    /// Takes a node back.
    ///
    /// # Safety
    ///
    /// It came from this arena, it is no longer in use, and it is given back once.
    pub unsafe fn give(&self, node: *mut Mnode) {
        // SAFETY: it lives as long as the arena.
        let node = unsafe { &*node };
        self.free_bounds(node);
        self.inner.lock().free.push(NonNull::from(node));
    }

    /// Frees the bytes of a node's bounds; nobody looks at them any more.
    fn free_bounds(&self, node: &Mnode) {
        let lens = node.lens.swap(0, Ordering::Relaxed);
        let low = Bytes::of(node.low.load(Ordering::Relaxed), lens as u32);
        let high = Bytes::of(node.high.load(Ordering::Relaxed), (lens >> 32) as u32);
        // SAFETY: the node is not in use, so neither are its bytes.
        [low, high].into_iter().flatten().for_each(|bytes| unsafe { bytes.free() });
    }

    /// Visits all nodes ever handed out.
    pub fn for_each(&self, visit: impl FnMut(&Mnode)) {
        self.nodes(&self.inner.lock()).for_each(visit);
    }

    /// Nodes that are not back.
    pub fn live(&self) -> u64 {
        let stock = self.inner.lock();
        (self.handed_out(&stock).map(|(_, used)| used).sum::<usize>() - stock.free.len()) as u64
    }

    /// Bytes of all nodes and their bounds.
    pub fn bytes(&self) -> u64 {
        let stock = self.inner.lock();
        let bounds: u64 = self.nodes(&stock).map(Mnode::bound_bytes).sum();
        let nodes: usize = self.handed_out(&stock).map(|(_, used)| used).sum();
        // Only the used part of a chunk counts: the rest are pages that were never touched.
        (nodes * self.shape.node_bytes()) as u64 + bounds
    }

    /// The chunks, and how many nodes of each have ever been handed out.
    fn handed_out<'t>(&'t self, stock: &'t Stock) -> impl Iterator<Item = (NonNull<u8>, usize)> + 't {
        let last = stock.chunks.len().saturating_sub(1);
        let used = move |(i, (chunk, nodes)): (usize, &(NonNull<u8>, usize))| {
            (*chunk, if i == last { stock.used } else { *nodes })
        };
        stock.chunks.iter().enumerate().map(used)
    }

    /// All nodes ever handed out.
    fn nodes<'t>(&'t self, stock: &'t Stock) -> impl Iterator<Item = &'t Mnode> {
        let bytes = self.shape.node_bytes();
        self.handed_out(stock).flat_map(move |(chunk, used)| {
            // SAFETY: inside the chunk, which lives as long as the arena; zeros are valid in every field.
            (0..used).map(move |node| unsafe { chunk.add(node * bytes).cast::<Mnode>().as_ref() })
        })
    }

    fn layout(&self, nodes: usize) -> Layout {
        let bytes = self.shape.node_bytes() * nodes;
        match Layout::from_size_align(bytes, if bytes > HUGE_BYTES / 2 { HUGE_BYTES } else { 64 }) {
            Ok(layout) => layout,
            Err(_) => Layout::new::<[Mnode; FIRST_CHUNK]>(),
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let stock = std::mem::take(&mut *self.inner.lock());
        // Those given back have neither bounds nor keys any more.
        for node in self.nodes(&stock) {
            self.free_bounds(node);
            super::buffer::free_keys(node, &self.shape);
        }
        for (chunk, nodes) in &stock.chunks {
            // SAFETY: made with this layout; nobody has a node any more, since the arena is being dropped.
            unsafe { dealloc(chunk.as_ptr(), self.layout(*nodes)) };
        }
    }
}
