//! The one error type of Terrace.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The system's numbers for too many open files: in the whole system, and in the process.
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

/// Bytes of a key that a message shows.
const SHOWN_BYTES: usize = 64;

/// The result of every fallible Terrace call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, with where and what.
///
/// Cloning is cheap; a background failure is cloned into every write it refuses.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a file operation.
    #[error("{operation} {}: {cause}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The operation on it, as a verb: `open`, `write`, `sync`.
        operation: &'static str,
        /// The system's own error. This error's message includes it, so it is not a `source`.
        cause: Arc<io::Error>,
    },
    /// Stored bytes are not what was written.
    #[error("corruption in {} at byte {offset}: expected {expected}, found {found}", file.display())]
    Corruption {
        /// The damaged file or pool.
        file: PathBuf,
        /// Byte offset of the damaged structure within it.
        offset: u64,
        /// The contents of a healthy file there.
        expected: String,
        /// The contents found.
        found: String,
    },
    /// The file is of another kind or of a version this build does not read.
    #[error("{}: format {found} is not readable by this build, which reads {supported}", file.display())]
    InvalidFormat {
        /// The file.
        file: PathBuf,
        /// The magic or version found.
        found: String,
        /// The versions that this build reads.
        supported: String,
        /// Whether its own header says, and proves, that another version of this program wrote it.
        is_other_version: bool,
    },
    /// Somebody has the database or pool open.
    #[error("{} is in use by {}", path.display(), holder(*here))]
    Locked {
        /// The lock file or pool.
        path: PathBuf,
        /// Whether this process itself is known to have it open.
        here: bool,
    },
    /// There is no database, and none is to be made.
    #[error("there is no database in {}", dir.display())]
    NotFound {
        /// The directory.
        dir: PathBuf,
    },
    /// There is no keyspace of this name, or it was dropped.
    #[error("there is no keyspace \"{name}\"")]
    NoKeyspace {
        /// The name.
        name: String,
    },
    /// The database was closed through this handle or another one.
    #[error("the database is closed")]
    Closed,
    /// A background failure put the store into read-only service; reads go on.
    #[error("writes are refused after a background failure: {cause}")]
    Poisoned {
        /// The failure.
        cause: Arc<Error>,
    },
    /// The disk is full.
    #[error("no space left for {}", path.display())]
    NoSpace {
        /// The file that could not grow.
        path: PathBuf,
    },
    /// The persistent-memory pool is full and may not grow further.
    #[error("pool {} is full: {requested} bytes do not fit into {size}", path.display())]
    PoolFull {
        /// The pool.
        path: PathBuf,
        /// Bytes asked for.
        requested: u64,
        /// The pool's size limit in bytes.
        size: u64,
    },
    /// It was not closed in order, and that cannot be put right where nothing may be written.
    #[error("{} was not closed in order; only opening it for writing puts that right", path.display())]
    NotClosed {
        /// The pool or the database.
        path: PathBuf,
    },
    /// The store was opened read-only.
    #[error("the store is open read-only")]
    ReadOnly,
    /// What a transaction was to stand on has been changed by another write. Nothing of it took effect; begun
    /// anew, it may succeed.
    #[error("the key \"{}\" was changed by another write: begin the transaction again", shown(key))]
    Conflict {
        /// A key that was changed.
        key: Vec<u8>,
    },
    /// An argument is outside its documented range.
    #[error("invalid argument: {0}")]
    InvalidArgument(String),
    /// A merge operator failed. Nothing of the merge took effect, nor of the batch that it was in.
    #[error("operator \"{operator}\" cannot merge into the key \"{}\": {cause}", shown(key))]
    MergeFailed {
        /// The operator's name.
        operator: String,
        /// The key whose value was to be merged.
        key: Vec<u8>,
        /// What it said, or what it panicked with.
        cause: String,
    },
    /// The engine cannot do this by design.
    #[error("engine {engine} does not support {operation}")]
    Unsupported {
        /// The engine's name.
        engine: &'static str,
        /// The operation asked for.
        operation: &'static str,
    },
}

