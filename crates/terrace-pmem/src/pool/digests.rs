//! Digests, which tell an older copy of a piece of the pool, or another piece, from the one that was closed.
//!
//! A block's own checks prove that it was once written there, but not that it is the latest version. So a clean close
//! leaves a digest of every unit in use in the extent table, and of the table, the roots and the size word in its
//! state. The next session verifies table, roots and size when it opens, and a unit before its first use; the rest is
//! verified in the background ([`Pool::verify_some`]).
//!
//! 1. Until every unit is verified, `reach` is 0 and every access calls this module; afterwards it is the pool's
//!    length, and no access does.
//! 2. Nobody stores to a unit that is not verified, so a unit does not change while it is being verified.
//! 3. A call that can return an error never gives access to a unit that differs from the closed one; a call that cannot
//!    return one notes it for [`Pool::intact`].
//! 4. A store marks its unit as changed; only such units get a new digest at the close. A damaged one keeps its old
//!    digest, so that it stays damaged in the next session, unless nobody owns it by then.
//! 5. Readers store, unflushed, only with a guard that a close waits for; afterwards they store nothing.
//!
//! After a crash there are no digests: nobody knows which units had changed. The next clean close makes them anew.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLockReadGuard};
use terrace_base::checksum::digest64;
use terrace_base::{Error, Result};

use super::Pool;
use crate::alloc::Problem;
use crate::layout::{ROOT_COUNT, ROOTS_AT, RootEntry, SIZE_WORD_AT};
use crate::offset::POff;

/// Something was stored to the unit since the pool was opened.
const CHANGED: u8 = 1;
/// The unit was not compared with its digest yet.
const UNVERIFIED: u8 = 2;
/// The unit differs from the one that the pool was closed with.
const DAMAGED: u8 = 4;

/// The expectation in errors about bytes that are not those of the clean close.
pub const CLOSED_WITH: &str = "what the pool was closed with";

/// Bytes of the roots.
const ROOTS_BYTES: usize = ROOT_COUNT as usize * size_of::<RootEntry>();

/// Units are verified one at a time where they share their lock.
const LOCKS: usize = 64;

/// A session's knowledge about the units of its pool.
pub(crate) struct Digests {
    units: Box<[AtomicU8]>,
    shift: u32,
    locks: [Mutex<()>; LOCKS],
    /// Units that are not verified.
    left: AtomicU64,
    damaged: AtomicU64,
    /// One more than the offset of a damaged unit that was reached by a call which could not say so; else 0.
    reached: AtomicU64,
    /// Serialises changes of `reach`.
    ends: Mutex<()>,
}

/// The presence of a reader who stores: see [`Pool::touching`].
#[must_use]
pub struct Touching<'p>(#[expect(dead_code, reason = "held")] RwLockReadGuard<'p, bool>);

/// Whether a range can be used.
pub(super) enum Admitted {
    Yes,
    /// The range leads out of the pool.
    Outside,
    /// The range lies in a damaged unit, which begins here.
    Damaged(u64),
}

impl Digests {
    /// For a pool that will have at most `max_size` bytes: everything verified, nothing changed.
    pub(super) fn new(max_size: u64, extent_bytes: u64) -> Digests {
        let count = max_size.div_ceil(extent_bytes) as usize;
        // SAFETY: an atomic integer of zero bytes is a valid one. The system gives pages only for what is touched.
        let units = unsafe { Box::<[AtomicU8]>::new_zeroed_slice(count).assume_init() };
        Digests {
            units,
            shift: extent_bytes.trailing_zeros(),
            locks: [const { Mutex::new(()) }; LOCKS],
            left: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            reached: AtomicU64::new(0),
            ends: Mutex::new(()),
        }
    }

    /// Notes that something is stored in a range, which is in the pool.
    #[inline]
    pub(super) fn changed(&self, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        let (first, last) = (offset >> self.shift, (offset + len - 1) >> self.shift);
        for unit in first..=last {
            let state = &self.units[unit as usize];
            // Relaxed: a close has waited for all that store.
            if state.load(Ordering::Relaxed) & CHANGED == 0 {
                state.fetch_or(CHANGED, Ordering::Relaxed);
            }
        }
    }

    fn state(&self, unit: u64) -> u8 {
        self.units[unit as usize].load(Ordering::Acquire)
    }

    /// Whether anything durable was stored to a pool of `size` bytes.
    pub(super) fn has_changed(&self, size: u64) -> bool {
        self.states(size).iter().any(|unit| unit.load(Ordering::Relaxed) & CHANGED != 0)
    }

    /// The states of a pool of `size` bytes.
    fn states(&self, size: u64) -> &[AtomicU8] {
        &self.units[..(size >> self.shift) as usize]
    }
}

impl Pool {
    /// From now on every unit in use is verified before it is reached. The table that holds the digests is verified
    /// already.
    pub(super) fn expect_digests(&self) {
        let digests = &self.inner.digests;
        let mut left = 0;
        for unit in self.used_units() {
            if self.digest_of(unit) != 0 {
                digests.units[unit as usize].store(UNVERIFIED, Ordering::Relaxed);
                left += 1;
            }
        }
        digests.left.store(left, Ordering::Relaxed);
        if left > 0 {
            self.inner.reach.store(0, Ordering::Release);
        }
    }

