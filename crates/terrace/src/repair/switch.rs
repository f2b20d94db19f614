//! Putting a repair's files in place of what was there.
//!
//! 1. Until the record of a repair has its name, nothing that was there has changed; from then on the repair has happened.
//! 2. Each step does nothing where it was done before: a kill or a power cut at any moment, and it is begun again.
//! 3. A file has its new name durably before it loses its old one.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use terrace_base::{Error, Result};
use terrace_disk::Fs;

use super::beside::{self, Beside, PoolNow};
use super::journal::{self, Journal, PoolMove};
use super::salvage::Salvage;
use crate::env::{Env, PmSpace};
use crate::manifest::{self, FileName};

/// The folder of what was damaged or not the database's.
const LOST: &str = "lost";

/// The name of the list of what lies there and why.
const LIST: &str = "LIST";

/// Where the first repair that set something aside says what that was.
pub(super) fn list_of_lost(dir: &Path) -> PathBuf {
    dir.join(LOST).join(LIST)
}

/// Whether a repair was cut short that has happened already.
pub(crate) fn is_unfinished(fs: &dyn Fs, dir: &Path) -> Result<bool> {
    fs.exists(&dir.join(journal::NAME))
}

/// Puts in place what a repair that was cut short has left, if there is one; returns its record.
pub(crate) fn finish(env: &Env, dir: &Path) -> Result<Option<Vec<String>>> {
    let path = dir.join(journal::NAME);
    if !env.fs.exists(&path)? {
        return Ok(None);
    }
    let record = Journal::decode(&path, &env.fs.read(&path)?)?;
    // Its name may not be durable yet, and what is done from here on must not be done without it.
    env.fs.sync_dir(dir)?;
    apply(env, dir, &record)?;
    Ok(Some(record.lost))
}

/// Makes what was done in `view` what lies in `dir`.
pub(super) fn commit(env: &Env, dir: &Path, view: &Beside, done: &Salvage) -> Result<()> {
    let record = plan(env, dir, view, done)?;
    let folder = beside::folder(dir);
    for file in env.fs.list(&folder)? {
        env.fs.sync_file(&file)?;
    }
    env.fs.sync_dir(&folder)?;
    let temporary = dir.join(format!("{}.tmp", journal::NAME));
    if env.fs.exists(&temporary)? {
        env.fs.remove(&temporary)?;
    }
    let mut file = env.fs.create(&temporary)?;
    file.append(&record.encode())?;
    file.sync()?;
    drop(file);
    env.fs.rename(&temporary, &dir.join(journal::NAME))?;
    env.fs.sync_dir(dir)?;
    apply(env, dir, &record)
}

/// What is to be done so that `dir` is what `view` shows.
fn plan(env: &Env, dir: &Path, view: &Beside, done: &Salvage) -> Result<Journal> {
    let fs = &*env.fs;
    let changes = view.fs.changes();
    let manifest = manifest::locate(&*view.fs, dir)?
        .ok_or_else(|| Error::corruption(dir, 0, "a manifest that a repair has made", "none"))?;
    let mut record = Journal { manifest, lost: done.report.lost.clone(), ..Journal::default() };
    let folder = beside::folder(Path::new(""));
    let pointers = [FileName::Current, FileName::CurrentTemp].map(|name| OsString::from(name.to_string()));
    for name in changes.made.iter().filter(|name| !pointers.contains(name)) {
        if fs.exists(&dir.join(name))? {
            return Err(Error::invalid(format!("a repair gave {} a second meaning", name.display())));
        }
        record.links.push((folder.join(name), name.into()));
    }
    let mut list = String::new();
    for (name, why) in &done.aside {
        if !fs.exists(&dir.join(name))? {
            continue;
        }
        let to = free_name(env, dir, Path::new(LOST), name)?;
        list.push_str(&format!("{}: {why}\n", to.display()));
        if pointers.contains(&name.into()) {
            // Its name is needed: what is kept is a copy.
            let copy = format!("{name}.damaged");
            write(fs, &beside::folder(dir).join(&copy), &fs.read(&dir.join(name))?)?;
            record.links.push((folder.join(copy), to));
        } else {
            record.links.push((name.into(), to));
            record.removes.push(name.into());
        }
    }
    let hidden = changes.hidden.iter().filter(|name| !pointers.contains(name)).map(PathBuf::from);
    record.removes.extend(hidden.filter(|name| !done.aside.contains_key(&*name.to_string_lossy())));
    record.pool = plan_pool(env, dir, view, done, &mut list)?;
    if !list.is_empty() || !record.lost.is_empty() || !done.report.doubts.is_empty() {
        done.report.lost.iter().for_each(|line| list.push_str(&format!("lost: {line}\n")));
        done.report.doubts.iter().for_each(|line| list.push_str(&format!("not known: {line}\n")));
        write(fs, &beside::folder(dir).join(LIST), list.as_bytes())?;
        record.links.push((folder.join(LIST), free_name(env, dir, Path::new(LOST), LIST)?));
    }
    Ok(record)
}

