//! The file-system trait: the operations that Terrace needs, and what a disk may do at a power cut.
//!
//! The contract, which the simulated file system enforces to the letter:
//!
//! 1. Bytes appended or written are durable only after `sync` of that file. Before it, any part of
//!    them may survive, in any order, torn anywhere.
//! 2. A file's name (creation, removal, rename) is durable only after `sync_dir` of its directory.
//!    Before it, each such change may or may not survive, whatever became of those before it. Two changes
//!    of one name keep their order.
//! 3. `rename` replaces its target atomically.
//! 4. After a failed `sync` nothing may be assumed about the bytes that it covered, and the file refuses every later
//!    `append` and `sync` with the same error: a second `fsync` that succeeds after a failed one proves nothing. Even a
//!    reader may not find bytes that were not synced: the system may have dropped them.
//! 5. After a failed `append` the file is as it was before, or refuses every later `append` with the
//!    same error. `NoSpace` is always the former: the append may be tried again.
//! 6. A reader sees the file as it was when it was opened, for as long as it is held, whatever is appended, renamed or
//!    removed meanwhile; of a file with room (7) so far as it had been appended to. So does a [`Mapping`], which is
//!    held apart from the reader. Parts that the system cannot read are zeros, and the mapping reports that it has
//!    failed.
//! 7. A file that was created with room ([`Fs::create_reserved`]) may be longer than what was appended to it: zeros
//!    follow. Its length is then a multiple of [`ROOM_UNIT_BYTES`]; after a `cut` it is none, so that zeros at the end
//!    of such a file are not taken for room. Its length is durable after the next `sync`; before that, any length that
//!    it had may survive. A process that dies within an append leaves the first part of that, of whatever length, and
//!    zeros behind it.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_base::{Error, Result};

use crate::block::BlockFile;
use crate::forward_fs;
use crate::maps::Mapping;

/// A file with room is a multiple of so many bytes long.
pub const ROOM_UNIT_BYTES: u64 = 4096;

/// How a file's reads go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Through the page cache, with read-ahead turned off.
    Random,
    /// Through the page cache, with read-ahead.
    Sequential,
    /// Past the page cache (`O_DIRECT`) where the file system allows it, else as `Random`.
    Direct,
}

/// Syncs of a file that is written by calls before it has room.
pub(crate) const SYNCS_BEFORE_ROOM: u32 = 2;

/// How a file with room is appended to. It changes the costs, and not the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Through a mapping: an append is a copy, which suits many small ones. A long file that is synced may be written by
    /// calls from then on.
    Mapped,
    /// By calls of the system. A sync of bytes that fill room is cheaper than one of bytes that make the file longer,
    /// for which the system writes the inode, too. So room is made once a file has been synced again and again.
    Called,
}

/// A directory tree of files.
pub trait Fs: Send + Sync + Debug {
    /// Creates `path` for appending; an existing file is an error.
    fn create(&self, path: &Path) -> Result<Box<dyn WriteFile>>;

    /// Creates `path` as [`create`](Self::create) does, for many appends or syncs: with `room` behind what is appended,
    /// where that makes them cheaper. The file system chooses how much room there is. One that has no such files makes
    /// a plain one.
    fn create_reserved(&self, path: &Path, _room: Room) -> Result<Box<dyn WriteFile>> {
        self.create(path)
    }

    /// Opens the file of sectors `path`. If it `is_new`, creates it first; then an existing file is an error. Opening
    /// an existing file does not change it.
    fn open_blocks(&self, path: &Path, is_new: bool) -> Result<Arc<dyn BlockFile>>;

    /// Opens `path` for reading.
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn ReadFile>>;

    /// Reads all of `path`.
    fn read(&self, path: &Path) -> Result<Vec<u8>> {
        let file = self.open(path, Access::Sequential)?;
        let mut data = vec![0; file.len() as usize];
        file.read_at(0, &mut data)?;
        Ok(data)
    }

    /// Renames `from` to `to`, replacing it.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Gives the file `from` the additional name `to`, which must be free. A file system without such links refuses.
    fn link(&self, from: &Path, _to: &Path) -> Result<()> {
        Err(Error::io(from, "link", std::io::ErrorKind::Unsupported.into()))
    }

    /// Removes the file `path`.
    fn remove(&self, path: &Path) -> Result<()>;

    /// Makes the bytes of the file `path` durable, no matter which process wrote them: a process that died may have
    /// left bytes that everyone can read but a power cut would still take. A file system without this call refuses.
    fn sync_file(&self, path: &Path) -> Result<()> {
        Err(Error::io(path, "sync", std::io::ErrorKind::Unsupported.into()))
    }

    /// Makes the names in directory `path` durable.
    fn sync_dir(&self, path: &Path) -> Result<()>;

    /// The files of directory `path`, by full path, sorted.
    fn list(&self, path: &Path) -> Result<Vec<PathBuf>>;

