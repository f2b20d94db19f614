//! The logs of what is in write buffers.
//!
//! A log set is a few logs, between which writers spread. Entries go to the current set; the set before it, if there
//! is one, still has entries that are in buffers alone.
//!
//! 1. An entry is durable in the current set before it is in a buffer.
//! 2. Sets are begun and freed in order, so of what the sets say about a key the entry with the highest number is
//!    the last that was done to it, unless all entries about it are gone: then its leaf has it.
//! 3. The old set is freed when every buffer with an entry in it has been flushed. A node notes which of the
//!    two sets the oldest entry of its buffer is in.
//! 4. An open replays both sets into the leaves before anything else is done, and then frees them. Replaying twice
//!    does no harm.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use terrace_base::checksum::crc32c;
use terrace_base::codec::Reader;
use terrace_base::{Error, Result};
use terrace_log::PmLog;
use terrace_pmem::{Marks, POff, Pool};

use super::key::Probe;
use super::layout::{LOGS_AT, OLD_LOGS_AT, TreeHeader};
use super::{Core, SpOptions};
use crate::kinds;

/// Logs of a set.
const LOGS: usize = 4;

/// Bytes of a log set's object: checksum, zero, number, heads of the logs.
const SET_BYTES: usize = 16 + 8 * LOGS;

/// Bytes of an entry before its key: its number and the word.
const ENTRY_BYTES: usize = 16;

/// Bytes that an entry with a short key takes in a log, about.
const TYPICAL_BYTES: u64 = 48;

/// The logs of a buffered tree.
pub(super) struct Logs {
    pub buffer_entries: usize,
    limit: u64,
    /// The number of the next entry.
    next: AtomicU64,
    /// `None` until they are opened.
    sets: RwLock<Option<Sets>>,
    /// Held by who changes sets.
    turning: Mutex<()>,
}

struct Sets {
    current: Set,
    old: Option<Set>,
}

pub(super) struct Set {
    /// Offset of its object.
    off: u64,
    number: u64,
    logs: [Mutex<PmLog>; LOGS],
    bytes: AtomicU64,
}

impl Logs {
    pub fn new(options: &SpOptions) -> Logs {
        Logs {
            buffer_entries: options.buffer_entries,
            limit: options.log_bytes,
            next: AtomicU64::new(1),
            sets: RwLock::new(None),
            turning: Mutex::new(()),
        }
    }
}

impl Set {
    /// An empty set that nothing leads to yet; durable.
    fn create(pool: &Pool, number: u64) -> Result<Set> {
        let log = || PmLog::create(pool, kinds::SPTREE_LOG, pool.extent_bytes() / 2).map(Mutex::new);
        let logs = [log()?, log()?, log()?, log()?];
        let slot = pool.reserve(kinds::SPTREE_HEADER, SET_BYTES as u64)?;
        let heads = logs.each_ref().map(|log| log.lock().head());
        pool.write(slot.offset, &encode_set(slot.offset, number, heads));
        pool.flush(slot.offset, SET_BYTES as u64);
        pool.activate(&slot);
        pool.drain();
        Ok(Set { off: slot.offset, number, logs, bytes: AtomicU64::new(0) })
    }

    fn open(pool: &Pool, off: u64) -> Result<Set> {
        // SAFETY: a set's object never changes, and is freed only when nothing leads to it.
        let bytes = unsafe { pool.bytes(off, SET_BYTES as u64)? };
        let damaged = || pool.corruption(off, "a set of logs", "other bytes");
        let (number, heads) = decode_set(off, bytes).ok_or_else(damaged)?;
        let open = |head| PmLog::open(pool, head).map(Mutex::new);
        let logs = [open(heads[0])?, open(heads[1])?, open(heads[2])?, open(heads[3])?];
        Ok(Set { off, number, logs, bytes: AtomicU64::new(0) })
    }

    fn append(&self, entry: &[u8]) -> Result<()> {
        let mut log = self.logs[shard()].lock();
        log.append(entry)?;
        log.persist()?;
        self.bytes.fetch_add(entry.len() as u64 + TYPICAL_BYTES / 2, Ordering::Relaxed);
        Ok(())
    }

