//! How long a database takes to open, and to give its first value.
//!
//! `cargo run --release --example reopen DIR [KEY]`: opens the database that some process has left in DIR, asks
//! for KEY, says what took how long, and ends as if it were killed, so that the next one finds the same.

use std::process::exit;

use terrace::{Db, Options};
use terrace_base::clock::{Clock, SystemClock};

fn main() -> terrace::Result<()> {
    let mut args = std::env::args().skip(1);
    let Some(dir) = args.next() else {
        eprintln!("usage: reopen DIR [KEY]");
        exit(2);
    };
    let key = args.next().unwrap_or_default();
    let clock = SystemClock::new();
    let began = clock.now();
    let db = Db::open(dir, Options { create_if_missing: false, ..Options::default() })?;
    let open = clock.now();
    let found = db.get(key.as_bytes())?.map_or(0, |value| value.len());
    let read = clock.now();
    println!("open {:?}, first get {:?} ({found} bytes): {}", open - began, read - open, db.stats().opened);
    exit(0)
}
