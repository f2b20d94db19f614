//! Sets of logs that come and go together, in generations: entries go to the current set, and the set before it stays
//! as long as one of its entries has not been applied elsewhere.
//!
//! ```text
//! header -> current set  -> its logs
//!        -> the set before, or none -> its logs
//! ```
//!
//! 1. A set's object never changes. It is durable, with empty logs, before a word names it.
//! 2. Sets go in order, whole, by one publish. So as long as an entry is there every later one of its key is there,
//!    too: replaying entries in the order of their numbers never restores an older state.
//! 3. A set becomes the one before by a publish of its own, and only then is the next one named the current one. If one
//!    set is named twice, nothing was appended behind it.
//!
//! `docs/formats/log.md` has the bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use terrace_base::checksum::{crc32c, crc32c_append, seal48, unseal48};
use terrace_base::codec::Reader;
use terrace_base::{Error, Result};
use terrace_pmem::{Kind, Marks, POff, Pool};

use super::log::PmLog;
use crate::frame::RECORD_HEADER_BYTES;

/// Most logs of a set.
pub const MAX_SET_LOGS: usize = 1024;

/// Bytes of a set's object before the heads of its logs: checksum, count of logs, number.
const SET_HEAD_BYTES: usize = 16;

/// The kinds of the objects of sets and of the extents of their logs.
#[derive(Debug, Clone, Copy)]
pub struct SetKinds {
    /// The objects that name logs.
    pub set: Kind,
    /// The extents of logs.
    pub log: Kind,
}

/// A set of logs.
#[derive(Debug)]
pub struct LogSet {
    pool: Pool,
    kinds: SetKinds,
    offset: u64,
    number: u64,
    logs: Vec<CachePadded<Place>>,
    /// Bytes of the entries that were appended or visited, and of what a log adds to each.
    bytes: AtomicU64,
}

/// A log of a set, opened when it is first visited.
#[derive(Debug)]
struct Place {
    head: u64,
    log: Mutex<Option<PmLog>>,
}

impl LogSet {
    /// A set of `count` empty logs, each with room for `log_bytes` at first: durable, and not named yet. If the pool
    /// has no room for all of it, nothing stays.
    pub fn create(pool: &Pool, kinds: SetKinds, number: u64, count: usize, log_bytes: u64) -> Result<LogSet> {
        let mut logs = Vec::with_capacity(count);
        match create_with(pool, kinds, number, (count, log_bytes), &mut logs) {
            Ok(offset) => {
                let place = |log: PmLog| Place { head: log.head(), log: Mutex::new(Some(log)) };
                let logs = logs.into_iter().map(|log| CachePadded::new(place(log))).collect();
                Ok(LogSet { pool: pool.clone(), kinds, offset, number, logs, bytes: AtomicU64::new(0) })
            }
            Err(e) => {
                logs.into_iter().try_for_each(PmLog::free)?;
                Err(e)
            }
        }
    }

    /// The set whose object lies at `offset`. Its logs are opened as they are visited, and take no entry before.
    pub fn open(pool: &Pool, kinds: SetKinds, offset: u64) -> Result<LogSet> {
        let damaged = || pool.corruption(offset, "a set of logs", "other bytes");
        // SAFETY: a set's object never changes, and is freed only when no word names it.
        let head = unsafe { pool.bytes(offset, SET_HEAD_BYTES as u64)? };
        let bytes = set_bytes(head).ok_or_else(damaged)?;
        // SAFETY: as above.
        let bytes = unsafe { pool.bytes(offset, bytes as u64)? };
        let (number, heads) = decode_set(offset, bytes).ok_or_else(damaged)?;
        let place = |head| CachePadded::new(Place { head, log: Mutex::new(None) });
        let logs = heads.into_iter().map(place).collect();
        Ok(LogSet { pool: pool.clone(), kinds, offset, number, logs, bytes: AtomicU64::new(0) })
    }

    /// The place of its object.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The number it was made with.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// How many logs it has.
    pub fn count(&self) -> usize {
        self.logs.len()
    }

