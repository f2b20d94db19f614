//! A drive's properties as the system reports them (`/sys/dev/block`).

use std::fs;
use std::path::Path;

/// A drive's own figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) sector_bytes: u32,
    pub(super) block_bytes: u32,
    /// Whether it may have a write cache that a power cut empties.
    pub(super) is_volatile: bool,
}

/// Plausible sizes; others are not believed.
const SIZES: std::ops::RangeInclusive<u32> = 512..=65536;

/// The drive of number `major`:`minor`; `None` if the system reports none.
pub(super) fn of(major: u32, minor: u32) -> Option<Device> {
    read(&Path::new("/sys/dev/block").join(format!("{major}:{minor}")))
}

/// The drive whose directory is `dir`, or which `dir` is a partition of.
fn read(dir: &Path) -> Option<Device> {
    let dir = fs::canonicalize(dir).ok()?;
    let mut queues = [Some(dir.as_path()), dir.parent()].into_iter().flatten().map(|dir| dir.join("queue"));
    let queue = queues.find(|queue| queue.is_dir())?;
    let word = |name: &str| fs::read_to_string(queue.join(name)).ok().map(|word| word.trim().to_owned());
    let size = |name: &str| {
        let size = word(name)?.parse::<u32>().ok()?;
        (SIZES.contains(&size) && size.is_power_of_two()).then_some(size)
    };
    let sector_bytes = size("logical_block_size")?;
    let block_bytes = size("physical_block_size")?.max(sector_bytes);
    // A drive that reports nothing may have such a cache.
    let is_volatile = word("write_cache").as_deref() != Some("write through");
    Some(Device { sector_bytes, block_bytes, is_volatile })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drives_are_read_and_partitions_are_of_theirs() {
        let dir = tempfile::tempdir().unwrap();
        let drive = dir.path().join("vda");
        let partition = drive.join("vda1");
        fs::create_dir_all(&partition).unwrap();
        assert_eq!(read(&partition), None);
        fs::create_dir_all(drive.join("queue")).unwrap();
        let say = |name: &str, word: &str| fs::write(drive.join("queue").join(name), word).unwrap();
        say("logical_block_size", "512\n");
        assert_eq!(read(&drive), None);
        say("physical_block_size", "4096\n");
        let found = Device { sector_bytes: 512, block_bytes: 4096, is_volatile: true };
        assert_eq!((read(&drive), read(&partition)), (Some(found), Some(found)));
        say("write_cache", "write through\n");
        assert_eq!(read(&partition), Some(Device { is_volatile: false, ..found }));
        say("write_cache", "write back\n");
        say("physical_block_size", "512\n");
        assert_eq!(read(&drive), Some(Device { block_bytes: 512, ..found }));
        for nonsense in ["0", "513", "-1", "", "1048576"] {
            say("logical_block_size", nonsense);
            assert_eq!(read(&drive), None, "{nonsense}");
        }
    }
}