/// The kind of an [`Error`], for matching without its details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// See [`Error::Io`].
    Io,
    /// See [`Error::Corruption`].
    Corruption,
    /// See [`Error::InvalidFormat`].
    InvalidFormat,
    /// See [`Error::Locked`].
    Locked,
    /// See [`Error::NotFound`].
    NotFound,
    /// See [`Error::NoKeyspace`].
    NoKeyspace,
    /// See [`Error::Closed`].
    Closed,
    /// See [`Error::Poisoned`].
    Poisoned,
    /// See [`Error::NoSpace`].
    NoSpace,
    /// See [`Error::PoolFull`].
    PoolFull,
    /// See [`Error::NotClosed`].
    NotClosed,
    /// See [`Error::ReadOnly`].
    ReadOnly,
    /// See [`Error::Conflict`].
    Conflict,
    /// See [`Error::InvalidArgument`].
    InvalidArgument,
    /// See [`Error::MergeFailed`].
    MergeFailed,
    /// See [`Error::Unsupported`].
    Unsupported,
}

impl Error {
    /// The error's kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Io { .. } => ErrorKind::Io,
            Error::Corruption { .. } => ErrorKind::Corruption,
            Error::InvalidFormat { .. } => ErrorKind::InvalidFormat,
            Error::Locked { .. } => ErrorKind::Locked,
            Error::NotFound { .. } => ErrorKind::NotFound,
            Error::Closed => ErrorKind::Closed,
            Error::Poisoned { .. } => ErrorKind::Poisoned,
            Error::NoSpace { .. } => ErrorKind::NoSpace,
            Error::PoolFull { .. } => ErrorKind::PoolFull,
            Error::NotClosed { .. } => ErrorKind::NotClosed,
            Error::ReadOnly => ErrorKind::ReadOnly,
            Error::NoKeyspace { .. } => ErrorKind::NoKeyspace,
            Error::Conflict { .. } => ErrorKind::Conflict,
            Error::InvalidArgument(_) => ErrorKind::InvalidArgument,
            Error::MergeFailed { .. } => ErrorKind::MergeFailed,
            Error::Unsupported { .. } => ErrorKind::Unsupported,
        }
    }

    /// Whether the same call may succeed later with nothing changed but time, free space and files that
    /// others have open; after a conflict, the same transaction, begun anew.
    pub fn is_retryable(&self) -> bool {
        use ErrorKind::{Conflict, Locked, NoSpace, PoolFull};
        matches!(self.kind(), NoSpace | PoolFull | Locked | Conflict) || self.is_out_of_descriptors()
    }

    /// Whether the system has failed to do what was asked of it: that says nothing of what a file holds.
    pub fn is_system_failure(&self) -> bool {
        matches!(self.kind(), ErrorKind::Io | ErrorKind::NoSpace)
    }

    /// Whether another version of this program wrote what is there: it is sound, and not to be touched.
    pub fn is_of_another_version(&self) -> bool {
        matches!(self, Error::InvalidFormat { is_other_version: true, .. })
    }

    /// Whether the pool or the disk has no room. Nothing has been lost, and there may be room later.
    pub fn is_out_of_space(&self) -> bool {
        matches!(self.kind(), ErrorKind::NoSpace | ErrorKind::PoolFull)
    }

    /// Whether this process, or the system, has as many files open as it may.
    pub fn is_out_of_descriptors(&self) -> bool {
        let code = match self {
            Error::Io { cause, .. } => cause.raw_os_error(),
            _ => None,
        };
        matches!(code, Some(ENFILE | EMFILE))
    }

    /// The error about a file of another kind.
    pub fn foreign(file: &Path, found: impl Into<String>, supported: impl Into<String>) -> Self {
        let (file, found, supported) = (file.to_path_buf(), found.into(), supported.into());
        Error::InvalidFormat { file, found, supported, is_other_version: false }
    }

    /// The error about a sound file, or a sound part of one, that another version of this program wrote.
    pub fn other_version(file: &Path, found: impl Into<String>, supported: impl Into<String>) -> Self {
        let (file, found, supported) = (file.to_path_buf(), found.into(), supported.into());
        Error::InvalidFormat { file, found, supported, is_other_version: true }
    }

    /// Wraps a system error; a full disk becomes [`Error::NoSpace`].
    pub fn io(path: &Path, operation: &'static str, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Error::NoSpace { path: path.to_path_buf() }
            }
            _ => Error::Io { path: path.to_path_buf(), operation, cause: Arc::new(source) },
        }
    }

    /// The error for the file `path`, whose lock another process holds.
    pub fn locked(path: &Path) -> Self {
        Error::Locked { path: path.to_path_buf(), here: false }
    }

    /// A [`Error::Corruption`] at `offset` of `file`.
    pub fn corruption(
        file: &Path,
        offset: u64,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Error::Corruption { file: file.to_path_buf(), offset, expected: expected.into(), found: found.into() }
    }

    /// An [`Error::InvalidArgument`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Error::InvalidArgument(message.into())
    }
}

