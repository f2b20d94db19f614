//! Persistent indexes that no engine uses: published designs to measure the others against, kept to the same tests.
//!
//! * [`cceh`]: extendible hashing with segments, for byte strings.
//! * [`buffered`]: write buffers, out-of-place merges and cached inner parts, for CCEH, FAST&FAIR and the skiplist.
//!
//! Their traits are those of [`terrace_index`], and so are the parts that they share with its indexes
//! ([`terrace_index::parts`]).

pub mod buffered;
pub mod cceh;

pub use buffered::{BufferOptions, BufferedIndex};
pub use cceh::Cceh;