    /// Bytes that its entries take in logs, as far as they were appended or visited.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Appends an entry to log `log`, which was made with the set or visited: durable on return.
    pub fn append(&self, log: usize, entry: &[u8]) -> Result<()> {
        let mut log = self.logs[log].log.lock();
        let Some(log) = &mut *log else { return Err(Error::invalid("a log that has not been read yet")) };
        log.append(entry)?;
        log.persist()?;
        self.count_entry(entry);
        Ok(())
    }

    fn count_entry(&self, entry: &[u8]) {
        self.bytes.fetch_add((RECORD_HEADER_BYTES + entry.len()) as u64, Ordering::Relaxed);
    }

    /// Hands every entry of log `log` to `visit`, in order, with the place of the log. The log is open afterwards.
    pub fn visit(&self, log: usize, visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let place = &self.logs[log];
        let mut log = place.log.lock();
        match &*log {
            Some(log) => log.visit(&mut |_, entry| visit(place.head, entry)),
            None => {
                let mut each = |_, entry: &[u8]| {
                    self.count_entry(entry);
                    visit(place.head, entry)
                };
                *log = Some(PmLog::open_visiting(&self.pool, place.head, &mut each)?);
                Ok(())
            }
        }
    }

    /// [`visit`](Self::visit) of every log.
    pub fn visit_all(&self, visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        (0..self.logs.len()).try_for_each(|log| self.visit(log, visit))
    }

    /// Whether no log that is open has an entry.
    pub fn is_empty(&self) -> bool {
        self.logs.iter().all(|place| place.log.lock().as_ref().is_none_or(PmLog::is_empty))
    }

    /// Where its object lies and where the extents of its logs begin, for [`LogPlaces::mark`].
    pub fn places(&self) -> Result<LogPlaces> {
        let mut extents = Vec::new();
        for place in &self.logs {
            match &*place.log.lock() {
                Some(log) => extents.extend(log.extents()),
                None => extents.extend(PmLog::extents_at(&self.pool, place.head)?),
            }
        }
        Ok(LogPlaces { set: self.offset, extents })
    }

    /// The problems of the logs that are open.
    pub fn check(&self) -> Vec<String> {
        self.logs
            .iter()
            .flat_map(|place| place.log.lock().as_ref().map_or_else(Vec::new, PmLog::check))
            .collect()
    }

    /// Bytes of the pool held by its object and by the logs that are open.
    pub fn pm_bytes(&self) -> u64 {
        let logs = self.logs.iter().map(|place| place.log.lock().as_ref().map_or(0, PmLog::pm_bytes));
        (SET_HEAD_BYTES + 8 * self.logs.len()) as u64 + logs.sum::<u64>()
    }

    /// Gives the set back; durably, no word names it any more.
    pub fn free(self) -> Result<()> {
        for place in self.logs {
            let Place { head, log } = place.into_inner();
            match log.into_inner() {
                Some(log) => log.free()?,
                None => PmLog::open(&self.pool, head)?.free()?,
            }
        }
        self.pool.free(self.offset, self.kinds.set)
    }
}

/// The objects and extents that a set owns.
#[derive(Debug)]
pub struct LogPlaces {
    set: u64,
    extents: Vec<u64>,
}

impl LogPlaces {
    /// Marks it as owned.
    pub fn mark(&self, marks: &mut Marks) -> Result<()> {
        marks.slot(self.set)?;
        self.extents.iter().try_for_each(|extent| marks.extent(*extent))
    }
}

/// The two words of a header that name sets.
#[derive(Debug)]
pub struct SetWords {
    pool: Pool,
    current_at: u64,
    before_at: u64,
    /// Whether each word carries a check over its place and itself.
    sealed: bool,
}

impl SetWords {
    /// The words at two offsets of the pool.
    pub fn new(pool: &Pool, (current_at, before_at): (u64, u64), sealed: bool) -> SetWords {
        SetWords { pool: pool.clone(), current_at, before_at, sealed }
    }

