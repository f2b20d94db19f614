//! Memory that is available for data read from files, according to the system and to the control groups of this
//! process, and the memory and addresses that this process takes. Only this module asks for them.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes that data read from files may take; the page cache can be given up for it, so it counts as free.
pub(super) fn available() -> Option<u64> {
    let system = fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_meminfo(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").ok().map(|text| of_groups(&text, &groups_at));
    system.into_iter().chain(groups.flatten()).min()
}

/// Bytes of memory that this process takes.
pub(super) fn resident() -> Option<u64> {
    line_of(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

/// Bytes of addresses that this process has taken.
pub(super) fn addresses() -> Option<u64> {
    line_of(&fs::read_to_string("/proc/self/status").ok()?, "VmSize:")
}

/// The available bytes according to `/proc/meminfo`.
fn of_meminfo(text: &str) -> Option<u64> {
    line_of(text, "MemAvailable:")
}

/// The bytes in the line that begins with `name`, which tells them in KiB.
fn line_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1 << 10)
}

/// Names of the memory files of one version of control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A group's bound and use in bytes, and how much of its use is pages of files.
#[derive(Debug, Clone, Copy)]
struct Group {
    most: u64,
    used: u64,
    files: u64,
}

/// The least of the bytes that are left in the groups that `/proc/self/cgroup` names and in those above them.
fn of_groups(text: &str, look: &dyn Fn(Version, &Path) -> Option<Group>) -> Option<u64> {
    let of_memory = text.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let version = match (number, controllers) {
            ("0", "") => Version::Two,
            (_, names) if names.split(',').any(|name| name == "memory") => Version::One,
            _ => return None,
        };
        Some((version, Path::new(path).to_path_buf()))
    });
    let left = of_memory.flat_map(|(version, path)| {
        let above: Vec<PathBuf> = path.ancestors().map(Path::to_path_buf).collect();
        above.into_iter().filter_map(move |path| look(version, &path))
    });
    left.map(|group| group.most.saturating_sub(group.used.saturating_sub(group.files))).min()
}

/// The figures of the group at `path`, where it has a bound.
fn groups_at(version: Version, path: &Path) -> Option<Group> {
    let below = path.strip_prefix("/").unwrap_or(path);
    let (roots, most, used): (&[&str], _, _) = match version {
        Version::One => (&["/sys/fs/cgroup/memory"], "memory.limit_in_bytes", "memory.usage_in_bytes"),
        Version::Two => (&["/sys/fs/cgroup", "/sys/fs/cgroup/unified"], "memory.max", "memory.current"),
    };
    roots.iter().find_map(|root| {
        let dir = Path::new(root).join(below);
        let number = |name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok();
        let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        Some(Group { most: number(most)?, used: number(used)?, files: files_in(version, &stat) })
    })
}

/// Pages of files that a group holds and can give up.
fn files_in(version: Version, stat: &str) -> u64 {
    let names = match version {
        Version::One => ["total_inactive_file", "total_active_file"],
        Version::Two => ["inactive_file", "active_file"],
    };
    let figure = |name: &str| {
        let lines = stat.lines().filter_map(|line| line.split_once(' '));
        lines
            .filter(|(key, _)| *key == name)
            .filter_map(|(_, value)| value.trim().parse::<u64>().ok())
            .sum::<u64>()
    };
    names.into_iter().map(figure).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_read() {
        let text = "MemTotal:       24683852 kB\nMemFree: 1 kB\nMemAvailable:   22478000 kB\n";
        assert_eq!(of_meminfo(text), Some(22_478_000 << 10));
        assert_eq!(of_meminfo("MemFree: 1 kB\n"), None);
        assert_eq!(of_meminfo("MemAvailable: many kB\n"), None);
    }

    #[test]
    fn the_least_of_all_groups_counts_and_pages_of_files_are_free() {
        let look = |version: Version, path: &Path| match (version, path.to_str()?) {
            (Version::One, "/a/b") => Some(Group { most: 1000, used: 900, files: 500 }),
            (Version::One, "/a") => Some(Group { most: 550, used: 100, files: 0 }),
            (Version::Two, "/c") => Some(Group { most: 700, used: 900, files: 100 }),
            _ => None,
        };
        assert_eq!(of_groups("4:memory:/a/b\n3:cpu:/c\n", &look), Some(450));
        assert_eq!(of_groups("4:cpu,memory:/a/b\n0::/c\n", &look), Some(0));
        assert_eq!(of_groups("1:cpu:/a\n", &look), None);
        assert_eq!(of_groups("", &look), None);
        let stat = "cache 5\ninactive_file 7\nactive_file 8\ntotal_inactive_file 70\ntotal_active_file 80\n";
        assert_eq!((files_in(Version::One, stat), files_in(Version::Two, stat)), (150, 15));
    }

    #[test]
    fn this_machine_says_something() {
        assert!(available().is_some_and(|bytes| bytes > 0));
        assert!(resident().is_some_and(|bytes| bytes > 1 << 18));
        assert!(addresses() > resident());
    }
}
