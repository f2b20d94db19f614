//! Middle nodes: what is kept in DRAM of each leaf, so that a search touches PM only where the key is.
//!
//! Thread safety: who holds the lock writes. Readers take no locks: they look at the version before and after, and
//! what they saw counts only if it has not moved on. The lock does not keep readers out; only while fields
//! change, between [`Mnode::begin`] and [`Mnode::end`], do they wait, and then nothing is persisted. So what
//! readers see is always durable: writers persist first and change the fields afterwards.
//!
//! What always holds:
//!
//! 1. The leaf and the low bound of a node never change while it lives. Its high bound is the low one of the
//!    node to the right, or none in the last.
//! 2. The bitmap says which slots of the leaf count. The tags of those slots, and the filter, are those of their keys.
//! 3. A node that is dead is in no tree and never comes back as itself; its memory is used again only after
//!    everybody present has left.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cmp::Ordering as Order;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};

use crossbeam_utils::Backoff;
use parking_lot::Mutex;

use super::key::{INLINE_BYTES, Probe, cmp_inline, inline_bytes, word_of};

/// Held by a writer.
const LOCKED: u64 = 1;
/// Fields are changing.
const CHANGING: u64 = 2;
/// The node is no longer part of the tree.
const DEAD: u64 = 4;
/// The order in the leaf is that of its keys.
const SORTED: u64 = 8;
/// The top layer in PM names the leaf.
const IN_TOP: u64 = 16;
/// The number of the oldest log set with an entry of this buffer is odd.
const OLDEST_ODD: u64 = 32;
const COUNTER: u64 = 64;
/// What may change without a reader's minding it.
const IGNORED: u64 = LOCKED | IN_TOP | OLDEST_ODD;

/// The high bound's length where there is none.
const UNBOUNDED: u32 = u32::MAX;

/// Nodes allocated at once, at first.
const FIRST_CHUNK: usize = 64;

/// From which size on chunks are huge pages, as far as the system has them: a search touches nodes at random, and
/// would miss in the translation buffers as often as in the caches.
const HUGE_BYTES: usize = 2 << 20;

/// A middle node. Behind it lie as many words as the [`Arena`] was made for.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Mnode {
    lock: AtomicU64,
    leaf: AtomicU64,
    pub bitmap: AtomicU64,
    /// Word of the low bound, or the address of its bytes.
    low: AtomicU64,
    /// The same for the high bound.
    high: AtomicU64,
    /// Lengths of the bounds: the low one's in the low half.
    lens: AtomicU64,
    /// The node to the right, if it is known.
    pub next: AtomicPtr<Mnode>,
    /// First word of the filter; the others lie behind the node.
    filter: AtomicU64,
    tags: [AtomicU64; 8],
}

/// Bytes of a node without what lies behind it.
const MNODE_BYTES: usize = 128;

const _: () = assert!(size_of::<Mnode>() == MNODE_BYTES && align_of::<Mnode>() == 64);

/// A version of a node, without what readers need not mind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version(u64);

impl Version {
    pub fn is_dead(self) -> bool {
        self.0 & DEAD != 0
    }

    pub fn is_sorted(self) -> bool {
        self.0 & SORTED != 0
    }
}

/// A bound as it was copied out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Bound {
    None,
    Inline(u64, u8),
    Long(Vec<u8>),
}

impl Bound {
    pub fn new(key: &[u8]) -> Bound {
        if key.len() <= INLINE_BYTES {
            Bound::Inline(word_of(key), key.len() as u8)
        } else {
            Bound::Long(key.to_vec())
        }
    }

    /// The bound's bytes, unless there is none.
    pub fn bytes<'a>(&'a self, inline: &'a mut [u8; 8]) -> Option<&'a [u8]> {
        match self {
            Bound::None => None,
            Bound::Inline(word, len) => {
                *inline = inline_bytes(*word);
                Some(&inline[..usize::from(*len)])
            }
            Bound::Long(bytes) => Some(bytes),
        }
    }

    pub fn to_vec(&self) -> Option<Vec<u8>> {
        self.bytes(&mut [0; 8]).map(<[u8]>::to_vec)
    }

    /// How `probe` compares with it; less than none at all.
    pub fn cmp_key(&self, probe: &Probe<'_>) -> Order {
        match self {
            Bound::None => Order::Less,
            Bound::Inline(word, len) => cmp_inline(probe.word, probe.key.len(), *word, usize::from(*len)),
            Bound::Long(bytes) => probe.key.cmp(bytes.as_slice()),
        }
    }
}