    /// Notes a store to a range that is not flushed because it need not be durable: a lock, a cache. Flushed stores are
    /// noted automatically.
    #[inline]
    pub fn touched(&self, offset: u64, len: u64) {
        self.inner.digests.changed(offset, len);
    }

    /// For a reader that stores to a range that is never flushed: a lock, a cache. `None` if that is not allowed: the
    /// pool is read-only, or closed, or being digested for its close. A close waits for the guard, so it is held for a
    /// few stores only, and never while waiting.
    #[inline]
    pub fn touching(&self, offset: u64, len: u64) -> Option<Touching<'_>> {
        let still = self.inner.still.try_read()?;
        if *still {
            return None;
        }
        self.touched(offset, len);
        Some(Touching(still))
    }

    /// Whether a range may be used now; verifies its units if necessary.
    #[cold]
    pub(super) fn admit_range(&self, offset: u64, len: u64) -> Admitted {
        let size = self.size();
        let Some(end) = offset.checked_add(len).filter(|&end| end <= size) else { return Admitted::Outside };
        let shift = self.inner.digests.shift;
        for unit in offset >> shift..end.div_ceil(1 << shift) {
            if self.inner.digests.state(unit) & (UNVERIFIED | DAMAGED) != 0 && !self.verify_unit(unit) {
                return Admitted::Damaged(unit << shift);
            }
        }
        Admitted::Yes
    }

    /// Notes that a damaged unit was reached; for a call that returns no error.
    pub(super) fn reached_damage(&self, unit_at: u64) {
        self.inner.digests.reached.store(unit_at + 1, Ordering::Release);
    }

    /// An error if a call that cannot return one has used a piece of the pool that differs from the closed one: its
    /// results mean nothing.
    #[inline]
    pub fn intact(&self) -> Result<()> {
        match self.inner.digests.reached.load(Ordering::Acquire) {
            0 => Ok(()),
            reached => Err(self.not_what_was_closed(reached - 1)),
        }
    }

    /// Verifies up to `units` units, from `from` on, that nobody has reached yet; returns where to go on, or `None` at
    /// the end.
    pub fn verify_some(&self, from: u64, units: u64) -> Option<u64> {
        if self.inner.digests.left.load(Ordering::Acquire) == 0 {
            return None;
        }
        let end = self.size() / self.extent_bytes();
        let mut done = 0;
        for unit in from..end {
            if done == units {
                return Some(unit);
            }
            if self.inner.digests.state(unit) & UNVERIFIED != 0 {
                self.verify_unit(unit);
                done += 1;
            }
        }
        None
    }

    /// The parts of the pool that differ from the closed ones. Verifies all remaining units.
    pub fn altered(&self) -> Vec<Problem> {
        while self.verify_some(0, u64::MAX).is_some() {}
        let digests = &self.inner.digests;
        if digests.damaged.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let bytes = self.extent_bytes();
        let damaged = self.used_units().into_iter().filter(|unit| digests.state(*unit) & DAMAGED != 0);
        let what = format!(
            "{bytes} bytes are not what the pool was closed with: damaged, misplaced or of an earlier time"
        );
        damaged.map(|unit| Problem::new(unit * bytes, what.clone())).collect()
    }

    /// From now on all units are used as they are. For a repair, which reports the [altered](Self::altered) ones.
    pub fn use_as_it_is(&self) {
        let digests = &self.inner.digests;
        let _ends = digests.ends.lock();
        for state in digests.states(self.size()) {
            if state.load(Ordering::Acquire) & (UNVERIFIED | DAMAGED) != 0 {
                // Its digest is to be made anew.
                state.store(CHANGED, Ordering::Release);
            }
        }
        digests.left.store(0, Ordering::Release);
        digests.damaged.store(0, Ordering::Release);
        digests.reached.store(0, Ordering::Release);
        self.inner.reach.store(self.size(), Ordering::Release);
    }

    /// Nobody needs the bytes of these units any more: their next owner finds what it stores there, whatever they were
    /// closed with. To be called before anybody can take them.
    pub(crate) fn give_up_units(&self, units: Range<u64>) {
        let digests = &self.inner.digests;
        let is_known = |count: &AtomicU64| count.load(Ordering::Acquire) == 0;
        if is_known(&digests.left) && is_known(&digests.damaged) {
            return;
        }
        for unit in units {
            let _one = digests.locks[unit as usize % LOCKS].lock();
            let state = digests.state(unit);
            if state & (UNVERIFIED | DAMAGED) == 0 {
                continue;
            }
            // Its digest is to be made anew.
            digests.units[unit as usize].store(CHANGED, Ordering::Release);
            let count = if state & DAMAGED != 0 { &digests.damaged } else { &digests.left };
            count.fetch_sub(1, Ordering::AcqRel);
            self.reach_all_if_sound();
        }
    }

    /// Compares a unit with its digest, unless that was done before; whether it is the closed one.
    fn verify_unit(&self, unit: u64) -> bool {
        let digests = &self.inner.digests;
        let _one = digests.locks[unit as usize % LOCKS].lock();
        match digests.state(unit) {
            state if state & DAMAGED != 0 => return false,
            state if state & UNVERIFIED == 0 => return true,
            _ => {}
        }
        let sound = self.digest_now(unit) == self.digest_of(unit);
        let state = if sound { 0 } else { DAMAGED };
        digests.units[unit as usize].store(state, Ordering::Release);
        digests.damaged.fetch_add(u64::from(!sound), Ordering::AcqRel);
        digests.left.fetch_sub(1, Ordering::AcqRel);
        self.reach_all_if_sound();
        sound
    }

    /// Once every unit is verified and none is damaged, no access asks for it any more.
    fn reach_all_if_sound(&self) {
        let digests = &self.inner.digests;
        if digests.left.load(Ordering::Acquire) == 0 && digests.damaged.load(Ordering::Acquire) == 0 {
            let _ends = digests.ends.lock();
            self.inner.reach.store(self.size(), Ordering::Release);
        }
    }

    /// Lets the pool's end move to `len`.
    pub(crate) fn extend_len(&self, len: u64) {
        let _ends = self.inner.digests.ends.lock();
        self.inner.len.store(len, Ordering::Release);
        if self.inner.reach.load(Ordering::Relaxed) != 0 {
            self.inner.reach.store(len, Ordering::Release);
        }
    }

    /// Writes the digests of changed units, or `anew` those of all units in use; not drained. Returns the digest of
    /// table, roots and size, and whether anything has changed. Nobody stores to the pool any more.
    pub(super) fn write_digests(&self, anew: bool) -> (u64, bool) {
        let digests = &self.inner.digests;
        let changed = self.has_changed();
        if changed || anew {
            let used = self.used_units();
            let mut next = used.iter().copied().peekable();
            for unit in 0..self.size() / self.extent_bytes() {
                let is_used = next.next_if_eq(&unit).is_some();
                let state = digests.state(unit);
                if state & DAMAGED == 0 && (anew || state & CHANGED != 0) {
                    // Locks, and objects that were given up before they were linked, were never flushed. A power cut
                    // after the close must not change the digested bytes, so they are flushed now.
                    self.flush_uncounted(unit * self.extent_bytes(), self.extent_bytes());
                    self.put_digest(unit, if is_used { self.digest_now(unit) } else { 0 });
                } else if !is_used {
                    // The unit was given back, damaged or not. A later owner need not write all of it.
                    self.put_digest(unit, 0);
                } else if is_used && state == 0 && self.digest_of(unit) != 0 {
                    debug_assert_eq!(
                        self.digest_now(unit),
                        self.digest_of(unit),
                        "unit {unit} changed unmarked"
                    );
                }
            }
        }
        (self.digest_of_header(), changed)
    }

    fn put_digest(&self, unit: u64, digest: u64) {
        let at = self.inner.alloc.table.digest(unit);
        if self.atomic(at).load(Ordering::Relaxed) != digest {
            self.store_flush(at, digest);
        }
    }

    fn digest_of(&self, unit: u64) -> u64 {
        let at = self.inner.alloc.table.digest(unit);
        self.atomic_raw(at).load(Ordering::Relaxed)
    }

    fn digest_now(&self, unit: u64) -> u64 {
        let bytes = self.extent_bytes();
        digest64(self.raw_bytes(unit * bytes, bytes))
    }

    /// The digest of all parts that have no digest of their own.
    pub(super) fn digest_of_header(&self) -> u64 {
        let units = self.size() / self.extent_bytes();
        let mut pieces = self.inner.superblock.uuid.to_vec();
        let mut take = |at: u64, len: u64| pieces.extend(digest64(self.raw_bytes(at, len)).to_le_bytes());
        take(ROOTS_AT, ROOTS_BYTES as u64);
        take(SIZE_WORD_AT, 8);
        let table = &self.inner.alloc.table;
        for segment in table.segments(units) {
            let len = segment.covers.min(units - segment.first) * 8;
            take(segment.at, len);
            take(table.digest(segment.first).get(), len);
        }
        digest64(&pieces)
    }

    fn raw_bytes(&self, at: u64, len: u64) -> &[u8] {
        assert!(at + len <= self.size(), "what is digested lies in the pool");
        // SAFETY: in range; nobody stores there: the pool is being opened or closed, or the unit is not verified.
        unsafe { std::slice::from_raw_parts(self.inner.base.add(at as usize), len as usize) }
    }

    fn atomic_raw(&self, at: POff<u64>) -> &AtomicU64 {
        assert!(at.get() + 8 <= self.size() && at.get().is_multiple_of(8), "a digest lies in the table");
        // SAFETY: in range and aligned.
        unsafe { &*self.inner.base.add(at.get() as usize).cast::<AtomicU64>() }
    }

    pub(super) fn not_what_was_closed(&self, at: u64) -> Error {
        self.corruption(at, CLOSED_WITH, "damaged, misplaced or earlier bytes (try `repair`)")
    }
}
