//! Repairs: the part that all engines share.
//!
//! A repair works in a view of the database ([`beside`]) that it may change freely: it writes beside the
//! existing files, and none of them changes. The result is opened and checked, and then put in place by one
//! step ([`switch`]), which is started again if it was cut short. So a repair that fails or is killed has
//! changed nothing or is complete; a dry run is a repair without the last step.

mod beside;
mod evidence;
mod journal;
mod kept;
mod note;
mod pools;
mod sealed;
mod stop;
mod switch;
mod whose;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use terrace_base::{Error, ErrorKind, Result};
use terrace_disk::{Access, Fs};
use terrace_log::LogReader;
use terrace_table::Table;

use self::beside::RepairView;
use self::evidence::{Evidence, Verdict};
use crate::core::Core;
use crate::core::engine::Engine;
use crate::core::report::{CheckReport, RepairReport};
use crate::engine;
use crate::env::Env;
use crate::manifest::{FileName, IngestNotes, Manifest};
use crate::options::{EngineKind, Options};
use crate::pool;
use crate::salvage::{Owner, Salvage};
use crate::scratch;

pub(crate) use journal::{decode_record, sound_record};
pub(crate) use note::{decode_note, sound_note};
pub(crate) use switch::{finish, is_unfinished, refuse_unfinished};
pub use whose::Whose;
pub(crate) use whose::{admit, admit_repair};

/// How a database is repaired.
#[derive(Debug, Clone, Copy, Default)]
pub struct RepairOptions {
    /// The engine that made it. Without it the files decide, or the repair is refused.
    pub engine: Option<EngineKind>,
    /// Whether to do everything but the last step: the report says what would be done, and nothing is
    /// changed. Meanwhile it takes as much space.
    pub dry_run: bool,
    /// Once this is true the repair ends with an error and leaves nothing, unless its last step has begun.
    pub stop: Option<&'static AtomicBool>,
}

/// Repairs the database in `dir`, whose lock the caller holds.
pub(crate) fn run(env: &Env, dir: &Path, options: Options, asked: RepairOptions) -> Result<RepairReport> {
    let mut report = RepairReport::default();
    if is_unfinished(&*env.fs, dir)? {
        if asked.dry_run {
            report.lost = switch::losses_to_come(env, dir)?.unwrap_or_default();
            report.actions.push("a repair that was cut short would be put in place".into());
            report.doubts.push("what else there is to be done: nothing was looked at beyond that".into());
            return Ok(report);
        }
        report.lost = finish(env, dir)?.unwrap_or_default();
        report.actions.push("put the files of a repair in place that was cut short".into());
    }
    admit_versions(&*env.fs, dir)?;
    let Verdict { engine, owner } = Evidence::gather(env, dir, &options)?.judge(dir, asked.engine)?;
    let options = Options { engine, create_if_missing: false, read_only: false, ..options };
    let place = place_of_pool(env, dir, &options)?;
    let is_moved = names_another_place(env, dir, &options)?;
    refuse_wrong_place(env, dir, &options, (&place, is_moved))?;
    switch::discard(env, dir)?;
    let outcome = mend(env, dir, &options, (owner, asked), (&place, is_moved));
    // After the last step there is nothing to discard.
    let discarded = switch::discard(env, dir);
    let done = outcome?;
    discarded?;
    report.keys = done.keys;
    report.actions.extend(done.actions);
    report.lost.extend(done.lost);
    report.set_aside = done.set_aside;
    report.doubts = done.doubts;
    Ok(report)
}

fn mend(
    env: &Env,
    dir: &Path,
    options: &Options,
    (owner, asked): (Option<Owner>, RepairOptions),
    (place, is_moved): (&Path, bool),
) -> Result<RepairReport> {
    let is_sound = || sound_as_it_is(env, dir, options, (asked.stop, place));
    if let Some(keys) = if is_moved { None } else { is_sound()? } {
        let actions = vec!["everything is sound: nothing had to be done".to_string()];
        let doubts = earlier_losses(&*env.fs, dir)?;
        return Ok(RepairReport { keys, actions, doubts, ..RepairReport::default() });
    }
    let once = |lost_end| mend_once(env, dir, options, (owner, asked, lost_end), place);
    let (mut view, mut done, last) = once(None)?;
    if done.left.is_none() {
        let newer = done.newest_unnamed.as_ref().filter(|(seq, _)| *seq > last);
        let newer = newer.map(|(_, what)| format!("{what} goes on after write {last}, where the rest ends"));
        let newer = done.found_lost_end.take().or(newer);
        let newer = newer.map_or_else(|| newer_table(env, dir, options, last), |newer| Ok(Some(newer)))?;
        if let Some(found) = newer {
            drop((view, done));
            (view, done, _) = once(Some(found))?;
        }
    }
    done.report.set_aside = set_aside(env, dir, &done, place)?;
    view.stop.look(dir)?;
    if !asked.dry_run {
        switch::commit(env, dir, &view, &done)?;
    }
    Ok(done.report)
}

