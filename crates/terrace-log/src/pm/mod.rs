//! Logs on persistent memory: the same records as in a file, on a chain of extents.

mod layout;
mod log;
mod segment;

pub use log::PmLog;
pub use segment::PmSegment;
