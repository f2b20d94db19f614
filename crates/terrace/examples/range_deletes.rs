//! What deleting a range costs, beside deleting its keys.
//!
//! `cargo run --release --example range_deletes [DIR]`: for some engines, the time of one deletion of a range with a
//! hundred thousand keys, of gets and of a walk before the keys are removed and after, of the sweep for each key, and
//! of deleting as many keys one by one. A database is made in a folder of DIR for each, and removed.

use std::path::Path;
use std::time::Duration;

use terrace::{Db, EngineKind, Options, PoolChoice, Profile, Result};
use terrace_base::clock::{Clock, SystemClock};

const KEYS: u64 = 200_000;
const VALUE: [u8; 100] = [7; 100];

/// Each half of the keys is one range.
fn key(n: u64) -> [u8; 16] {
    let mut key = *b"key/000000000000";
    key[8..].copy_from_slice(&n.to_be_bytes());
    key
}

fn timed<T>(clock: &SystemClock, work: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let began = clock.now();
    let outcome = work()?;
    Ok((outcome, clock.now() - began))
}

fn nanos(time: Duration, operations: u64) -> u128 {
    time.as_nanos() / u128::from(operations)
}

/// Nanoseconds of a get of each of the second half's keys, in an order of its own, all of which are there.
fn gets(db: &Db, clock: &SystemClock) -> Result<u128> {
    let half = KEYS / 2;
    let ((), time) = timed(clock, || {
        (0..half).try_for_each(|n| {
            let found = db.get(key(half + n * 7919 % half))?;
            assert!(found.is_some());
            Ok(())
        })
    })?;
    Ok(nanos(time, half))
}

/// Nanoseconds of a step of a walk over the second half, where keys have an order.
fn walk(db: &Db, clock: &SystemClock) -> Result<u128> {
    let (count, time) = timed(clock, || Ok(db.entries()?.filter(Result::is_ok).count() as u64))?;
    assert_eq!(count, KEYS / 2);
    Ok(nanos(time, count))
}

fn measure(dir: &Path, options: &Options, clock: &SystemClock) -> Result<()> {
    let half = KEYS / 2;
    let fill = |db: &Db| -> Result<()> {
        (0..KEYS).try_for_each(|n| db.put(key(n), VALUE))?;
        db.flush()
    };
    let db = Db::open(dir.join("ranges"), options.clone())?;
    fill(&db)?;
    let before = gets(&db, clock)?;
    // The first one makes the catalogue.
    db.delete_range(key(KEYS)..key(KEYS + 1))?;
    let ((), deletion) = timed(clock, || db.delete_range(key(0)..key(half)))?;
    let (beside, walked) = (gets(&db, clock)?, walk(&db, clock)?);
    let ((), sweep) = timed(clock, || db.sweep())?;
    let (after, walked_after) = (gets(&db, clock)?, walk(&db, clock)?);
    db.close()?;
    drop(db);
    let db = Db::open(dir.join("keys"), options.clone())?;
    fill(&db)?;
    let ((), singly) = timed(clock, || (0..half).try_for_each(|n| db.delete(key(n))))?;
    db.close()?;
    println!(
        "{}: a range deleted in {} us; a get {before} ns before, {beside} ns beside the sweep, {after} ns after; a step \
         of a walk {walked} and {walked_after} ns; the rest of the sweep {} ns a key; a key deleted alone {} ns",
        options.engine.name(),
        deletion.as_micros(),
        nanos(sweep, half),
        nanos(singly, half)
    );
    Ok(())
}

fn main() -> Result<()> {
    let clock = SystemClock::new();
    let dir = std::env::args_os().nth(1).unwrap_or_else(|| std::env::temp_dir().into_os_string());
    for engine in [EngineKind::Slm, EngineKind::Lsm, EngineKind::Wip, EngineKind::Sptree, EngineKind::Turbo] {
        let mut options = Options { engine, ..Options::default() };
        if engine.needs_memory() {
            options.pool = PoolChoice::Emulated { path: None, profile: Profile::parse("dram")? };
        }
        let dir = Path::new(&dir).join(format!("range-deletes-{}-{}", engine.name(), std::process::id()));
        let outcome = measure(&dir, &options, &clock);
        // A folder that stays harms nobody.
        let _ = std::fs::remove_dir_all(&dir);
        outcome?;
    }
    Ok(())
}
