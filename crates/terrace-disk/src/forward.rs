//! File systems over others.

/// Methods of [`Fs`](crate::Fs), by their names, that a file system over another one passes on to that one.
///
/// ```
/// use std::path::Path;
/// use std::sync::Arc;
/// use terrace_base::Result;
/// use terrace_disk::{Fs, SimFs, forward_fs};
///
/// /// A disk that is always full.
/// #[derive(Debug)]
/// struct Full(SimFs);
///
/// impl Fs for Full {
///     forward_fs! { self, self.0;
///         create open_blocks open rename remove sync_dir list exists create_dir_all lock
///     }
///
///     fn free_bytes(&self, _: &Path) -> Result<u64> {
///         Ok(0)
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward_fs {
    (@ create $self:ident, $inner:expr) => {
        fn create(&$self, path: &::std::path::Path) -> ::terrace_base::Result<Box<dyn $crate::WriteFile>> {
            $inner.create(path)
        }
    };
    (@ create_reserved $self:ident, $inner:expr) => {
        fn create_reserved(
            &$self,
            path: &::std::path::Path,
            room: $crate::Room,
        ) -> ::terrace_base::Result<Box<dyn $crate::WriteFile>> {
            $inner.create_reserved(path, room)
        }
    };
    (@ open_blocks $self:ident, $inner:expr) => {
        fn open_blocks(
            &$self,
            path: &::std::path::Path,
            is_new: bool,
        ) -> ::terrace_base::Result<::std::sync::Arc<dyn $crate::BlockFile>> {
            $inner.open_blocks(path, is_new)
        }
    };
    (@ open $self:ident, $inner:expr) => {
        fn open(
            &$self,
            path: &::std::path::Path,
            access: $crate::Access,
        ) -> ::terrace_base::Result<::std::sync::Arc<dyn $crate::ReadFile>> {
            $inner.open(path, access)
        }
    };
    (@ read $self:ident, $inner:expr) => {
        fn read(&$self, path: &::std::path::Path) -> ::terrace_base::Result<Vec<u8>> {
            $inner.read(path)
        }
    };
    (@ rename $self:ident, $inner:expr) => {
        fn rename(&$self, from: &::std::path::Path, to: &::std::path::Path) -> ::terrace_base::Result<()> {
            $inner.rename(from, to)
        }
    };
    (@ link $self:ident, $inner:expr) => {
        fn link(&$self, from: &::std::path::Path, to: &::std::path::Path) -> ::terrace_base::Result<()> {
            $inner.link(from, to)
        }
    };
    (@ remove $self:ident, $inner:expr) => {
        fn remove(&$self, path: &::std::path::Path) -> ::terrace_base::Result<()> {
            $inner.remove(path)
        }
    };
    (@ sync_file $self:ident, $inner:expr) => {
        fn sync_file(&$self, path: &::std::path::Path) -> ::terrace_base::Result<()> {
            $inner.sync_file(path)
        }
    };
    (@ sync_dir $self:ident, $inner:expr) => {
        fn sync_dir(&$self, path: &::std::path::Path) -> ::terrace_base::Result<()> {
            $inner.sync_dir(path)
        }
    };
    (@ list $self:ident, $inner:expr) => {
        fn list(&$self, path: &::std::path::Path) -> ::terrace_base::Result<Vec<::std::path::PathBuf>> {
            $inner.list(path)
        }
    };
    (@ exists $self:ident, $inner:expr) => {
        fn exists(&$self, path: &::std::path::Path) -> ::terrace_base::Result<bool> {
            $inner.exists(path)
        }
    };
    (@ create_dir_all $self:ident, $inner:expr) => {
        fn create_dir_all(&$self, path: &::std::path::Path) -> ::terrace_base::Result<()> {
            $inner.create_dir_all(path)
        }
    };
    (@ remove_dir $self:ident, $inner:expr) => {
        fn remove_dir(&$self, path: &::std::path::Path) -> ::terrace_base::Result<()> {
            $inner.remove_dir(path)
        }
    };
    (@ lock $self:ident, $inner:expr) => {
        fn lock(&$self, path: &::std::path::Path) -> ::terrace_base::Result<Box<dyn $crate::FileLock>> {
            $inner.lock(path)
        }
    };
    (@ lock_to_read $self:ident, $inner:expr) => {
        fn lock_to_read(
            &$self,
            path: &::std::path::Path,
        ) -> ::terrace_base::Result<Option<Box<dyn $crate::FileLock>>> {
            $inner.lock_to_read(path)
        }
    };
    (@ free_bytes $self:ident, $inner:expr) => {
        fn free_bytes(&$self, path: &::std::path::Path) -> ::terrace_base::Result<u64> {
            $inner.free_bytes(path)
        }
    };
    (@ epoch $self:ident, $inner:expr) => {
        fn epoch(&$self, dir: &::std::path::Path) -> u64 {
            $inner.epoch(dir)
        }
    };
    (@ available_memory $self:ident, $inner:expr) => {
        fn available_memory(&$self) -> Option<u64> {
            $inner.available_memory()
        }
    };
    (@ resident_memory $self:ident, $inner:expr) => {
        fn resident_memory(&$self) -> Option<u64> {
            $inner.resident_memory()
        }
    };
    ($self:ident, $inner:expr; $($method:ident)+) => {
        $($crate::forward_fs!(@ $method $self, $inner);)+
    };
}
