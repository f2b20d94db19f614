//! Makes the pool again from tables and log, after a power cut on an ordinary file or in a repair.
//!
//! Every key's newest version in any table is its version; if that is a tombstone the key is deleted, which
//! is why tombstones stay in tables as long as anything older may lie in another. The logs, which hold a
//! prefix of the writes after the last flush, supply these.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use terrace_base::{Error, Result};
use terrace_index::{PointIndex, Record};
use terrace_table::Kind;

use super::memtable::{IndexRoom, NODE_OVERHEAD_BYTES};
use super::{Slm, flush};
use crate::batch::{Op, WriteBatch};
use crate::commit_log::replay;
use crate::located::{Location, count_edits};
use crate::tables::{each_newest, merge_ahead};

/// Bytes read ahead from each table, at most.
const READAHEAD_BYTES: usize = 256 << 10;

/// What a pool was made from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rebuilt {
    keys: u64,
    tables: usize,
    logs: u64,
    writes: u64,
}

impl fmt::Display for Rebuilt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rebuilt { keys, tables, logs, writes } = self;
        write!(f, "{keys} keys in {tables} tables, {writes} writes in {logs} logs")
    }
}

impl Slm {
    /// Fills the new pool's index from all tables and its memtable from the logs. `damaged` is asked about
    /// each damaged log; if it returns no error, the rest of that log is left out.
    pub(super) fn rebuild(&self, damaged: &mut dyn FnMut(Error) -> Result<()>) -> Result<Rebuilt> {
        let keys = self.rebuild_index()?;
        let tables = self.manifest.state().tables.size();
        let (logs, writes) = self.replay_logs(damaged)?;
        Ok(Rebuilt { keys, tables, logs, writes })
    }

    /// Puts each key's newest version into the empty index and sets the live counts; returns the number of
    /// keys.
    fn rebuild_index(&self) -> Result<u64> {
        let state = self.manifest.state();
        let mut live: BTreeMap<u64, i64> = state.tables.keys().map(|n| (*n, 0)).collect();
        let child = |&number: &u64, ahead| self.tables.cursor(number, ahead);
        let numbers: Vec<u64> = state.tables.keys().copied().collect();
        let (mut cursor, _loan) = merge_ahead(&self.core, READAHEAD_BYTES, &numbers, child)?;
        let mut keys = 0;
        each_newest(&mut cursor, |newest| {
            if let (Kind::Put, Some(position)) = (newest.kind(), newest.position()) {
                self.located.index().insert(newest.key(), Location::Position(position).encode())?;
                *live.entry(position.number()).or_default() += 1;
                keys += 1;
            }
            Ok(())
        })?;
        for (number, table) in &state.tables {
            *live.entry(*number).or_default() -= table.live_raw;
        }
        let _alone = self.located.hold_counts();
        self.manifest.apply(&count_edits(&self.manifest.state(), &live, &[]))?;
        Ok(keys)
    }

    /// Replays the logs in order. Returns their number, and the number of their writes that were not in
    /// tables.
    fn replay_logs(&self, damaged: &mut dyn FnMut(Error) -> Result<()>) -> Result<(u64, u64)> {
        let files = self.log.files(self.manifest.listing()?.logs);
        let state = self.manifest.state();
        let replayed = replay(&files, &state, damaged, &mut |number, first, ops, reached| {
            self.replay_group(number, first, ops, reached)
        })?;
        Ok((replayed.logs as u64, replayed.writes))
    }

    fn replay_group(&self, number: u64, first: u64, batch: &WriteBatch, reached: u64) -> Result<()> {
        let need = batch.encoded().len() as u64 + batch.len() as u64 * NODE_OVERHEAD_BYTES;
        let to_index = IndexRoom::of(&self.pool, batch.ops().map(|op| op.key));
        if !self.is_for(self.mem.load().active(), need, to_index.bytes) {
            self.rotate_memtable(number)?;
            flush::run(self)?;
        }
        let memtable = Arc::clone(self.mem.load().active());
        memtable.first_log().note(number);
        memtable.will_index(to_index);
        let mut wanted = Vec::with_capacity(batch.len());
        for (op, seq) in batch.ops().zip(first..).filter(|(_, seq)| *seq > reached) {
            if !self.superseded(op.key, seq)? {
                wanted.push((op, seq));
            }
        }
        let batch_len = wanted.len() as u32;
        let records: Vec<_> = wanted
            .into_iter()
            .map(|(Op { kind, key, value }, seq)| Record {
                key,
                seq,
                kind: kind as u8,
                value,
                batch_first: first,
                batch_len,
            })
            .collect();
        memtable.list().put_group(&records)
    }

    /// Whether a table has a newer version of `key`. It may after a repair, which uses whatever it finds.
    fn superseded(&self, key: &[u8], seq: u64) -> Result<bool> {
        for table in self.tables.load().values() {
            let meta = table.meta();
            let covers = meta.max_seq > seq && *meta.smallest <= *key && key <= &*meta.largest;
            if covers && table.get(key, u64::MAX)?.is_some_and(|entry| entry.seq > seq) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
