//! The payload of data, index and root blocks: sorted entries with shared key prefixes.
//!
//! ```text
//! payload  := entry* restart* u32(count)
//! entry    := varint(shared) varint(unshared) varint(value_len << 3 | kind) varint(seq)
//!             key[shared..] value
//! restart  := u32, the payload offset of a restart entry; the first, always 0, is left out
//! ```
//!
//! An entry takes the first `shared` bytes of its key from the entry before it. Every so many
//! entries one is a restart: its key is whole, and its offset stands in the array at the end, over
//! which a search bisects. `count` counts restarts, the one left out included. `shared` is the
//! longest possible but at restarts; searches rely on it.

mod compress;
mod cursor;
mod head;
mod read;
mod view;
mod write;

pub(crate) use compress::Compressor;
pub(crate) use cursor::BlockCursor;
pub(crate) use read::{Block, Held};
pub(crate) use view::{Found, Lookup, View};
pub(crate) use write::{BlockWriter, seal};