/// A lock on a node; unlocks when dropped.
#[derive(Debug)]
pub(super) struct Locked<'t>(pub &'t Mnode);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Nobody else stores to the word of a locked node.
        let word = self.0.lock.load(Ordering::Relaxed);
        self.0.lock.store(word & !LOCKED, Ordering::Release);
    }
}

impl Locked<'_> {
    /// Changes fields while readers wait. `sorted`: whether the leaf's order is right afterwards.
    pub fn change<T>(&self, sorted: bool, fields: impl FnOnce(&Mnode) -> T) -> T {
        let node = self.0;
        let before = node.lock.load(Ordering::Relaxed);
        node.lock.store(before | CHANGING, Ordering::Relaxed);
        fence(Ordering::Release);
        let out = fields(node);
        let flags = if sorted { before | SORTED } else { before & !SORTED };
        node.lock.store((flags & !CHANGING).wrapping_add(COUNTER), Ordering::Release);
        out
    }

    /// Marks the node dead.
    pub fn kill(&self) {
        self.change(false, |_| {});
        self.set(DEAD, true);
    }

    /// Notes whether the top layer names the leaf.
    pub fn set_in_top(&self, is: bool) {
        self.set(IN_TOP, is);
    }

    /// Notes whether the number of the oldest log set that holds an entry of the buffer is odd.
    pub fn set_oldest_odd(&self, is: bool) {
        self.set(OLDEST_ODD, is);
    }

    fn set(&self, flag: u64, is: bool) {
        let word = self.0.lock.load(Ordering::Relaxed);
        self.0.lock.store(if is { word | flag } else { word & !flag }, Ordering::Release);
    }
}

impl Mnode {
    pub fn leaf(&self) -> u64 {
        self.leaf.load(Ordering::Relaxed)
    }

    /// The version, once no fields are changing.
    pub fn version(&self) -> Version {
        let backoff = Backoff::new();
        loop {
            let word = self.lock.load(Ordering::Acquire);
            if word & CHANGING == 0 {
                return Version(word & !IGNORED);
            }
            backoff.snooze();
        }
    }

    /// Whether everything read since `version` was taken belongs together.
    pub fn is_still(&self, version: Version) -> bool {
        fence(Ordering::Acquire);
        self.lock.load(Ordering::Relaxed) & !IGNORED == version.0
    }

    pub fn is_dead(&self) -> bool {
        self.lock.load(Ordering::Acquire) & DEAD != 0
    }

    pub fn in_top(&self) -> bool {
        self.lock.load(Ordering::Relaxed) & IN_TOP != 0
    }

    pub fn oldest_odd(&self) -> bool {
        self.lock.load(Ordering::Relaxed) & OLDEST_ODD != 0
    }

