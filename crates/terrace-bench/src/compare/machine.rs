//! Linux's figures about a process, a device and the machine, and its bounds of memory.
//!
//! Everything here may be missing or forbidden: then it is `None` or zero, and the report says so.

use std::fs;
use std::io;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The counters of a process since its start, and those of the block device below a directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Seconds of processor time, all threads.
    pub cpu_seconds: f64,
    /// Bytes that the process caused to be read from block devices.
    pub read_bytes: u64,
    /// Bytes that it caused to be written to them: pages dirtied, less those thrown away before they were written.
    pub written_bytes: u64,
    /// Bytes that the device read, for any process.
    pub device_read_bytes: Option<u64>,
    /// Bytes that the device wrote, for any process.
    pub device_written_bytes: Option<u64>,
}

impl Counters {
    /// The counters of this process and of the device at `block`.
    pub fn now(block: Option<&Path>) -> Counters {
        let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
        let field = |name: &str| field(&io, name).unwrap_or(0);
        let device = block.and_then(|path| fs::read_to_string(path).ok());
        let sectors = |column: usize| {
            let words = device.as_ref()?.split_ascii_whitespace().nth(column)?;
            Some(words.parse::<u64>().ok()? * 512)
        };
        Counters {
            cpu_seconds: cpu_seconds(&fs::read_to_string("/proc/self/stat").unwrap_or_default()),
            read_bytes: field("read_bytes:"),
            written_bytes: field("write_bytes:").saturating_sub(field("cancelled_write_bytes:")),
            device_read_bytes: sectors(2),
            device_written_bytes: sectors(6),
        }
    }

    /// The counts since `earlier`.
    pub fn since(&self, earlier: &Counters) -> Counters {
        let less = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        Counters {
            cpu_seconds: (self.cpu_seconds - earlier.cpu_seconds).max(0.0),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
            device_read_bytes: less(self.device_read_bytes, earlier.device_read_bytes),
            device_written_bytes: less(self.device_written_bytes, earlier.device_written_bytes),
        }
    }
}

/// The first number after `name` in a text of lines.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Hundredths of a second in `/proc/PID/stat`, whose second field may hold blanks.
fn cpu_seconds(stat: &str) -> f64 {
    let after = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks = after.split_ascii_whitespace().skip(11).take(2).filter_map(|t| t.parse::<u64>().ok());
    ticks.sum::<u64>() as f64 / 100.0
}

/// Bytes of memory of its own that process `pid` has: no file's page and no shared memory.
pub fn own_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    field(&status, "RssAnon:").unwrap_or(0) * 1024
}

/// The `stat` file of the block device that `dir` lies on.
pub fn block_stat(dir: &Path) -> Option<PathBuf> {
    let device = fs::metadata(dir).ok()?.st_dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let path = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
    path.exists().then_some(path)
}

/// Bytes that the files below `dir` take.
pub fn disk_usage(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => disk_usage(&entry.path()),
            Ok(meta) => meta.st_blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

/// Writes dirty pages out and forgets the page cache; whether that was allowed.
pub fn drop_caches() -> bool {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "1").is_ok()
}

/// A group of processes with bounded memory, removed when dropped. Version 1 or 2, whichever is mounted.
#[derive(Debug)]
pub struct MemoryGroup {
    dir: PathBuf,
    limit: &'static str,
}

impl MemoryGroup {
    /// A new group with a bound of `bytes`.
    pub fn new(name: &str, bytes: u64) -> io::Result<MemoryGroup> {
        let one = Path::new("/sys/fs/cgroup/memory");
        let (root, limit) = match one.exists() {
            true => (one, "memory.limit_in_bytes"),
            false => (Path::new("/sys/fs/cgroup"), "memory.max"),
        };
        let dir = root.join(name);
        fs::create_dir_all(&dir)?;
        let group = MemoryGroup { dir, limit };
        group.bound(bytes)?;
        // No swap instead of memory, where swap is counted.
        let _ = fs::write(group.dir.join("memory.swap.max"), "0");
        Ok(group)
    }

    /// Sets the bound.
    pub fn bound(&self, bytes: u64) -> io::Result<()> {
        fs::write(self.dir.join(self.limit), bytes.to_string())
    }

    /// Puts a process into it.
    pub fn add(&self, pid: u32) -> io::Result<()> {
        fs::write(self.dir.join("cgroup.procs"), pid.to_string())
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // The group stays behind, empty, where a process is still ending; that does no harm.
        let _ = fs::remove_dir(&self.dir);
    }
}

/// The machine, for people.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Processors that can be used.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The kernel.
    pub kernel: String,
    /// File system and device of the stores' files.
    pub ssd: String,
    /// Where persistent memory is emulated.
    pub pm: String,
    /// Load averages when the comparison began.
    pub load_before: String,
    /// And when it ended.
    pub load_after: String,
}

impl Machine {
    /// This machine, for stores in `dir` with persistent memory emulated in `pm_dir`.
    pub fn here(dir: &Path, pm_dir: &Path) -> Machine {
        let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpus.lines().find_map(|line| line.strip_prefix("model name"));
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_string();
        Machine {
            cpu: model.map_or(String::new(), |m| m.trim_start_matches(['\t', ' ', ':']).to_string()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: field(&memory, "MemTotal:").unwrap_or(0) * 1024,
            kernel: text("/proc/sys/kernel/osrelease"),
            ssd: mount_of(dir),
            pm: mount_of(pm_dir),
            load_before: load(),
            load_after: String::new(),
        }
    }
}

/// The load averages over 1, 5 and 15 minutes.
pub fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_ascii_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// File system and device that `dir` is on.
fn mount_of(dir: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let dir = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_path_buf());
    let below = mounts.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (device, point, kind) = (words.next()?, words.next()?, words.next()?);
        let text = if kind == device { kind.to_string() } else { format!("{kind} on {device}") };
        dir.starts_with(point).then_some((point.len(), text))
    });
    // If two file systems are mounted on one point, the later one is in use.
    below.fold((0, String::new()), |best, found| if found.0 >= best.0 { found } else { best }).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_past_a_strange_name() {
        let stat = "12 (a) b (c) S 1 12 12 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0 100 0 0";
        assert_eq!(cpu_seconds(stat), 3.0);
        assert_eq!(cpu_seconds(""), 0.0);
    }

    #[test]
    fn fields_are_found_by_name() {
        let io = "rchar: 1\nread_bytes: 4096\nwrite_bytes: 8192\n";
        assert_eq!((field(io, "write_bytes:"), field(io, "swapped:")), (Some(8192), None));
    }

    #[test]
    fn counters_that_went_back_are_zero() {
        let (a, b) = (Counters { read_bytes: 5, ..Counters::default() }, Counters::default());
        assert_eq!(b.since(&a).read_bytes, 0);
    }

    #[test]
    fn usage_is_that_of_all_files_below() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("below")).unwrap();
        fs::write(dir.path().join("below/file"), vec![1u8; 100_000]).unwrap();
        assert!(disk_usage(dir.path()) >= 90_000);
        assert_eq!(disk_usage(&dir.path().join("nowhere")), 0);
    }
}
