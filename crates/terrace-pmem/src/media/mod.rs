//! The media of pools: real persistent memory, an ordinary file, an emulation, or a simulated world.
//!
//! The contract every medium keeps, and the crash simulator enforces (`docs/persistence.md`):
//!
//! 1. The mapping never moves: `base()` is constant for the life of the medium, growth extends it.
//! 2. `flush` starts the write-back of whole 64-byte lines; only `drain` makes what this thread
//!    flushed durable.
//! 3. At a power cut, of the stores not yet drained any subset may have reached the media, each
//!    aligned 8 bytes atomically; two stores to one line with an `order` of that line between them
//!    arrive in that order.

mod cost;
mod emulated;
mod file;
mod instance;
mod mapping;
mod memory;
mod prefault;
mod probe;
mod profile;
mod room;
mod spin;

use std::fmt::Debug;

use terrace_base::Result;

use crate::cpu::FlushOp;

pub use cost::CostModel;
pub use emulated::EmulatedMedia;
pub use file::FileMedia;
pub use memory::MemMedia;
pub use profile::Profile;

/// Bytes in a CPU cache line, the unit of flushing.
pub const LINE_BYTES: u64 = 64;

/// Bytes in the block that Optane-class media write.
pub const XPLINE_BYTES: u64 = 256;

/// How a store is flushed to be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Granularity {
    /// CPU caches are inside the persistence domain (eADR): a drain orders, nothing need be flushed.
    Byte,
    /// Lines are flushed and drained (ADR).
    CacheLine,
    /// An ordinary file: stores survive the process, only `sync` (msync) survives a power cut.
    Page,
}

impl Granularity {
    /// The granularity in plain words.
    pub fn words(self) -> &'static str {
        match self {
            Granularity::Byte => "flushed by the processor's caches themselves (eADR)",
            Granularity::CacheLine => "flushed by cache line (ADR)",
            Granularity::Page => "flushed by msync only",
        }
    }
}

/// How a pool reaches its medium on the hot path: most media let it use the processor directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// Every flush, drain, order and copy is a call of the medium.
    Dispatch,
    /// Lines are written back by this instruction and drained by a store fence.
    Cpu(FlushOp),
    /// Flushing is needless, a drain is a store fence.
    Fence,
    /// Flushing and draining are needless.
    Nothing,
}

/// A mapped medium. One per pool.
pub trait Media: Send + Sync + Debug {
    /// First byte of the mapping; page-aligned, constant.
    fn base(&self) -> *mut u8;

    /// Bytes usable now.
    fn len(&self) -> u64;

    /// Whether nothing is usable; a pool's medium never is.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes this medium may ever grow to.
    fn capacity(&self) -> u64;

    /// Extends to `len` bytes, durably when it returns; the new bytes read as zero. A medium that is full says so.
    fn grow(&self, len: u64) -> Result<()>;

    /// Whether a pool may give out `bytes` more. Only called if the gate is [`Gate::Dispatch`]; a simulated medium
    /// refuses in order to test its users.
    fn admits(&self, bytes: u64) -> bool {
        let _ = bytes;
        true
    }

    /// How the medium is flushed.
    fn granularity(&self) -> Granularity;

    /// Starts writing back `len` bytes at `offset`; the range need not be aligned.
    fn flush(&self, offset: u64, len: u64);

    /// Waits until everything this thread flushed is durable.
    fn drain(&self);

    /// Orders earlier stores to the line holding `offset` before later stores to that line.
    fn order(&self, offset: u64);

    /// Charges for following a pointer to `len` bytes at `offset`; a no-op on real media.
    fn charge_read(&self, offset: u64, len: u64);

    /// Waits as long as the medium would take for `reads` reads of `blocks` blocks in all that are asked for
    /// together.
    fn charge_reads(&self, _reads: u64, _blocks: u64) {}

    /// When a read of `blocks` blocks that begins now is done, for [`await_read`](Self::await_read).
    fn start_read(&self, _blocks: u64) -> u64 {
        0
    }

    /// Waits for a read that was started.
    fn await_read(&self, _done: u64) {}

    /// Charges for `blocks` blocks that follow those read before.
    fn charge_rest(&self, _blocks: u64) {}

    /// Makes the whole mapping durable by the medium's heaviest means (`msync` on files).
    fn sync(&self) -> Result<()>;

    /// The medium in plain words, for `stat` and messages.
    fn describe(&self) -> String;

    /// How a pool may reach this medium without calling it.
    fn gate(&self) -> Gate {
        Gate::Dispatch
    }

    /// Copies `data` to `offset` and flushes it; a medium may send it past the caches.
    fn copy_flush(&self, offset: u64, data: &[u8]) {
        let len = data.len() as u64;
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len()), "copy past the medium's end");
        // SAFETY: the range lies in the mapping, which never moves; `data` is a shared borrow, so by the
        // contract of the pool's stores it does not overlap the range being written.
        unsafe { self.base().add(offset as usize).copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        self.flush(offset, len);
    }

    /// Like [`sync`](Self::sync) for a range.
    fn sync_range(&self, _offset: u64, _len: u64) -> Result<()> {
        self.sync()
    }

    /// Whether drained stores survive a power cut.
    fn power_safe(&self) -> bool {
        self.granularity() != Granularity::Page
    }

    /// A hash of the identity of the mapped file: which file, on which device, mounted when. If it differs within one
    /// boot of the machine, stores that were not written back are lost. 0 if there is nothing to tell apart.
    fn instance(&self) -> u64 {
        0
    }

    /// The pool was closed: background work on the mapping stops.
    fn closed(&self) {}

    /// A walk is about to mark the object at `offset` as reachable, and holds no lock that a writer waits for. A
    /// simulated medium may let others work here.
    fn marking(&self, _offset: u64) {}
}