/// Repairs beside the existing files; returns the last sequence number of the result. `lost_end` shows that
/// the manifest has lost its end, if that is known.
fn mend_once(
    env: &Env,
    dir: &Path,
    options: &Options,
    (owner, asked, lost_end): (Option<Owner>, RepairOptions, Option<String>),
    place: &Path,
) -> Result<(RepairView, Salvage, u64)> {
    switch::discard(env, dir)?;
    need_room(env, options, place)?;
    let view = RepairView::new(env, dir, place, asked.stop)?;
    let core = Core::new(dir.to_path_buf(), options.clone(), view.env())?;
    let mut base = Salvage::new(core, owner);
    base.lost_end = lost_end;
    let mut done = engine::repair(base)?;
    let (mut last, mut has_operands) = (0, false);
    let checked = read_as_it_is(&view, dir, options, |core, engine, reached| {
        last = reached;
        let (checked, unfolded) = check_and_count(core, engine)?;
        has_operands = unfolded > 0;
        Ok(checked)
    })?;
    if let Some(problem) = checked.problems.first() {
        return Err(Error::corruption(
            dir,
            0,
            "a sound database to come out of the repair; nothing was changed",
            problem,
        ));
    }
    done.report.keys = checked.keys;
    if has_operands && !done.report.lost.is_empty() {
        let doubt = "the values of keys with deferred merges: what these stand on may be among what is lost";
        done.report.doubts.push(doubt.into());
    }
    Ok((view, done, last))
}

/// Evidence that the manifest has lost its end, which otherwise looks as if that end had never been written:
/// a whole table that the manifest does not name and did not drop, with writes after `last`, where everything
/// known ends. Logs hold a flush's writes before the flush.
fn newer_table(env: &Env, dir: &Path, options: &Options, last: u64) -> Result<Option<String>> {
    let Some(salvaged) = Manifest::salvage(&*env.fs, dir)? else { return Ok(None) };
    let origin = salvaged.state.identity.origin();
    let core = Core::new(dir.to_path_buf(), options.clone(), env.clone())?;
    let notes = IngestNotes::read(&*env.fs, dir)?;
    for path in env.fs.list(dir)? {
        let Some(FileName::Table(number)) = FileName::parse(&path) else { continue };
        let own = Table::identify(&*env.fs, &path);
        if salvaged.removed.contains(&number) || own.is_ok_and(|own| own != (number, origin)) {
            continue;
        }
        match Table::open(&*env.fs, &path, number, core.cache().clone(), Access::Random) {
            Ok(table) if table.meta().max_seq > last && !notes.tell_of(origin, table.meta()) => {
                return Ok(Some(format!("{number:06}.sst goes on after write {last}, where the rest ends")));
            }
            Err(e) if e.is_system_failure() || e.is_of_another_version() => return Err(e),
            // An unfinished or damaged table shows nothing.
            Ok(_) | Err(_) => {}
        }
    }
    Ok(None)
}

/// Unusable files to set aside, with reasons.
fn set_aside(env: &Env, dir: &Path, done: &Salvage, place: &Path) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for (name, why) in &done.aside {
        if env.fs.exists(&dir.join(name))? {
            lines.push(format!("{name}: {why}"));
        }
    }
    if let Some(why) = &done.pool_aside
        && env.pm.exists(place)?
    {
        lines.push(format!("{}: {why}", place.display()));
    }
    Ok(lines)
}

/// Losses of a repair that was killed after its last step, before it could report them.
fn earlier_losses(fs: &dyn Fs, dir: &Path) -> Result<Vec<String>> {
    let list = switch::list_of_lost(dir);
    Ok(match fs.exists(&list)? {
        true => vec![format!("what earlier repairs lost: {} says what they set aside", list.display())],
        false => Vec::new(),
    })
}

