//! What the kernel says of persistent-memory devices, read from sysfs.

use std::fs;
use std::path::Path;

use super::Granularity;

/// The granularity of media mapped past the page cache, with a note where it is a guess.
///
/// The caches count as persistent only if every region of the machine says so: which region a mapping comes
/// from is not to be told reliably, and the weaker claim is always right.
pub(super) fn direct_granularity(sys: &Path) -> (Granularity, Option<String>) {
    let domains = persistence_domains(&sys.join("bus/nd/devices"));
    if !domains.is_empty() && domains.iter().all(|d| d == "cpu_cache") {
        return (Granularity::Byte, None);
    }
    let odd = domains.iter().find(|d| *d != "cpu_cache" && *d != "memory_controller");
    let note = match (odd, domains.is_empty()) {
        (Some(odd), _) => Some(format!("the system calls the persistence domain {odd:?}")),
        (None, true) => Some("the system names no persistence domain".to_owned()),
        (None, false) => None,
    };
    (Granularity::CacheLine, note.map(|n| format!("{n}; lines are flushed")))
}

fn persistence_domains(devices: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(devices) else { return Vec::new() };
    entries
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().starts_with("region"))
        .filter_map(|e| fs::read_to_string(e.path().join("persistence_domain")).ok())
        .map(|domain| domain.trim().to_owned())
        .collect()
}

/// Size and alignment in bytes of the device-dax with these numbers; `None` if it is not one.
pub(super) fn devdax_geometry(sys: &Path, major: u32, minor: u32) -> Option<(u64, u64)> {
    let device = sys.join(format!("dev/char/{major}:{minor}"));
    let size = number(&device.join("size"))?;
    let align =
        number(&device.join("align")).or_else(|| number(&device.join("device/align"))).unwrap_or(2 << 20);
    Some((size, align))
}

fn number(path: &Path) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sysfs(domains: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (i, domain) in domains.iter().enumerate() {
            let region = dir.path().join(format!("bus/nd/devices/region{i}"));
            fs::create_dir_all(&region).unwrap();
            fs::write(region.join("persistence_domain"), format!("{domain}\n")).unwrap();
        }
        dir
    }

    #[test]
    fn only_caches_everywhere_are_byte_granular() {
        let found = |domains: &[&str]| direct_granularity(sysfs(domains).path());
        assert_eq!(found(&["cpu_cache"]), (Granularity::Byte, None));
        assert_eq!(found(&["cpu_cache", "memory_controller"]), (Granularity::CacheLine, None));
        assert_eq!(found(&["memory_controller"]), (Granularity::CacheLine, None));
        let (granularity, note) = found(&["unknown"]);
        assert_eq!(granularity, Granularity::CacheLine);
        assert!(note.unwrap().contains("unknown"));
        assert!(found(&[]).1.unwrap().contains("no persistence domain"));
    }

    #[test]
    fn devdax_figures_are_read_in_either_base() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("dev/char/252:3");
        fs::create_dir_all(&device).unwrap();
        assert_eq!(devdax_geometry(dir.path(), 252, 3), None);
        fs::write(device.join("size"), "1073741824\n").unwrap();
        assert_eq!(devdax_geometry(dir.path(), 252, 3), Some((1 << 30, 2 << 20)));
        fs::write(device.join("align"), "0x1000\n").unwrap();
        assert_eq!(devdax_geometry(dir.path(), 252, 3), Some((1 << 30, 4096)));
    }
}
