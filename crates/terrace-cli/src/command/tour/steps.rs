//! The tour's steps on one open database.

use std::path::Path;

use terrace::{Db, WriteBatch};
use terrace_base::rng::Rng;
use terrace_bench::report::grouped;

use super::{Guide, crash, rate};
use crate::command::stat;
use crate::escape::preview;
use crate::failure::{CommandResult, Failure, exit};
use crate::open::{Intent, OpenArgs};
use crate::text;
use terrace_base::size::human;

const BATCH_RECORDS: u64 = 500;
/// Every so many records one is overwritten.
const OVERWRITE_EVERY: u64 = 7;
/// One read for so many records.
const READ_ONE_IN: u64 = 5;
const SEED: u64 = 2026;

/// All steps in order.
pub(super) fn walk(guide: &mut Guide<'_>, open: &OpenArgs, dir: &Path) -> CommandResult {
    let db = create(guide, open, dir)?;
    import(guide, &db)?;
    overwrite(guide, &db)?;
    read(guide, &db)?;
    scan(guide, &db)?;
    snapshot(guide, &db)?;
    db.close()?;
    drop(db);
    let db = crash::kill_and_reopen(guide, open, dir)?;
    verify_all(guide, &db)?;
    check(guide, &db)?;
    guide.step("What lies where, as `terrace stat` tells it")?;
    for line in stat::render(&db.stats()).lines() {
        guide.tell(line)?;
    }
    Ok(db.close()?)
}

/// The value that record `index` has after the overwrites.
fn expected(index: u64) -> (String, String) {
    text::record(index, u64::from(index.is_multiple_of(OVERWRITE_EVERY)))
}

/// The error for a record that is not as the tour wrote it.
pub(super) fn wrong(what: impl Into<String>) -> Failure {
    Failure::new(exit::NOT_FOUND, what).hint("this is a defect of Terrace: please report it with this output")
}

fn create(guide: &mut Guide<'_>, open: &OpenArgs, dir: &Path) -> CommandResult<Db> {
    guide.step("Make a database")?;
    let (db, took) = guide.timed(|| open.open(dir, Intent::Create))?;
    let stats = db.stats();
    guide.tell(format_args!("Engine {}, opened in {:.0} ms.", stats.engine, took.as_secs_f64() * 1e3))?;
    guide.tell(format_args!("Pool: {}.", stats.media))?;
    guide.tell(format_args!("Promise: {}.", stats.durability))?;
    Ok(db)
}

fn import(guide: &mut Guide<'_>, db: &Db) -> CommandResult {
    let records = guide.records;
    guide.step(&format!("Import {} records: users, articles and log lines", grouped(records)))?;
    let (bytes, took) = guide.timed(|| write_all(db, (0..records).map(|i| text::record(i, 0))))?;
    guide.tell(format_args!(
        "{} of keys and values in batches of {BATCH_RECORDS}: {}, {} a second.",
        human(bytes),
        rate(records, took),
        human((bytes as f64 / took.as_secs_f64().max(1e-6)) as u64),
    ))
}

fn write_all(db: &Db, records: impl Iterator<Item = (String, String)>) -> CommandResult<u64> {
    let mut batch = WriteBatch::new();
    let (mut bytes, mut held) = (0, 0);
    for (key, value) in records {
        bytes += (key.len() + value.len()) as u64;
        batch.put(key.as_bytes(), value.as_bytes());
        held += 1;
        if held == BATCH_RECORDS {
            db.write(std::mem::replace(&mut batch, WriteBatch::new()))?;
            held = 0;
        }
    }
    db.write(batch)?;
    Ok(bytes)
}

