//! The file that says that a database may have range tombstones.

use terrace_base::Result;

use crate::core::Core;

/// The file of a database that may have range tombstones. It is there from before the first one on, so that they are
/// not forgotten where damage has taken the marker.
const RANGES_FILE: &str = "RANGES";

/// What it tells people. Nobody else reads it.
const RANGES_TEXT: &[u8] =
    b"Ranges of keys were deleted in this database. Without this file they may come back.\n";

pub(super) fn is_there(core: &Core) -> Result<bool> {
    core.fs().exists(&core.dir.join(RANGES_FILE))
}

/// Makes the file, durably. An attempt that failed may have made it.
pub(super) fn make(core: &Core) -> Result<()> {
    let path = core.dir.join(RANGES_FILE);
    if !is_there(core)? {
        let mut file = core.fs().create(&path)?;
        file.append(RANGES_TEXT)?;
        file.sync()?;
    }
    core.fs().sync_dir(&core.dir)
}
