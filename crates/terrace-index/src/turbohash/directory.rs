//! Shards: their descriptors in PM, the mirror in DRAM, and the lock of their writers.
//!
//! A search begins with a word of the mirror: the address of a shard's buckets, their number, and whether a writer is
//! at work. Addresses are multiples of 256, so that the low byte is free for the rest.

use std::ptr::with_exposed_provenance;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::Backoff;
use terrace_base::Result;
use terrace_pmem::{POff, Pool};

use super::TurboHash;
use super::layout::{self, BUCKET_BITS_MAX, BUCKET_BYTES, Bucket, DESCRIPTOR_BYTES, Descriptor, VERSION_AT};
use super::simd::Isa;

/// How many bytes: a power of two.
const BITS_MASK: u64 = 0x3f;
/// A bucket's share of that power.
const BUCKET_BITS: u32 = BUCKET_BYTES.trailing_zeros();
/// Everything in the buckets is durable, regardless of the other bits: the shard is being rehashed, or has no buckets.
const FROZEN: u64 = 0x40;
/// A writer holds the shard: its last publish may not be durable yet.
const LOCKED: u64 = 0x80;
const ADDRESS_MASK: u64 = !0xff;

/// A word of the mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct View(u64);

impl View {
    /// The view of a shard without buckets.
    pub const EMPTY: View = View(FROZEN | BUCKET_BITS as u64);

    /// The view of `1 << bits` buckets of `pool` at `offset`, which are checked to lie in the pool and, extent by
    /// extent, to be what it was closed with: later reads and stores there do not ask the pool again.
    pub fn of(pool: &Pool, offset: u64, bits: u32) -> Result<View> {
        let last = offset.saturating_add(BUCKET_BYTES * ((1 << bits) - 1));
        pool.get::<Bucket>(POff::new(last))?;
        for at in (offset..last).step_by(pool.extent_bytes() as usize) {
            pool.get::<Bucket>(POff::new(at))?;
        }
        let address = pool.media().base().expose_provenance() as u64 + offset;
        if address & !ADDRESS_MASK != 0 {
            return Err(pool.corruption(offset, "buckets aligned to 256 bytes", "others"));
        }
        Ok(View(address | u64::from(bits + BUCKET_BITS)))
    }

    /// Whether there are no buckets.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.0 & ADDRESS_MASK == 0
    }

    /// Whether there are buckets and no writer.
    #[inline(always)]
    pub fn is_quiet(self) -> bool {
        self.0 & (LOCKED | FROZEN) == 0
    }

    /// Whether a reader may see state that is not durable yet.
    #[inline(always)]
    pub fn is_writing(self) -> bool {
        self.0 & (LOCKED | FROZEN) == LOCKED
    }

    /// The power of two that the buckets are.
    #[inline(always)]
    pub fn bits(self) -> u32 {
        (self.0 & BITS_MASK) as u32 - BUCKET_BITS
    }

    /// The view that a word of the mirror tells.
    #[inline(always)]
    pub fn of_word(word: u64) -> View {
        View(word)
    }

    /// The word of the mirror that tells it.
    #[inline(always)]
    pub fn to_word(self) -> u64 {
        self.0
    }

    /// Bytes of the buckets.
    pub fn bytes(self) -> u64 {
        self.len() as u64 * BUCKET_BYTES
    }

    /// Buckets.
    #[inline(always)]
    pub fn len(self) -> usize {
        if self.is_empty() { 0 } else { 1 << self.bits() }
    }

    /// The home bucket of a hash, as `home_of` and [`address`](Self::address) find it, in a quiet shard.
    ///
    /// # Safety
    ///
    /// The processor has the features of `I`.
    #[inline(always)]
    pub unsafe fn home<I: Isa>(self, hash: u64) -> *const Bucket {
        // SAFETY: the caller's. In the low byte only the bits are set.
        let offset = unsafe { I::low_bits(hash, self.0) } & !(BUCKET_BYTES - 1);
        with_exposed_provenance::<Bucket>(((self.0 & ADDRESS_MASK) + offset) as usize)
    }

    /// The address of bucket `i`, below [`len`](Self::len).
    #[inline(always)]
    pub fn address(self, i: usize) -> *const Bucket {
        with_exposed_provenance::<Bucket>((self.0 & ADDRESS_MASK) as usize).wrapping_add(i)
    }

    /// Bucket `i`, below [`len`](Self::len).
    ///
    /// # Safety
    ///
    /// The shard's memory is not freed for `'t`: the caller holds the shard, or has been present in the
    /// table's limbo since before it loaded the view.
    #[inline(always)]
    pub unsafe fn bucket<'t>(self, i: usize) -> &'t Bucket {
        // SAFETY: `of` found that the buckets lie in the mapping, aligned; it never moves and lives as long as the
        // table does, and the memory is this shard's (the caller's promise). Fields that change are atomic.
        unsafe { &*self.address(i) }
    }
}

/// The known totals of a shard; written by the holder of the shard.
#[derive(Debug)]
pub(super) struct Counts {
    /// Live keys, and in the upper half deleted ones; all ones: not counted yet.
    keys: AtomicU64,
    /// Bytes of records.
    record_bytes: AtomicU64,
}

/// A shard's content.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Content {
    pub live: u64,
    pub deleted: u64,
    pub record_bytes: u64,
}

const UNKNOWN: u64 = u64::MAX;

