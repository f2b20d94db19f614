//! Identifies the page cache that a directory's files are read and written through.
//!
//! It belongs to one boot of the kernel, one device, and one mount of it: a forced unmount, or pulling the device out,
//! discards bytes that were not written back. Some kernels reuse a mount's number. With these, a mount that replaces
//! another within one boot is taken for the same.

use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{AtFlags, CWD, StatxFlags};
use terrace_base::checksum::hash64;

/// A mount's number that is used once (`STATX_MNT_ID_UNIQUE`, Linux 6.8).
const UNIQUE_MOUNT: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The number of the page cache of `dir`; zero if the system does not tell enough.
pub(super) fn of(dir: &Path) -> u64 {
    let Some(boot) = boot() else { return 0 };
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let wanted = StatxFlags::MNT_ID | UNIQUE_MOUNT;
    let Ok(stat) = rustix::fs::statx(CWD, dir, AtFlags::empty(), wanted) else { return 0 };
    let given = stat.stx_mask & wanted.bits();
    let numbers = [boot, u64::from(stat.stx_dev_major), u64::from(stat.stx_dev_minor), u64::from(given)];
    // Without a mount's number only the device is known.
    let mount = if given == 0 { 0 } else { stat.stx_mnt_id };
    let bytes: Vec<u8> = numbers.iter().chain([&mount]).flat_map(|n| n.to_le_bytes()).collect();
    hash64(&bytes).max(1)
}

/// The hash of the boot's id.
fn boot() -> Option<u64> {
    static BOOT: OnceLock<Option<u64>> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        Some(hash64(id.trim().as_bytes()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_one_mount_have_one_and_others_another() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        assert_eq!(of(dir.path()), of(&inner));
        assert_ne!(of(dir.path()), 0);
        assert_ne!(of(Path::new("/proc")), of(dir.path()));
        assert_eq!(of(Path::new("")), of(Path::new(".")));
        assert_eq!(of(&dir.path().join("missing")), 0);
    }
}
