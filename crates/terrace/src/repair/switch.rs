//! Putting a repair's files in place of what was there.
//!
//! 1. Until the record of a repair has its name, nothing that was there has changed; from then on the repair has
//!    happened.
//! 2. Each step does nothing if it was done before: after a kill or a power cut at any moment it starts
//!    again.
//! 3. A file has its new name durably before it loses its old one.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use terrace_base::{Error, Result};
use terrace_disk::Fs;

use super::beside::{self, RepairView};
use super::journal::{Journal, PoolMove};
use super::pools::{PoolNow, pool_beside};
use crate::env::{Env, PmSpace};
use crate::manifest::{self, FileName, LOST_FOLDER, Manifest, REPAIR_RECORD, REPAIR_RECORD_TEMP};
use crate::pool::{self, is_directly_in};
use crate::salvage::Salvage;

/// The name of the list of the files there, with reasons.
const LIST: &str = "LIST";

/// An empty file put into the folder to test whether it takes any.
const PROBE: &str = "PROBE";

/// The first repair's list of what it set aside.
pub(super) fn list_of_lost(dir: &Path) -> PathBuf {
    dir.join(LOST_FOLDER).join(LIST)
}

/// Whether a repair has happened but was cut short before its end.
pub(crate) fn is_unfinished(fs: &dyn Fs, dir: &Path) -> Result<bool> {
    fs.exists(&dir.join(REPAIR_RECORD))
}

/// Puts in place what an unfinished repair has left, if there is one; returns its losses.
pub(crate) fn finish(env: &Env, dir: &Path) -> Result<Option<Vec<String>>> {
    let Some(record) = unfinished(env, dir)? else { return Ok(None) };
    // Its name may not be durable yet, and nothing below may happen without that.
    env.fs.sync_dir(dir)?;
    apply(env, dir, &record)?;
    Ok(Some(record.lost))
}

/// The record of an unfinished repair that can be carried out, if there is one.
fn unfinished(env: &Env, dir: &Path) -> Result<Option<Journal>> {
    if !is_unfinished(&*env.fs, dir)? {
        return Ok(None);
    }
    let record = Journal::read(&*env.fs, dir)?;
    verify(env, dir, &record)?;
    Ok(Some(record))
}

/// The losses of an unfinished repair, if there is one; does nothing about it.
pub(super) fn losses_to_come(env: &Env, dir: &Path) -> Result<Option<Vec<String>>> {
    Ok(unfinished(env, dir)?.map(|record| record.lost))
}

/// An error where a repair was cut short in its last step: otherwise the caller would read what it has
/// replaced.
pub(crate) fn refuse_unfinished(env: &Env, dir: &Path) -> Result<()> {
    match unfinished(env, dir)? {
        Some(_) => {
            Err(Error::invalid("a repair was cut short in its last step; open the database for writing once"))
        }
        None => Ok(()),
    }
}

/// An error if the record is another database's, or if somebody has removed what it puts in place.
fn verify(env: &Env, dir: &Path, record: &Journal) -> Result<()> {
    let refused = |found: String| {
        let found =
            format!("{found}: if the record is another database's, move it away; nothing was changed");
        Error::corruption(&dir.join(REPAIR_RECORD), 0, "the record of this directory's repair", found)
    };
    let missing = |what: &Path| refused(format!("one whose {} is gone", what.display()));
    // Nothing needs the files kept in `lost`.
    for (from, to) in record.links.iter().filter(|(_, to)| !to.starts_with(LOST_FOLDER)) {
        if !env.fs.exists(&dir.join(from))? && !env.fs.exists(&dir.join(to))? {
            return Err(missing(from));
        }
    }
    let manifest = FileName::Manifest(record.manifest).path(dir);
    let is_made = record.links.iter().any(|(_, to)| dir.join(to) == manifest);
    if !is_made && !env.fs.exists(&manifest)? {
        return Err(missing(&manifest));
    }
    if !is_of(&*env.fs, dir, record)? {
        return Err(refused("one of another database".into()));
    }
    match &record.pool {
        Some(PoolMove { place, new: Some(new), .. })
            if !env.pm.exists(&dir.join(new))? && !env.pm.exists(&dir.join(place))? =>
        {
            Err(missing(new))
        }
        _ => Ok(()),
    }
}

