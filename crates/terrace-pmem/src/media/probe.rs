//! The kernel's information about persistent-memory devices, read from sysfs.

use std::fs;
use std::path::{Path, PathBuf};

use super::Granularity;

/// The granularity of media mapped past the page cache, with a note where it is a guess.
///
/// The caches count as persistent only if every region of the machine says so: the region of a mapping cannot be found
/// reliably, and the weaker claim is always right.
pub(super) fn direct_granularity(sys: &Path) -> (Granularity, Option<String>) {
    let domains = persistence_domains(&sys.join("bus/nd/devices"));
    let is = |name: &'static str| move |domain: &Option<String>| domain.as_deref() == Some(name);
    if !domains.is_empty() && domains.iter().all(is("cpu_cache")) {
        return (Granularity::Byte, None);
    }
    let odd = domains.iter().find(|d| !is("cpu_cache")(d) && !is("memory_controller")(d));
    let note = match (odd, domains.is_empty()) {
        (Some(Some(odd)), _) => Some(format!("the system calls the persistence domain {odd:?}")),
        (Some(None), _) | (None, true) => Some("the system names no persistence domain".to_owned()),
        (None, false) => None,
    };
    (Granularity::CacheLine, note.map(|n| format!("{n}; lines are flushed")))
}

/// The domain that each region reports; `None` for one that reports nothing.
fn persistence_domains(devices: &Path) -> Vec<Option<String>> {
    let Ok(entries) = fs::read_dir(devices) else { return Vec::new() };
    entries
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().starts_with("region"))
        .map(|e| fs::read_to_string(e.path().join("persistence_domain")).ok())
        .map(|domain| domain.map(|d| d.trim().to_owned()).filter(|d| !d.is_empty()))
        .collect()
}

/// The granularity of the device-dax with these numbers.
///
/// Not every such device is persistent: the system makes them of volatile memory too, and of virtio-pmem, whose host
/// writes back when it is asked by other means than instructions. Both map like an NVDIMM, so the origin of the device
/// is looked up. If it is not an NVDIMM region, drained stores do not count as durable.
pub(super) fn devdax_granularity(sys: &Path, major: u32, minor: u32) -> (Granularity, Option<String>) {
    let device = fs::canonicalize(sys.join(format!("dev/char/{major}:{minor}")));
    let bus = device.ok().and_then(|device| bus_above_region(&device));
    match bus {
        None => (
            Granularity::Page,
            Some("no NVDIMM is behind this device; its memory may be volatile".to_owned()),
        ),
        Some(bus) => match fs::read_to_string(bus.join("provider")) {
            Ok(provider) if provider.trim() == "virtio-pmem" => {
                (Granularity::Page, Some("virtio-pmem is not made durable by flushing lines".to_owned()))
            }
            _ => direct_granularity(sys),
        },
    }
}

/// The NVDIMM bus (`ndbusN`) that a device hangs on, by way of a region (`regionN`).
fn bus_above_region(device: &Path) -> Option<PathBuf> {
    let named = |path: &Path, prefix: &str| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
    };
    let region = device.ancestors().find(|path| named(path, "region"))?;
    region.parent().filter(|bus| named(bus, "ndbus")).map(Path::to_path_buf)
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
    fn a_region_that_names_no_domain_is_not_passed_over() {
        let dir = sysfs(&["cpu_cache"]);
        fs::create_dir_all(dir.path().join("bus/nd/devices/region1")).unwrap();
        let (granularity, note) = direct_granularity(dir.path());
        assert_eq!(granularity, Granularity::CacheLine);
        assert!(note.unwrap().contains("no persistence domain"));
    }

    #[test]
    fn a_devdax_is_persistent_if_an_nvdimm_is_behind_it() {
        let dir = sysfs(&["cpu_cache"]);
        let found = |behind: &str, provider: &str| {
            let device = dir.path().join("devices").join(behind).join("dax0.0");
            fs::create_dir_all(&device).unwrap();
            for bus in device.ancestors().filter(|p| p.file_name().is_some_and(|n| n == "ndbus0")) {
                fs::write(bus.join("provider"), format!("{provider}\n")).unwrap();
            }
            let link = dir.path().join("dev/char/252:3");
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(&device, &link).unwrap();
            devdax_granularity(dir.path(), 252, 3)
        };
        assert_eq!(found("acpi/ndbus0/region0/dax0.1", "ACPI.NFIT"), (Granularity::Byte, None));
        let (granularity, note) = found("pci/virtio1/ndbus0/region0/dax0.1", "virtio-pmem");
        assert_eq!(granularity, Granularity::Page);
        assert!(note.unwrap().contains("virtio-pmem"));
        let (granularity, note) = found("platform/hmem.0", "");
        assert_eq!(granularity, Granularity::Page);
        assert!(note.unwrap().contains("volatile"));
        // Nothing is known about the device.
        assert_eq!(devdax_granularity(dir.path(), 252, 4).0, Granularity::Page);
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
