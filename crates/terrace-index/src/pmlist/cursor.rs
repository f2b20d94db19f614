//! Moving over a list in both directions.

use std::collections::VecDeque;

use terrace_base::{Kind, Result};
use terrace_pmem::StartedRead;

use super::PmList;
use super::buffer::part_of;
use super::layout::{BLOCK_NODES, RECORD_HEAD_BYTES};
use super::read::PmRecord;

/// Records on their way into the caches before a cursor that goes forward.
const AHEAD: u64 = 4;

/// A record's head and a short key.
const STARTED_BYTES: u64 = RECORD_HEAD_BYTES + 16;

/// A place in a list. It keeps the list alive.
#[derive(Debug, Clone)]
pub struct PmCursor {
    list: PmList,
    at: Option<u64>,
    /// The known facts about the record there.
    here: Here,
    /// The places of the nodes of one block, and its number.
    block: Option<(u64, [u64; BLOCK_NODES])>,
    /// Nodes whose records are being loaded.
    started: VecDeque<(u64, StartedRead)>,
}

#[derive(Debug, Clone, Copy)]
struct Here {
    record: u64,
    seq: u64,
    kind: Kind,
    klen: usize,
    vlen: usize,
}

const NOWHERE: Here = Here { record: 0, seq: 0, kind: Kind::Delete, klen: 0, vlen: 0 };

impl PmList {
    /// A cursor that is on no record yet.
    pub fn cursor(&self) -> PmCursor {
        PmCursor { list: self.clone(), at: None, here: NOWHERE, block: None, started: VecDeque::new() }
    }
}

impl PmCursor {
    /// Whether it is on a record.
    pub fn valid(&self) -> bool {
        self.at.is_some()
    }

    /// To the first record.
    pub fn seek_first(&mut self) -> Result<()> {
        self.land(Some(0), true)
    }

    /// To the last record.
    pub fn seek_last(&mut self) -> Result<()> {
        self.land(self.list.inner.figures.entries.checked_sub(1), false)
    }

    /// To the first record at or after (`key`, `seq`).
    pub fn seek(&mut self, key: &[u8], seq: u64) -> Result<()> {
        self.at = None;
        let (index, _) = self.list.inner.lower_bound(key, seq)?;
        self.land(Some(index), true)
    }

    /// To the last record at or before (`key`, `seq`).
    pub fn seek_back(&mut self, key: &[u8], seq: u64) -> Result<()> {
        self.at = None;
        let behind = match seq.checked_sub(1) {
            Some(older) => self.list.inner.lower_bound(key, older)?.0,
            // After every version of `key` comes the next key, whose smallest is `key` and a zero byte.
            None => self.list.inner.lower_bound(&[key, &[0]].concat(), u64::MAX)?.0,
        };
        self.land(behind.checked_sub(1), false)
    }

    /// To the next record; off the end, to none.
    #[expect(
        clippy::should_implement_trait,
        reason = "a cursor is no iterator: it moves both ways and can fail"
    )]
    pub fn next(&mut self) -> Result<()> {
        self.at.map_or(Ok(()), |at| self.land(Some(at + 1), true))
    }

    /// To the record before; off the beginning, to none.
    pub fn prev(&mut self) -> Result<()> {
        self.at.map_or(Ok(()), |at| self.land(at.checked_sub(1), false))
    }

    /// Its key; empty where there is none.
    pub fn key(&self) -> &[u8] {
        if self.at.is_none() {
            return &[];
        }
        let (at, len) = (self.here.record + RECORD_HEAD_BYTES, self.here.klen as u64);
        // SAFETY: the record was found there and checked; it does not change, and the list keeps its buffer.
        unsafe { self.list.inner.pool().bytes(at, len) }.unwrap_or_default()
    }

    /// Its sequence number.
    pub fn seq(&self) -> u64 {
        self.here.seq
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.here.kind
    }

    /// Bytes of its value.
    pub fn value_len(&self) -> usize {
        self.here.vlen
    }

    /// The place of the record; the cursor must be valid.
    pub fn offset(&self) -> u64 {
        self.here.record
    }

    /// Its value, in place; empty where there is no record.
    pub fn value(&self) -> Result<&[u8]> {
        if self.at.is_none() {
            return Ok(&[]);
        }
        self.record(true)?.value()
    }

    fn record(&self, is_started: bool) -> Result<PmRecord<'_>> {
        let inner = &*self.list.inner;
        match part_of(&inner.parts, self.here.record) {
            Some(buffer) => buffer.record(self.here.record, is_started),
            None => Err(inner.pool().corruption(self.here.record, "a record of a list", "another place")),
        }
    }

    /// Goes to the record `index`; `goes_on` to those after it, next.
    fn land(&mut self, index: Option<u64>, goes_on: bool) -> Result<()> {
        self.at = None;
        self.here = NOWHERE;
        let Some(index) = index.filter(|index| *index < self.list.inner.figures.entries) else {
            return Ok(());
        };
        let places = self.places(index / BLOCK_NODES as u64)?;
        let place = places[(index % BLOCK_NODES as u64) as usize];
        let is_started = self.await_read(index);
        if goes_on {
            self.read_ahead(index, &places);
        }
        self.here.record = place;
        let record = self.record(is_started)?;
        let here = Here {
            record: place,
            seq: record.seq,
            kind: record.kind,
            klen: record.key.len(),
            vlen: record.vlen as usize,
        };
        self.here = here;
        self.at = Some(index);
        Ok(())
    }

    fn places(&mut self, number: u64) -> Result<[u64; BLOCK_NODES]> {
        if let Some((known, places)) = self.block
            && known == number
        {
            return Ok(places);
        }
        let places = self.list.inner.block(number)?.nodes.map(|node| node.record);
        self.block = Some((number, places));
        Ok(places)
    }

    /// Waits for the record `index`, if it is being read.
    fn await_read(&mut self, index: u64) -> bool {
        while let Some((at, started)) = self.started.pop_front() {
            if at == index {
                self.list.inner.pool().await_read(started);
                return true;
            }
        }
        false
    }

    /// Starts reading the records after the record `index`, as far as they are in its block.
    fn read_ahead(&mut self, index: u64, places: &[u64; BLOCK_NODES]) {
        let inner = &*self.list.inner;
        let from = self.started.back().map_or(index + 1, |(at, _)| at + 1);
        let block_end = (index / BLOCK_NODES as u64 + 1) * BLOCK_NODES as u64;
        for next in from..(index + 1 + AHEAD).min(block_end).min(inner.figures.entries) {
            let record = places[(next % BLOCK_NODES as u64) as usize];
            // Damage is reported when the cursor comes there.
            if part_of(&inner.parts, record).is_some() {
                self.started.push_back((next, inner.pool().start_read(record, STARTED_BYTES)));
            }
        }
    }
}
