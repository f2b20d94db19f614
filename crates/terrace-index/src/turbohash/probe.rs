//! Reads one bucket: its header as one state, and its slots compared with the sought key.

use std::sync::atomic::{Ordering, fence};

use terrace_base::{Error, Result, prefetch};

use super::TurboHash;
use super::checks::{is_filter_sound, leads_on, slot_check};
use super::layout::{Bucket, shard_of, tag_of};
use super::meta::{KINDS_SHIFT, Meta, Place};
use super::simd::Isa;
use crate::pair::Pair;

/// Bytes of a bucket that a search reads first.
const FIRST_BYTES: usize = 4 * prefetch::LINE_BYTES;

/// The target of a search.
#[derive(Clone, Copy)]
pub(super) struct Sought<'k> {
    pub hash: u64,
    /// The key as a word, if it is 8 bytes long.
    pub word: Option<u64>,
    pub key: &'k [u8],
}

/// The header of a bucket, and the live slots with the tag that is sought.
#[derive(Clone, Copy)]
pub(super) struct Header {
    pub meta: Meta,
    pub tags: u64,
    pub tags_kinds: u64,
    pub checks: u64,
    pub matches: u32,
}

/// The two words of a slot, and whether they are hash and record.
#[derive(Clone, Copy)]
pub(super) struct Content {
    pub key: u64,
    pub value: u64,
    pub is_record: bool,
}

/// The value found: in the slot, or in a record.
#[derive(Clone, Copy)]
pub(super) enum Value<'t> {
    Word(u64),
    Record(Pair<'t>),
}

impl Value<'_> {
    /// The value as a word.
    #[inline(always)]
    pub fn word(&self) -> Result<u64> {
        match self {
            Value::Word(word) => Ok(*word),
            Value::Record(pair) => pair.word(),
        }
    }
}

impl Bucket {
    /// The header, sound or not, with the slots whose tag is `tag`. Loaded word by word: it is of one moment only
    /// if [`is_still`](Self::is_still) says so afterwards.
    ///
    /// # Safety
    ///
    /// The processor has the features of `I`.
    #[inline(always)]
    pub unsafe fn header<I: Isa>(&self, tag: u8) -> Header {
        let meta = Meta(self.meta.load(Ordering::Acquire));
        let tags = self.tags.load(Ordering::Relaxed);
        let tags_kinds = self.tags_kinds.load(Ordering::Relaxed);
        let checks = self.checks.load(Ordering::Relaxed);
        // SAFETY: the caller's.
        let matches = unsafe { I::matches(tags, tags_kinds, tag) } & meta.live();
        Header { meta, tags, tags_kinds, checks, matches }
    }

    /// Whether nothing was published since `meta` was loaded; then the live slots were seen in the state that it
    /// describes.
    #[inline(always)]
    pub fn is_still(&self, meta: Meta) -> bool {
        fence(Ordering::Acquire);
        self.meta.load(Ordering::Relaxed) == meta.0
    }

    /// The content of slot `i`.
    #[inline(always)]
    pub fn content(&self, header: &Header, i: usize) -> Content {
        let slot = &self.slots[i];
        Content {
            key: slot.key.load(Ordering::Relaxed),
            value: slot.value.load(Ordering::Relaxed),
            is_record: header.tags_kinds >> (KINDS_SHIFT as usize + i) & 1 == 1,
        }
    }
}

impl Header {
    /// The tag of a slot.
    #[inline(always)]
    pub fn tag(&self, slot: usize) -> u8 {
        let tags = if slot < 8 { self.tags } else { self.tags_kinds };
        (tags >> (slot % 8 * 8)) as u8
    }

    /// Whether no key of this tag is in a later bucket.
    #[inline(always)]
    pub fn ends_path_of(&self, tag: u8) -> bool {
        self.meta.ends_path() || !leads_on(self.checks, tag)
    }

