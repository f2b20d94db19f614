//! The cost of reads and writes on a medium that a file system stands for.

use std::fmt::Debug;

/// Charges for operations of [`MeteredFs`](crate::MeteredFs) by making the calling thread wait.
pub trait Toll: Send + Sync + Debug {
    /// So many bytes were read from `offset` of a file on.
    fn read(&self, offset: u64, bytes: u64);

    /// So many bytes were written to `offset` of a file.
    fn write(&self, offset: u64, bytes: u64);

    /// Writes to a file were made durable.
    fn sync(&self);
}
