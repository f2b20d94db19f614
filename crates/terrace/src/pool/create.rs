//! Makes the pool of a new database. What lies in its place is replaced only if a creation that was cut short has left it.

use std::path::Path;

use terrace_base::{Error, Result};
use terrace_pmem::{MediaRequest, Opened, Pool, PoolOptions};

use super::guard::{is_own_place, is_under_a_repairs};
use super::{
    LEADS_NOWHERE, POOL_NAME, is_anothers, keep_beside, owner_of, owner_root, pool_options, request,
};
use crate::core::Core;
use crate::env::Env;
use crate::manifest::{self, FileName, Identity};

/// An empty pool; a creation that was cut short may have set `roots`. What else lies in its place stays: it is somebody's,
/// or this database's and its manifest is gone.
pub(crate) fn fresh(core: &Core, identity: &Identity, roots: &[&str]) -> Result<Pool> {
    let (path, media) = request(core, identity)?;
    if core.env.pm.home(&path).is_none() {
        return Err(Error::invalid(format!("{} is {LEADS_NOWHERE}", path.display())));
    }
    let options = pool_options(core, media);
    if is_under_a_repairs(&path, &core.dir) {
        return Err(Error::invalid(format!("{} lies where a repair keeps its files", path.display())));
    }
    if FileName::parse(&path).is_some() || manifest::is_of_repair(&path) {
        // Where a database lies, its next opening would take it for one of its own files.
        return Err(Error::invalid(format!("{} is the name of a database's file", path.display())));
    }
    if core.env.pm.exists(&path)? {
        match is_leftover(core, &path, &options, identity, roots) {
            Ok(Leftover::Certain) => core.env.pm.remove(&path)?,
            Ok(Leftover::Perhaps) => keep_or_remove(&core.env, &path)?,
            Ok(Leftover::No) => {
                return Err(Error::invalid(format!(
                    "{} is the pool of another database, or of one whose manifest is gone: that can be repaired",
                    path.display()
                )));
            }
            Err(e) if is_own_place(&path, &core.dir) && is_blank(&e) => keep_or_remove(&core.env, &path)?,
            Err(e) => return Err(e),
        }
    }
    core.env.pm.create(&path, &options)
}

/// Frees the place of a pool that may hold something, though it cannot be told whose. It is kept, but on a device, beside
/// which nothing can lie.
pub(crate) fn keep_or_remove(env: &Env, path: &Path) -> Result<()> {
    if env.pm.is_device(path) {
        return env.pm.remove(path);
    }
    match keep_beside(&*env.pm, path) {
        Err(Error::Io { cause, .. }) if cause.kind() == std::io::ErrorKind::Unsupported => {
            env.pm.remove(path)
        }
        kept => kept,
    }
}

fn is_blank(error: &Error) -> bool {
    matches!(error, Error::InvalidFormat { found, .. } if found == terrace_pmem::BLANK)
}

/// Removes a pool in the directory's own place that a creation has left which was cut short; anything else stays.
pub(crate) fn remove_leftover(core: &Core, identity: &Identity, roots: &[&str]) -> Result<()> {
    let path = core.dir.join(POOL_NAME);
    let options = pool_options(core, MediaRequest::Auto);
    let is_left = || matches!(is_leftover(core, &path, &options, identity, roots), Ok(Leftover::Certain));
    if matches!(core.env.pm.exists(&path), Ok(true)) && is_left() {
        core.env.pm.remove(&path)
    } else {
        Ok(())
    }
}

/// Whether a creation that was cut short has left a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leftover {
    Certain,
    /// Something is in it, and its roots, which may be damaged, do not say what.
    Perhaps,
    No,
}

/// Whether a pool is left from a creation that was cut short: nobody's or this database's, and not begun to be used.
fn is_leftover(
    core: &Core,
    path: &Path,
    options: &PoolOptions,
    identity: &Identity,
    roots: &[&str],
) -> Result<Leftover> {
    // Only to look at it: it stays as its owner left it.
    let pool = core.env.pm.open(path, &PoolOptions { salvage: true, ..options.clone() })?;
    if pool.opened() == Opened::Torn {
        return Ok(if is_anothers(&pool, identity) { Leftover::No } else { Leftover::Perhaps });
    }
    let (owner, found) = (owner_root(identity), pool.roots()?);
    let is_one = found.iter().all(|(name, value)| match name {
        name if *name == owner => *value == owner_of(identity),
        name => roots.contains(&&**name),
    });
    Ok(match is_one {
        true if !found.is_empty() || pool.is_unused() => Leftover::Certain,
        true => Leftover::Perhaps,
        false => Leftover::No,
    })
}