impl Counts {
    pub fn new(content: Option<Content>) -> Self {
        let counts = Counts { keys: AtomicU64::new(UNKNOWN), record_bytes: AtomicU64::new(0) };
        if let Some(content) = content {
            counts.set(content);
        }
        counts
    }

    #[inline(always)]
    pub fn get(&self) -> Option<Content> {
        let keys = self.keys.load(Ordering::Acquire);
        let record_bytes = self.record_bytes.load(Ordering::Relaxed);
        (keys != UNKNOWN).then_some(Content { live: keys & 0xffff_ffff, deleted: keys >> 32, record_bytes })
    }

    #[inline(always)]
    pub fn set(&self, content: Content) {
        self.record_bytes.store(content.record_bytes, Ordering::Relaxed);
        self.keys.store(content.live | content.deleted << 32, Ordering::Release);
    }
}

/// A shard that this thread may write to; released when dropped.
pub(super) struct Held<'t> {
    table: &'t TurboHash,
    pub shard: usize,
    pub view: View,
}

impl Drop for Held<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: a thread that sees the shard free knows that everything published in it is durable.
        self.table.views[self.shard].store(self.view.0, Ordering::Release);
    }
}

impl<'t> Held<'t> {
    /// Notes that everything in the buckets is durable and that nothing will be published in them until they are
    /// replaced.
    pub fn freeze(&self) {
        self.table.views[self.shard].store(self.view.0 | LOCKED | FROZEN, Ordering::Release);
    }

    /// Ends [`freeze`](Self::freeze), with these buckets.
    pub fn thaw(&mut self, view: View) {
        self.view = view;
        self.table.views[self.shard].store(view.0 | LOCKED, Ordering::Release);
    }

    /// Bucket `i`.
    #[inline(always)]
    pub fn bucket(&self, i: usize) -> &'t Bucket {
        debug_assert!(i < self.view.len());
        // SAFETY: the shard is held: nobody else replaces its buckets, and `thaw` is called on those that
        // are retired only after the last use.
        unsafe { self.view.bucket(i) }
    }
}

impl TurboHash {
    /// The view of a shard.
    #[inline(always)]
    pub(super) fn view(&self, shard: usize) -> View {
        View::of_word(self.views[shard].load(Ordering::Acquire))
    }

    /// Takes a shard for writing.
    #[inline(always)]
    pub(super) fn hold(&self, shard: usize) -> Held<'_> {
        let word = &self.views[shard];
        let seen = word.load(Ordering::Relaxed);
        let taken = seen & LOCKED == 0
            && word.compare_exchange(seen, seen | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        let view = if taken { View(seen) } else { self.wait_for(word) };
        Held { table: self, shard, view }
    }

    /// Takes a shard for writing if its view is still the quiet one that was `seen`.
    #[inline(always)]
    pub(super) fn try_hold(&self, shard: usize, seen: View) -> Option<Held<'_>> {
        let (quiet, taken) = (seen.to_word(), seen.to_word() | LOCKED);
        let held =
            self.views[shard].compare_exchange(quiet, taken, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // Lazily: a shard that was not taken must not be released.
        held.then(|| Held { table: self, shard, view: seen })
    }

    #[cold]
    fn wait_for(&self, word: &AtomicU64) -> View {
        let backoff = Backoff::new();
        loop {
            let seen = word.load(Ordering::Relaxed);
            if seen & LOCKED != 0 {
                backoff.snooze();
            } else if word.compare_exchange(seen, seen | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return View(seen);
            }
        }
    }

    /// The pool offset of a bucket.
    #[inline(always)]
    pub(super) fn offset_of(&self, bucket: *const Bucket) -> u64 {
        bucket.addr() as u64 - self.base
    }

    /// A shard's descriptor.
    fn descriptor(&self, shard: usize) -> Result<&Descriptor> {
        self.pool.get(POff::new(self.descriptor_at(shard)))
    }

    fn descriptor_at(&self, shard: usize) -> u64 {
        self.header.directory + shard as u64 * DESCRIPTOR_BYTES
    }

    /// Offset and bits of a shard's buckets, according to its descriptor, if it has any.
    pub(super) fn described(&self, shard: usize) -> Result<Option<(u64, u32)>> {
        let descriptor = self.descriptor(shard)?;
        let version = descriptor.version.load(Ordering::Acquire);
        let set = descriptor.sets[version as usize & 1].load(Ordering::Acquire);
        let (offset, bits) = (set & ADDRESS_MASK, (set & !ADDRESS_MASK) as u32);
        let at = self.descriptor_at(shard);
        let sealed = layout::seal_version(self.pool.place(at), version as u32, set);
        if sealed != version || bits > BUCKET_BITS_MAX {
            return Err(self.pool.corruption(
                at,
                "a shard's descriptor with its checksum",
                "another checksum",
            ));
        }
        Ok((offset != 0).then_some((offset, bits)))
    }

    /// Makes the durable buckets at `offset` those of the held shard, durably: the other set, then the version.
    pub(super) fn describe(&self, held: &Held<'_>, offset: u64, bits: u32) -> Result<()> {
        let descriptor = self.descriptor(held.shard)?;
        let next = (descriptor.version.load(Ordering::Acquire) as u32).wrapping_add(1);
        let (set, at) = (offset | u64::from(bits), self.descriptor_at(held.shard));
        self.pool.publish(POff::new(at + u64::from(next & 1) * 8), set);
        let sealed = layout::seal_version(self.pool.place(at), next, set);
        self.pool.publish(POff::new(at + VERSION_AT), sealed);
        Ok(())
    }
}