    pub fn lock(&self) -> Locked<'_> {
        let backoff = Backoff::new();
        loop {
            match self.try_lock() {
                Some(locked) => return locked,
                None => backoff.snooze(),
            }
        }
    }

    pub fn try_lock(&self) -> Option<Locked<'_>> {
        let word = self.lock.load(Ordering::Relaxed);
        let free = word & LOCKED == 0
            && self.lock.compare_exchange(word, word | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // Lazily: a lock that was not taken must not be dropped.
        free.then(|| Locked(self))
    }

    /// Makes a node that nobody else can reach yet stand for `leaf`, locked.
    pub fn set_up(&self, leaf: u64, low: &Bound, high: &Bound) -> Locked<'_> {
        // The counter goes on, so that who remembers the node from an earlier life sees that it is another.
        let counter = (self.lock.load(Ordering::Relaxed) & !(COUNTER - 1)).wrapping_add(COUNTER);
        self.lock.store(counter | LOCKED, Ordering::Relaxed);
        self.leaf.store(leaf, Ordering::Relaxed);
        self.bitmap.store(0, Ordering::Relaxed);
        self.next.store(std::ptr::null_mut(), Ordering::Relaxed);
        let (low, low_len) = keep(low);
        let (high, high_len) = keep(high);
        self.low.store(low, Ordering::Relaxed);
        self.high.store(high, Ordering::Relaxed);
        self.lens.store(u64::from(high_len) << 32 | u64::from(low_len), Ordering::Relaxed);
        Locked(self)
    }

    /// The low bound.
    pub fn low(&self) -> Bound {
        let len = self.lens.load(Ordering::Relaxed) as u32;
        // SAFETY: the low bound never changes while the node lives, and the caller is present.
        unsafe { copy_bound(self.low.load(Ordering::Relaxed), len) }
    }

    /// The high bound, of this version; `None` if it has moved on.
    pub fn high(&self, version: Version) -> Option<Bound> {
        let (word, len) =
            (self.high.load(Ordering::Relaxed), (self.lens.load(Ordering::Relaxed) >> 32) as u32);
        // SAFETY: word and length belong together if the version has not moved on, and the caller is present.
        self.is_still(version).then(|| unsafe { copy_bound(word, len) })
    }

    /// Whether `probe` belongs here, as of this version; `None` if it has moved on.
    pub fn covers(&self, probe: &Probe<'_>, version: Version) -> Option<bool> {
        let lens = self.lens.load(Ordering::Relaxed);
        let (low, high) = (self.low.load(Ordering::Relaxed), self.high.load(Ordering::Relaxed));
        if !self.is_still(version) {
            return None;
        }
        // SAFETY: words and lengths belong together, and the caller is present.
        let above = |word, len| unsafe { cmp_bound(probe, word, len) };
        Some(above(low, lens as u32).is_ge() && above(high, (lens >> 32) as u32).is_lt())
    }

    /// Whether the keys just below `probe` belong here, as of this version; `None` if it has moved on.
    pub fn covers_below(&self, probe: &Probe<'_>, version: Version) -> Option<bool> {
        let lens = self.lens.load(Ordering::Relaxed);
        let (low, high) = (self.low.load(Ordering::Relaxed), self.high.load(Ordering::Relaxed));
        if !self.is_still(version) {
            return None;
        }
        // SAFETY: as in `covers`.
        let above = |word, len| unsafe { cmp_bound(probe, word, len) };
        Some(above(low, lens as u32).is_gt() && above(high, (lens >> 32) as u32).is_le())
    }

    /// Replaces the high bound, within a change. The bytes of the one before are handed out, to be retired.
    pub fn set_high(&self, high: &Bound) -> Option<Bytes> {
        let lens = self.lens.load(Ordering::Relaxed);
        let old = Bytes::of(self.high.load(Ordering::Relaxed), (lens >> 32) as u32);
        let (word, len) = keep(high);
        self.high.store(word, Ordering::Relaxed);
        self.lens.store(u64::from(len) << 32 | lens & 0xffff_ffff, Ordering::Relaxed);
        old
    }

    /// Bytes of DRAM that the bounds take beside the node.
    fn bound_bytes(&self) -> u64 {
        let lens = self.lens.load(Ordering::Relaxed);
        let of =
            |len: u32| if len == UNBOUNDED || len as usize <= INLINE_BYTES { 0 } else { u64::from(len) + 16 };
        of(lens as u32) + of((lens >> 32) as u32)
    }

    /// Starts loading the node's second line.
    #[inline]
    pub fn prefetch_tags(&self) {
        prefetch(std::ptr::from_ref(&self.tags[7]).cast());
    }

    /// Notes a key with this hash in slot `slot`, within a change.
    pub fn note(&self, shape: &Shape, slot: usize, hash: u16) {
        let (word, shift) = (&self.tags[slot / 8], (slot % 8) * 8);
        let others = word.load(Ordering::Relaxed) & !(0xff << shift);
        word.store(others | u64::from(hash & 0xff) << shift, Ordering::Relaxed);
        self.note_filter(shape, hash);
    }

    /// Notes a key with this hash in the filter, within a change.
    pub fn note_filter(&self, shape: &Shape, hash: u16) {
        let (filter, bit) = self.filter_word(shape, hash);
        filter.store(filter.load(Ordering::Relaxed) | 1 << bit, Ordering::Relaxed);
    }

    /// Empties the filter, within a change.
    pub fn clear_filter(&self, shape: &Shape) {
        self.filter.store(0, Ordering::Relaxed);
        self.tail(shape)[..shape.filter_words - 1].iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// The slots whose keys may be one with this hash.
    #[inline]
    pub fn candidates(&self, shape: &Shape, hash: u16) -> u64 {
        let (filter, bit) = self.filter_word(shape, hash);
        if filter.load(Ordering::Relaxed) >> bit & 1 == 0 {
            return 0;
        }
        self.tagged(hash as u8) & self.bitmap.load(Ordering::Relaxed)
    }

    /// The slots with this tag.
    #[inline]
    fn tagged(&self, tag: u8) -> u64 {
        match_bytes(std::array::from_fn(|i| self.tags[i].load(Ordering::Relaxed)), tag)
    }

    fn filter_word(&self, shape: &Shape, hash: u16) -> (&AtomicU64, u32) {
        let at = u32::from(hash >> 8);
        let word = (at >> 6) as usize & (shape.filter_words - 1);
        let filter = if word == 0 { &self.filter } else { &self.tail(shape)[word - 1] };
        (filter, at & 63)
    }

    /// The words of the write buffer.
    pub fn buffer(&self, shape: &Shape) -> &[AtomicU64] {
        &self.tail(shape)[shape.filter_words - 1..]
    }

    fn tail(&self, shape: &Shape) -> &[AtomicU64] {
        // SAFETY: nodes come from an arena of this shape alone, which leaves this many words behind each; they are
        // atomic, zero at first, and live as long as the node.
        unsafe {
            let at = std::ptr::from_ref(self).cast::<u8>().add(MNODE_BYTES).cast::<AtomicU64>();
            std::slice::from_raw_parts(at, shape.tail_words())
        }
    }
}

