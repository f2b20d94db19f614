//! What an ingest costs beside puts.
//!
//! `cargo run --release --example ingest [DIR [ENGINE]]`: for an engine or some, how many records a second are put one
//! by one, put in batches of 1,000, and ingested, all of them in key order; how much is written to files for a byte of
//! them; and the same over keys that are there. A database is made in a folder of DIR for each, and removed.

use std::path::Path;

use terrace::{Db, EngineKind, Options, PoolChoice, Profile, Result, WriteBatch};
use terrace_base::clock::{Clock, SystemClock};

const RECORDS: u64 = 2_000_000;
const VALUE: [u8; 100] = [7; 100];

#[derive(Debug, Clone, Copy)]
enum How {
    Puts,
    Batches,
    Ingest,
}

fn key(n: u64) -> [u8; 16] {
    let mut key = *b"key/000000000000";
    key[8..].copy_from_slice(&n.to_be_bytes());
    key
}

/// Each key with a value of its own.
fn records() -> impl Iterator<Item = ([u8; 16], [u8; 100])> {
    (0..RECORDS).map(|n| {
        let mut value = VALUE;
        value[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        (key(n), value)
    })
}

fn write(db: &Db, how: How) -> Result<()> {
    match how {
        How::Puts => records().try_for_each(|(key, value)| db.put(key, value)),
        How::Batches => {
            let mut batch = WriteBatch::new();
            for (key, value) in records() {
                batch.put(key, value);
                if batch.len() == 1000 {
                    db.write(std::mem::take(&mut batch))?;
                }
            }
            db.write(batch)
        }
        How::Ingest => {
            db.ingest(|ingest| records().try_for_each(|(key, value)| ingest.put(key, value))).map(drop)
        }
    }
}

fn measure(dir: &Path, engine: EngineKind, how: How) -> Result<()> {
    let mut options = Options { engine, ..Options::default() };
    if engine.needs_memory() {
        options.pool = PoolChoice::Emulated { path: None, profile: Profile::parse("dram")? };
    }
    let (db, clock) = (Db::open(dir, options)?, SystemClock::new());
    let bytes = RECORDS * (16 + VALUE.len() as u64);
    let mut line = format!("{:8} {how:8?}", engine.name());
    for _ in 0..2 {
        let (began, before) = (clock.now(), db.stats().ssd.bytes_written);
        write(&db, how)?;
        db.flush()?;
        let rate = RECORDS as f64 / (clock.now() - began).as_secs_f64() / 1e6;
        let written = (db.stats().ssd.bytes_written - before) as f64 / bytes as f64;
        line.push_str(&format!("  {rate:6.2} M/s, {written:4.2} bytes a byte"));
    }
    println!("{line}");
    db.close()
}

fn main() -> Result<()> {
    let base = std::env::args().nth(1).unwrap_or_else(|| std::env::temp_dir().display().to_string());
    println!("{RECORDS} records of 116 bytes in key order, first into an empty database, then over them");
    let engines = match std::env::args().nth(2) {
        Some(name) => vec![EngineKind::parse(&name)?],
        None => vec![EngineKind::Lsm, EngineKind::Tlsm, EngineKind::Slm, EngineKind::Wip],
    };
    for engine in engines {
        for how in [How::Puts, How::Batches, How::Ingest] {
            let dir = Path::new(&base).join(format!("terrace-ingest-{}", std::process::id()));
            let outcome = measure(&dir, engine, how);
            if let Err(error) = std::fs::remove_dir_all(&dir) {
                eprintln!("{} stays: {error}", dir.display());
            }
            outcome?;
        }
    }
    Ok(())
}
