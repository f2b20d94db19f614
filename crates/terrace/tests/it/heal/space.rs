//! Whether a store at rest takes what a fresh one with the same contents takes.

use std::path::Path;

use terrace::Options;
use terrace_sim::{World, WorldOptions};

use super::life::{Life, Verdict, fresh};
use crate::crash::env::DIR;

/// Logs that a store at rest may have: that of its memtable, one that it has begun, and one that is ready.
const MOST_LOGS: usize = 3;

/// What the pool of a store may take beyond that of a fresh one: memtables, parts of extents, an index whose nodes have
/// been split and emptied.
const POOL_SLACK_BYTES: u64 = 128 << 10;

/// Judges what `life`, which is at rest, takes of disk and pool.
pub fn judge(world: &World, life: &Life<'_>, options: &Options, made_of: WorldOptions) -> Verdict {
    files(world, life)?;
    let other = World::new(77, made_of);
    let fresh = fresh(&other, options.clone(), life.contents())?;
    let (used, enough) = (life.db().stats().pm.used, fresh.db().stats().pm.used);
    if used > 2 * enough + POOL_SLACK_BYTES {
        return Err(format!("{used} bytes of the pool are used, and {enough} are of a fresh copy"));
    }
    Ok(())
}

/// The files of the directory are those that the store needs.
fn files(world: &World, life: &Life<'_>) -> Verdict {
    let image = world.fs().image();
    let names: Vec<&str> = image
        .keys()
        .filter(|path| path.starts_with(DIR))
        .filter_map(|path| path.file_name()?.to_str())
        .collect();
    let count = |is: &dyn Fn(&str) -> bool| names.iter().filter(|name| is(name)).count();
    let ends = |end: &'static str| move |name: &str| Path::new(name).extension().is_some_and(|e| e == end);
    let tables = life.db().stats().ssd.tables;
    let wanted = [
        ("tables", count(&ends("sst")) as u64 == tables),
        ("manifests", count(&|name| name.starts_with("MANIFEST")) <= 1),
        ("logs", count(&ends("log")) <= MOST_LOGS),
        ("files half made", count(&|name| name.ends_with(".new") || name.ends_with(".tmp")) == 0),
    ];
    match wanted.iter().find(|(_, as_it_should)| !as_it_should) {
        None => Ok(()),
        Some((what, _)) => Err(format!("{what} that nobody needs, with {tables} tables in use: {names:?}")),
    }
}