    /// The places of the sets that are named, the one before first; one that is named twice is there once.
    pub fn named(&self) -> Result<Vec<u64>> {
        let mut named = vec![self.load(self.before_at)?, self.load(self.current_at)?];
        named.retain(|set| *set != 0);
        named.dedup();
        Ok(named)
    }

    fn load(&self, at: u64) -> Result<u64> {
        let word = self.pool.atomic_checked(POff::new(at))?.load(Ordering::Acquire);
        match self.sealed {
            true => unseal48(at, word)
                .ok_or_else(|| self.pool.corruption(at, "the place of a set of logs", "another word")),
            false => Ok(word),
        }
    }

    /// `next` is the current set from here on; the set before it, if there was one, is for the caller to free.
    pub fn begin(&self, next: &LogSet) {
        self.publish(self.current_at, next.offset);
    }

    /// `current` is the set before, and `next` the current one (invariant 3).
    pub fn rotate(&self, current: &LogSet, next: &LogSet) {
        self.publish(self.before_at, current.offset);
        self.publish(self.current_at, next.offset);
    }

    /// The set before is gone. The current value of the word is durable: opening a header ensures that.
    pub fn cut(&self) {
        if !self.load(self.before_at).is_ok_and(|set| set == 0) {
            self.publish(self.before_at, 0);
        }
    }

    /// There is no set any more. The set before is removed first: if it were replayed alone, it would undo changes of
    /// the current one.
    pub fn clear(&self) {
        self.cut();
        self.publish(self.current_at, 0);
    }

    fn publish(&self, at: u64, set: u64) {
        let word = if self.sealed { seal48(at, set) } else { set };
        self.pool.publish(POff::new(at), word);
    }
}

fn create_with(
    pool: &Pool,
    kinds: SetKinds,
    number: u64,
    (count, log_bytes): (usize, u64),
    logs: &mut Vec<PmLog>,
) -> Result<u64> {
    for _ in 0..count.clamp(1, MAX_SET_LOGS) {
        logs.push(PmLog::create(pool, kinds.log, log_bytes)?);
    }
    let heads: Vec<u64> = logs.iter().map(PmLog::head).collect();
    let slot = pool.reserve(kinds.set, (SET_HEAD_BYTES + 8 * heads.len()) as u64)?;
    pool.copy_flush(slot.offset, &encode_set(slot.offset, number, &heads));
    pool.activate(&slot);
    pool.drain();
    Ok(slot.offset)
}

