//! Persistent memory: the only crate that stores to it.
//!
//! A [`Pool`] is one mapped file or device with a checksummed superblock, named roots, an allocator and statistics.
//! Structures in it refer to each other by offsets ([`POff`]), never by address, and change by the primitives alone:
//! [`Pool::write`], [`Pool::flush`], [`Pool::drain`], [`Pool::copy_persist`] and [`Pool::publish`].
//! `docs/persistence.md` states their promises on each kind of media; the bytes are in `docs/formats/pool.md`.
//!
//! ```
//! use terrace_pmem::{Kind, Pool, PoolOptions};
//!
//! let dir = tempfile::tempdir().unwrap();
//! let options = PoolOptions { size: 1 << 20, prefault: false, ..PoolOptions::default() };
//! let pool = Pool::create(&dir.path().join("pool"), &options)?;
//!
//! // Reserve, fill, activate, drain, then publish: after a crash the record is wholly there or not at all.
//! let slot = pool.reserve(Kind(1), 64)?;
//! pool.copy_flush(slot.offset, b"hello");
//! pool.activate(&slot);
//! pool.drain();
//! pool.set_root("greeting", slot.offset)?;
//! pool.close()?;
//! # Ok::<(), terrace_base::Error>(())
//! ```

#[cfg(not(target_endian = "little"))]
compile_error!("persistent structures are little-endian in place; big-endian machines are not supported");

mod alloc;
mod cpu;
mod layout;
pub mod media;
mod offset;
mod pool;
mod stats;
pub mod thread_slot;
mod word;

pub use alloc::{Claim, Clearing, Extent, Kind, Marks, Problem, Reservation, Slot};
pub use cpu::FlushOp;
pub use media::{
    CostModel, EmulatedMedia, FileMedia, Gate, Granularity, LINE_BYTES, Media, MemMedia, Profile,
    XPLINE_BYTES,
};
#[doc(hidden)]
pub use offset::field_bytes;
pub use offset::{POff, PmSafe};
pub use pool::{BLANK, CLOSED_WITH, Known, MediaRequest, Opened, Pool, PoolOptions, StartedRead, Touching};
pub use stats::PmStats;
