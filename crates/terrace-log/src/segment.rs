//! The storage of a log.

use std::fmt::Debug;
use std::path::Path;

use terrace_base::Result;
use terrace_disk::WriteFile;

/// A growing run of bytes that can be made durable.
///
/// 1. Bytes are durable once a `sync` after them has returned `Ok`.
/// 2. An `append` that fails for lack of room leaves the segment unchanged and may be tried again.
/// 3. After any other failure the segment refuses appends that it cannot keep.
pub trait Segment: Send + Debug {
    /// Appends all of `data`.
    fn append(&mut self, data: &[u8]) -> Result<()>;

    /// Makes everything appended durable.
    fn sync(&mut self) -> Result<()>;

    /// Has the medium begin with what the next `sync` waits for. An error is told by a later call.
    fn start_sync(&mut self) {}

    /// Gives back the room behind the appended bytes.
    fn trim(&mut self) -> Result<()> {
        Ok(())
    }

    /// Whether there may be room, which reads as zeros, behind the appended bytes.
    fn has_room(&self) -> bool {
        false
    }

    /// Whether appends are copies into a mapping.
    fn is_mapped(&self) -> bool {
        false
    }

    /// Bytes appended.
    fn len(&self) -> u64;

    /// Whether nothing has been appended.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file or pool it lies in.
    fn path(&self) -> &Path;
}

impl<S: Segment + ?Sized> Segment for Box<S> {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        (**self).append(data)
    }

    fn sync(&mut self) -> Result<()> {
        (**self).sync()
    }

    fn start_sync(&mut self) {
        (**self).start_sync();
    }

    fn trim(&mut self) -> Result<()> {
        (**self).trim()
    }

    fn has_room(&self) -> bool {
        (**self).has_room()
    }

    fn is_mapped(&self) -> bool {
        (**self).is_mapped()
    }

    fn len(&self) -> u64 {
        (**self).len()
    }

    fn path(&self) -> &Path {
        (**self).path()
    }
}

/// A segment in a file of its own.
#[derive(Debug)]
pub struct FileSegment(pub Box<dyn WriteFile>);

impl Segment for FileSegment {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.0.append(data)
    }

    fn sync(&mut self) -> Result<()> {
        self.0.sync()
    }

    fn start_sync(&mut self) {
        self.0.start_sync();
    }

    fn trim(&mut self) -> Result<()> {
        self.0.trim()
    }

    fn has_room(&self) -> bool {
        self.0.has_room()
    }

    fn is_mapped(&self) -> bool {
        self.0.is_mapped()
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}
