//! What a transaction without conflict costs beside the same batch.
//!
//! `cargo run --release --example transactions [DIR]`: for some engines, median times of a batch and of a
//! transaction that writes the same; with the keys read before; and with another write on the way, so that
//! what was read is compared at the commit. A database is made in a folder of DIR for each, and removed.

use std::path::Path;
use std::time::Duration;

use terrace::{Db, EngineKind, Options, PoolChoice, Profile, Result, WriteBatch};
use terrace_base::clock::{Clock, SystemClock};
use terrace_base::rng::Rng;

const KEYS: u64 = 100_000;
const ROUNDS: usize = 3000;
const VALUE: [u8; 100] = [7; 100];

/// What is done around the writes.
#[derive(Debug, Clone, Copy)]
enum Around {
    Nothing,
    Reads,
    ReadsAndAnotherWrite,
}

fn key(n: u64) -> [u8; 16] {
    let mut key = *b"key/000000000000";
    key[8..].copy_from_slice(&n.to_be_bytes());
    key
}

fn by_batch(db: &Db, keys: &[[u8; 16]], around: Around) -> Result<()> {
    if !matches!(around, Around::Nothing) {
        keys.iter().try_for_each(|key| db.get(key).map(drop))?;
    }
    if let Around::ReadsAndAnotherWrite = around {
        db.put("another", "")?;
    }
    let mut batch = WriteBatch::new();
    keys.iter().for_each(|key| batch.put(key, VALUE));
    db.write(batch)
}

fn by_transaction(db: &Db, keys: &[[u8; 16]], around: Around) -> Result<()> {
    let tx = db.transaction();
    if !matches!(around, Around::Nothing) {
        keys.iter().try_for_each(|key| tx.get(key).map(drop))?;
    }
    if let Around::ReadsAndAnotherWrite = around {
        db.put("another", "")?;
    }
    keys.iter().try_for_each(|key| tx.put(key, VALUE))?;
    tx.commit()
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_nanos() as f64 / 1000.0
}

fn compare(dir: &Path, engine: EngineKind) -> Result<()> {
    let mut options = Options { engine, ..Options::default() };
    if engine.needs_memory() {
        options.pool = PoolChoice::Emulated { path: None, profile: Profile::parse("dram")? };
    }
    let clock = SystemClock::new();
    let db = Db::open(dir, options)?;
    (0..KEYS).try_for_each(|n| db.put(key(n), VALUE))?;
    let mut rng = Rng::new(1);
    for count in [1, 10, 100] {
        for around in [Around::Nothing, Around::Reads, Around::ReadsAndAnotherWrite] {
            let mut times = [Vec::new(), Vec::new()];
            // By turns, so that both meet the same state and the same load.
            for round in 0..2 * ROUNDS {
                let keys: Vec<[u8; 16]> = (0..count).map(|_| key(rng.below(KEYS))).collect();
                let began = clock.now();
                match round % 2 {
                    0 => by_batch(&db, &keys, around)?,
                    _ => by_transaction(&db, &keys, around)?,
                }
                times[round % 2].push(clock.now() - began);
            }
            let [batch, transaction] = times.map(median);
            let ratio = transaction / batch;
            println!("{engine:?} {count:>3} keys {around:?}: {batch:.2} and {transaction:.2} us, {ratio:.2}");
        }
    }
    db.close()
}

fn main() -> Result<()> {
    let dir = std::env::args().nth(1).map_or_else(std::env::temp_dir, Into::into);
    for engine in [EngineKind::Lsm, EngineKind::Slm, EngineKind::Sptree] {
        let dir = dir.join(format!("transactions-{engine:?}-{}", std::process::id()));
        let outcome = compare(&dir, engine);
        if let Err(e) = std::fs::remove_dir_all(&dir) {
            eprintln!("{} stays: {e}", dir.display());
        }
        outcome?;
    }
    Ok(())
}
