//! Files: the [`Fs`] trait that all of Terrace reads and writes the SSD through.

pub mod fs;

pub use fs::{Access, FileLock, Fs, ReadFile, WriteFile};
