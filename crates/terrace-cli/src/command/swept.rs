//! What becomes of a deletion whose space does not come back at once.

use std::io::Write;

use terrace::{Db, Result};

/// Gives the space of what was deleted back, as nobody else does before the next opening for writing, and closes the
/// database. Without room for that the deletion stands all the same: it is told, and is no failure.
pub(super) fn sweep_and_close(db: &Db, deleted: Result<()>) -> Result<()> {
    let swept = deleted.as_ref().map_or(Ok(()), |()| db.sweep());
    let closed = db.close();
    deleted?;
    closed?;
    match swept {
        Err(e) if e.is_out_of_space() => {
            let told = "what was to be deleted is deleted; its space comes back once there is room to write";
            let _ = writeln!(std::io::stderr(), "terrace: {told}: {e}");
            Ok(())
        }
        outcome => outcome,
    }
}
