//! All lists and buffers of a database in one pool: their extents, and when these are given back.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use terrace_base::{Error, Result};
use terrace_pmem::{Extent, Kind, Marks, Pool};

use super::buffer::Buffer;
use crate::kinds::{PM_BUFFER, PM_LIST};

/// The lists and buffers of a database. A copy is a handle of the same.
#[derive(Clone)]
pub struct Lists {
    inner: Arc<Inner>,
}

struct Inner {
    pool: Pool,
    /// Bytes that all of them may take in a pool of so many.
    room: Box<dyn Fn(u64) -> u64 + Send + Sync>,
    /// Nothing is given back: a list that cannot be read may lead into any buffer.
    keeps_all: AtomicBool,
    state: Mutex<State>,
    bytes: AtomicU64,
    /// Bytes of lists that are named, and of the records that they lead to.
    named: AtomicI64,
}

#[derive(Default)]
struct State {
    /// The extents by their offsets.
    extents: BTreeMap<u64, Kind>,
    buffers: BTreeMap<u64, Weak<Buffer>>,
    /// A walk is marking them: nothing is given back before it is done.
    marking: usize,
    waiting: Vec<Extent>,
}

/// The memory of lists and buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ListUse {
    /// Bytes of all extents.
    pub bytes: u64,
    /// Bytes that would remain if buffers held only records that named lists lead to.
    pub live: u64,
    /// Bytes that they may take.
    pub limit: u64,
}

/// An extent of a list or buffer. Its owner decides when it is given back.
pub(super) struct Owned {
    pub lists: Lists,
    pub offset: u64,
    pub bytes: u64,
    pub kind: Kind,
    /// Whether something durable has named it, or a list in it: a job that has made it knows what became of it.
    pub was_named: AtomicBool,
}

impl Owned {
    pub fn pool(&self) -> &Pool {
        &self.lists.inner.pool
    }

    pub fn give_back(&self) {
        if std::thread::panicking() && !self.was_named.load(Ordering::Relaxed) {
            // The manifest may name it by now.
            return self.pool().leave_unreclaimed();
        }
        self.lists.give_back(Extent { offset: self.offset, bytes: self.bytes, kind: self.kind });
    }
}

impl Lists {
    /// Lists and buffers in `pool`, which may take `limit` bytes in all.
    pub fn new(pool: &Pool, limit: u64) -> Lists {
        Self::within(pool, move |_| limit)
    }

    /// The same; they may take so many bytes as `room` says of a pool of the given bytes: those that it may come to
    /// have, on a medium without room those that it has.
    pub fn within(pool: &Pool, room: impl Fn(u64) -> u64 + Send + Sync + 'static) -> Lists {
        let inner = Inner {
            pool: pool.clone(),
            room: Box::new(room),
            keeps_all: AtomicBool::new(false),
            state: Mutex::default(),
            bytes: AtomicU64::new(0),
            named: AtomicI64::new(0),
        };
        Lists { inner: Arc::new(inner) }
    }

    /// The pool that they lie in.
    pub fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    /// The places of lists, whole or not, named or not, including those that a crash has left.
    pub fn heads(&self) -> Vec<u64> {
        self.inner.pool.extents(PM_LIST).into_iter().map(|extent| extent.offset).collect()
    }

    /// Whether nothing is given back from now on: as long as not all lists are open, or not all can be.
    pub fn keep_all(&self, keeps: bool) {
        self.inner.keeps_all.store(keeps, Ordering::Release);
    }

    /// Their memory.
    pub fn usage(&self) -> ListUse {
        let live = self.inner.named.load(Ordering::Relaxed).max(0) as u64;
        let buffers: Vec<Arc<Buffer>> =
            self.inner.state.lock().buffers.values().filter_map(Weak::upgrade).collect();
        let held: u64 = buffers.iter().map(|buffer| buffer.live_share()).sum();
        ListUse { bytes: self.inner.bytes.load(Ordering::Relaxed), live: live + held, limit: self.limit() }
    }

    /// Bytes that they may take.
    pub fn limit(&self) -> u64 {
        (self.inner.room)(self.inner.pool.reachable_bytes())
    }

    /// Bytes of all extents.
    pub fn bytes(&self) -> u64 {
        self.inner.bytes.load(Ordering::Relaxed)
    }

    /// Whether there is something that is freed with its last handle.
    pub fn has_unnamed(&self) -> bool {
        self.inner.named.load(Ordering::Relaxed).max(0) as u64 + self.named_buffers() < self.bytes()
    }

    fn named_buffers(&self) -> u64 {
        let buffers: Vec<Arc<Buffer>> =
            self.inner.state.lock().buffers.values().filter_map(Weak::upgrade).collect();
        buffers.iter().filter(|buffer| buffer.is_named()).map(|buffer| buffer.extent.bytes).sum()
    }

    pub(super) fn count_named(&self, bytes: i64) {
        self.inner.named.fetch_add(bytes, Ordering::Relaxed);
    }

