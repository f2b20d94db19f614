//! SSTables: immutable sorted files of versioned keys, their block cache, and cursors that merge them.
//!
//! Entries are ordered everywhere by key ascending as unsigned bytes, then by sequence number descending, so that the
//! newest version of a key comes first. `docs/formats/sstable.md` tells the bytes. Invariants:
//!
//! 1. A block is checked (checksum, table number, origin, offset) before any of its bytes is believed, once,
//!    when it enters memory; of a table that is read through a mapping, when it is first read from that.
//!    Lengths and offsets from disk are bounded before use and allocation.
//! 2. A [`Position`] alone finds, reads and checks a block; no index is needed.
//! 3. A table is immutable once built, so everything here but the builder and the cursors is
//!    `Send + Sync` and takes `&self`.
//!
//! ```
//! # use std::sync::Arc;
//! # use terrace_table::*;
//! # fn demo(fs: &dyn terrace_disk::Fs, path: &std::path::Path) -> terrace_base::Result<()> {
//! let mut builder = TableBuilder::new(fs.create(path)?, 7, TableOptions::default())?;
//! builder.add(b"apple", 2, Kind::Put, b"red")?;
//! builder.add(b"apple", 1, Kind::Put, b"green")?;
//! let built = builder.finish()?;
//!
//! let cache = Arc::new(BlockCache::new(8 << 20));
//! let table = Table::open(fs, path, 7, cache, terrace_disk::Access::Random)?;
//! let entry = table.get_at(built.blocks[0].position, b"apple", 1)?;
//! assert_eq!(entry.map(|e| e.value).as_deref(), Some(&b"green"[..]));
//! # Ok(())
//! # }
//! ```

mod ahead;
mod block;
mod builder;
mod cache;
mod cursor;
mod dump;
mod ends;
mod entry;
mod filter;
mod footer;
mod frame;
mod heads;
mod index;
mod many;
mod mapped;
mod merge;
mod meta;
mod missing;
mod nested;
mod options;
mod position;
mod rows;
mod salvage;
mod sample;
mod scan;
mod scratch;
mod scrub;
mod search;
mod source;
mod table;
mod tail;
mod verify;

pub use ahead::ReadBuffers;
pub use builder::{BlockSpan, Built, TableBuilder};
pub use cache::{BlockCache, CacheStats};
pub use cursor::{Cursor, Head, TableCursor};
pub use entry::{Entry, Kind, MAX_KEY_BYTES, MAX_VALUE_BYTES};
pub use filter::{Filter, FilterBuilder};
pub use footer::FORMAT_VERSION;
pub use many::{Sought, find_many};
pub use merge::{MergeCursor, merge};
pub use meta::TableMeta;
pub use nested::PassedBlocks;
pub use options::{Compression, TableOptions};
pub use position::Position;

pub use salvage::{LostRange, Salvaged, salvage};
pub use scrub::{Damaged, ScrubPlace};
pub use table::Table;

/// Decoders of a table's parts, for the fuzzer.
#[doc(hidden)]
pub mod fuzzing;
