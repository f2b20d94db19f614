//! Pairs for which a hash table has no place: too many keys lead to the same buckets.
//!
//! ```text
//! head (a word of the table's header) -> page -> page -> ..     63 words a page, each naming a record (`pair`)
//! ```
//!
//! Random keys fill a table evenly. An attacker that knows the hash could choose keys with equal hashes, which no
//! number of buckets would separate. Any number of such keys can be kept here, and each costs a search in DRAM: they
//! are found by their hash and by a second hash that differs from process to process.
//!
//! Invariants:
//!
//! 1. A change is one publish of a sealed word: of a page's word, which makes a key present, absent or another's value,
//!    or of the head, which begins with a new page or with none. An object is durable before a word names it.
//! 2. Everything known in DRAM, and so everything shown to readers, is durable.
//! 3. A key has one word, and no place in the table beside it.
//!
//! Thread safety: every method may be called from any thread. Callers make one change of a key at a time. Readers wait
//! only for short locks in DRAM.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use terrace_base::checksum::{seal48, unseal48};
use terrace_base::{Error, Result};
use terrace_pmem::{Kind, POff, Pool, pm_layout};

use crate::pair::{NewPair, Pair};

/// Words of a page: the next page, then records.
const PAGE_WORDS: usize = 64;
/// Bytes of a page.
pub(crate) const PAGE_BYTES: u64 = 8 * PAGE_WORDS as u64;

/// A page: the offset of the next one, then those of records; 0 where there is none. Each is sealed with its place.
#[repr(C)]
struct Page([AtomicU64; PAGE_WORDS]);

// SAFETY: all of it is atomic.
pm_layout! { unsafe Page: 512 { 0 @ 0 } }

/// The bytes of a page at a place of the pool, followed by the one at `next` and naming no record.
fn encode_page(place: u64, next: u64) -> Vec<u8> {
    let words =
        (0..PAGE_WORDS as u64).map(|i| seal48(place.wrapping_add(8 * i), if i == 0 { next } else { 0 }));
    words.flat_map(u64::to_le_bytes).collect()
}

/// The word of a head at a place of the pool that leads nowhere.
pub fn empty_head(place: u64) -> u64 {
    seal48(place, 0)
}

/// An object that is no longer named, and may be freed when its readers have left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unlinked {
    /// The record at this offset.
    Pair(u64),
    /// The page at this offset.
    Page(u64),
}

/// A key that is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    /// Where the word is that names its record.
    place: u64,
    record: u64,
}

/// The pages, for writers.
#[derive(Debug, Default)]
struct Pages {
    /// From the last in the chain to the first.
    chain: Vec<u64>,
    /// Free places.
    free: Vec<u64>,
}

/// The keys.
#[derive(Debug, Default)]
struct Known {
    /// By hash and second hash. Few have more than one entry, and for those the keys decide.
    entries: BTreeMap<(u64, u64), Vec<Entry>>,
    len: u64,
    record_bytes: u64,
}

/// The overflow of one table.
#[derive(Debug)]
pub struct Overflow {
    pool: Pool,
    head: u64,
    page_kind: Kind,
    second: RandomState,
    /// Counts of keys by the beginnings of their hashes: with a count of 0 readers need not search here.
    begin: Box<[AtomicU32; 256]>,
    /// Held throughout a change, and taken before `known`.
    pages: Mutex<Pages>,
    /// Held briefly, so that readers do not wait for the medium.
    known: RwLock<Known>,
}

fn begin_of(hash: u64) -> usize {
    (hash >> 56) as usize
}

impl Overflow {
    /// One without keys, whose head is the word at `head`.
    pub fn new(pool: &Pool, head: u64, page_kind: Kind) -> Self {
        Overflow {
            pool: pool.clone(),
            head,
            page_kind,
            second: RandomState::new(),
            begin: Box::new([const { AtomicU32::new(0) }; 256]),
            pages: Mutex::default(),
            known: RwLock::default(),
        }
    }

    /// Reads the pages, after a crash as after a clean close: the pool guarantees that they are durable. `hash_of` is
    /// the table's hash.
    pub fn load(&self, hash_of: impl Fn(&[u8]) -> u64) -> Result<()> {
        let mut at = self.unsealed(self.head)?;
        let (mut chain, mut places) = (Vec::new(), Vec::new());
        let mut seen = BTreeSet::new();
        while at != 0 {
            if !seen.insert(at) {
                return Err(self.damaged(at, "pages that come to an end", "pages that lead in circles"));
            }
            self.pool.get::<Page>(POff::new(at))?;
            chain.push(at);
            places.extend((1..PAGE_WORDS as u64).map(|i| at + 8 * i));
            at = self.unsealed(at)?;
        }
        if chain.is_empty() {
            return Ok(());
        }
        chain.reverse();
        let (mut known, mut free) = (Known::default(), Vec::new());
        for place in places.into_iter().rev() {
            match self.unsealed(place)? {
                0 => free.push(place),
                record => self.take_over(&mut known, Entry { place, record }, &hash_of)?,
            }
        }
        *self.pages.lock() = Pages { chain, free };
        *self.known.write() = known;
        Ok(())
    }