/// Which of 64 bytes equal `tag`.
#[inline]
fn match_bytes(words: [u64; 8], tag: u8) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};
        let mut out = 0;
        for i in 0..4 {
            // SAFETY: SSE2 is part of every x86-64 processor.
            let mask = unsafe {
                let pair = _mm_set_epi64x(words[2 * i + 1] as i64, words[2 * i] as i64);
                _mm_movemask_epi8(_mm_cmpeq_epi8(pair, _mm_set1_epi8(tag as i8)))
            };
            out |= u64::from(mask as u32 & 0xffff) << (16 * i);
        }
        out
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let mut out = 0;
        for (i, byte) in words.iter().flat_map(|word| word.to_le_bytes()).enumerate() {
            out |= u64::from(byte == tag) << i;
        }
        out
    }
}

/// Starts loading the line at `at`.
#[inline]
pub(super) fn prefetch(at: *const i8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch has no effect that a program could see, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Bytes of a bound outside its node.
#[derive(Debug)]
pub(super) struct Bytes(*mut u8, usize);

// SAFETY: plain bytes that belong to whoever has this.
unsafe impl Send for Bytes {}

impl Bytes {
    fn of(word: u64, len: u32) -> Option<Bytes> {
        let is_long = len != UNBOUNDED && len as usize > INLINE_BYTES;
        is_long.then_some(Bytes(word as *mut u8, len as usize))
    }

    /// Frees them.
    ///
    /// # Safety
    ///
    /// Nobody looks at them any more.
    pub unsafe fn free(self) {
        let bytes = std::ptr::slice_from_raw_parts_mut(self.0, self.1);
        // SAFETY: they were made from a box of this length (`keep`), and are nobody's by the caller's promise.
        drop(unsafe { Box::from_raw(bytes) });
    }
}

/// A bound as a node keeps it: word or address, and length.
fn keep(bound: &Bound) -> (u64, u32) {
    match bound {
        Bound::None => (0, UNBOUNDED),
        Bound::Inline(word, len) => (*word, u32::from(*len)),
        Bound::Long(bytes) => {
            let kept: Box<[u8]> = bytes.as_slice().into();
            (Box::into_raw(kept).cast::<u8>() as u64, bytes.len() as u32)
        }
    }
}

/// # Safety
///
/// Word and length belong together, and the caller is present.
unsafe fn copy_bound(word: u64, len: u32) -> Bound {
    match len {
        UNBOUNDED => Bound::None,
        len if len as usize <= INLINE_BYTES => Bound::Inline(word, len as u8),
        // SAFETY: by the caller's promise these are the bytes that `keep` has made, not freed yet.
        len => Bound::Long(unsafe { std::slice::from_raw_parts(word as *const u8, len as usize) }.to_vec()),
    }
}

/// How `probe` compares with a bound; less than none at all.
///
/// # Safety
///
/// Word and length belong together, and the caller is present.
#[inline]
unsafe fn cmp_bound(probe: &Probe<'_>, word: u64, len: u32) -> Order {
    match len {
        len if len as usize <= INLINE_BYTES => cmp_inline(probe.word, probe.key.len(), word, len as usize),
        UNBOUNDED => Order::Less,
        // SAFETY: by the caller's promise these are the bytes that `keep` has made, not freed yet.
        len => probe.key.cmp(unsafe { std::slice::from_raw_parts(word as *const u8, len as usize) }),
    }
}

/// Asks for huge pages, which are faster to find things in; without them all is as well.
fn advise_huge(at: NonNull<u8>, bytes: usize) {
    #[cfg(target_os = "linux")]
    // SAFETY: the range is ours, and advice of this sort changes nothing of what is in it.
    let _ = unsafe { rustix::mm::madvise(at.as_ptr().cast(), bytes, rustix::mm::Advice::LinuxHugepage) };
    #[cfg(not(target_os = "linux"))]
    let _ = (at, bytes);
}

/// What lies behind each node of an arena.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// 1, 2 or 4, the one in the node included.
    pub filter_words: usize,
    /// Words of the write buffer, 0 without one.
    pub buffer_words: usize,
}