    /// Hands every entry to `visit`: number, word and key.
    pub fn visit(&self, visit: &mut dyn FnMut(u64, u64, &[u8])) -> Result<()> {
        for log in &self.logs {
            let log = log.lock();
            log.visit(&mut |_, entry| {
                let mut fields = Reader::new(entry);
                let (Some(number), Some(word)) = (fields.u64(), fields.u64()) else {
                    return Err(Error::invalid("an entry of a buffer's log is too short"));
                };
                visit(number, word, &entry[ENTRY_BYTES..]);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn mark(&self, marks: &mut Marks) -> Result<()> {
        marks.slot(self.off)?;
        self.logs.iter().try_for_each(|log| log.lock().mark(marks))
    }

    fn pm_bytes(&self) -> u64 {
        SET_BYTES as u64 + self.logs.iter().map(|log| log.lock().pm_bytes()).sum::<u64>()
    }

    /// Gives the set back; nothing leads to it any more, durably.
    fn free(self, pool: &Pool) -> Result<()> {
        self.logs.into_iter().try_for_each(|log| log.into_inner().free())?;
        pool.free(self.off, kinds::SPTREE_HEADER)
    }
}

impl Core {
    /// Replays and frees what sets there are, and begins a new one if the tree is buffered.
    pub(super) fn open_logs(&self) -> Result<()> {
        let _here = self.limbo.enter();
        let head = self.pool.get::<TreeHeader>(POff::new(self.header_off))?;
        // Stored by a process that was killed, perhaps not durable yet.
        self.pool.persist(self.header_off, super::layout::TREE_HEADER_BYTES);
        let mut offs = vec![head.old_logs.load(Ordering::Acquire), head.logs.load(Ordering::Acquire)];
        offs.retain(|off| *off != 0);
        offs.dedup();
        let sets = offs.into_iter().map(|off| Set::open(&self.pool, off)).collect::<Result<Vec<_>>>()?;
        let last = self.replay(&sets)?;
        let number = sets.last().map_or(1, |set| set.number + 1);
        let current = match &self.logs {
            Some(logs) => {
                logs.next.store(last + 1, Ordering::Relaxed);
                Some(Set::create(&self.pool, number)?)
            }
            None => None,
        };
        // The old set first: replayed alone after the current one it would undo what that has done.
        self.name_set(OLD_LOGS_AT, 0);
        self.name_set(LOGS_AT, current.as_ref().map_or(0, |set| set.off));
        sets.into_iter().try_for_each(|set| set.free(&self.pool))?;
        if let (Some(logs), Some(current)) = (&self.logs, current) {
            *logs.sets.write() = Some(Sets { current, old: None });
        }
        Ok(())
    }

    /// Makes an entry durable in the current set, whose number is returned.
    pub(super) fn log(&self, key: &[u8], word: u64) -> Result<u64> {
        let Some(logs) = &self.logs else { return Ok(0) };
        let mut entry = Vec::with_capacity(ENTRY_BYTES + key.len());
        entry.extend(logs.next.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        entry.extend(word.to_le_bytes());
        entry.extend_from_slice(key);
        let sets = logs.sets.read();
        let Some(sets) = &*sets else { return Err(Error::invalid("the logs of an SPTree are not open")) };
        sets.current.append(&entry)?;
        Ok(sets.current.number)
    }

    /// Begins a new set when the current one is long, and has the old one's entries flushed.
    pub(super) fn keep_logs_short(&self) -> Result<()> {
        let Some(logs) = &self.logs else { return Ok(()) };
        let (bytes, has_old) = match &*logs.sets.read() {
            Some(sets) => (sets.current.bytes.load(Ordering::Relaxed), sets.old.is_some()),
            None => return Ok(()),
        };
        // Half of what all buffers hold: an entry lives for one to two such lengths, so few buffers are flushed before
        // they are nearly full, and no more than that has to be replayed after a crash.
        let limit = logs.limit.max(self.arena.live() * logs.buffer_entries as u64 * TYPICAL_BYTES / 2);
        if bytes < limit {
            return Ok(());
        }
        if !has_old {
            let Some(_turning) = logs.turning.try_lock() else { return Ok(()) };
            return self.turn();
        }
        if bytes > 2 * limit {
            return self.flush_old();
        }
        let Some(turning) = logs.turning.try_lock() else { return Ok(()) };
        drop(turning);
        if !self.flushing.swap(true, Ordering::AcqRel) {
            self.spawn(|core| {
                let _here = core.limbo.enter();
                // What cannot be flushed now stays in buffers and logs; writers meet the reason.
                let _ = core.flush_old();
                core.flushing.store(false, Ordering::Release);
            });
        }
        Ok(())
    }

    /// Begins a new set, if there is no old one. The caller holds `turning`.
    fn turn(&self) -> Result<()> {
        let Some(logs) = &self.logs else { return Ok(()) };
        let number = match &*logs.sets.read() {
            Some(sets) if sets.old.is_none() => sets.current.number + 1,
            _ => return Ok(()),
        };
        let next = Set::create(&self.pool, number)?;
        let mut sets = logs.sets.write();
        if let Some(sets) = &mut *sets {
            // Named as the old one before it stops being the current one.
            self.name_set(OLD_LOGS_AT, sets.current.off);
            self.name_set(LOGS_AT, next.off);
            sets.old = Some(std::mem::replace(&mut sets.current, next));
        }
        Ok(())
    }

    /// Flushes every buffer with an entry in the old set, and frees that.
    fn flush_old(&self) -> Result<()> {
        let Some(logs) = &self.logs else { return Ok(()) };
        let _turning = logs.turning.lock();
        let old = match &*logs.sets.read() {
            Some(Sets { old: Some(old), .. }) => old.number,
            _ => return Ok(()),
        };
        self.flush_buffers(old & 1 == 1)?;
        let old = logs.sets.write().as_mut().and_then(|sets| sets.old.take());
        self.name_set(OLD_LOGS_AT, 0);
        old.map_or(Ok(()), |old| old.free(&self.pool))
    }

    /// Flushes every buffer whose oldest entry is in the set whose number is odd, or even.
    fn flush_buffers(&self, odd: bool) -> Result<()> {
        let mut cursor = Vec::new();
        loop {
            let (node, _) = self.locate(&Probe::plain(&cursor))?;
            // Looked at under the lock: an entry on its way into the buffer is in it then.
            let locked = node.lock();
            let version = node.version();
            if version.is_dead() {
                continue;
            }
            let is_due = self.buffer_len(node) > 0 && node.oldest_odd() == odd;
            if is_due && !self.flush_buffer(&locked)? {
                self.split(locked, None)?;
                continue;
            }
            match node.high(version).or_else(|| node.high(node.version())).and_then(|high| high.to_vec()) {
                Some(high) => cursor = high,
                None => return Ok(()),
            }
        }
    }

    /// Brings everything in buffers to the leaves. Entries that are made meanwhile may stay.
    pub(super) fn flush_all(&self) -> Result<()> {
        let Some(logs) = &self.logs else { return Ok(()) };
        let _here = self.limbo.enter();
        self.flush_old()?;
        {
            let _turning = logs.turning.lock();
            self.turn()?;
        }
        self.flush_old()
    }

    pub(super) fn mark_logs(&self, marks: &mut Marks) -> Result<()> {
        let Some(logs) = &self.logs else { return Ok(()) };
        // Sets do not come and go while they are marked.
        let _turning = logs.turning.lock();
        let sets = logs.sets.read();
        let all = sets.iter().flat_map(|sets| std::iter::once(&sets.current).chain(&sets.old));
        all.into_iter().try_for_each(|set| set.mark(marks))
    }

    pub(super) fn log_bytes(&self) -> u64 {
        let Some(logs) = &self.logs else { return 0 };
        let sets = logs.sets.read();
        sets.iter().flat_map(|sets| std::iter::once(&sets.current).chain(&sets.old)).map(Set::pm_bytes).sum()
    }

    fn name_set(&self, at: u64, off: u64) {
        self.pool.publish(POff::new(self.header_off + at), off);
    }
}

fn encode_set(off: u64, number: u64, heads: [u64; LOGS]) -> [u8; SET_BYTES] {
    let mut out = [0; SET_BYTES];
    out[8..16].copy_from_slice(&number.to_le_bytes());
    out[16..].chunks_exact_mut(8).zip(heads).for_each(|(to, head)| to.copy_from_slice(&head.to_le_bytes()));
    let crc = set_crc(off, &out[8..]);
    out[..4].copy_from_slice(&crc.to_le_bytes());
    out
}

fn decode_set(off: u64, bytes: &[u8]) -> Option<(u64, [u64; LOGS])> {
    let mut fields = Reader::new(bytes);
    let (crc, _) = (fields.u32()?, fields.u32()?);
    let number = fields.u64()?;
    let heads = [fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?];
    (crc == set_crc(off, &bytes[8..])).then_some((number, heads))
}

fn set_crc(off: u64, rest: &[u8]) -> u32 {
    terrace_base::checksum::crc32c_append(crc32c(&off.to_le_bytes()), rest)
}

/// This thread's log.
fn shard() -> usize {
    use std::cell::Cell;
    use std::sync::atomic::AtomicUsize;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed) % LOGS));
    MINE.with(Cell::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_set() {
        let image = encode_set(0x40, 5, [0x100, 0x200, 0x300, 0x400]);
        assert_eq!(&image[4..24], [0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(decode_set(0x40, &image), Some((5, [0x100, 0x200, 0x300, 0x400])));
        assert_eq!(decode_set(0x80, &image), None, "seeded by the place");
    }
}