fn plan_pool(
    env: &Env,
    dir: &Path,
    view: &Beside,
    done: &Salvage,
    list: &mut String,
) -> Result<Option<PoolMove>> {
    let Some((place, now)) = view.pm.change() else { return Ok(None) };
    let inside = |path: &Path| path.strip_prefix(dir).ok().map(Path::to_path_buf);
    let named = |path: PathBuf| match inside(&path) {
        Some(path) => Ok(path),
        None => std::path::absolute(&path).map_err(|e| Error::io(&path, "name", e)),
    };
    let new = (now == PoolNow::New).then(|| named(beside::pool_beside(&place))).transpose()?;
    let mut aside = None;
    if let Some(why) = done.pool_aside.as_ref().filter(|_| !env.pm.is_device(&place))
        && env.pm.exists(&place)?
    {
        let name = place.file_name().map_or("pool".into(), |name| name.to_string_lossy().into_owned());
        let to = match inside(&place) {
            Some(_) => free_name(env, dir, Path::new(LOST), &name)?,
            // On its own file system.
            None => free_name(env, dir, &named(place.clone())?.with_file_name(""), &format!("{name}.lost"))?,
        };
        list.push_str(&format!("{}: {why}\n", to.display()));
        aside = Some(to);
    }
    Ok(Some(PoolMove { place: named(place)?, new, aside }))
}

/// A name that nothing has, in a folder of the directory or elsewhere.
fn free_name(env: &Env, dir: &Path, folder: &Path, name: &str) -> Result<PathBuf> {
    let names = std::iter::once(name.to_string()).chain((2..u32::MAX).map(|n| format!("{name}.{n}")));
    for name in names {
        let path = folder.join(name);
        if !env.fs.exists(&dir.join(&path))? && !env.pm.exists(&dir.join(&path))? {
            return Ok(path);
        }
    }
    Err(Error::invalid(format!("there is no name left for {name} in {}", folder.display())))
}

fn write(fs: &dyn Fs, path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = fs.create(path)?;
    file.append(bytes)?;
    file.sync()
}

/// Does what the record says, as far as it has not been done.
fn apply(env: &Env, dir: &Path, record: &Journal) -> Result<()> {
    let fs = &*env.fs;
    if record.links.iter().any(|(_, to)| to.starts_with(LOST))
        || record.pool.as_ref().and_then(|pool| pool.aside.as_ref()).is_some_and(|to| to.starts_with(LOST))
    {
        fs.create_dir_all(&dir.join(LOST))?;
    }
    for (from, to) in &record.links {
        let (from, to) = (dir.join(from), dir.join(to));
        if !fs.exists(&to)? && fs.exists(&from)? {
            link(fs, &from, &to)?;
        }
    }
    if fs.exists(&dir.join(LOST))? {
        fs.sync_dir(&dir.join(LOST))?;
    }
    fs.sync_dir(dir)?;
    manifest::set_current(fs, dir, record.manifest)?;
    if let Some(pool) = &record.pool {
        move_pool(&*env.pm, dir, pool)?;
    }
    for name in &record.removes {
        if fs.exists(&dir.join(name))? {
            fs.remove(&dir.join(name))?;
        }
    }
    fs.sync_dir(dir)?;
    // The folder first: its files would hold the bytes of files that are removed later.
    empty_folder(fs, dir)?;
    fs.remove(&dir.join(journal::NAME))?;
    fs.sync_dir(dir)?;
    let _ = fs.remove_dir(&beside::folder(dir));
    Ok(())
}

/// Gives a file a second name, or the other name where the file system cannot.
fn link(fs: &dyn Fs, from: &Path, to: &Path) -> Result<()> {
    match fs.link(from, to) {
        Err(Error::Io { source, .. })
            if matches!(source.kind(), ErrorKind::Unsupported | ErrorKind::PermissionDenied) =>
        {
            fs.rename(from, to)
        }
        linked => linked,
    }
}

fn move_pool(pm: &dyn PmSpace, dir: &Path, pool: &PoolMove) -> Result<()> {
    let place = dir.join(&pool.place);
    let new = pool.new.as_ref().map(|new| dir.join(new));
    // Once the new one has its place, what lies there is that.
    if new.as_ref().map_or(Ok(false), |new| pm.exists(new).map(|is_there| !is_there))? {
        return Ok(());
    }
    match pool.aside.as_ref().map(|aside| dir.join(aside)) {
        Some(aside) if !pm.exists(&aside)? && pm.exists(&place)? => pm.rename(&place, &aside)?,
        None if new.is_none() => pm.remove(&place)?,
        _ => {}
    }
    new.map_or(Ok(()), |new| pm.rename(&new, &place))
}

fn empty_folder(fs: &dyn Fs, dir: &Path) -> Result<()> {
    let folder = beside::folder(dir);
    if !fs.exists(&folder)? {
        return Ok(());
    }
    fs.list(&folder)?.iter().try_for_each(|file| fs.remove(file))?;
    fs.sync_dir(&folder)
}

/// Removes what a repair has written that did not come to its end.
pub(super) fn discard(env: &Env, dir: &Path, pool: Option<&Path>) -> Result<()> {
    if is_unfinished(&*env.fs, dir)? {
        // It has happened, and what it has written is needed.
        return Ok(());
    }
    empty_folder(&*env.fs, dir)?;
    let temporary = dir.join(format!("{}.tmp", journal::NAME));
    if env.fs.exists(&temporary)? {
        env.fs.remove(&temporary)?;
    }
    // Where directories are not removed an empty one stays.
    let _ = env.fs.remove_dir(&beside::folder(dir));
    pool.map_or(Ok(()), |pool| env.pm.remove(&beside::pool_beside(pool)))
}