    /// An extent of at least `bytes`, not active yet.
    pub(super) fn reserve(&self, kind: Kind, bytes: u64) -> Result<Extent> {
        let pool = &self.inner.pool;
        let whole = bytes.next_multiple_of(pool.extent_bytes());
        let exceeds = || self.bytes().saturating_add(whole) > self.limit();
        let is_short = exceeds() && pool.is_still_short();
        if is_short || exceeds() {
            let path = pool.path().to_path_buf();
            return Err(match is_short {
                true => Error::NoSpace { path },
                false => Error::PoolFull { path, requested: bytes, size: self.limit() },
            });
        }
        pool.reserve_extent(kind, bytes)
    }

    /// Makes a reserved extent active, whose contents are durable.
    pub(super) fn activate(&self, extent: &Extent) -> Owned {
        self.inner.pool.activate(extent);
        self.inner.pool.drain();
        self.adopt(extent)
    }

    /// Notes an extent that is active.
    pub(super) fn adopt(&self, extent: &Extent) -> Owned {
        if self.inner.state.lock().extents.insert(extent.offset, extent.kind).is_none() {
            self.inner.bytes.fetch_add(extent.bytes, Ordering::Relaxed);
        }
        Owned {
            lists: self.clone(),
            offset: extent.offset,
            bytes: extent.bytes,
            kind: extent.kind,
            was_named: AtomicBool::new(false),
        }
    }

    fn give_back(&self, extent: Extent) {
        if self.inner.keeps_all.load(Ordering::Acquire) || self.inner.pool.is_read_only() {
            return;
        }
        let mut state = self.inner.state.lock();
        match state.marking {
            0 => self.free(&mut state, extent),
            _ => state.waiting.push(extent),
        }
    }

    fn free(&self, state: &mut State, extent: Extent) {
        state.extents.remove(&extent.offset);
        if extent.kind == PM_BUFFER
            && state.buffers.get(&extent.offset).is_some_and(|b| b.strong_count() == 0)
        {
            state.buffers.remove(&extent.offset);
        }
        self.inner.bytes.fetch_sub(extent.bytes, Ordering::Relaxed);
        // Memory that cannot be freed is unreachable, and the pool's check finds it.
        let _ = self.inner.pool.free_extent(extent.offset, extent.kind);
    }

    /// The buffer at `offset` with the identity `id`; opened if it is not open.
    pub(super) fn buffer(&self, offset: u64, id: u64) -> Result<Arc<Buffer>> {
        let found = self.inner.state.lock().buffers.get(&offset).and_then(Weak::upgrade);
        let buffer = match found {
            Some(buffer) => buffer,
            None => self.note(Buffer::open(self, offset, id)?),
        };
        match buffer.id == id {
            true => Ok(buffer),
            false => Err(self.inner.pool.corruption(offset, "the buffer of a list", "another buffer")),
        }
    }

    pub(super) fn note(&self, buffer: Buffer) -> Arc<Buffer> {
        let buffer = Arc::new(buffer);
        self.inner.state.lock().buffers.insert(buffer.extent.offset, Arc::downgrade(&buffer));
        buffer
    }

    /// The open buffer that a record at `offset` lies in.
    pub(super) fn buffer_of(&self, offset: u64) -> Option<Arc<Buffer>> {
        let state = self.inner.state.lock();
        let (_, buffer) = state.buffers.range(..=offset).next_back()?;
        buffer.upgrade().filter(|buffer| buffer.holds(offset))
    }

    /// Marks every extent; none of them is given back before `then` has returned.
    ///
    /// # Errors
    /// `Corruption` if a list cannot be read, since its buffers are not known.
    pub fn with_marked<T>(&self, mut marks: Marks, then: impl FnOnce(Marks) -> Result<T>) -> Result<T> {
        if self.inner.keeps_all.load(Ordering::Acquire) {
            return Err(self.inner.pool.corruption(0, "lists that can be read", "a damaged one"));
        }
        let _still = Still::new(self);
        // Collected under the lock and marked without it: others may work at every mark.
        let extents: Vec<u64> = self.inner.state.lock().extents.keys().copied().collect();
        extents.into_iter().try_for_each(|extent| marks.extent(extent))?;
        then(marks)
    }
}

/// Nothing is given back meanwhile.
struct Still<'a>(&'a Lists);

impl<'a> Still<'a> {
    fn new(lists: &'a Lists) -> Self {
        lists.inner.state.lock().marking += 1;
        Still(lists)
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        let mut state = self.0.inner.state.lock();
        state.marking -= 1;
        if state.marking == 0 {
            let waiting = std::mem::take(&mut state.waiting);
            waiting.into_iter().for_each(|extent| self.0.free(&mut state, extent));
        }
    }
}

impl fmt::Debug for Lists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lists").field("use", &self.usage()).finish()
    }
}

/// The kind of lists' extents.
pub(super) const LIST_KIND: Kind = PM_LIST;
/// The kind of buffers' extents.
pub(super) const BUFFER_KIND: Kind = PM_BUFFER;
