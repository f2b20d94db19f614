//! What becomes of a deletion whose space does not come back at once.

use std::io::Write;

use terrace::{Db, Error, Result};

/// Gives the space of what was deleted back, as nobody else does before the next opening for writing, and closes the
/// database. Without room for that, or for a close in order, the deletion stands all the same: that is told, and is no
/// failure.
pub(super) fn sweep_and_close(db: &Db, deleted: Result<()>) -> Result<()> {
    let swept = deleted.as_ref().map_or(Ok(()), |()| db.sweep());
    let closed = db.close();
    deleted?;
    let (no_room, other): (Vec<_>, Vec<_>) =
        [closed, swept].into_iter().filter_map(Result::err).partition(Error::is_out_of_space);
    if let Some(error) = other.into_iter().next() {
        return Err(error);
    }
    if let Some(error) = no_room.first() {
        let told = "what was to be deleted is deleted; its space comes back once there is room to write";
        let _ = writeln!(std::io::stderr(), "terrace: {told}: {error}");
    }
    Ok(())
}