    /// Whether `path` names a file or directory.
    fn exists(&self, path: &Path) -> Result<bool>;

    /// Creates directory `path` and its parents, durably.
    fn create_dir_all(&self, path: &Path) -> Result<()>;

    /// Removes directory `path`, which is empty. A file system without this call refuses.
    fn remove_dir(&self, path: &Path) -> Result<()> {
        Err(Error::io(path, "remove directory", std::io::ErrorKind::Unsupported.into()))
    }

    /// Locks `path` against other processes, creating it; `Error::Locked` if one holds it. Dropping the guard unlocks.
    /// The holder of the lock may remove the file.
    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>>;

    /// Locks `path` for a process that only reads. Several such locks may be held together, but none beside a
    /// [`lock`](Self::lock). That needs no permission to write. `None` if the file is not there and the file system
    /// cannot be written to: then nobody changes anything through it. A file system without such locks takes the other
    /// one.
    fn lock_to_read(&self, path: &Path) -> Result<Option<Box<dyn FileLock>>> {
        self.lock(path).map(Some)
    }

    /// Bytes free to this user where `path` lies.
    fn free_bytes(&self, path: &Path) -> Result<u64>;

    /// A number of the page cache through which files of the directory `dir` are read and written. As long as it stays
    /// the same, written bytes are read back, synced or not; after a power cut, or a mount, it is another. Zero if it
    /// is not known.
    fn epoch(&self, dir: &Path) -> u64 {
        let _ = dir;
        0
    }

    /// Bytes of memory that are available for data read from files, the page cache included, within all bounds that are
    /// set for this process. `None` if that is not known.
    fn available_memory(&self) -> Option<u64> {
        None
    }

    /// Bytes of memory that this process takes, as the system counts them: what is mapped of pools and tables included,
    /// as far as it is in memory. `None` where that is not known.
    fn resident_memory(&self) -> Option<u64> {
        None
    }
}

/// An `Arc` of a file system is one.
impl<F: Fs + ?Sized> Fs for Arc<F> {
    forward_fs! { self, (**self);
        create create_reserved open_blocks open read rename link remove sync_file sync_dir list exists create_dir_all
        remove_dir lock lock_to_read free_bytes epoch available_memory resident_memory
    }
}

/// A held lock.
pub trait FileLock: Send + Sync + Debug {}

/// A file being appended to.
pub trait WriteFile: Send + Debug {
    /// Appends all of `data`.
    fn append(&mut self, data: &[u8]) -> Result<()>;

    /// Makes everything appended durable (`fdatasync`).
    fn sync(&mut self) -> Result<()>;

    /// Has the system begin to write what was appended to the medium, so that the next `sync` has less to wait for. It is
    /// no `sync`: nothing is durable by it, and an error is told by a later call.
    fn start_sync(&mut self) {}

    /// Takes back the bytes that were appended behind byte `len`, after a failure too: a reader that opens the file
    /// later does not find them. After a power cut they may be there again until a later `sync` has succeeded. A file
    /// that had room keeps at most one byte of it, a zero: it is kept where the file's length would otherwise suggest
    /// that it still has room.
    fn cut(&mut self, len: u64) -> Result<()>;

    /// Gives back the room behind the appended bytes. Later appends make the file longer.
    fn trim(&mut self) -> Result<()> {
        Ok(())
    }

    /// Whether there may be room behind the appended bytes.
    fn has_room(&self) -> bool {
        false
    }

    /// Whether appends are copies into a mapping.
    fn is_mapped(&self) -> bool {
        false
    }

    /// Bytes appended so far, including what the file held when opened.
    fn len(&self) -> u64;

    /// Whether nothing has been appended.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file's path.
    fn path(&self) -> &Path;
}

/// An immutable file being read.
pub trait ReadFile: Send + Sync + Debug {
    /// Fills `buf` from byte `offset`; reading past the end is `Error::Corruption`.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Fills each buffer from its offset, all submitted together where the system can.
    fn read_many(&self, reads: &mut [(u64, &mut [u8])]) -> Result<()> {
        reads.iter_mut().try_for_each(|(offset, buf)| self.read_at(*offset, buf))
    }

    /// Asks the system to read `len` bytes from `offset` on soon, and does not wait. Nothing is said of success.
    fn will_need(&self, _offset: u64, _len: u64) {}

    /// All of the file, to be read without system calls; `None` if that is not possible, for any reason.
    fn map(&self) -> Option<Mapping> {
        None
    }

    /// The same file, to be read past the page cache where the file system allows that; `None` for one that is read in
    /// only one way.
    fn past_cache(&self) -> Result<Option<Arc<dyn ReadFile>>> {
        Ok(None)
    }

    /// The file's length in bytes.
    fn len(&self) -> u64;

    /// Whether the file holds nothing.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file's path.
    fn path(&self) -> &Path;
}
