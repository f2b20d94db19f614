//! What is lost with a pool.

use terrace_log::LogReader;

use super::may_replace;
use crate::core::Core;
use crate::manifest::{BegunLog, FileName, State};

/// What a pool may hold that neither tables nor logs do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beyond {
    Nothing,
    /// Writes that were not synced.
    Unsynced,
    /// Anything since the last flush.
    Anything,
}

/// What the pool of a database, whose manifest is whole and [sealed](Manifest::is_sealed) or not, may hold that
/// nothing else does.
pub(crate) fn beyond_logs(core: &Core, state: &State, is_sealed: bool) -> Beyond {
    match may_replace(core, &state.identity) {
        true if is_sealed => Beyond::Nothing,
        true if !may_be_ahead(core, state, is_sealed) => Beyond::Unsynced,
        _ => Beyond::Anything,
    }
}

/// Whether a pool in an ordinary file may hold more than its logs, which are written a little behind it: the
/// process that wrote them was killed, and the page cache still has everything. Then damage to the pool is
/// not due to a power cut.
pub(super) fn may_be_ahead(core: &Core, state: &State, is_sealed: bool) -> bool {
    let epoch = core.fs().epoch(&core.dir);
    let is_written = |begun: &BegunLog| {
        // One that was merely ready has no record. What cannot be read may have some.
        let (path, mut has_records) = (FileName::Log(begun.number).path(&core.dir), false);
        let read = LogReader::look(core.fs(), &path, begun.number, &mut |_, _| {
            has_records = true;
            Ok(())
        });
        has_records || read.is_err()
    };
    let is_ahead =
        || state.needed_begun().filter(|begun| begun.epoch == epoch).any(|begun| is_written(&begun));
    !is_sealed && epoch != 0 && is_ahead()
}
