//! Files: the [`Fs`] trait that all of Terrace reads and writes the SSD through, and what implements it.
//!
//! | type | what it is |
//! |---|---|
//! | [`RealFs`] | the machine's files |
//! | [`MeteredFs`] | any other, with its traffic counted, and charged for by a [`Toll`] where there is one |
//! | [`ScratchFs`] | what is changed in it is changed in memory alone, over another |
//! | [`SparingFs`] | any other, which has [`LazyFile`]s closed where the system has no descriptor left |
//! | [`SimFs`] | a simulated disk that loses at a power cut whatever the contract lets it lose |
//!
//! [`fs`] states the contract, and [`block`] that of files of sectors, which are written in place. [`SimFs`] is as unkind
//! as the contract allows, so that code which survives on it survives on any disk that keeps the contract.

pub mod block;
mod extents;
pub mod fs;
pub mod lazy;
pub mod maps;
pub mod metered;
pub mod real;
pub mod scratch;
pub mod sim;
pub mod slots;
mod toll;

pub use block::{BLOCK_ALIGN_BYTES, BlockBuf, BlockFile, BlockReads, BlockWrite, Geometry};
pub use fs::{Access, FileLock, Fs, ROOM_UNIT_BYTES, ReadFile, WriteFile};
pub use lazy::{Descriptors, LazyFile, SparingFs};
pub use maps::{MapFigures, Mapping, Maps};
pub use metered::{IoStats, MeteredFs};
pub use real::{RealFs, descriptor_limit};
pub use scratch::ScratchFs;
pub use sim::{Fault, FsEvent, Observer, SimFs};
pub use slots::{Ahead, Slot, SlotReads, SlotStats, Slots};
pub use toll::Toll;
