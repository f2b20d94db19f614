//! Writes until the power is cut, and proves afterwards that everything it acknowledged is there:
//! `power_cut DIR POOL ACKNOWLEDGED [sync|emulated]`.
//!
//! The database in DIR, with its pool at POOL (`auto` for a file in DIR), is opened, or made if nothing was
//! acknowledged yet. What is in it must be the outcome of some first writes, of the ACKNOWLEDGED ones at least,
//! and `check` must find nothing. Then it goes on writing where it stopped. Progress is printed a line each and
//! nothing is printed before it is true. `scripts/dax-vm.sh` runs this in a machine that it kills.
//!
//! Write n is one batch: a record n, the removal of record n - [`KEPT`], and overwrites of `hot/..` and `last`.
//! So the state after n writes is known from n alone.

use std::env::args;
use std::io::Write;

use terrace::{Db, Error, Options, PoolChoice, Profile, Result, SlmOptions, WriteBatch, WriteOptions};
use terrace_base::rng::Rng;

/// Records that are there at any time.
const KEPT: u64 = 4000;
/// Keys that are overwritten in turn.
const HOT: u64 = 50;
/// Writes to an acknowledgement. A serial line is slow.
const STRIDE: u64 = 32;
/// The key whose value is the number of the last write.
const LAST: &[u8] = b"last";

fn main() -> Result<()> {
    let args: Vec<String> = args().skip(1).collect();
    let [dir, pool, acknowledged, mode @ ..] = args.as_slice() else {
        return Err(Error::invalid("usage: power_cut DIR POOL ACKNOWLEDGED [sync|emulated]"));
    };
    let acknowledged: u64 = acknowledged.parse().map_err(|_| Error::invalid("ACKNOWLEDGED is no number"))?;
    let mode = mode.first().map_or("", String::as_str);
    let db = Db::open(dir, options(pool, mode, acknowledged))?;
    describe(&db);
    let reached = verify(&db, acknowledged)?;
    say(&format!("verified {reached} writes, {acknowledged} of them acknowledged, check clean"));
    let write = WriteOptions { sync: mode == "sync" };
    for n in reached + 1.. {
        db.write_with(batch(n), write)?;
        if n % STRIDE == 0 {
            say(&format!("acknowledged {n}"));
        }
        if n % (16 * STRIDE) == 0 {
            let stats = db.stats();
            let (flushes, compactions) = (stats.counts.flushes, stats.counts.compactions);
            say(&format!("work {flushes} flushes, {compactions} compactions, pool {}", stats.pm.size));
        }
    }
    Ok(())
}

/// Small memtables and tables: flushes and compactions are to be under way when the power goes. The memtables are
/// of another size each time, so that the pool has to grow.
fn options(pool: &str, mode: &str, acknowledged: u64) -> Options {
    let pool = match (pool, mode) {
        (_, "emulated") => PoolChoice::Emulated { path: None, profile: Profile::DRAM },
        ("auto", _) => PoolChoice::Auto,
        (path, _) => PoolChoice::Path(path.into()),
    };
    let slm = SlmOptions {
        memtable_bytes: 1 << (20 + acknowledged / STRIDE % 4),
        table_bytes: 1 << 20,
        ..SlmOptions::default()
    };
    Options { pool, pm_bytes: 128 << 20, memory_budget: 16 << 20, slm, ..Options::default() }
}

fn describe(db: &Db) {
    let stats = db.stats();
    say(&format!("pool {}", stats.media));
    say(&format!("durability {}", stats.durability));
    say(&format!("opened {}", stats.opened));
}

fn say(line: &str) {
    println!("terrace: {line}");
    // Best effort: the reader counts only what arrives.
    let _ = std::io::stdout().flush();
}

fn record_key(n: u64) -> Vec<u8> {
    format!("record/{n:010}").into_bytes()
}

fn hot_key(n: u64) -> Vec<u8> {
    format!("hot/{:03}", n % HOT).into_bytes()
}

/// The value that write `n` puts, of 1 to 800 bytes.
fn value(n: u64) -> Vec<u8> {
    let mut rng = Rng::new(n);
    let mut bytes = vec![0; 1 + rng.below(800) as usize];
    rng.fill(&mut bytes);
    bytes
}

fn batch(n: u64) -> WriteBatch {
    let mut batch = WriteBatch::new();
    let value = value(n);
    batch.put(&record_key(n), &value);
    batch.put(&hot_key(n), &value);
    if n > KEPT {
        batch.delete(&record_key(n - KEPT));
    }
    batch.put(LAST, &n.to_le_bytes());
    batch
}

/// Everything that is in the database after `n` writes, in order.
fn expected(n: u64) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    let mut hot: Vec<_> = (n.saturating_sub(HOT) + 1..=n).map(|n| (hot_key(n), value(n))).collect();
    hot.sort();
    let last = (n > 0).then(|| (LAST.to_vec(), n.to_le_bytes().to_vec()));
    let records = (n.saturating_sub(KEPT) + 1..=n).map(|n| (record_key(n), value(n)));
    hot.into_iter().chain(last).chain(records)
}

/// Proves that the database is what some number of first writes made it, which it returns.
fn verify(db: &Db, acknowledged: u64) -> Result<u64> {
    let reached = match db.get(LAST)? {
        Some(value) => {
            value.as_ref().try_into().map(u64::from_le_bytes).map_err(|_| wrong("`last` is torn"))?
        }
        None => 0,
    };
    if reached < acknowledged {
        return Err(wrong(format!("{acknowledged} writes were acknowledged, {reached} are there")));
    }
    let mut found = db.iter()?;
    for (key, value) in expected(reached) {
        let entry = found.next().transpose()?;
        if entry.is_none_or(|(k, v)| *k != *key || *v != *value) {
            return Err(wrong(format!("after {reached} writes {} is missing or wrong", key.escape_ascii())));
        }
    }
    if let Some((key, _)) = found.next().transpose()? {
        return Err(wrong(format!("after {reached} writes {} is too much", key.escape_ascii())));
    }
    let report = db.check()?;
    if report.is_clean() { Ok(reached) } else { Err(wrong(report.problems.join("; "))) }
}

fn wrong(what: impl Into<String>) -> Error {
    Error::invalid(format!("WRONG: {}", what.into()))
}