    /// Whether the checks over it are right, at this place.
    ///
    /// # Safety
    ///
    /// The processor has the features of `I`.
    #[inline(always)]
    pub unsafe fn is_sound<I: Isa>(&self, place: Place) -> bool {
        // SAFETY: the caller's.
        let tags = unsafe { I::of_live(self.tags, self.tags_kinds, self.meta.live()) };
        self.meta.is_state_sound(place)
            && self.meta.are_tags_sound(tags, place)
            && is_filter_sound(self.checks)
    }
}

impl Content {
    /// Whether the slot's check is right, in the bucket at this place.
    #[inline(always)]
    pub fn is_sound(&self, header: &Header, i: usize, place: Place) -> bool {
        slot_check(self.key, self.value, self.is_record, place) == header.checks >> (i * 4) & 0xf
    }
}

impl<'k> Sought<'k> {
    /// Any key.
    #[inline(always)]
    pub fn key(table: &TurboHash, key: &'k [u8]) -> Self {
        match key.first_chunk::<8>() {
            Some(bytes) if key.len() == 8 => {
                let word = u64::from_le_bytes(*bytes);
                Sought { hash: table.hash.of_word(word), word: Some(word), key }
            }
            _ => Sought { hash: table.hash.of(key), word: None, key },
        }
    }

    /// The tag.
    #[inline(always)]
    pub fn tag(&self) -> u8 {
        tag_of(self.hash)
    }
}

impl TurboHash {
    /// The value in a slot whose header and content are of one moment, if it is the sought key's.
    ///
    /// # Safety
    ///
    /// A record that the slot names is not freed for `'t`: the caller holds the shard, or has been present
    /// in limbo since before the slot was loaded.
    #[inline(always)]
    pub(super) unsafe fn matched<'t>(
        &'t self,
        bucket: &Bucket,
        header: &Header,
        i: usize,
        content: Content,
        sought: &Sought<'_>,
    ) -> Result<Option<Value<'t>>> {
        if !content.is_sound(header, i, self.place(bucket)) {
            return Err(self.damaged(bucket, "a slot with its check"));
        }
        if !content.is_record {
            if sought.word == Some(content.key) {
                return Ok(Some(Value::Word(content.value)));
            }
            return self.another(bucket, self.hash.of_word(content.key), sought);
        }
        if content.key != sought.hash {
            return self.another(bucket, content.key, sought);
        }
        // SAFETY: the caller's.
        let pair = unsafe { Pair::read(&self.pool, content.value)? };
        if pair.key == sought.key {
            return Ok(Some(Value::Record(pair)));
        }
        match self.hash.of(pair.key) == sought.hash {
            true => Ok(None),
            false => Err(self.pool.corruption(content.value, "the record of a key", "another's")),
        }
    }

    /// Checks that another key in a slot with the sought tag, with this hash, has the same tag and shard; otherwise the
    /// slot is damaged. This is rare, so the check is cheap.
    #[cold]
    fn another<'t>(&self, bucket: &Bucket, hash: u64, sought: &Sought<'_>) -> Result<Option<Value<'t>>> {
        let shard = |hash| shard_of(hash, self.header.shard_bits);
        match tag_of(hash) == sought.tag() && shard(hash) == shard(sought.hash) {
            true => Ok(None),
            false => Err(self.damaged(bucket, "a key with its tag")),
        }
    }

    /// Starts loading the lines that a search for `hash` reads first.
    #[inline(always)]
    pub(super) fn prefetch(&self, at: *const Bucket) {
        prefetch::lines(at, FIRST_BYTES);
    }

    /// The binding of a bucket to its place.
    #[inline(always)]
    pub(super) fn place(&self, bucket: *const Bucket) -> Place {
        self.places.of(bucket.addr() as u64)
    }

    #[cold]
    pub(super) fn damaged(&self, bucket: *const Bucket, expected: &str) -> Error {
        self.pool.corruption(self.offset_of(bucket), expected, "another")
    }
}
