//! Nodes as they lie in memory.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};

/// Most bytes of prefix in one node.
pub(super) const PREFIX_BYTES: usize = 12;

/// Children from which on a node is full.
pub(super) const SPARSE_MAX: usize = 48;

/// The head of both sorts.
#[repr(C)]
struct Head {
    full: bool,
    prefix_len: u8,
    /// Children; changes in full nodes alone.
    count: AtomicU16,
    prefix: [u8; PREFIX_BYTES],
    /// Value of the key that ends after the prefix; 0: none.
    here: AtomicUsize,
}

/// A full node. A sparse one has its bytes, padded to words, and then its children behind the head.
#[repr(C)]
struct Full {
    head: Head,
    /// One bit for each child there is.
    present: [AtomicU64; 4],
    children: [AtomicUsize; 256],
}

const HEAD_BYTES: usize = size_of::<Head>();
const _: () = assert!(HEAD_BYTES == 24 && align_of::<Head>() == 8);

/// A node. Valid for as long as the tree holds it or the presence under which it was reached lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Node(NonNull<Head>);

// SAFETY: a node consists of words that any thread may read; the code that frees one argues why that is sound.
unsafe impl Send for Node {}

/// Whether a child is a value.
pub(super) fn is_value(child: usize) -> bool {
    child & 1 != 0
}

/// The child that stands for a value.
pub(super) fn of_value(value: usize) -> usize {
    debug_assert!(value & 1 == 0 && value != 0, "values are even addresses");
    value | 1
}

/// The value of a child that is one.
pub(super) fn value_of(child: usize) -> usize {
    child & !1
}

impl Node {
    /// The child as a node, if it is one.
    pub fn of(child: usize) -> Option<Node> {
        if is_value(child) { None } else { NonNull::new(child as *mut Head).map(Node) }
    }

    /// The child that stands for this node.
    pub fn child(self) -> usize {
        self.0.as_ptr() as usize
    }

    /// A new node with these ascending children.
    pub fn build(prefix: &[u8], here: usize, entries: &[(u8, usize)]) -> Node {
        debug_assert!(prefix.len() <= PREFIX_BYTES && entries.is_sorted_by(|a, b| a.0 < b.0));
        let full = entries.len() > SPARSE_MAX;
        let layout = layout_of(full, entries.len());
        // SAFETY: the layout has a size.
        let at = unsafe { alloc(layout) };
        let Some(at) = NonNull::new(at.cast::<Head>()) else { handle_alloc_error(layout) };
        let mut head = Head {
            full,
            prefix_len: prefix.len() as u8,
            count: AtomicU16::new(entries.len() as u16),
            prefix: [0; PREFIX_BYTES],
            here: AtomicUsize::new(here),
        };
        head.prefix[..prefix.len()].copy_from_slice(prefix);
        // SAFETY: as large as the layout, aligned, and nobody else's yet; zeros are valid in every field.
        unsafe {
            at.cast::<u8>().write_bytes(0, layout.size());
            at.write(head);
        }
        let node = Node(at);
        if full {
            entries.iter().for_each(|(byte, child)| node.put(*byte, *child));
            node.head().count.store(entries.len() as u16, Ordering::Relaxed);
        } else {
            for (i, (byte, child)) in entries.iter().enumerate() {
                // SAFETY: the layout has room for as many bytes and children as there are entries.
                unsafe { node.bytes_at().add(i).write(*byte) };
                node.sparse_child(i, entries.len()).store(*child, Ordering::Relaxed);
            }
        }
        node
    }

    /// Gives the node's memory back.
    ///
    /// # Safety
    ///
    /// The node is neither in use nor reachable.
    pub unsafe fn free(self) {
        let layout = self.layout();
        // SAFETY: it was made with this layout, and by the caller's promise it is not in use.
        unsafe { dealloc(self.0.as_ptr().cast(), layout) }
    }

    /// Bytes that it takes, the allocator's own included.
    pub fn bytes(self) -> u64 {
        (self.layout().size() + 8).next_multiple_of(16) as u64
    }

    pub fn is_full(self) -> bool {
        self.head().full
    }

    pub fn count(self) -> usize {
        usize::from(self.head().count.load(Ordering::Relaxed))
    }

    pub fn prefix(&self) -> &[u8] {
        let head = self.head();
        &head.prefix[..usize::from(head.prefix_len).min(PREFIX_BYTES)]
    }

    /// The word that holds the value of the key ending here.
    pub fn here(&self) -> &AtomicUsize {
        &self.head().here
    }

    /// The word that holds the child for `byte`, which in a full node may be 0.
    pub fn slot(&self, byte: u8) -> Option<&AtomicUsize> {
        if self.is_full() {
            return Some(&self.full().children[usize::from(byte)]);
        }
        let rank = self.rank(byte);
        (rank > 0 && self.byte(rank - 1) == byte).then(|| self.sparse_child(rank - 1, self.count()))
    }