    fn take_over(&self, known: &mut Known, entry: Entry, hash_of: &impl Fn(&[u8]) -> u64) -> Result<()> {
        // SAFETY: the table is being opened: nobody frees anything.
        let pair = unsafe { Pair::read(&self.pool, entry.record)? };
        let hash = hash_of(pair.key);
        if self.find(known, hash, pair.key)?.is_some() {
            return Err(self.damaged(entry.place, "a key once", "one that is there twice"));
        }
        known.record_bytes += pair.bytes();
        self.enter(known, hash, pair.key, entry);
        Ok(())
    }

    /// The value of the sealed word at `at`.
    fn unsealed(&self, at: u64) -> Result<u64> {
        let word = self.pool.atomic_checked(POff::new(at))?.load(Ordering::Acquire);
        unseal48(self.pool.place(at), word)
            .ok_or_else(|| self.damaged(at, "a word with its check", "another"))
    }

    fn seal(&self, at: u64, value: u64) {
        self.pool.publish(POff::new(at), seal48(self.pool.place(at), value));
    }

    /// Whether there may be a key of this hash.
    #[inline(always)]
    pub fn may_hold(&self, hash: u64) -> bool {
        self.begin[begin_of(hash)].load(Ordering::Acquire) != 0
    }

    /// Whether there is a key of this hash.
    pub fn holds(&self, hash: u64) -> bool {
        self.may_hold(hash) && self.known.read().entries.range((hash, 0)..=(hash, u64::MAX)).next().is_some()
    }