/// Whether a record is of the database in `dir`, as far as the manifests in `dir` and of the record can tell.
fn is_of(fs: &dyn Fs, dir: &Path, record: &Journal) -> Result<bool> {
    let here = Manifest::salvage(fs, dir)?.map(|salvaged| salvaged.state.identity.uuid);
    let (manifest, number) = (FileName::Manifest(record.manifest).path(Path::new("")), record.manifest);
    let places = [dir.join(&manifest), beside::folder(dir).join(&manifest)];
    let made =
        places.iter().find_map(|path| Manifest::identity_in(fs, path, number).transpose()).transpose()?;
    Ok(made.is_some_and(|made| made.uuid == record.database)
        && here.is_none_or(|here| here == record.database))
}

/// Turns the state of `view` into the state of `dir`.
pub(super) fn commit(env: &Env, dir: &Path, view: &RepairView, done: &Salvage) -> Result<()> {
    let record = plan(env, dir, view, done)?;
    let folder = beside::folder(dir);
    for file in env.fs.list(&folder)? {
        env.fs.sync_file(&file)?;
    }
    env.fs.sync_dir(&folder)?;
    let temporary = dir.join(REPAIR_RECORD_TEMP);
    if env.fs.exists(&temporary)? {
        env.fs.remove(&temporary)?;
    }
    probe(&*env.fs, dir, &temporary).map_err(|e| {
        cannot_take(e, &folder, &format!("does not lie on the file system of {}", dir.display()))
    })?;
    let mut file = env.fs.create(&temporary)?;
    file.append(&record.encode())?;
    file.sync()?;
    drop(file);
    if fills_lost(&record) {
        prepare_lost(&*env.fs, dir)?;
    }
    env.fs.rename(&temporary, &dir.join(REPAIR_RECORD))?;
    env.fs.sync_dir(dir)?;
    apply(env, dir, &record)
}

fn fills_lost(record: &Journal) -> bool {
    let aside = record.pool.as_ref().and_then(|pool| pool.aside.as_ref());
    record.links.iter().map(|(_, to)| to).chain(aside).any(|to| to.starts_with(LOST_FOLDER))
}

/// Makes the folder `lost` and tests that it can take a file: after the last step a failure would come too
/// late.
fn prepare_lost(fs: &dyn Fs, dir: &Path) -> Result<()> {
    let lost = dir.join(LOST_FOLDER);
    fs.create_dir_all(&lost)
        .and_then(|()| probe(fs, dir, &lost.join(PROBE)))
        .map_err(|e| cannot_take(e, &lost, "cannot take what the repair is to keep there"))
}

/// Gives a file of the folder the name `taken`, and removes the name again.
fn probe(fs: &dyn Fs, dir: &Path, taken: &Path) -> Result<()> {
    let probe = beside::folder(dir).join(PROBE);
    if !fs.exists(&probe)? {
        write(fs, &probe, b"")?;
    }
    if fs.exists(taken)? {
        fs.remove(taken)?;
    }
    link(fs, &probe, taken)?;
    fs.remove(taken)
}

/// The error for a file that cannot get a name in a place.
fn cannot_take(error: Error, place: &Path, why: &str) -> Error {
    let is_the_place = |kind| {
        matches!(kind, ErrorKind::CrossesDevices | ErrorKind::AlreadyExists | ErrorKind::NotADirectory)
    };
    match error {
        Error::Io { ref cause, .. } if is_the_place(cause.kind()) => {
            Error::invalid(format!("{} {why} ({error}): move it away; nothing was changed", place.display()))
        }
        error => error,
    }
}