/// At most [`SHOWN_BYTES`] of `key`, readable.
fn shown(key: &[u8]) -> String {
    let head = key[..key.len().min(SHOWN_BYTES)].escape_ascii();
    if key.len() > SHOWN_BYTES { format!("{head}..") } else { head.to_string() }
}

/// Who has a database or pool open, and what is to be done about it.
fn holder(here: bool) -> &'static str {
    match here {
        true => "this process; close it there first, and drop its handles, snapshots and iterators",
        false => "another process; close it there first",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_no_space_and_retryable() {
        let e = Error::io(Path::new("/x"), "write", io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(e.kind(), ErrorKind::NoSpace);
        assert!(e.is_retryable());
    }

    #[test]
    fn too_many_open_files_are_retryable() {
        for code in [ENFILE, EMFILE] {
            let e = Error::io(Path::new("/x"), "open", io::Error::from_raw_os_error(code));
            assert!(e.is_out_of_descriptors() && e.is_retryable());
            assert!(e.to_string().starts_with("open /x: Too many open files"), "{e}");
        }
        assert!(!Error::io(Path::new("/x"), "open", io::Error::from_raw_os_error(5)).is_retryable());
    }

    #[test]
    fn a_cause_is_told_once() {
        let e = Error::io(Path::new("/x"), "open", io::Error::from(io::ErrorKind::PermissionDenied));
        assert_eq!(e.to_string(), "open /x: permission denied");
        assert!(std::error::Error::source(&e).is_none(), "printing the chain would print it again");
    }

    #[test]
    fn a_lock_tells_this_process_from_another() {
        let e = Error::Locked { path: "/x".into(), here: true };
        assert_eq!(
            e.to_string(),
            "/x is in use by this process; close it there first, and drop its handles, snapshots and iterators"
        );
        assert_eq!(
            Error::locked(Path::new("/x")).to_string(),
            "/x is in use by another process; close it there first"
        );
    }

    #[test]
    fn a_conflict_is_retryable_and_shows_the_key() {
        let e = Error::Conflict { key: b"a\xff".to_vec() };
        assert!(e.is_retryable() && !e.is_out_of_space());
        assert!(e.to_string().contains(r#"the key "a\xff" was changed"#), "{e}");
        let long = Error::Conflict { key: vec![b'k'; 1000] };
        assert!(long.to_string().len() < 200);
    }

    #[test]
    fn messages_name_file_and_offset() {
        let e = Error::corruption(Path::new("a.sst"), 17, "crc 1", "crc 2");
        assert_eq!(e.to_string(), "corruption in a.sst at byte 17: expected crc 1, found crc 2");
        assert!(!e.is_retryable());
    }
}
