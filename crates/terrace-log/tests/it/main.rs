//! Tests of the logs: crashes, damage, faults, and persistent memory.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod crash;
mod damage;
mod faults;
mod pm;

use std::path::Path;

use terrace_base::Result;
use terrace_log::{LogReader, Tail};

const ID: u64 = 0x1d;

/// A record as it is read back.
type Entry = (u64, Vec<u8>);

/// Reads a log's bytes; the records come back even when the end is an error.
fn read(data: &[u8]) -> (Vec<Entry>, Result<Tail>) {
    let mut records = Vec::new();
    let tail = LogReader::read_file(data, Path::new("log"), ID, &mut |lsn, payload| {
        records.push((lsn, payload.to_vec()));
        Ok(())
    });
    (records, tail)
}