/// What must be done to turn `dir` into what `view` shows.
fn plan(env: &Env, dir: &Path, view: &RepairView, done: &Salvage) -> Result<Journal> {
    let fs = &*env.fs;
    let changes = view.fs.changes();
    let manifest = manifest::locate(&*view.fs, dir)?
        .ok_or_else(|| Error::corruption(dir, 0, "a manifest that a repair has made", "none"))?;
    let database = Manifest::open(view.fs.clone(), dir)?.state().identity.uuid;
    let mut record = Journal { database, manifest, lost: done.report.lost.clone(), ..Journal::default() };
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
        let to = free_name(env, dir, Path::new(LOST_FOLDER), name)?;
        list.push_str(&format!("{}: {why}\n", to.display()));
        if pointers.contains(&name.into()) {
            // Its name is needed, so a copy is kept.
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
        record.links.push((folder.join(LIST), free_name(env, dir, Path::new(LOST_FOLDER), LIST)?));
    }
    Ok(record)
}

fn plan_pool(
    env: &Env,
    dir: &Path,
    view: &RepairView,
    done: &Salvage,
    list: &mut String,
) -> Result<Option<PoolMove>> {
    let Some((place, now)) = view.pm.change() else { return Ok(None) };
    let named = |path: PathBuf| beside::name_from(dir, path);
    let new = (now == PoolNow::New).then(|| named(pool_beside(&place))).transpose()?;
    let mut aside = None;
    if let Some(why) = done.pool_aside.as_ref().filter(|_| !env.pm.is_device(&place))
        && env.pm.exists(&place)?
    {
        let name = place.file_name().map_or("pool".into(), |name| name.to_string_lossy().into_owned());
        let to = match is_directly_in(&place, dir) {
            true => free_name(env, dir, Path::new(LOST_FOLDER), &name)?,
            // On its own file system, which a folder of the directory may be.
            false => free_name(env, dir, &named(place.clone())?.with_file_name(""), &format!("{name}.lost"))?,
        };
        list.push_str(&format!("{}: {why}\n", to.display()));
        aside = Some(to);
    }
    Ok(Some(PoolMove { place: named(place)?, new, aside }))
}

/// An unused name, in a folder of the directory or elsewhere.
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