fn encode_set(offset: u64, number: u64, heads: &[u64]) -> Vec<u8> {
    let mut out = vec![0; 4];
    out.extend((heads.len() as u32).to_le_bytes());
    out.extend(number.to_le_bytes());
    heads.iter().for_each(|head| out.extend(head.to_le_bytes()));
    let crc = set_crc(offset, &out[4..]);
    out[..4].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Bytes of the set whose head this is.
fn set_bytes(head: &[u8]) -> Option<usize> {
    let mut fields = Reader::new(head);
    let (_, count) = (fields.u32()?, fields.u32()? as usize);
    (1..=MAX_SET_LOGS).contains(&count).then_some(SET_HEAD_BYTES + 8 * count)
}

fn decode_set(offset: u64, bytes: &[u8]) -> Option<(u64, Vec<u64>)> {
    let mut fields = Reader::new(bytes);
    let (crc, count) = (fields.u32()?, fields.u32()?);
    let number = fields.u64()?;
    let heads = (0..count).map(|_| fields.u64()).collect::<Option<Vec<_>>>()?;
    (crc == set_crc(offset, &bytes[4..])).then_some((number, heads))
}

fn set_crc(offset: u64, rest: &[u8]) -> u32 {
    crc32c_append(crc32c(&offset.to_le_bytes()), rest)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use terrace_pmem::{Granularity, MemMedia, PoolOptions};

    use super::*;

    const KINDS: SetKinds = SetKinds { set: Kind(40), log: Kind(41) };

    fn pool() -> Pool {
        let media = MemMedia::new(1 << 20, 1 << 20, Granularity::CacheLine).unwrap();
        let options =
            PoolOptions { size: 1 << 20, max_size: 1 << 20, extent_bytes: 4096, ..PoolOptions::default() };
        Pool::create_on(Arc::new(media), Path::new("memory"), &options).unwrap()
    }

    fn entries(set: &LogSet) -> Vec<Vec<u8>> {
        let mut entries = Vec::new();
        set.visit_all(&mut |_, entry| {
            entries.push(entry.to_vec());
            Ok(())
        })
        .unwrap();
        entries
    }

    #[test]
    fn golden_set() {
        let image = encode_set(0x40, 5, &[0x100, 0x200, 0x300, 0x400]);
        assert_eq!(image.len(), 48);
        assert_eq!(&image[4..24], [4, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(set_bytes(&image[..16]), Some(48));
        assert_eq!(decode_set(0x40, &image), Some((5, vec![0x100, 0x200, 0x300, 0x400])));
        assert_eq!(decode_set(0x80, &image), None, "seeded by the place");
        for bit in 0..image.len() * 8 {
            let mut flipped = image.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let whole = set_bytes(&flipped[..16]).is_some_and(|bytes| bytes == image.len());
            assert!(!whole || decode_set(0x40, &flipped).is_none(), "bit {bit}");
        }
    }

    #[test]
    fn a_set_is_read_before_it_is_gone_on_with_and_leaves_nothing() {
        let pool = pool();
        // The pool's own slab for the first object of a size stays.
        LogSet::create(&pool, KINDS, 6, 2, 1000).unwrap().free().unwrap();
        let free = pool.free_bytes();
        let set = LogSet::create(&pool, KINDS, 7, 2, 1000).unwrap();
        set.append(0, b"one").unwrap();
        set.append(1, b"two").unwrap();
        let (at, bytes) = (set.offset(), set.bytes());
        assert_eq!(bytes, 2 * (3 + RECORD_HEADER_BYTES as u64));
        drop(set);
        let set = LogSet::open(&pool, KINDS, at).unwrap();
        assert_eq!((set.number(), set.count(), set.bytes()), (7, 2, 0));
        set.append(0, b"three").unwrap_err();
        assert_eq!(entries(&set), [b"one", b"two"]);
        assert_eq!((set.bytes(), set.is_empty()), (bytes, false));
        assert!(set.check().is_empty());
        set.append(0, b"three").unwrap();
        assert_eq!(entries(&set).len(), 3, "nothing counts twice");
        set.free().unwrap();
        assert_eq!(pool.free_bytes(), free);
    }

    #[test]
    fn a_set_that_finds_no_room_leaves_nothing() {
        let pool = pool();
        let free = pool.free_bytes();
        assert!(LogSet::create(&pool, KINDS, 1, 4, 300 << 10).unwrap_err().is_out_of_space());
        assert_eq!(pool.free_bytes(), free);
    }

    #[test]
    fn words_name_sets_in_order_and_a_turn_that_was_cut_short_names_one() {
        for sealed in [false, true] {
            let pool = pool();
            let header = pool.reserve(KINDS.set, 64).unwrap();
            let words = SetWords::new(&pool, (header.offset, header.offset + 8), sealed);
            words.publish(words.before_at, 0);
            words.clear();
            assert_eq!(words.named().unwrap(), []);
            let set = |number| LogSet::create(&pool, KINDS, number, 1, 100).unwrap();
            let (one, two) = (set(1), set(2));
            words.begin(&one);
            assert_eq!(words.named().unwrap(), [one.offset()]);
            words.publish(words.before_at, one.offset());
            assert_eq!(words.named().unwrap(), [one.offset()]);
            words.rotate(&one, &two);
            assert_eq!(words.named().unwrap(), [one.offset(), two.offset()]);
            words.cut();
            assert_eq!(words.named().unwrap(), [two.offset()]);
            pool.publish(POff::new(header.offset), two.offset() + 1);
            assert_eq!(words.named().is_err(), sealed);
        }
    }
}
