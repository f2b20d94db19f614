//! The extents of a list: a chain, in one of which records are bump-allocated.
//!
//! 1. An extent joins the chain by one publish, when its header is durable.
//! 2. Space is given back with the whole arena, or by the thread that has just taken it: allocations since a mark that
//!    are not linked ([`Arena::take_back`]), and empty extents at the chain's end ([`Arena::trim`]).

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use terrace_base::{Error, Result};
use terrace_pmem::{Extent, Kind, POff, Pool};

use super::layout::{
    EXTENT_HEADER_BYTES, ExtentHeader, FIRST_DATA, HEAD_NODE, NEXT_AT, NODE_BYTES, NodeFields, VERSION,
};

/// The arena of one list.
pub(super) struct Arena {
    pool: Pool,
    kind: Kind,
    first: u64,
    list: u64,
    step: u64,
    tail: RwLock<Tail>,
    extents_bytes: AtomicU64,
    used: AtomicU64,
}

/// The position of allocation at some moment.
#[derive(Debug)]
pub struct Mark {
    position: u64,
    end: u64,
    last: u64,
    used: u64,
}

/// The extents of an arena that may be damaged.
pub(super) struct Extents {
    pub found: Vec<Extent>,
    /// Whether an extent names another one that does not belong to the arena.
    pub is_cut: bool,
}

/// An extent after the first is half as large as all before it, within the list's step and this.
const MOST_STEP_BYTES: u64 = 8 << 20;

/// Where the next record goes, and where the next extent is linked.
struct Tail {
    position: AtomicU64,
    end: u64,
    last: u64,
    count: u32,
}

impl Arena {
    /// A new arena of one extent with a head node; durable, unlinked. Also the list's identity.
    pub fn create(pool: &Pool, kind: Kind, bytes: u64) -> Result<(Arena, u64)> {
        let extent = pool.reserve_extent(kind, bytes.max(FIRST_DATA + 64))?;
        let list = super::identity(pool, extent.offset);
        // Later extents are small at first: most lists that outgrow their arena need little more.
        let step = (extent.bytes / 4).max(pool.extent_bytes());
        let place = pool.place(extent.offset);
        pool.write(extent.offset, &ExtentHeader::encode(place, list, extent.bytes, step, 0));
        pool.zero(extent.offset + EXTENT_HEADER_BYTES, HEAD_NODE + NODE_BYTES - EXTENT_HEADER_BYTES);
        let head = head_fields();
        let at = extent.offset + HEAD_NODE;
        pool.write(at, &head.encode(0, head.crc(list, at, &[], &[])));
        pool.flush(extent.offset, FIRST_DATA);
        pool.activate(&extent);
        pool.drain();
        let tail = Tail {
            position: AtomicU64::new(extent.offset + FIRST_DATA),
            end: extent.offset + extent.bytes,
            last: extent.offset,
            count: 1,
        };
        let arena = Arena::over(pool, kind, extent.offset, (list, step), tail, extent.bytes);
        Ok((arena, list))
    }

    /// Attaches to the arena whose first extent is at `first`. It is full until [`resume`](Self::resume).
    pub fn open(pool: &Pool, kind: Kind, first: u64) -> Result<(Arena, u64)> {
        let (arena, list) = Self::open_first(pool, kind, first)?;
        let extents = arena.extents()?;
        arena.extents_bytes.store(extents.iter().map(|e| e.bytes).sum(), Ordering::Relaxed);
        {
            let mut tail = arena.tail.write();
            tail.count = extents.len() as u32;
            tail.last = extents.last().map_or(first, |e| e.offset);
        }
        Ok((arena, list))
    }

    /// Attaches to an arena as far as its extents can be found, which are given, to be read alone.
    pub fn open_damaged(pool: &Pool, kind: Kind, first: u64) -> Result<(Arena, u64, Extents)> {
        let (arena, list) = Self::open_first(pool, kind, first)?;
        let (mut found, mut at, mut is_cut) = (Vec::new(), first, false);
        while at != 0 {
            match arena.extent(at, found.len()) {
                Ok((extent, next)) => {
                    found.push(extent);
                    at = next;
                }
                Err(_) => (at, is_cut) = (0, true),
            }
        }
        Ok((arena, list, Extents { found, is_cut }))
    }

