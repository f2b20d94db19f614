//! A file system on emulated persistent memory, in the manner of a DAX one: reads and writes go to the medium at once.
//!
//! Its files lie on tmpfs. A write flushes its lines and drains them before it returns, as those of a DAX file system
//! do; a read waits for its first block of 256 bytes, and an eighth as long for each further one. Both come on top of
//! the cost of the system call.

use std::sync::Arc;

use terrace::Profile;
use terrace_disk::{Fs, MeteredFs, RealFs, Toll};
use terrace_pmem::CostModel;

/// The machine's files, charged by `profile`.
pub fn charged(profile: Profile) -> Arc<dyn Fs> {
    Arc::new(MeteredFs::charging(Arc::new(RealFs), Arc::new(Dax(CostModel::new(profile)))))
}

#[derive(Debug)]
struct Dax(CostModel);

impl Toll for Dax {
    fn read(&self, offset: u64, bytes: u64) {
        self.0.read(offset, bytes);
    }

    fn write(&self, offset: u64, bytes: u64) {
        self.0.flushed(offset, bytes);
        self.0.drain();
    }

    fn sync(&self) {
        self.0.drain();
    }
}
