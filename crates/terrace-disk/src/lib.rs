//! Files: the [`Fs`] trait, through which all of Terrace reads and writes the SSD, and its implementations.
//!
//! | type | what it is |
//! |---|---|
//! | [`RealFs`] | the machine's files |
//! | [`MeteredFs`] | any other, with its traffic counted, and charged for by a [`Toll`] where there is one |
//! | [`ScratchFs`] | a view of another one whose changes stay in memory |
//! | [`SparingFs`] | any other; closes [`LazyFile`]s if the system has no descriptor left |
//! | [`SimFs`] | a simulated disk that loses everything that the contract lets it lose at a power cut |
//!
//! A [`BehindFile`] is written by a thread behind its caller.
//!
//! [`fs`] states the contract, and [`block`] that of files of sectors, which are written in place. [`SimFs`] is as
//! unkind as the contract allows, so that code which survives on it survives on any disk that keeps the contract.

pub mod behind;
pub mod block;
mod extents;
mod forward;
pub mod fs;
pub mod lazy;
pub mod maps;
pub mod metered;
pub mod real;
pub mod scratch;
pub mod sim;
pub mod slots;
mod toll;

pub use behind::{BehindFile, SyncBehind};
pub use block::{
    BLOCK_ALIGN_BYTES, BlockBuf, BlockFile, BlockReads, BlockWrite, Geometry, LEAST_SECTOR_BYTES,
};
pub use fs::{Access, FileLock, Fs, ROOM_UNIT_BYTES, ReadFile, Room, WriteFile};
pub use lazy::{Descriptors, LazyFile, SparingFs};
pub use maps::{MapFigures, Mapping, Maps};
pub use metered::{IoStats, MeteredFs, SyncWatch};
pub use real::{RealFs, descriptor_limit};
pub use scratch::ScratchFs;
pub use sim::{Fault, FsEvent, Observer, SimFs};
pub use slots::{Ahead, Slot, SlotReads, SlotStats, Slots};
pub use toll::Toll;
