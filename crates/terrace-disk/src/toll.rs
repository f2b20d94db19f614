//! What reads and writes cost on a medium that a file system stands for.

use std::fmt::Debug;

/// Charges for what [`MeteredFs`](crate::MeteredFs) has done, by making the thread wait that asked for it.
pub trait Toll: Send + Sync + Debug {
    /// So many bytes were read from `offset` of a file on.
    fn read(&self, offset: u64, bytes: u64);

    /// So many bytes were written to `offset` of a file.
    fn write(&self, offset: u64, bytes: u64);

    /// What was written to a file was made durable.
    fn sync(&self);
}