    fn open_first(pool: &Pool, kind: Kind, first: u64) -> Result<(Arena, u64)> {
        let header = pool.get::<ExtentHeader>(POff::new(first))?;
        if let Some(version) = header.other_version(pool.place(first)) {
            return Err(Error::other_version(
                pool.path(),
                format!("a skiplist of version {version}"),
                format!("version {VERSION}"),
            ));
        }
        if !header.is_sound(pool.place(first)) || header.index != 0 {
            return Err(Error::corruption(pool.path(), first, "a skiplist's first extent", "other bytes"));
        }
        let (list, step) = (header.list, header.step);
        let tail = Tail { position: AtomicU64::new(0), end: 0, last: first, count: 1 };
        Ok((Arena::over(pool, kind, first, (list, step), tail, 0), list))
    }

    fn over(pool: &Pool, kind: Kind, first: u64, (list, step): (u64, u64), tail: Tail, bytes: u64) -> Arena {
        Arena {
            pool: pool.clone(),
            kind,
            first,
            list,
            step,
            tail: RwLock::new(tail),
            extents_bytes: AtomicU64::new(bytes),
            used: AtomicU64::new(0),
        }
    }

    /// Offset of the first extent.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Bytes of all extents.
    pub fn extents_bytes(&self) -> u64 {
        self.extents_bytes.load(Ordering::Relaxed)
    }

    /// Bytes allocated.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Sets where allocation goes on after recovery: from `position` to `end`, `used` bytes being taken.
    pub fn resume(&self, position: u64, end: u64, used: u64) {
        let mut tail = self.tail.write();
        tail.position = AtomicU64::new(position);
        tail.end = end;
        self.used.store(used, Ordering::Relaxed);
    }

    /// The extents in chain order.
    pub fn extents(&self) -> Result<Vec<Extent>> {
        // The chain is cut under the lock.
        let _tail = self.tail.read();
        self.chain()
    }

    fn chain(&self) -> Result<Vec<Extent>> {
        let (mut out, mut at) = (Vec::new(), self.first);
        while at != 0 {
            let (extent, next) = self.extent(at, out.len())?;
            out.push(extent);
            at = next;
        }
        Ok(out)
    }

    /// The extent at `at`, which is to be the `index`th of the list, and the next one's offset.
    fn extent(&self, at: u64, index: usize) -> Result<(Extent, u64)> {
        let header = self.pool.get::<ExtentHeader>(POff::new(at))?;
        let fits = header.bytes >= EXTENT_HEADER_BYTES
            && at.checked_add(header.bytes).is_some_and(|end| end <= self.pool.size());
        if !header.is_sound(self.pool.place(at))
            || header.list != self.list
            || header.index as usize != index
            || !fits
        {
            return Err(Error::corruption(self.pool.path(), at, "an extent of this list", "other bytes"));
        }
        let extent = Extent { offset: at, bytes: header.bytes, kind: self.kind };
        Ok((extent, header.next.load(Ordering::Acquire)))
    }

    /// Where allocation stands.
    pub fn mark(&self) -> Mark {
        let tail = self.tail.read();
        let position = tail.position.load(Ordering::Relaxed);
        Mark { position, end: tail.end, last: tail.last, used: self.used() }
    }

    /// Gives back all allocations since `mark`, none of which is linked. No other thread has allocated meanwhile.
    pub fn take_back(&self, mark: &Mark) -> Result<()> {
        let mut tail = self.tail.write();
        let chain = self.chain()?;
        let keep = chain.iter().position(|e| e.offset == mark.last).map_or(chain.len(), |last| last + 1);
        self.cut(&mut tail, &chain, keep)?;
        tail.position = AtomicU64::new(mark.position);
        tail.end = mark.end;
        self.used.store(mark.used, Ordering::Relaxed);
        Ok(())
    }

