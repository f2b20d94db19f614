//! Tells one mapping of a file from another within one boot of the machine.
//!
//! Stores of a dead process to an ordinary file are in the system's page cache until they are written back. The same
//! boot id does not prove that they still are: the device may have been taken away, the file system unmounted by force
//! and mounted again, or the file may be a copy, made while somebody was writing. So the pool remembers
//!
//! 1. the file: device number, inode, and when it was made;
//! 2. the device: the number of its node in sysfs, which a device that is plugged in again gets anew;
//! 3. when the file system was mounted: the number of its node in sysfs where it has one, which it gets with each
//!    mount; else the number of the mount, which no other mount of this boot has where the kernel keeps such numbers.
//!    That one differs, too, where the same file system is mounted in a second place.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatxFlags};
use terrace_base::checksum::hash64;

/// `STATX_MNT_ID_UNIQUE`: a number of the mount that is never given again.
const MOUNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// File systems that have a node in sysfs for each mounted device.
const WITH_NODES: [&str; 3] = ["ext4", "xfs", "f2fs"];

/// A hash of the identity of `file`; `in_memory` if its file system keeps it in memory alone.
pub(super) fn of(file: &File, in_memory: bool) -> u64 {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID | MOUNT_ID_UNIQUE;
    let Ok(stat) = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, wanted) else {
        return file.metadata().map_or(0, |meta| hash(&[meta.dev(), meta.ino()]));
    };
    let made = (stat.stx_btime.tv_sec as u64, u64::from(stat.stx_btime.tv_nsec));
    let device = (u64::from(stat.stx_dev_major), u64::from(stat.stx_dev_minor));
    let mut parts = vec![stat.stx_ino, made.0, made.1, device.0, device.1];
    if !in_memory {
        let (sys, number) = (Path::new("/sys"), format!("{}:{}", device.0, device.1));
        parts.push(node(&sys.join("dev/block").join(&number)).unwrap_or(0));
        parts.push(mounted(sys, &number).unwrap_or(stat.stx_mnt_id));
    }
    hash(&parts)
}

/// The hash of a device that is mapped as it is.
pub(super) fn of_device(major: u32, minor: u32) -> u64 {
    let node = node(&Path::new("/sys/dev/char").join(format!("{major}:{minor}")));
    hash(&[u64::from(major), u64::from(minor), node.unwrap_or(0)])
}

/// The number of the node of the file system on a block device.
fn mounted(sys: &Path, number: &str) -> Option<u64> {
    let device: PathBuf = fs::canonicalize(sys.join("dev/block").join(number)).ok()?;
    let name = device.file_name()?;
    WITH_NODES.iter().find_map(|kind| node(&sys.join("fs").join(kind).join(name)))
}

/// The number of a node in sysfs; a node that goes and comes again has another one.
fn node(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|meta| meta.ino())
}

fn hash(parts: &[u64]) -> u64 {
    let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_le_bytes()).collect();
    hash64(&bytes).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_itself_by_every_name_and_a_copy_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let of = |name: &str| of(&File::open(at(name)).unwrap(), false);
        fs::write(at("one"), "same").unwrap();
        let first = of("one");
        assert_ne!(first, 0);
        fs::rename(at("one"), at("two")).unwrap();
        assert_eq!(of("two"), first);
        fs::copy(at("two"), at("three")).unwrap();
        assert_ne!(of("three"), first);
    }

    #[test]
    fn a_file_system_that_is_mounted_again_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let sys = dir.path();
        fs::create_dir_all(sys.join("devices/sda1")).unwrap();
        fs::create_dir_all(sys.join("dev/block")).unwrap();
        std::os::unix::fs::symlink(sys.join("devices/sda1"), sys.join("dev/block/8:1")).unwrap();
        assert_eq!(mounted(sys, "8:1"), None);
        fs::create_dir_all(sys.join("fs/xfs/sda1")).unwrap();
        let first = mounted(sys, "8:1");
        assert!(first.is_some());
        // A node that is removed and made again while another one is made in between.
        fs::rename(sys.join("fs/xfs/sda1"), sys.join("gone")).unwrap();
        fs::create_dir_all(sys.join("fs/xfs/sda1")).unwrap();
        assert!(mounted(sys, "8:1").is_some_and(|again| Some(again) != first));
        assert_eq!(mounted(sys, "8:2"), None);
    }
}
