//! Reading without a lock.
//!
//! A bucket is looked at as it was at one moment: its meta word is the same before and after. If a writer holds
//! the shard once the answer is known, what was seen may have been published by it and not be durable yet: then the
//! reader makes the headers it has seen durable itself. What a header publishes is durable before it is
//! (`write`), so the header is enough. A shard that is free was released after its last publish was
//! durable.

use terrace_base::Result;

use super::TurboHash;
use super::directory::View;
use super::layout::{BUCKET_BYTES, BUCKET_HEADER_BYTES, home_of, shard_of, tag_of};
use super::probe::{Sought, Value};
use super::simd::{Isa, by_isa};
use crate::limbo::Readers;

/// A reader of the table.
pub(super) type Here<'t> = <crate::pins::Pins as Readers>::Presence<'t>;

impl TurboHash {
    /// The word of the key that consists of the eight bytes of `key`, little-endian: what
    /// [`get`](crate::HashIndex::get) does for such keys, at less cost.
    #[inline]
    pub fn get_u64(&self, key: u64) -> Result<Option<u64>> {
        self.word_of_word(key)
    }

    by_isa! { fn word_of_word(&self, key: u64) -> Result<Option<u64>> = word_of_word_in }
    by_isa! { pub(super) fn word_of_key(&self, key: &[u8]) -> Result<Option<u64>> = word_of_key_in }
    by_isa! {
        pub(super) fn copy_value(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> = copy_value_in
    }

    #[inline(always)]
    fn word_of_word_in<I: Isa>(&self, key: u64) -> Result<Option<u64>> {
        match self.glance::<I>(key) {
            Some(found) => Ok(found),
            None => self.search_for_word(key),
        }
    }

    /// What nearly every read of a word comes to, in as few instructions as possible, so that the processor has
    /// the next ones under way while this one waits for memory. `None`: it takes a closer look.
    #[inline(always)]
    fn glance<I: Isa>(&self, key: u64) -> Option<Option<u64>> {
        let _here = self.limbo.readers().glimpse()?;
        let hash = self.hash.of_word(key);
        let shard = shard_of(hash, self.header.shard_bits);
        let view = self.view(shard);
        if !view.is_quiet() || self.charges_reads {
            return None;
        }
        let mut at = home_of(hash, view.bits());
        let mut left = self.scope(view);
        let found = loop {
            // SAFETY: present in limbo since before the view was loaded.
            let bucket = unsafe { view.bucket(at) };
            // SAFETY: the levels that operations are compiled for are those of this processor.
            let header = unsafe { bucket.header::<I>(tag_of(hash)) };
            // SAFETY: as above.
            if !unsafe { header.is_sound::<I>() } {
                return None;
            }
            if header.matches != 0 {
                let slot = header.matches.trailing_zeros() as usize;
                let content = bucket.content(&header, slot);
                if content.key != key || content.is_record || !content.is_sound(&header, slot) {
                    return None;
                }
                if !bucket.is_still(header.meta) {
                    return None;
                }
                break Some(content.value);
            }
            if !bucket.is_still(header.meta) {
                return None;
            }
            left -= 1;
            if header.meta.ends_path() || left == 0 {
                break None;
            }
            at = (at + 1) & (view.len() - 1);
        };
        // Nobody has begun to write to the shard: what was seen is durable.
        (self.view(shard) == view).then_some(found)
    }

    #[cold]
    #[inline(never)]
    fn search_for_word(&self, key: u64) -> Result<Option<u64>> {
        self.word_of_key(&key.to_le_bytes())
    }

    #[inline(always)]
    fn word_of_key_in<I: Isa>(&self, key: &[u8]) -> Result<Option<u64>> {
        let here = self.limbo.enter();
        match self.find::<I>(&here, &Sought::key(self, key))? {
            Some(value) => Ok(Some(value.word()?)),
            None => Ok(None),
        }
    }

    #[inline(always)]
    fn copy_value_in<I: Isa>(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let here = self.limbo.enter();
        let found = self.find::<I>(&here, &Sought::key(self, key))?;
        out.clear();
        match found {
            Some(Value::Word(word)) => out.extend_from_slice(&word.to_le_bytes()),
            Some(Value::Record(pair)) => out.extend_from_slice(pair.value),
            None => return Ok(false),
        }
        Ok(true)
    }

    /// The value of what is sought, durable.
    #[inline(always)]
    fn find<'t, I: Isa>(&'t self, _here: &'t Here<'t>, sought: &Sought<'_>) -> Result<Option<Value<'t>>> {
        let shard = shard_of(sought.hash, self.header.shard_bits);
        let view = self.view(shard);
        if view.is_empty() {
            return Ok(None);
        }
        let home = home_of(sought.hash, view.bits());
        let mask = view.len() - 1;
        let mut found = None;
        let mut probed = 0;
        while probed < self.scope(view) {
            let (value, is_end) = self.look::<I>(view, (home + probed) & mask, sought)?;
            probed += 1;
            found = value;
            if found.is_some() || is_end {
                break;
            }
        }
        self.charge(view, home, probed);
        if self.view(shard).is_writing() {
            self.settle(view, home, probed);
        }
        Ok(found)
    }

    /// Looks into a bucket: the value, and whether the search ends here without one.
    #[inline(always)]
    fn look<'t, I: Isa>(
        &'t self,
        view: View,
        i: usize,
        sought: &Sought<'_>,
    ) -> Result<(Option<Value<'t>>, bool)> {
        // SAFETY: the caller is present in limbo and loaded the view since.
        let bucket = unsafe { view.bucket(i) };
        'again: loop {
            // SAFETY: the levels that operations are compiled for are those of this processor.
            let (header, is_sound) = unsafe {
                let header = bucket.header::<I>(sought.tag());
                (header, header.is_sound::<I>())
            };
            let mut matches = header.matches;
            if is_sound {
                while matches != 0 {
                    let at = matches.trailing_zeros() as usize;
                    let content = bucket.content(&header, at);
                    if !bucket.is_still(header.meta) {
                        continue 'again;
                    }
                    // SAFETY: the caller is present in limbo, and the bucket was still with this content in it.
                    if let Some(value) = unsafe { self.matched(bucket, &header, at, content, sought)? } {
                        return Ok((Some(value), true));
                    }
                    matches &= matches - 1;
                }
            }
            if !bucket.is_still(header.meta) {
                continue;
            }
            if !is_sound {
                return Err(self.damaged(bucket, "a bucket's header with its check"));
            }
            return Ok((None, header.meta.ends_path()));
        }
    }

    /// Makes the headers of `probed` buckets from `home` on durable, as they were seen or later.
    #[cold]
    pub(super) fn settle(&self, view: View, home: usize, probed: usize) {
        let mask = view.len() - 1;
        for i in 0..probed {
            self.pool.flush(self.offset_of(view.address((home + i) & mask)), BUCKET_HEADER_BYTES);
        }
        self.pool.drain();
    }

    /// Most buckets that a search in this shard looks at.
    #[inline(always)]
    pub(super) fn scope(&self, view: View) -> usize {
        view.len().min(self.header.scope as usize)
    }

    /// Charges for looking at `probed` buckets from `home` on, where the medium charges at all.
    #[inline(always)]
    pub(super) fn charge(&self, view: View, home: usize, probed: usize) {
        if self.charges_reads {
            self.charge_blocks(view, home, probed);
        }
    }

    #[cold]
    fn charge_blocks(&self, view: View, home: usize, probed: usize) {
        let contiguous = probed.min(view.len() - home);
        self.pool.charge_read(self.offset_of(view.address(home)), contiguous as u64 * BUCKET_BYTES);
        if probed > contiguous {
            let rest = (probed - contiguous) as u64 * BUCKET_BYTES;
            self.pool.charge_read(self.offset_of(view.address(0)), rest);
        }
    }
}