impl Shape {
    fn tail_words(&self) -> usize {
        self.filter_words - 1 + self.buffer_words
    }

    fn node_bytes(&self) -> usize {
        (MNODE_BYTES + self.tail_words() * 8).next_multiple_of(64)
    }
}

/// Where nodes come from. Their memory goes back to the system with the arena alone.
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

    /// An unused node. It is zero, or what an earlier one has left.
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
            // Before anything touches it.
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
    /// It came from this arena, nobody has it any more, and it is given back once.
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
        // SAFETY: the node is nobody's, so neither are its bytes.
        [low, high].into_iter().flatten().for_each(|bytes| unsafe { bytes.free() });
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
        // Of a chunk what has been used: the rest of it is pages that nobody has touched.
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

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { filter_words: 4, buffer_words: 32 };

    #[test]
    fn bounds_of_every_length_are_kept_and_compared() {
        let arena = Arena::new(SHAPE);
        let keys: [&[u8]; 6] = [b"", b"a", b"abcdefgh", b"abcdefghi", b"b", b"a long bound that goes on"];
        for low in keys {
            let node = arena.take();
            let high = Bound::new(b"az");
            drop(node.set_up(64, &Bound::new(low), &high));
            let version = node.version();
            assert_eq!(node.low(), Bound::new(low));
            assert_eq!(node.high(version), Some(high));
            for key in keys {
                let inside = low <= key && key < b"az";
                assert_eq!(node.covers(&Probe::new(key), version), Some(inside), "{low:?} {key:?}");
                let below = low < key && key <= b"az";
                assert_eq!(node.covers_below(&Probe::new(key), version), Some(below));
            }
        }
    }

    #[test]
    fn a_key_that_was_noted_is_a_candidate_and_few_others_are() {
        let arena = Arena::new(SHAPE);
        let node = arena.take();
        let locked = node.set_up(64, &Bound::new(b""), &Bound::None);
        let probes: Vec<_> = (0..44u64).map(|i| (i * 77).to_be_bytes()).collect();
        locked.change(false, |node| {
            for (slot, key) in probes.iter().enumerate() {
                node.note(&SHAPE, slot, Probe::new(key).hash);
            }
            node.bitmap.store((1 << 44) - 1, Ordering::Relaxed);
        });
        for (slot, key) in probes.iter().enumerate() {
            assert!(node.candidates(&SHAPE, Probe::new(key).hash) >> slot & 1 == 1);
        }
        let strangers = 10_000..14_000u64;
        let hits =
            strangers.filter(|i| node.candidates(&SHAPE, Probe::new(&i.to_be_bytes()).hash) != 0).count();
        assert!(hits < 250, "{hits} of 4000");
    }

    #[test]
    fn a_version_moves_with_every_change_and_with_a_new_life() {
        let arena = Arena::new(Shape { filter_words: 1, buffer_words: 0 });
        let node = arena.take();
        let locked = node.set_up(64, &Bound::new(b"some longer low bound"), &Bound::None);
        let version = node.version();
        locked.change(true, |_| {});
        assert!(!node.is_still(version) && node.version().is_sorted());
        locked.kill();
        assert!(node.is_dead() && node.version().is_dead());
        drop(locked);
        let before = node.version();
        // SAFETY: the only node of this arena, and not used any more.
        unsafe { arena.give(std::ptr::from_ref(node).cast_mut()) };
        let again = arena.take();
        drop(again.set_up(128, &Bound::new(b""), &Bound::None));
        assert!(!again.is_still(before) && !again.is_dead());
    }

    #[test]
    fn bytes_are_matched_as_one_by_one() {
        let words: [u64; 8] = std::array::from_fn(|i| (i as u64 + 1).wrapping_mul(0x0123_4567_89AB_CDEF));
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        for tag in 0..=255 {
            let want = (0..64).filter(|i| bytes[*i] == tag).fold(0u64, |m, i| m | 1 << i);
            assert_eq!(match_bytes(words, tag), want);
        }
    }
}