    /// Gives back the extents at the chain's end that are empty, but for the first. Nobody else has the arena.
    pub fn trim(&self, is_empty: impl Fn(&Extent) -> bool) -> Result<()> {
        let mut tail = self.tail.write();
        let chain = self.chain()?;
        let keep = chain.iter().rposition(|e| !is_empty(e)).map_or(1, |last| last + 1);
        self.cut(&mut tail, &chain, keep)
    }

    /// Takes the extents of the chain from the `keep`th on out of it, durably, and frees them.
    fn cut(&self, tail: &mut Tail, chain: &[Extent], keep: usize) -> Result<()> {
        let (kept, gone) = chain.split_at(keep);
        let (Some(last), false) = (kept.last(), gone.is_empty()) else { return Ok(()) };
        self.pool.publish(POff::new(last.offset + NEXT_AT), 0);
        tail.last = last.offset;
        tail.count = keep as u32;
        let bytes: u64 = gone.iter().map(|e| e.bytes).sum();
        self.extents_bytes.fetch_sub(bytes, Ordering::Relaxed);
        gone.iter().rev().try_for_each(|e| self.pool.free_extent(e.offset, self.kind))
    }

    /// `bytes` of unused space, 8-aligned.
    pub fn allocate(&self, bytes: u64) -> Result<u64> {
        let bytes = bytes.next_multiple_of(8);
        // Not within the match: growing takes the lock that this one would still hold.
        let taken = self.tail.read().take(bytes);
        let offset = match taken {
            Some(offset) => offset,
            None => self.grow(bytes)?,
        };
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Ok(offset)
    }

    /// Adds an extent and allocates from it; a record larger than the step gets one of its own.
    #[cold]
    fn grow(&self, bytes: u64) -> Result<u64> {
        let mut tail = self.tail.write();
        if let Some(offset) = tail.take(bytes) {
            return Ok(offset);
        }
        let (extent, own) = self.reserve(bytes + EXTENT_HEADER_BYTES)?;
        let place = self.pool.place(extent.offset);
        let header = ExtentHeader::encode(place, self.list, extent.bytes, self.step, tail.count);
        self.pool.write(extent.offset, &header);
        self.pool.flush(extent.offset, EXTENT_HEADER_BYTES);
        self.pool.activate(&extent);
        self.pool.drain();
        self.pool.publish(POff::new(tail.last + NEXT_AT), extent.offset);
        tail.last = extent.offset;
        tail.count += 1;
        self.extents_bytes.fetch_add(extent.bytes, Ordering::Relaxed);
        let offset = extent.offset + EXTENT_HEADER_BYTES;
        if !own {
            tail.position = AtomicU64::new(offset + bytes);
            tail.end = extent.offset + extent.bytes;
        }
        Ok(offset)
    }

    /// An extent for a record of so many bytes with its header: of the usual size, or a smaller one where there is no
    /// room for that. Whether it is the record's own, with no room for others.
    fn reserve(&self, needed: u64) -> Result<(Extent, bool)> {
        let mut regular = self.step.max((self.extents_bytes() / 2).min(MOST_STEP_BYTES));
        loop {
            let own = needed > regular;
            match self.pool.reserve_extent(self.kind, regular.max(needed)) {
                Err(e) if e.is_out_of_space() && !own => regular /= 2,
                reserved => return Ok((reserved?, own)),
            }
        }
    }

    /// Gives every extent back to the pool, the first one last: a crash in between leaves the rest to
    /// the pool's reclaiming.
    pub fn free(&self) -> Result<()> {
        self.extents()?.iter().rev().try_for_each(|e| self.pool.free_extent(e.offset, self.kind))
    }
}

impl Tail {
    fn take(&self, bytes: u64) -> Option<u64> {
        let fits = |at: u64| at.checked_add(bytes).filter(|&end| end <= self.end);
        self.position.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()
    }
}

/// The fields of the head node.
pub(super) fn head_fields() -> NodeFields {
    NodeFields { seq: u64::MAX, batch_first: 0, batch_len: 0, vlen: 0, klen: 0, kind: 0, fields: 0 }
}