    /// The pair of a key.
    ///
    /// # Safety
    ///
    /// Retired records are not freed for `'t`: the caller is present in the table's limbo.
    #[cold]
    pub unsafe fn get<'t>(&'t self, hash: u64, key: &[u8]) -> Result<Option<Pair<'t>>> {
        let found = self.find(&self.known.read(), hash, key)?;
        // SAFETY: the record was named while the lock was held, and is not freed (the caller's promise).
        found.map(|(_, entry)| unsafe { Pair::read(&self.pool, entry.record) }).transpose()
    }

    /// Where a key is among those of both its hashes.
    fn find(&self, known: &Known, hash: u64, key: &[u8]) -> Result<Option<(usize, Entry)>> {
        let Some(alike) = known.entries.get(&(hash, self.second.hash_one(key))) else { return Ok(None) };
        for (i, entry) in alike.iter().enumerate() {
            // SAFETY: the lock is held, without which no record is unlinked.
            if unsafe { Pair::read(&self.pool, entry.record)? }.key == key {
                return Ok(Some((i, *entry)));
            }
        }
        Ok(None)
    }

    fn enter(&self, known: &mut Known, hash: u64, key: &[u8], entry: Entry) {
        known.entries.entry((hash, self.second.hash_one(key))).or_default().push(entry);
        known.len += 1;
        self.begin[begin_of(hash)].fetch_add(1, Ordering::AcqRel);
    }

    /// Gives `key` the pair that was written for it, durably; returns the objects to retire.
    pub fn put(&self, hash: u64, key: &[u8], pair: NewPair<'_>) -> Result<Option<Unlinked>> {
        let mut pages = self.pages.lock();
        let old = self.find(&self.known.read(), hash, key)?.map(|(_, entry)| entry);
        let place = match old {
            Some(entry) => entry.place,
            None => self.free_place(&mut pages)?,
        };
        let freed = old.map_or(Ok(0), |entry| self.bytes_of(entry))?;
        // The record is durable before it is named.
        self.pool.drain();
        self.seal(place, pair.offset());
        let (entry, bytes) = (Entry { place, record: pair.offset() }, pair.bytes());
        pair.keep();
        let mut known = self.known.write();
        known.record_bytes = (known.record_bytes + bytes).saturating_sub(freed);
        let Some(old) = old else {
            pages.free.pop();
            self.enter(&mut known, hash, key, entry);
            return Ok(None);
        };
        let alike = known.entries.entry((hash, self.second.hash_one(key))).or_default();
        alike.iter_mut().filter(|known| known.place == place).for_each(|known| *known = entry);
        Ok(Some(Unlinked::Pair(old.record)))
    }

    /// Removes `key`, durably, if it is there; returns the objects to retire.
    pub fn remove(&self, hash: u64, key: &[u8]) -> Result<Vec<Unlinked>> {
        let mut pages = self.pages.lock();
        let found = self.find(&self.known.read(), hash, key)?;
        let Some((i, entry)) = found else { return Ok(Vec::new()) };
        let freed = self.bytes_of(entry)?;
        self.seal(entry.place, 0);
        pages.free.push(entry.place);
        let is_empty = {
            let mut known = self.known.write();
            let both = (hash, self.second.hash_one(key));
            if let Some(alike) = known.entries.get_mut(&both) {
                alike.swap_remove(i);
                if alike.is_empty() {
                    known.entries.remove(&both);
                }
            }
            known.len -= 1;
            known.record_bytes = known.record_bytes.saturating_sub(freed);
            known.len == 0
        };
        self.begin[begin_of(hash)].fetch_sub(1, Ordering::AcqRel);
        let mut unlinked = vec![Unlinked::Pair(entry.record)];
        if is_empty {
            self.seal(self.head, 0);
            unlinked.extend(std::mem::take(&mut *pages).chain.into_iter().map(Unlinked::Page));
        }
        Ok(unlinked)
    }

    /// Bytes of an entry's record, which nobody else can unlink: the pages are locked.
    fn bytes_of(&self, entry: Entry) -> Result<u64> {
        // SAFETY: named, and not unlinked without the lock that the caller holds.
        Ok(unsafe { Pair::read(&self.pool, entry.record)? }.bytes())
    }

    /// A free place, on a new page if necessary. It stays in the list of free ones.
    fn free_place(&self, pages: &mut Pages) -> Result<u64> {
        if let Some(place) = pages.free.last() {
            return Ok(*place);
        }
        let slot = self.pool.reserve(self.page_kind, PAGE_BYTES)?;
        let next = pages.chain.last().copied().unwrap_or(0);
        self.pool.copy_flush(slot.offset, &encode_page(self.pool.place(slot.offset), next));
        self.pool.activate(&slot);
        self.pool.drain();
        self.seal(self.head, slot.offset);
        pages.chain.push(slot.offset);
        pages.free.extend((1..PAGE_WORDS as u64).rev().map(|i| slot.offset + 8 * i));
        Ok(slot.offset + 8)
    }

    /// Hashes and records of the keys with these hashes, in the order of their hashes.
    pub fn records(&self, hashes: RangeInclusive<u64>) -> Vec<(u64, u64)> {
        let known = self.known.read();
        let (low, high) = hashes.into_inner();
        let own = known.entries.range((low, 0)..=(high, u64::MAX));
        own.flat_map(|((hash, _), alike)| alike.iter().map(|entry| (*hash, entry.record))).collect()
    }

    /// Where the pages are.
    pub fn pages(&self) -> Vec<u64> {
        self.pages.lock().chain.clone()
    }

    /// Keys.
    pub fn keys(&self) -> u64 {
        self.known.read().len
    }

    /// Places for keys.
    pub fn places(&self) -> u64 {
        self.pages.lock().chain.len() as u64 * (PAGE_WORDS as u64 - 1)
    }

    /// Bytes of the pool.
    pub fn pm_bytes(&self) -> u64 {
        self.pages.lock().chain.len() as u64 * PAGE_BYTES + self.known.read().record_bytes
    }

    /// Bytes of DRAM.
    pub fn dram_bytes(&self) -> u64 {
        let places = 8 * self.pages.lock().free.len();
        let entries = self.known.read().entries.len() * size_of::<((u64, u64), Vec<Entry>, Entry)>();
        (size_of::<Self>() + size_of_val(&*self.begin) + entries + places) as u64
    }

    /// Every finding. Writers are at rest, and the caller is present in the table's limbo.
    pub fn check(&self, hash_of: impl Fn(&[u8]) -> u64) -> Result<Vec<String>> {
        let pages = self.pages.lock();
        let known = self.known.read();
        let mut findings = Vec::new();
        let mut named = BTreeMap::new();
        let mut at = self.unsealed(self.head)?;
        let mut chain = Vec::new();
        while at != 0 && chain.len() <= pages.chain.len() {
            chain.push(at);
            for place in (1..PAGE_WORDS as u64).map(|i| at + 8 * i) {
                named.insert(place, self.unsealed(place)?);
            }
            at = self.unsealed(at)?;
        }
        chain.reverse();
        if chain != pages.chain {
            findings.push(format!("overflow: pages {chain:x?} are named, {:x?} known", pages.chain));
        }
        for ((hash, _), alike) in &known.entries {
            for entry in alike {
                if named.insert(entry.place, 0) != Some(entry.record) {
                    findings.push(format!("overflow: {:#x} names another record", entry.place));
                }
                // SAFETY: the lock is held, without which no record is unlinked.
                match unsafe { Pair::read(&self.pool, entry.record) } {
                    Ok(pair) if hash_of(pair.key) == *hash => {}
                    Ok(_) => findings.push(format!("overflow: {:#x}: a key of another hash", entry.record)),
                    Err(e) => findings.push(format!("overflow: {e}")),
                }
            }
        }
        let lost = named.iter().filter(|(_, record)| **record != 0);
        findings.extend(lost.map(|(place, _)| format!("overflow: {place:#x} names a record unknown")));
        Ok(findings)
    }

    #[cold]
    fn damaged(&self, at: u64, expected: &str, found: &str) -> Error {
        self.pool.corruption(at, expected, found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let page = encode_page(0x1200, 0x3400);
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(page.len() as u64, PAGE_BYTES);
        assert_eq!(hex(&page[..24]), "0034000000001fd7000000000000f7c9000000000000ac51");
        assert_eq!(empty_head(0x1038), 0xbf43_0000_0000_0000);
    }
}
