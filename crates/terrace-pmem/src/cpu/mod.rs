//! The processor's own means to make stores durable, chosen once.

#[cfg(not(target_arch = "x86_64"))]
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(not(target_arch = "x86_64"))]
use portable as imp;
#[cfg(target_arch = "x86_64")]
use x86_64 as imp;

pub(crate) use imp::{copy_stream, fence, flush, order};

/// The instruction that writes a cache line back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushOp {
    /// `clwb`: writes back and may keep the line cached.
    Clwb,
    /// `clflushopt`: writes back and evicts, unordered.
    ClflushOpt,
    /// `clflush`: writes back and evicts, one at a time.
    Clflush,
}

impl FlushOp {
    /// The best instruction this processor has; `None` where there is none that we know.
    pub fn detect() -> Option<FlushOp> {
        imp::detect()
    }

    /// The instruction's name.
    pub fn name(self) -> &'static str {
        match self {
            FlushOp::Clwb => "clwb",
            FlushOp::ClflushOpt => "clflushopt",
            FlushOp::Clflush => "clflush",
        }
    }
}