/// The number of keys, if the database proves sound as it is, both read as `check` reads it and opened for
/// writing: opening tidies up what an unclean end has left, and damage may go unseen with that.
fn sound_as_it_is(
    env: &Env,
    dir: &Path,
    options: &Options,
    (stop, place): (Option<&'static AtomicBool>, &Path),
) -> Result<Option<u64>> {
    let view = RepairView::new(env, dir, place, stop)?;
    // A device has no private view; a pool that was closed in order can be read as it is.
    let options = Options { read_only: env.pm.is_device(place), ..options.clone() };
    let proved = match read_as_it_is(&view, dir, &options, |_, engine, _| engine.check()) {
        Ok(report) if report.is_clean() => prove(&view, dir, &options),
        read => read.map(|report| (report, 0)),
    };
    match proved {
        Ok((report, last)) if report.is_clean() && view.pm.change().is_none() => {
            let is_whole =
                !hides_a_stranger(env, dir, &view)? && newer_table(env, dir, &options, last)?.is_none();
            Ok(is_whole.then_some(report.keys))
        }
        Err(e) if matches!(e.kind(), ErrorKind::Locked | ErrorKind::NoSpace) || e.is_of_another_version() => {
            Err(e)
        }
        _ => Ok(None),
    }
}

/// Opens and checks the database seen in `view`; also returns its last sequence number.
fn prove(view: &RepairView, dir: &Path, options: &Options) -> Result<(CheckReport, u64)> {
    let core = Core::new(dir.to_path_buf(), options.clone(), view.env())?;
    let (engine, last) = engine::open(core.clone())?;
    core.snapshots.advance(last);
    let report = check_and_count(&core, &engine);
    let closed = engine.close();
    report.and_then(|(report, _)| closed.map(|()| (report, last)))
}

/// Checks a database; if it is sound, counts all keys, including those only in a write buffer, and those with operands,
/// which no operator is there to fold.
fn check_and_count(core: &Core, engine: &Arc<dyn Engine>) -> Result<(CheckReport, u64)> {
    let (mut report, mut unfolded) = (engine.check()?, 0);
    if report.is_clean() {
        let held = engine.hold(&core.snapshots);
        let mut walk = engine.clone().walk_all(held.seq())?;
        report.keys = 0;
        while walk.next()?.is_some() {
            report.keys += 1;
            unfolded += u64::from(walk.failure().is_some());
        }
    }
    Ok((report, unfolded))
}

/// Reads and checks, by `look`, the database seen in `view`. Reading changes nothing: neither the pool that
/// stays in its place nor a new one may get a session that the manifest does not know.
fn read_as_it_is(
    view: &RepairView,
    dir: &Path,
    options: &Options,
    look: impl FnOnce(&Core, &Arc<dyn Engine>, u64) -> Result<CheckReport>,
) -> Result<CheckReport> {
    let options = Options { read_only: true, ..options.clone() };
    let (core, (engine, last)) = scratch::open_to_read(dir, &options, &view.env())?;
    core.snapshots.advance(last);
    let report = look(&core, &engine, last);
    let closed = engine.close();
    report.and_then(|report| closed.map(|()| report))
}

/// Whether opening removes a table that belongs to another database. Nobody may remove such a table.
fn hides_a_stranger(env: &Env, dir: &Path, view: &RepairView) -> Result<bool> {
    let own = Manifest::open(env.fs.clone(), dir)?.state().identity.origin();
    let is_stranger = |name: &OsStr| {
        let path = dir.join(name);
        matches!(FileName::parse(&path), Some(FileName::Table(_)))
            && Table::identify(&*env.fs, &path).is_ok_and(|(_, origin)| origin != own)
    };
    Ok(view.fs.changes().hidden.iter().any(|name| is_stranger(name)))
}

/// An error if another version of Terrace wrote any of it: such a database is sound and must not be touched.
fn admit_versions(fs: &dyn Fs, dir: &Path) -> Result<()> {
    for path in fs.list(dir)? {
        let outcome = match FileName::parse(&path) {
            Some(FileName::Table(_)) => Table::identify(fs, &path).map(drop),
            Some(FileName::Log(_)) => LogReader::origin(fs, &path).map(drop),
            _ => Ok(()),
        };
        // Everything else is handled where it is met.
        outcome.or_else(|e| if e.is_of_another_version() { Err(e) } else { Ok(()) })?;
    }
    Ok(())
}

/// Where the pool really lies or would lie.
fn place_of_pool(env: &Env, dir: &Path, options: &Options) -> Result<PathBuf> {
    let salvaged = Manifest::salvage(&*env.fs, dir)?;
    let recorded = salvaged.and_then(|salvaged| pool::recorded_path(&salvaged.state.identity, dir));
    let asked = options.pool.path().map(Path::to_path_buf);
    let place = asked.or(recorded).unwrap_or_else(|| dir.join(pool::POOL_NAME));
    env.pm
        .home(&place)
        .ok_or_else(|| Error::invalid(format!("{} is {}", place.display(), pool::LEADS_NOWHERE)))
}

/// Whether the pool's place is requested to be another than the manifest names. It is recorded then, but for a device: a
/// repair could not write beside it.
fn names_another_place(env: &Env, dir: &Path, options: &Options) -> Result<bool> {
    if options.pool.path().is_some_and(|path| env.pm.is_device(path)) {
        return Ok(false);
    }
    let Some(mut salvaged) = Manifest::salvage(&*env.fs, dir)? else { return Ok(false) };
    pool::record_place(&mut salvaged.state.identity, dir, &options.pool)
}

/// An error where no pool lies in `place` and the database's pool lies elsewhere, or may: a repair without it
/// would give up what it holds.
fn refuse_wrong_place(
    env: &Env,
    dir: &Path,
    options: &Options,
    (place, is_moved): (&Path, bool),
) -> Result<()> {
    pool::refuse_place_of_another_file(place, dir)?;
    if pool::is_in_folder_of_repair(place, dir) || is_moved && pool::is_under_a_repairs(place, dir) {
        return Err(Error::invalid(format!("{} lies where a repair keeps its files", place.display())));
    }
    if env.pm.exists(place)? && !is_moved {
        return Ok(());
    }
    let is_asked = options.pool.path().is_some();
    let Some(salvaged) = Manifest::salvage(&*env.fs, dir)? else {
        let is_data =
            |path: &PathBuf| matches!(FileName::parse(path), Some(FileName::Table(_) | FileName::Log(_)));
        // Without a pool the log of `lsm` lies in files. If log files exist, they are the data to repair.
        let may_go_without = || Ok(options.engine.may_lack_pool() && env.fs.list(dir)?.iter().any(is_data));
        if is_asked || may_go_without()? {
            return Ok(());
        }
        return Err(Error::invalid(format!(
            "the manifest, which knew where the pool lies, tells nothing any more, and there is none in {}: name it with \
             `--pool`; where it is gone for good, name the place for a new one",
            place.display()
        )));
    };
    let known =
        pool::recorded_path(&salvaged.state.identity, dir).unwrap_or_else(|| dir.join(pool::POOL_NAME));
    match is_asked && env.pm.exists(&known)? && !pool::is_another_databases(env, dir, &known)? {
        true => Err(Error::invalid(format!(
            "there is {} pool in {}, and the database's lies in {}: name that, or move it away to go on without it",
            if env.pm.exists(place)? { "a" } else { "no" },
            place.display(),
            known.display()
        ))),
        false => Ok(()),
    }
}

/// An error, before anything is written, if a new pool certainly does not fit.
fn need_room(env: &Env, options: &Options, place: &Path) -> Result<()> {
    let holds_everything = options.engine.keeps_all_in_memory() && env.pm.exists(place)?;
    if env.pm.is_device(place) && env.pm.exists(place)? {
        return Err(Error::invalid(format!(
            "the pool is the device {}, beside which there is no room for the new one that a repair makes: copy the \
             database to a file system with room for two pools and repair the copy",
            place.display()
        )));
    }
    let home = place.parent().filter(|home| !home.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (free, needed) = (env.fs.free_bytes(home)?, env.fs.open(place, Access::Random));
    let needed = needed.map_or(0, |file| file.len());
    if holds_everything && free < needed {
        return Err(Error::invalid(format!(
            "a repair makes a new pool beside {}, for which up to {needed} bytes are needed and {free} are free",
            place.display()
        )));
    }
    Ok(())
}
