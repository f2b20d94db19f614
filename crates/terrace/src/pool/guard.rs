//! Where no pool may be made: over a database whose pointer is missing or whose manifest records only a
//! creation, and under the name of another file.

use std::path::{Path, PathBuf};

use terrace_base::{Error, Result};
use terrace_pmem::{Opened, Pool, PoolOptions};

use super::{POOL_NAME, is_anothers, is_unusable, look_at, owner_in, pool_options, request};
use crate::core::Core;
use crate::manifest::{self, FileName, Identity, REPAIR_FOLDER};

/// An error if `path`, a pool's place, is that of a file in the database's directory that is no pool.
pub(crate) fn refuse_place_of_another_file(path: &Path, dir: &Path) -> Result<()> {
    let is_a_files_name = |path: PathBuf, dir: PathBuf| {
        path.parent() == Some(&*dir) && (FileName::parse(&path).is_some() || manifest::is_of_repair(&path))
    };
    let as_named = std::path::absolute(path).ok().zip(std::path::absolute(dir).ok());
    // Links and parts `..` may lead there, too.
    let real = real_path(path).zip(dir.canonicalize().ok());
    if as_named.into_iter().chain(real).any(|(path, dir)| is_a_files_name(path, dir)) {
        return Err(Error::invalid(format!(
            "{} is the name of another file of the database, and no pool can lie there",
            path.display()
        )));
    }
    Ok(())
}

/// `path` without links and parts `..`, if its folder exists.
pub(crate) fn real_path(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    let beside = || path.parent()?.canonicalize().ok().zip(path.file_name());
    path.canonicalize().ok().or_else(|| beside().map(|(folder, name)| folder.join(name)))
}

/// Whether a pool's place is that in the database's directory itself. A place behind a link may be anybody's.
pub(super) fn is_own_place(path: &Path, dir: &Path) -> bool {
    path.file_name() == Some(POOL_NAME.as_ref()) && is_directly_in(path, dir)
}

/// Whether a path names something in the folder `dir` itself.
pub(crate) fn is_directly_in(path: &Path, dir: &Path) -> bool {
    if let Some((path, dir)) = real_path(path).zip(dir.canonicalize().ok()) {
        return path.parent() == Some(&*dir);
    }
    path.parent() == Some(dir)
}

/// The path that finds `path` from `dir`, if it lies in there.
pub(crate) fn inside(path: &Path, dir: &Path) -> Option<PathBuf> {
    let (path, dir) =
        real_path(path).zip(dir.canonicalize().ok()).unwrap_or_else(|| (path.into(), dir.into()));
    path.strip_prefix(dir).ok().map(Path::to_path_buf)
}

/// Whether a path leads into the folder where a repair writes, or into the one where it keeps what was damaged.
pub(crate) fn is_under_a_repairs(path: &Path, dir: &Path) -> bool {
    leads_into(path, dir, manifest::is_of_repair)
}

/// Whether a path leads into the folder where a repair writes.
pub(crate) fn is_in_folder_of_repair(path: &Path, dir: &Path) -> bool {
    leads_into(path, dir, |folder| folder.file_name() == Some(REPAIR_FOLDER.as_ref()))
}

/// Whether a path leads into such a folder of `dir`.
fn leads_into(path: &Path, dir: &Path, is_such: impl Fn(&Path) -> bool) -> bool {
    let real = real_path(path).zip(dir.canonicalize().ok());
    let leads = |(path, dir): (PathBuf, PathBuf)| {
        let mut folders = path.ancestors().skip(1).take_while(|folder| folder.starts_with(&dir));
        folders.any(|folder| folder.parent() == Some(&*dir) && is_such(folder))
    };
    leads((path.into(), dir.into())) || real.is_some_and(leads)
}

/// An error if the pool in the directory shows that a database lies there whose pointer to its manifest is
/// missing. A creation gives a pool its owner only once there is such a pointer, durably.
pub(crate) fn refuse_headless(core: &Core) -> Result<()> {
    if core.options.pool.path().is_some() {
        // A creation refuses what lies there (`fresh`).
        return Ok(());
    }
    let path = core.dir.join(POOL_NAME);
    if manifest::locate(core.fs(), &core.dir)?.is_some() || !matches!(core.env.pm.exists(&path), Ok(true)) {
        return Ok(());
    }
    let pool = match look_at(&core.env, &path, core.options.pool.media()) {
        Err(e) if is_unusable(&e) && !e.is_of_another_version() => return Ok(()),
        pool => pool?,
    };
    if owner_in(&pool).is_none() {
        return Ok(());
    }
    let current = FileName::Current.path(&core.dir);
    let found = format!("no such file beside {}, the pool of a database; run repair", path.display());
    Err(Error::corruption(&current, 0, "the name of the manifest in force", found))
}

/// An error if the pool of the database `identity`, whose manifest records only a creation, is not left from
/// that creation: it `is_used`, or is another database's. The manifest is then an older copy.
pub(crate) fn refuse_used(
    core: &Core,
    identity: &Identity,
    is_used: impl FnOnce(&Pool) -> Result<bool>,
) -> Result<()> {
    let (path, media) = request(core, identity)?;
    if !core.env.pm.exists(&path)? {
        return Ok(());
    }
    // Only to look at it: it stays as its owner left it.
    let wanted = PoolOptions { salvage: true, prefault: false, ..pool_options(core, media) };
    let pool = match core.env.pm.open(&path, &wanted) {
        // A creation that starts again makes the pool again, too.
        Err(e) if is_unusable(&e) && !e.is_of_another_version() => return Ok(()),
        pool => pool?,
    };
    let (expected, found) = match pool.opened() {
        // Nothing in it can be trusted.
        Opened::Torn => return Ok(()),
        _ if is_anothers(&pool, identity) => ("the pool of this database", "another database's pool"),
        _ if is_used(&pool)? => ("a pool without anything in it", "one in use; run repair"),
        _ => return Ok(()),
    };
    let expected = format!("{expected}, as the manifest tells of no more than a creation");
    Err(Error::corruption(&path, 0, expected, found))
}
