//! The allocator: whole extents, and slots of a size class inside slab extents.
//!
//! An object's life: it is *reserved* (in DRAM only), filled and flushed, *activated* (its one word in the
//! pool is stored and flushed), everything is drained, and then its owner publishes the link to it. Freeing
//! goes the other way: the owner durably unlinks, then the word is cleared.
//!
//! Invariants:
//! 1. One checked word decides whether an extent is in use and how long it is; one bit in one checked word
//!    decides it for a slot. So every change of ownership is one 8-byte store.
//! 2. Free state is DRAM only, rebuilt at open from the table and the slabs' bitmaps, never from objects.
//! 3. A freed extent is handed out again only after its cleared word was drained: two words of the table never
//!    claim one unit, whatever part of the undrained stores a crash keeps.
//! 4. A slot's bit needs no drain between free and reuse: both of its states mean memory that no durable link
//!    points to, until the reuser's own activation is drained.
//! 5. Objects that a crash leaves active without a link (activated and not published, or unlinked and not freed) are
//!    found after the next open: see [`Pool::reclaim`](crate::Pool::reclaim).
//!
//! Locks are taken in this order: a shelf's stripe, a slab's state, the space of extents.

mod check;
mod class;
mod clear;
mod extents;
mod grow;
mod kept;
mod load;
mod marks;
mod reclaim;
mod runs;
mod slab;
mod slabs;
mod slots;
mod table;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32};

use parking_lot::Mutex;
use terrace_base::{Error, Result};

use crate::layout::Superblock;
use crate::pool::Pool;

use extents::Space;
use slabs::Slabs;
use slots::KindShelves;

pub use check::Problem;
pub use clear::Clearing;
pub use kept::Claim;
pub use marks::Marks;
pub(crate) use table::Table;

/// The purpose of an allocation. Zero is the pool's own; owners agree on their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(pub u8);

/// Whole extents that belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Offset in the pool, a multiple of the extent unit.
    pub offset: u64,
    /// Length, a multiple of the extent unit.
    pub bytes: u64,
    /// Its kind.
    pub kind: Kind,
}

/// A slot of a size class, or, for more than the largest class, extents of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Offset in the pool; aligned to 16, and to the largest power of two in `bytes` up to 256.
    pub offset: u64,
    /// Bytes usable, at least what was asked for.
    pub bytes: u64,
    /// Its kind.
    pub kind: Kind,
}

/// The result of [`Pool::reserve`](crate::Pool::reserve) and [`Pool::reserve_extent`](crate::Pool::reserve_extent).
pub trait Reservation: sealed::Sealed {}

impl Reservation for Extent {}
impl Reservation for Slot {}

mod sealed {
    use super::{Extent, Kind, Slot};

    pub trait Sealed {
        fn place(&self) -> (u64, Kind);
    }

    impl Sealed for Extent {
        fn place(&self) -> (u64, Kind) {
            (self.offset, self.kind)
        }
    }

    impl Sealed for Slot {
        fn place(&self) -> (u64, Kind) {
            (self.offset, self.kind)
        }
    }
}

/// Everything the allocator keeps in DRAM.
pub(crate) struct Allocator {
    pub(crate) table: Table,
    pub(crate) space: Mutex<Space>,
    pub(crate) slabs: Slabs,
    shelves: Box<[OnceLock<Box<KindShelves>>]>,
    kept: kept::Kept,
    /// Extents given out since the medium has refused to grow, and one; 0: it has not, or has grown since. Changed under
    /// the lock of `space`.
    pub(crate) taken_while_short: AtomicU32,
    /// Whether something active at an unclean open is still unaccounted for.
    pub(crate) inherits: AtomicBool,
    /// Whether an owner cannot reclaim that yet.
    pub(crate) is_put_off: AtomicBool,
}

impl Allocator {
    /// An empty allocator, which gives nothing out until it is loaded.
    pub(crate) fn empty(superblock: &Superblock) -> Self {
        Allocator {
            table: Table::new(superblock),
            space: Mutex::default(),
            slabs: Slabs::default(),
            shelves: (0..256).map(|_| OnceLock::new()).collect(),
            kept: kept::Kept::default(),
            taken_while_short: AtomicU32::new(0),
            inherits: AtomicBool::new(false),
            is_put_off: AtomicBool::new(false),
        }
    }

    fn shelves(&self, kind: Kind) -> &KindShelves {
        self.shelves[usize::from(kind.0)].get_or_init(Box::default)
    }
}

impl Pool {
    /// Asks the medium whether `bytes` more may be given out.
    #[inline]
    fn admit(&self, bytes: u64) -> Result<()> {
        match self.admits(bytes) {
            true => Ok(()),
            false => Err(self.full(bytes.div_ceil(self.extent_bytes()))),
        }
    }

    /// Bytes of DRAM that the allocator takes.
    pub fn dram_bytes(&self) -> u64 {
        let alloc = &self.inner.alloc;
        // A map's entry, its share of the map's nodes included.
        let runs = alloc.space.lock().live.len() * 2 * size_of::<(u64, extents::Live)>();
        alloc.slabs.dram_bytes() + runs as u64
    }
}

fn owned(kind: Kind) -> Result<()> {
    if kind.0 == 0 { Err(Error::invalid("allocation kind 0 is the pool's own")) } else { Ok(()) }
}
