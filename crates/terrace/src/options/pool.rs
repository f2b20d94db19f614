//! The place of the pool, and its form as text.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use terrace_base::{Error, Result};
use terrace_pmem::{MediaRequest, Profile};

/// The name of the pool in the database's directory, unless it lies elsewhere.
pub(crate) const POOL_NAME: &str = "pool";

/// The forms of a pool as text, in words that follow "must be".
pub(super) const POOLS: &str = "auto, a path or emulated:PROFILE[@PATH]";

/// The place of the persistent-memory pool.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum PoolChoice {
    /// A file `pool` in the database directory, used as its file system allows: persistent memory on a DAX
    /// file system, elsewhere an ordinary file with a commit log beside it.
    #[default]
    Auto,
    /// This file on a DAX file system, or this devdax device.
    Path(PathBuf),
    /// An ordinary file treated as persistent memory, with the latency and bandwidth of `profile`. It does
    /// not really survive a power cut: for measurements and tests.
    Emulated {
        /// The pool file; by default `pool` in the database directory.
        path: Option<PathBuf>,
        /// The medium to emulate.
        profile: Profile,
    },
}

impl PoolChoice {
    /// Reads `auto`, a path, or `emulated:PROFILE[@PATH]` with a profile's name or figures. A relative path counts from
    /// the current directory: a database remembers its pool's path, which must mean the same from every directory.
    ///
    /// # Errors
    /// `InvalidArgument` for an empty text, or a profile that there is not.
    ///
    /// ```
    /// use terrace::{PoolChoice, Profile};
    ///
    /// let pool = PoolChoice::parse("emulated:optane")?;
    /// assert_eq!(pool, PoolChoice::Emulated { path: None, profile: Profile::OPTANE });
    /// assert_eq!(pool.to_string(), "emulated:optane");
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn parse(text: &str) -> Result<PoolChoice> {
        if let Some(emulated) = text.strip_prefix("emulated:") {
            let (profile, path) = match emulated.split_once('@') {
                Some((profile, path)) => (profile, Some(absolute(path)?)),
                None => (emulated, None),
            };
            return Ok(PoolChoice::Emulated { path, profile: Profile::parse(profile)? });
        }
        match text {
            "auto" => Ok(PoolChoice::Auto),
            "" => Err(Error::invalid(format!("a pool is {POOLS}"))),
            path => absolute(path).map(PoolChoice::Path),
        }
    }

    /// The path that is asked for.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            PoolChoice::Path(path) | PoolChoice::Emulated { path: Some(path), .. } => Some(path),
            PoolChoice::Auto | PoolChoice::Emulated { path: None, .. } => None,
        }
    }

    /// Where the pool lies of a database in `dir`, unless its manifest names another place.
    pub(crate) fn path_from(&self, dir: &Path) -> PathBuf {
        self.path().map_or_else(|| dir.join(POOL_NAME), Path::to_path_buf)
    }

    /// The medium that is asked for.
    pub(crate) fn media(&self) -> MediaRequest {
        match self {
            PoolChoice::Auto | PoolChoice::Path(_) => MediaRequest::Auto,
            PoolChoice::Emulated { profile, .. } => MediaRequest::Emulated(*profile),
        }
    }

    /// The same with its path in a [`lasting`] form.
    pub(crate) fn lasting(self) -> Result<PoolChoice> {
        Ok(match self {
            PoolChoice::Path(path) => PoolChoice::Path(lasting(&path)?),
            PoolChoice::Emulated { path, profile } => {
                PoolChoice::Emulated { path: path.as_deref().map(lasting).transpose()?, profile }
            }
            PoolChoice::Auto => PoolChoice::Auto,
        })
    }
}

impl fmt::Display for PoolChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolChoice::Auto => f.write_str("auto"),
            PoolChoice::Path(path) => write!(f, "{}", path.display()),
            PoolChoice::Emulated { path, profile } => {
                match Profile::ALL.contains(profile) {
                    true => write!(f, "emulated:{}", profile.name)?,
                    false => write!(f, "emulated:read={},drain={}", profile.read_ns, profile.write_ns)?,
                }
                if let (false, Some(rate)) = (Profile::ALL.contains(profile), profile.write_bytes_per_sec) {
                    write!(f, ",bw={rate}")?;
                }
                path.as_ref().map_or(Ok(()), |path| write!(f, "@{}", path.display()))
            }
        }
    }
}

fn absolute(path: &str) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| Error::invalid(format!("{path:?} is no path: {e}")))
}

/// `path` in a form that means the same as long as a database is open: absolute, and without parts `..`. Where these
/// lead nowhere, or to what is no text, they stay.
pub(crate) fn lasting(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path).map_err(|e| Error::io(path, "find", e))?;
    let parts: Vec<Component<'_>> = path.components().collect();
    let Some(last) = parts.iter().rposition(|part| *part == Component::ParentDir) else { return Ok(path) };
    let (before, behind) = parts.split_at(last + 1);
    // Links before such a part decide where it leads.
    let real = before.iter().collect::<PathBuf>().canonicalize();
    let real = real.map(|real| real.join(behind.iter().collect::<PathBuf>()));
    // A pool's path is recorded as text.
    Ok(real.ok().filter(|real| real.to_str().is_some()).unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_written_as_it_is_read() {
        let forms = ["auto", "/mnt/pmem/pool", "emulated:cxl", "emulated:dram@/dev/shm/p"];
        for text in forms.into_iter().chain(["emulated:read=5,drain=0,bw=9@/p", "emulated:read=1,drain=2"]) {
            assert_eq!(PoolChoice::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "emulated:", "emulated:fast", "emulated:optane@"] {
            assert!(PoolChoice::parse(text).is_err(), "{text}");
        }
        let PoolChoice::Path(path) = PoolChoice::parse("pool").unwrap() else { panic!("a path") };
        assert!(path.is_absolute());
    }

    #[test]
    fn parts_that_lead_up_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(dir.join("a/b")).unwrap();
        std::os::unix::fs::symlink("a/b", dir.join("link")).unwrap();
        let of = |path: &str| lasting(&dir.join(path)).unwrap();
        assert_eq!(of("a/../c/./d"), dir.join("c/d"));
        assert_eq!(of("link/../c"), dir.join("a/c"), "a link decides where it leads");
        assert_eq!(of("link/c"), dir.join("link/c"));
        assert_eq!(of("none/../c"), dir.join("none/../c"));
        let choice = PoolChoice::Path(dir.join("a/../p"));
        assert_eq!(choice.lasting().unwrap(), PoolChoice::Path(dir.join("p")));
    }
}
