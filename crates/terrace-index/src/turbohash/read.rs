//! Reading without a lock.
//!
//! A bucket is read in the state of one moment: its meta word is the same before and after. If a writer holds the shard
//! once the answer is known, that writer may have published the answer without making it durable yet: then the reader
//! makes the headers that it has seen durable itself. Everything that a header publishes is durable before it
//! (`write`), so the header is enough. A shard that is free was released after its last publish was durable.

use std::sync::atomic::Ordering;

use terrace_base::Result;

use super::TurboHash;
use super::checks::slot_check;
use super::directory::View;
use super::layout::{BUCKET_BYTES, BUCKET_HEADER_BYTES, Bucket, home_of, shard_of, tag_of};
use super::probe::{Sought, Value};
use super::simd::{Isa, Portable, by_isa};
use crate::limbo::Readers;

/// A reader of the table.
pub(super) type Here<'t> = <crate::pins::Pins as Readers>::Presence<'t>;

impl TurboHash {
    /// The word of the key that consists of the eight bytes of `key`, little-endian: [`get`](crate::PointIndex::get)
    /// for such keys.
    #[inline]
    pub(super) fn get_u64(&self, key: u64) -> Result<Option<u64>> {
        if self.has_fast_path
            && let Some(found) = self.fast_word(key)
        {
            return Ok(found);
        }
        self.search_for_word(key)
    }

    /// The word of a key.
    #[inline]
    pub(super) fn word_of_key(&self, key: &[u8]) -> Result<Option<u64>> {
        match key.try_into() {
            Ok(bytes) => self.get_u64(u64::from_le_bytes(bytes)),
            Err(_) => self.word_of_any(key),
        }
    }

    /// Starts loading the key's home bucket, if its shard is at rest.
    #[inline]
    pub(super) fn prefetch_key(&self, key: &[u8]) {
        let hash = Sought::key(self, key).hash;
        let view = self.view(shard_of(hash, self.header.shard_bits));
        if view.is_quiet() {
            // SAFETY: the portable set requires no features. A needless load does no harm.
            self.prefetch(unsafe { view.home::<Portable>(hash) });
        }
    }

    by_isa! { fn fast_word(&self, key: u64) -> Option<Option<u64>> = fast_word_in on level }
    by_isa! { fn word_of_any(&self, key: &[u8]) -> Result<Option<u64>> = word_of_any_in on level }
    by_isa! {
        pub(super) fn copy_value(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> = copy_value_in on level
    }

    /// The common case of reading a word, in as few instructions as possible, so that the processor overlaps it with
    /// the next reads. `None`: a full search is needed.
    #[inline(always)]
    fn fast_word_in<I: Isa>(&self, key: u64) -> Option<Option<u64>> {
        let _here = self.limbo.readers().pin_quickly()?;
        let hash = self.hash.of_word(key);
        // SAFETY: there are 2 to the power of `shard_bits` shards, of which these bits of the hash choose.
        let word = unsafe { self.views.get_unchecked(shard_of(hash, self.header.shard_bits)) };
        let view = View::of_word(word.load(Ordering::Acquire));
        if !view.is_quiet() {
            return None;
        }
        // SAFETY: the levels that operations are compiled for are those of this processor.
        let home = unsafe { view.home::<I>(hash) };
        // The header decides which slot is read, so all slots are loaded together with it.
        self.prefetch(home);
        // SAFETY: present in limbo since before the view was loaded, and the shard has buckets.
        let found = unsafe { self.fast_word_at::<I>(&*home, hash, key)? };
        if found.is_none() && self.overflow.may_hold(hash) {
            return None;
        }
        // No writer has begun to change the shard, so the result is durable.
        (word.load(Ordering::Relaxed) == view.to_word()).then_some(found)
    }

    /// The word in the key's home bucket, in the first slot with its tag, or that there is none. `None`: a full search
    /// is needed.
    ///
    /// # Safety
    ///
    /// The processor has the features of `I`.
    #[inline(always)]
    unsafe fn fast_word_at<I: Isa>(&self, home: &Bucket, hash: u64, key: u64) -> Option<Option<u64>> {
        // SAFETY: the caller's.
        let header = unsafe { home.header::<I>(tag_of(hash)) };
        let place = self.place(home);
        let found = if header.matches != 0 {
            let slot = header.matches.trailing_zeros() as usize;
            // SAFETY: tags are matched with those of slots.
            let at = unsafe { home.slots.get_unchecked(slot) };
            let (found, value) = (at.key.load(Ordering::Relaxed), at.value.load(Ordering::Relaxed));
            let check = slot_check(key, value, false, place) ^ header.checks >> (slot * 4);
            if found != key || check & 0xf != 0 || !header.meta.is_state_sound(place) {
                return None;
            }
            Some(value)
        } else {
            // SAFETY: the caller's.
            if !unsafe { header.is_sound::<I>(place) } || !header.ends_path_of(tag_of(hash)) {
                return None;
            }
            None
        };
        home.is_still(header.meta).then_some(found)
    }

    #[cold]
    #[inline(never)]
    fn search_for_word(&self, key: u64) -> Result<Option<u64>> {
        self.word_of_any(&key.to_le_bytes())
    }

    #[inline(always)]
    fn word_of_any_in<I: Isa>(&self, key: &[u8]) -> Result<Option<u64>> {
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

    /// The value of the sought key; it is durable.
    #[inline(always)]
    fn find<'t, I: Isa>(&'t self, _here: &'t Here<'t>, sought: &Sought<'_>) -> Result<Option<Value<'t>>> {
        let shard = shard_of(sought.hash, self.header.shard_bits);
        let view = self.view(shard);
        if view.is_empty() {
            return Ok(None);
        }
        let home = home_of(sought.hash, view.bits());
        let mask = view.len() - 1;
        // The header decides which slot is read, so all slots are loaded together with it. SAFETY: the caller is
        // present in limbo and the view was loaded since.
        self.prefetch(unsafe { view.bucket(home) });
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
            self.persist_headers(view, home, probed);
        }
        if found.is_none() && self.overflow.may_hold(sought.hash) {
            // SAFETY: the caller is present in limbo.
            let pair = unsafe { self.overflow.get(sought.hash, sought.key)? };
            return Ok(pair.map(Value::Record));
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
                (header, header.is_sound::<I>(self.place(bucket)))
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
            return Ok((None, header.ends_path_of(sought.tag())));
        }
    }

    /// Makes the headers of `probed` buckets from `home` on durable, as they were seen or later.
    #[cold]
    pub(super) fn persist_headers(&self, view: View, home: usize, probed: usize) {
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
