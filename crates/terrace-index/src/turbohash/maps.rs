//! The table as an index of words, and as a map of byte strings.

use std::num::NonZeroU64;
use std::sync::atomic::AtomicU64;

use terrace_base::Result;
use terrace_pmem::Marks;

use super::directory::{Counts, View};
use super::layout::{DESCRIPTOR_BYTES, HEADER_SLOT_BYTES};
use super::probe::Sought;
use super::write::{New, When};
use super::{Garbage, TurboHash};
use crate::hashed::{ByteMap, HashFigures, HashIndex, ScanPosition, admit_pair};
use crate::pair::word_of;
use crate::point::{PointIndex, Wish, admit_key, admit_word};
use crate::scan_batch::ScanBatch;

impl PointIndex for TurboHash {
    fn get(&self, key: &[u8]) -> Result<Option<u64>> {
        admit_key(key)?;
        self.word_of_key(key)
    }

    #[inline]
    fn prefetch(&self, key: &[u8]) {
        self.prefetch_key(key);
    }

    /// By exchanges: a pair is written before the shard is held, for the word that it is to replace.
    fn update(&self, key: &[u8], wish: &mut dyn FnMut(Option<u64>) -> Wish) -> Result<Option<u64>> {
        admit_key(key)?;
        let mut now = self.word_of_key(key)?;
        loop {
            let Some(new) = wish(now) else { return Ok(now) };
            match self.compare_exchange(key, now, new.map(NonZeroU64::get))? {
                Ok(()) => return Ok(now),
                Err(other) => now = other,
            }
        }
    }

    fn insert(&self, key: &[u8], word: u64) -> Result<Option<u64>> {
        admit_key(key)?;
        admit_word(word)?;
        let new = self.new_word(key, Some(word))?;
        Ok(self.write(&Sought::key(self, key), When::Known, new)?.before)
    }

    fn compare_exchange(
        &self,
        key: &[u8],
        expected: Option<u64>,
        new: Option<u64>,
    ) -> Result<std::result::Result<(), Option<u64>>> {
        admit_key(key)?;
        new.map(admit_word).transpose()?;
        let now = if new == expected {
            self.word_of_key(key)?
        } else {
            self.write(&Sought::key(self, key), When::If(expected), self.new_word(key, new)?)?.before
        };
        Ok(if now == expected { Ok(()) } else { Err(now) })
    }

    fn remove(&self, key: &[u8]) -> Result<Option<u64>> {
        admit_key(key)?;
        if let Ok(word) = key.try_into() {
            return self.remove_u64(u64::from_le_bytes(word));
        }
        Ok(self.write(&Sought::key(self, key), When::Known, New::Nothing)?.before)
    }

    /// Exact whenever writers are at rest.
    fn len(&self) -> u64 {
        self.totals().live + self.overflow.keys()
    }

    fn mark(&self, marks: &mut Marks) -> Result<()> {
        self.mark_all(marks)
    }

    fn check(&self) -> Result<Vec<String>> {
        self.check_all()
    }

    fn dram_bytes(&self) -> u64 {
        let shards = self.views.len() * (size_of::<AtomicU64>() + size_of::<Counts>());
        let own = size_of::<Self>() + shards + self.limbo.len() * size_of::<(u64, Garbage)>();
        own as u64 + self.overflow.dram_bytes()
    }

    fn pm_bytes(&self) -> u64 {
        let buckets: u64 = (0..self.views.len()).map(|shard| self.view(shard)).map(View::bytes).sum();
        let directory = self.views.len() as u64 * DESCRIPTOR_BYTES;
        let table = HEADER_SLOT_BYTES + directory + buckets + self.blocks.idle_bytes();
        table + self.totals().record_bytes + self.overflow.pm_bytes()
    }

    fn close(&self) -> Result<()> {
        self.limbo.drain();
        Ok(())
    }
}

impl HashIndex for TurboHash {
    fn scan_unordered(&self, cursor: &mut ScanPosition, limit: usize, out: &mut ScanBatch) -> Result<()> {
        self.scan_pairs(cursor, limit, &mut |key, value| {
            out.push(key, word_of(value)?);
            Ok(())
        })
    }

    fn figures(&self) -> Result<HashFigures> {
        self.walk_figures()
    }
}

impl ByteMap for TurboHash {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        admit_pair(key, value)?;
        let new = self.new_value(key, value)?;
        Ok(self.write(&Sought::key(self, key), When::Always, new)?.existed)
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        admit_key(key)?;
        self.copy_value(key, value)
    }

    fn delete(&self, key: &[u8]) -> Result<bool> {
        admit_key(key)?;
        Ok(self.write(&Sought::key(self, key), When::Always, New::Nothing)?.existed)
    }
}