fn overwrite(guide: &mut Guide<'_>, db: &Db) -> CommandResult {
    let records = guide.records;
    let count = records.div_ceil(OVERWRITE_EVERY);
    guide.step(&format!("Overwrite {} of them, one put each", grouped(count)))?;
    let ((), took) = guide.timed(|| {
        for index in (0..records).step_by(OVERWRITE_EVERY as usize) {
            let (key, value) = text::record(index, 1);
            db.put(key.as_bytes(), value.as_bytes())?;
        }
        Ok(())
    })?;
    guide.tell(format_args!("{}, each acknowledged before the next.", rate(count, took)))
}

fn read(guide: &mut Guide<'_>, db: &Db) -> CommandResult {
    let (records, reads) = (guide.records, guide.records / READ_ONE_IN);
    guide.step(&format!("Read {} at random, and compare", grouped(reads)))?;
    let ((), took) = guide.timed(|| {
        let mut rng = Rng::new(SEED);
        for _ in 0..reads {
            let (key, value) = expected(rng.below(records));
            let found = db.get(key.as_bytes())?;
            if found.as_deref() != Some(value.as_bytes()) {
                return Err(wrong(format!("{key} does not hold what was written to it")));
            }
        }
        Ok(())
    })?;
    guide.tell(format_args!("{}, every one as it was last written.", rate(reads, took)))
}

fn scan(guide: &mut Guide<'_>, db: &Db) -> CommandResult {
    guide.step(&format!("Scan the users ({}...), and the log from its end", text::USERS))?;
    let (users, took) = guide.timed(|| {
        let mut count = 0u64;
        for record in db.prefix(text::USERS.as_bytes())? {
            record?;
            count += 1;
        }
        Ok(count)
    })?;
    guide.tell(format_args!(
        "{} users in key order: {}. The first two:",
        grouped(users),
        rate(users, took)
    ))?;
    for record in db.prefix(text::USERS.as_bytes())?.take(2) {
        let (key, value) = record?;
        guide.tell(format_args!("  {}  {}", preview(&key, 40), preview(&value, 56)))?;
    }
    guide.tell("The last two lines of the log:")?;
    for record in db.prefix(text::LOGS.as_bytes())?.rev().take(2) {
        let (key, value) = record?;
        guide.tell(format_args!("  {}  {}", preview(&key, 44), preview(&value, 52)))?;
    }
    Ok(())
}

fn snapshot(guide: &mut Guide<'_>, db: &Db) -> CommandResult {
    guide.step("Take a snapshot, delete an article, and read both ways")?;
    let (key, value) = expected(1);
    let snapshot = db.snapshot();
    db.delete(key.as_bytes())?;
    let (now, then) = (db.get(key.as_bytes())?, snapshot.get(key.as_bytes())?);
    if now.is_some() || then.as_deref() != Some(value.as_bytes()) {
        return Err(wrong(format!("a snapshot does not keep {key}")));
    }
    guide.tell(format_args!(
        "{} is gone now, and still there in the snapshot.",
        preview(key.as_bytes(), 60)
    ))?;
    db.put(key.as_bytes(), value.as_bytes())?;
    guide.tell("Put back.")
}

fn verify_all(guide: &mut Guide<'_>, db: &Db) -> CommandResult {
    let records = guide.records;
    guide.step(&format!("Compare all {} imported records once more", grouped(records)))?;
    let ((), took) = guide.timed(|| {
        for index in 0..records {
            let (key, value) = expected(index);
            if db.get(key.as_bytes())?.as_deref() != Some(value.as_bytes()) {
                return Err(wrong(format!("{key} was lost or changed by the crash")));
            }
        }
        Ok(())
    })?;
    guide.tell(format_args!("All there, all right: {}.", rate(records, took)))
}

fn check(guide: &mut Guide<'_>, db: &Db) -> CommandResult {
    guide.step("Check every structure and checksum, as `terrace check` does")?;
    let (report, took) = guide.timed(|| Ok(db.check()?))?;
    if !report.is_clean() {
        return Err(wrong(format!("the check found: {}", report.problems.join("; "))));
    }
    guide.tell(format_args!("Sound, in {:.2} s.", took.as_secs_f64()))
}
