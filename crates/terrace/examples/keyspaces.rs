//! What many keyspaces cost.
//!
//! `cargo run --release --example keyspaces [DIR]`: for some engines, the time to make ten thousand keyspaces, to open
//! the database with them, to open each, to list and to drop all, and the memory that their handles take; then puts
//! and gets of one keyspace beside those of the default one. A database is made in a folder of DIR for each, and
//! removed.

use std::path::Path;
use std::time::Duration;

use terrace::{Db, EngineKind, Keyspace, Options, PoolChoice, Profile, Result};
use terrace_base::clock::{Clock, SystemClock};
use terrace_base::rng::Rng;

const KEYSPACES: u32 = 10_000;
const KEYS: u64 = 200_000;
const VALUE: [u8; 100] = [7; 100];

fn key(n: u64) -> [u8; 16] {
    let mut key = *b"key/000000000000";
    key[8..].copy_from_slice(&n.to_be_bytes());
    key
}

/// Bytes of anonymous memory that this process has.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kilobytes.unwrap_or(0) << 10
}

fn timed<T>(clock: &SystemClock, work: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let began = clock.now();
    let outcome = work()?;
    Ok((outcome, clock.now() - began))
}

fn many(dir: &Path, options: &Options, clock: &SystemClock) -> Result<()> {
    let names: Vec<String> = (0..KEYSPACES).map(|i| format!("keyspace number {i}")).collect();
    let db = Db::open(dir, options.clone())?;
    let ((), made) = timed(clock, || names.iter().try_for_each(|name| db.keyspace(name)?.put("k", "v")))?;
    db.close()?;
    drop(db);
    let (db, opened) = timed(clock, || Db::open(dir, options.clone()))?;
    let before = anonymous_bytes();
    let (handles, each): (Vec<Keyspace>, _) =
        timed(clock, || names.iter().map(|name| db.keyspace(name)).collect::<Result<_>>())?;
    let bytes = anonymous_bytes().saturating_sub(before) / u64::from(KEYSPACES);
    let (listed, list) = timed(clock, || db.keyspaces())?;
    drop(handles);
    let ((), dropped) = timed(clock, || listed.iter().try_for_each(|name| db.drop_keyspace(name)))?;
    let micros = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(KEYSPACES);
    println!(
        "{}: made with a record {:.1} us each, database opened in {:.1} ms, opened {:.1} us each ({bytes} bytes), \
         listed in {:.1} ms, dropped {:.1} us each",
        options.engine.name(),
        micros(made),
        opened.as_secs_f64() * 1e3,
        micros(each),
        list.as_secs_f64() * 1e3,
        micros(dropped),
    );
    db.close()
}

fn one(dir: &Path, options: &Options, clock: &SystemClock) -> Result<()> {
    let db = Db::open(dir, options.clone())?;
    let space = db.keyspace("one")?;
    let mut rng = Rng::new(1);
    let mut numbers: Vec<u64> = (0..KEYS).collect();
    for i in (1..numbers.len()).rev() {
        numbers.swap(i, rng.below(i as u64 + 1) as usize);
    }
    // In turns, so that neither has the quieter time.
    let mut times = [Duration::ZERO; 4];
    for part in numbers.chunks(2000) {
        times[0] += timed(clock, || part.iter().try_for_each(|n| db.put(key(*n), VALUE)))?.1;
        times[1] += timed(clock, || part.iter().try_for_each(|n| space.put(key(*n), VALUE)))?.1;
    }
    for part in numbers.chunks(2000) {
        times[2] += timed(clock, || part.iter().try_for_each(|n| db.get(key(*n)).map(drop)))?.1;
        times[3] += timed(clock, || part.iter().try_for_each(|n| space.get(key(*n)).map(drop)))?.1;
    }
    let [put, put_in, get, get_in] = times.map(|time| time.as_secs_f64() * 1e9 / KEYS as f64);
    println!(
        "{}: a put {put:.0} ns, in a keyspace {put_in:.0} ({:.2}); a get {get:.0}, in a keyspace {get_in:.0} ({:.2})",
        options.engine.name(),
        put_in / put,
        get_in / get,
    );
    db.close()
}

fn main() -> Result<()> {
    let clock = SystemClock::new();
    let dir = std::env::args_os().nth(1).unwrap_or_else(|| std::env::temp_dir().into_os_string());
    for engine in [EngineKind::Slm, EngineKind::Lsm, EngineKind::Wip, EngineKind::Sptree] {
        let mut options = Options { engine, ..Options::default() };
        if engine.needs_memory() {
            options.pool = PoolChoice::Emulated { path: None, profile: Profile::parse("dram")? };
        }
        for (name, work) in [("many", many as fn(&Path, &Options, &SystemClock) -> _), ("one", one)] {
            let dir = Path::new(&dir).join(format!("keyspaces-{name}-{}", std::process::id()));
            let outcome = work(&dir, &options, &clock);
            // A folder that stays harms nobody.
            let _ = std::fs::remove_dir_all(&dir);
            outcome?;
        }
    }
    Ok(())
}
