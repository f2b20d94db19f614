//! The options of a pool.

use crate::media::{Granularity, Profile};

/// The kind of media of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MediaRequest {
    /// Find out.
    #[default]
    Auto,
    /// The caller knows the granularity better than the system says.
    Force(Granularity),
    /// Emulate persistent memory over an ordinary file.
    Emulated(Profile),
}

/// How to create or open a pool.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// Bytes at creation. An existing pool keeps its size.
    pub size: u64,
    /// Bytes it may grow to: this much of the address space is set aside.
    pub max_size: u64,
    /// Unit of allocation, a power of two from 4 KiB to 64 MiB. Fixed at creation.
    pub extent_bytes: u64,
    /// The same for a pool on an ordinary file, if it is to be another there.
    pub extent_bytes_in_file: Option<u64>,
    /// The kind of media of the path.
    pub media: MediaRequest,
    /// Whether to touch the pages in the background ahead of their use, where that helps.
    pub prefault: bool,
    /// Whether to count the 256-byte blocks that Optane-class media would write; about 2 ns a block flushed.
    /// Never counted on `Page` media.
    pub count_xplines: bool,
    /// Whether to open the pool without beginning a session: nothing is stored in it, and the caller stores nothing.
    /// Only for a pool that was closed in order.
    pub read_only: bool,
    /// Whether everything that is stored stays in this process: the file stays as it is, and nobody needs permission to
    /// write it. Others may open it so at the same time. Not for devices, and not for a pool that is to be made.
    pub private: bool,
    /// Whether to open a damaged pool to read its sound parts. Parts that the allocator cannot read count as empty. No
    /// session begins, so the pool must neither be changed nor closed.
    pub salvage: bool,
    /// Replaces the system's boot id (`/proc/sys/kernel/random/boot_id`) and the identity of the mounted file.
    pub boot_id: Option<String>,
    /// The owner's knowledge about the pool. Another pool, or an older one, is then
    /// [`Corruption`](terrace_base::Error::Corruption), and is left as it is.
    pub known: Option<Known>,
}

/// An owner's notes about its pool, kept elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// The pool's identity.
    pub uuid: [u8; 16],
    /// The latest generation that was noted. Every generation that changes the contents and is closed in order is noted
    /// before it is closed.
    pub generation: u64,
    /// Whether that session was closed in order.
    pub closed: bool,
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions {
            size: 256 << 20,
            max_size: 64 << 30,
            extent_bytes: 64 << 10,
            extent_bytes_in_file: None,
            media: MediaRequest::Auto,
            prefault: true,
            count_xplines: true,
            read_only: false,
            private: false,
            salvage: false,
            boot_id: None,
            known: None,
        }
    }
}
