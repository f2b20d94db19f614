//! Paying a pool's debt: freeing what a crash, or a session before this one, has left in it without an owner.
//!
//! Where the manifest names what lies in the pool, nothing is freed before it has decided what exists. A full disk may
//! keep it from that when the database is opened. Then the reclaim is put off, and the pool remembers it. It is asked
//! for again when the engine sweeps, which follows every flush and compaction, and so every group that decides; and
//! before a check. Else the close leaves the debt to the next opening.

use terrace_base::Result;
use terrace_pmem::{Marks, Pool};

use crate::manifest::Manifest;

/// Whether something may be without an owner, and the manifest has decided what exists; if it has not, the reclaim is
/// put off.
pub(crate) fn may_reclaim(pool: &Pool, manifest: &Manifest) -> Result<bool> {
    if !pool.needs_reclaim() {
        // Several may have been asked for, and the first has done it.
        return Ok(false);
    }
    let decided = manifest.try_decide();
    if !matches!(decided, Ok(true)) {
        pool.put_off_reclaim();
    }
    decided
}

/// Whether a reclaim was put off, and may be done now.
pub(crate) fn is_reclaim_due(pool: Option<&Pool>, manifest: &Manifest) -> bool {
    pool.is_some_and(Pool::is_reclaim_put_off) && manifest.is_decided()
}

/// Before a check: does, by `reclaim`, what was put off. What cannot be done yet stays a debt, and is no damage.
pub(crate) fn pay_before_check(pool: Option<&Pool>, reclaim: impl FnOnce() -> Result<()>) {
    if pool.is_some_and(Pool::is_reclaim_put_off)
        && let Err(error) = reclaim()
    {
        tracing::warn!(%error, "what was left in the pool stays");
    }
}

/// Frees what a crash has left outside `marks`. Nobody frees anything meanwhile, so nothing found has an
/// owner.
pub(crate) fn reclaim(pool: &Pool, marks: &Marks) -> Result<()> {
    pool.reclaim(marks)?;
    pool.release_reclaimed().map(drop)
}