    /// The child with the greatest byte below `byte`; 0 if there is none.
    pub fn below(&self, byte: u8) -> usize {
        if self.is_full() {
            return byte.checked_sub(1).map_or(0, |byte| self.full_at_most(byte));
        }
        let rank = self.rank(byte);
        let under = if rank > 0 && self.byte(rank - 1) == byte { rank - 1 } else { rank };
        self.last_of(under)
    }

    /// The child with the greatest byte; 0 if there is none.
    pub fn greatest(&self) -> usize {
        if self.is_full() { self.full_at_most(255) } else { self.last_of(self.count()) }
    }

    /// All children with their bytes, ascending.
    pub fn entries(&self) -> Vec<(u8, usize)> {
        if self.is_full() {
            let children = self.full().children.iter().map(|c| c.load(Ordering::Acquire));
            return (0..=255).zip(children).filter(|(_, child)| *child != 0).collect();
        }
        let count = self.count();
        let child = |i| self.sparse_child(i, count).load(Ordering::Acquire);
        (0..count).map(|i| (self.byte(i), child(i))).collect()
    }

    /// Adds a child to a full node.
    pub fn put(&self, byte: u8, child: usize) {
        let full = self.full();
        full.children[usize::from(byte)].store(child, Ordering::Release);
        full.present[usize::from(byte >> 6)].fetch_or(1 << (byte & 63), Ordering::Release);
        full.head.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a child out of a full node.
    pub fn take(&self, byte: u8) {
        let full = self.full();
        full.present[usize::from(byte >> 6)].fetch_and(!(1 << (byte & 63)), Ordering::Release);
        full.children[usize::from(byte)].store(0, Ordering::Release);
        full.head.count.fetch_sub(1, Ordering::Relaxed);
    }

    fn full_at_most(&self, byte: u8) -> usize {
        let full = self.full();
        let mut mask = u64::MAX >> (63 - (byte & 63));
        for word in (0..=usize::from(byte >> 6)).rev() {
            let present = full.present[word].load(Ordering::Acquire) & mask;
            if present != 0 {
                return full.children[word * 64 + present.ilog2() as usize].load(Ordering::Acquire);
            }
            mask = u64::MAX;
        }
        0
    }

    fn last_of(&self, count: usize) -> usize {
        match count.checked_sub(1) {
            Some(i) => self.sparse_child(i, self.count()).load(Ordering::Acquire),
            None => 0,
        }
    }

    /// How many bytes of a sparse node are at most `byte`.
    fn rank(&self, byte: u8) -> usize {
        let count = self.count();
        // SAFETY: a sparse node's `count` bytes lie behind its head, and never change.
        let bytes = unsafe { std::slice::from_raw_parts(self.bytes_at(), count) };
        if count <= 8 {
            return bytes.iter().map(|b| usize::from(*b <= byte)).sum();
        }
        let (chunks, rest) = bytes.as_chunks::<8>();
        let in_chunk = |chunk: &[u8; 8]| chunk.iter().map(|b| u8::from(*b <= byte)).sum::<u8>();
        let whole: usize = chunks.iter().map(|chunk| usize::from(in_chunk(chunk))).sum();
        whole + rest.iter().map(|b| usize::from(*b <= byte)).sum::<usize>()
    }

    fn byte(&self, i: usize) -> u8 {
        debug_assert!(i < self.count());
        // SAFETY: a sparse node's `count` bytes lie behind its head.
        unsafe { self.bytes_at().add(i).read() }
    }

    fn bytes_at(&self) -> *mut u8 {
        // SAFETY: every node is larger than its head.
        unsafe { self.0.as_ptr().cast::<u8>().add(HEAD_BYTES) }
    }

    fn sparse_child(&self, i: usize, count: usize) -> &AtomicUsize {
        debug_assert!(!self.is_full() && i < count);
        // SAFETY: the children of a sparse node lie behind its bytes, which are padded to words; `count` is the
        // node's, which never changes, so `i` is inside.
        unsafe { &*self.bytes_at().add(count.next_multiple_of(8)).cast::<AtomicUsize>().add(i) }
    }

    fn head(&self) -> &Head {
        // SAFETY: the node lives for as long as `self` may be used.
        unsafe { self.0.as_ref() }
    }

    fn full(&self) -> &Full {
        debug_assert!(self.is_full());
        // SAFETY: the node is full, so all of `Full` is there.
        unsafe { self.0.cast::<Full>().as_ref() }
    }

    fn layout(self) -> Layout {
        layout_of(self.is_full(), self.count())
    }
}

fn layout_of(full: bool, count: usize) -> Layout {
    if full {
        return Layout::new::<Full>();
    }
    // At least one word lies behind the head, so that a pointer to it is valid.
    let words = (count.div_ceil(8) + count).max(1);
    match Layout::from_size_align(HEAD_BYTES + words * 8, 8) {
        Ok(layout) => layout,
        Err(_) => Layout::new::<Full>(),
    }
}