/// Carries out the rest of the record.
fn apply(env: &Env, dir: &Path, record: &Journal) -> Result<()> {
    let fs = &*env.fs;
    if fills_lost(record) {
        fs.create_dir_all(&dir.join(LOST_FOLDER))?;
    }
    for (from, to) in &record.links {
        let (from, to) = (dir.join(from), dir.join(to));
        if !fs.exists(&to)? && fs.exists(&from)? {
            link(fs, &from, &to)?;
        }
    }
    if fs.exists(&dir.join(LOST_FOLDER))? {
        fs.sync_dir(&dir.join(LOST_FOLDER))?;
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
    // The folder first: its files would keep the bytes of files that are removed later.
    beside::empty(fs, dir)?;
    fs.remove(&dir.join(REPAIR_RECORD))?;
    fs.sync_dir(dir)?;
    let _ = fs.remove_dir(&beside::folder(dir));
    Ok(())
}

/// Gives a file a second name, or renames it where the file system has no links.
fn link(fs: &dyn Fs, from: &Path, to: &Path) -> Result<()> {
    match fs.link(from, to) {
        Err(Error::Io { cause, .. })
            if matches!(cause.kind(), ErrorKind::Unsupported | ErrorKind::PermissionDenied) =>
        {
            fs.rename(from, to)
        }
        linked => linked,
    }
}

fn move_pool(pm: &dyn PmSpace, dir: &Path, pool: &PoolMove) -> Result<()> {
    let place = dir.join(&pool.place);
    let new = pool.new.as_ref().map(|new| dir.join(new));
    // Once the new pool has its place, the file there is that pool. Its name is made durable before the
    // record goes.
    if new.as_ref().map_or(Ok(false), |new| pm.exists(new).map(|is_there| !is_there))? {
        return pm.sync_name(&place);
    }
    match pool.aside.as_ref().map(|aside| dir.join(aside)) {
        Some(aside) if !pm.exists(&aside)? && pm.exists(&place)? => set_aside(pm, &place, &aside)?,
        None if new.is_none() => pm.remove(&place)?,
        _ => {}
    }
    new.map_or(Ok(()), |new| pm.rename(&new, &place))
}

/// Gives the pool in `place` the name `aside`, or one beside its place: records of earlier versions name places on other
/// file systems.
fn set_aside(pm: &dyn PmSpace, place: &Path, aside: &Path) -> Result<()> {
    match pm.rename(place, aside) {
        Err(Error::Io { cause, .. }) if cause.kind() == ErrorKind::CrossesDevices => {}
        renamed => return renamed,
    }
    pool::keep_beside(pm, place)
}

/// Removes what an unfinished repair has written.
pub(super) fn discard(env: &Env, dir: &Path) -> Result<()> {
    if is_unfinished(&*env.fs, dir)? {
        // The repair has happened, and what it has written is needed.
        return Ok(());
    }
    let temporary = dir.join(REPAIR_RECORD_TEMP);
    if env.fs.exists(&temporary)? {
        env.fs.remove(&temporary)?;
    }
    beside::discard(env, dir)
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use terrace_disk::SimFs;
    use terrace_pmem::{Pool, PoolOptions};

    use super::*;

    /// Pools that are only names on a disk.
    #[derive(Debug, Default)]
    struct Names {
        fs: SimFs,
        synced: Mutex<Vec<PathBuf>>,
    }

    impl PmSpace for Names {
        fn create(&self, path: &Path, _options: &PoolOptions) -> Result<Pool> {
            Err(Error::io(path, "create", ErrorKind::Unsupported.into()))
        }

        fn open(&self, path: &Path, _options: &PoolOptions) -> Result<Pool> {
            Err(Error::io(path, "open", ErrorKind::Unsupported.into()))
        }

        fn exists(&self, path: &Path) -> Result<bool> {
            self.fs.exists(path)
        }

        fn remove(&self, path: &Path) -> Result<()> {
            self.fs.remove(path)
        }

        fn rename(&self, from: &Path, to: &Path) -> Result<()> {
            if from.parent() != to.parent() {
                return Err(Error::io(from, "rename", ErrorKind::CrossesDevices.into()));
            }
            self.fs.rename(from, to)
        }

        fn sync_name(&self, path: &Path) -> Result<()> {
            self.synced.lock().push(path.to_path_buf());
            Ok(())
        }
    }

    /// A process killed during the rename has not made it durable, and the process that continues removes the
    /// record of what was to be done.
    #[test]
    fn a_pool_that_has_its_name_already_has_it_for_good() {
        let (pm, dir) = (Names::default(), Path::new("/db"));
        pm.fs.create_dir_all(Path::new("/pm")).unwrap();
        pm.fs.plant(Path::new("/pm/pool.repair"), b"new").unwrap();
        let place = PathBuf::from("/pm/pool");
        let pool = PoolMove { place: place.clone(), new: Some("/pm/pool.repair".into()), aside: None };
        for synced in [vec![], vec![place]] {
            move_pool(&pm, dir, &pool).unwrap();
            assert_eq!(pm.fs.read(Path::new("/pm/pool")).unwrap(), b"new");
            assert_eq!(*pm.synced.lock(), synced);
        }
    }

    /// Records of earlier versions name places that a rename cannot reach.
    #[test]
    fn a_pool_stays_beside_its_place_where_that_is_another_file_system() {
        let (pm, dir) = (Names::default(), Path::new("/db"));
        pm.fs.create_dir_all(Path::new("/db/medium")).unwrap();
        for (name, bytes) in [("p", "old"), ("p.repair", "new"), ("p.lost", "older")] {
            pm.fs.plant(&dir.join("medium").join(name), bytes.as_bytes()).unwrap();
        }
        let (place, new) = ("medium/p".into(), Some("medium/p.repair".into()));
        let pool = PoolMove { place, new, aside: Some("lost/p".into()) };
        // A process killed between the two renames leaves the rest to the next.
        set_aside(&pm, &dir.join("medium/p"), &dir.join("lost/p")).unwrap();
        for _ in 0..2 {
            move_pool(&pm, dir, &pool).unwrap();
            let all =
                ["p", "p.lost", "p.lost.2"].map(|name| pm.fs.read(&dir.join("medium").join(name)).unwrap());
            assert_eq!(all, [&b"new"[..], b"older", b"old"]);
        }
    }
}
