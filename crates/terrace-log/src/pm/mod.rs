//! Logs on persistent memory: the same records as in a file, on a chain of extents.

mod layout;
mod log;
mod segment;
mod set;

pub use log::PmLog;
pub use segment::PmSegment;
pub use set::{LogPlaces, LogSet, MAX_SET_LOGS, SetKinds, SetWords};
