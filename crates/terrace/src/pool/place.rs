//! What the manifest records of the pool's place.
//!
//! A place in the database's directory is recorded as seen from there: the directory may be moved, and its copies have
//! pools of their own. Builds that do not know of that find it by its whole path.

use std::path::{Path, PathBuf};

use terrace_base::{Error, Result};

use super::guard::{inside, real_path};
use super::{MEDIA, POOL_NAME};
use crate::env::PmSpace;
use crate::manifest::Identity;
use crate::options::{PoolChoice, lasting};

/// The identity's name for the pool's place, if that was requested.
const PATH: &str = "pool.path";

/// The same as seen from the database's directory, if it lies in there: the directory may be moved or copied.
const PATH_INSIDE: &str = "pool.inside";

/// The pool's place that was recorded when the database was created, if any.
pub(crate) fn recorded_path(identity: &Identity, dir: &Path) -> Option<PathBuf> {
    if let Some(inside) = identity.options.get(PATH_INSIDE) {
        return Some(dir.join(inside));
    }
    let path = Path::new(identity.options.get(PATH)?);
    Some(lasting(path).unwrap_or_else(|_| path.into()))
}

/// Has the identity name `path` as the pool's place.
pub(super) fn record_path(identity: &mut Identity, dir: &Path, path: &Path) -> Result<()> {
    let text = |path: &Path| path.to_str().map(String::from);
    let whole = text(path).ok_or_else(|| {
        Error::invalid(format!("{} is no UTF-8, as the path of a pool must be", path.display()))
    })?;
    identity.options.insert(PATH.into(), whole);
    match inside(path, dir).as_deref().and_then(text) {
        Some(inside) => identity.options.insert(PATH_INSIDE.into(), inside),
        None => identity.options.remove(PATH_INSIDE),
    };
    Ok(())
}

/// Gives what lies in the place of a pool a name beside it, with `.lost` behind its own.
pub(crate) fn keep_beside(pm: &dyn PmSpace, place: &Path) -> Result<()> {
    let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut names = std::iter::once(format!("{name}.lost")).chain((2..).map(|n| format!("{name}.lost.{n}")));
    let free = names.find_map(|name| {
        let path = place.with_file_name(name);
        pm.exists(&path).map(|is_there| (!is_there).then_some(path)).transpose()
    });
    free.map_or(Ok(()), |free| pm.rename(place, &free?))
}

/// Has the identity name no pool.
pub(crate) fn forget_place(identity: &mut Identity) {
    for name in [PATH, PATH_INSIDE, "pool.emulated"] {
        identity.options.remove(name);
    }
}

/// Has the identity name the pool's place as it is requested, where it names another; returns whether it did.
pub(crate) fn record_place(identity: &mut Identity, dir: &Path, choice: &PoolChoice) -> Result<bool> {
    let Some(asked) = choice.path().filter(|_| identity.options.contains_key(MEDIA)) else {
        return Ok(false);
    };
    let recorded = recorded_path(identity, dir).unwrap_or_else(|| dir.join(POOL_NAME));
    let is_same =
        recorded == asked || real_path(&recorded).is_some_and(|real| Some(real) == real_path(asked));
    if !is_same {
        record_path(identity, dir, asked)?;
    }
    Ok(!is_same)
}
