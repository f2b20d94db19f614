//! Write buffers: changes of a node that its leaf does not have yet. [`entries`] has the words of one.
//!
//! 1. A key is in a buffer once at most. The buffer's entry takes precedence over the leaf's.
//! 2. An entry is in the log, durably, before it is in the buffer; and in the leaf, durably, before it leaves
//!    the buffer.
//! 3. A key longer than eight bytes is a box of its own, retired when its entry leaves. The slot that is reserved for
//!    its record is given back with it, if the leaf does not have the key.
//! 4. A buffer changes with its node's version, so readers see buffer and leaf of one moment.
//! 5. Items of the leaf and words in the buffer are together no more than a leaf may have: a flush finds room for all
//!    entries, in the leaf and in the pool, even if everything else is full. (After an open with other options, or in a
//!    pool that was filled since, it may have to split, and be refused.)

use std::cmp::Ordering as Order;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering;

use terrace_base::Result;

use crate::key_object::KEY_HEAD_BYTES;
use crate::kinds;
use crate::point::Wish;
use crate::sptree::bound::Bound;
use crate::sptree::key::Probe;
use crate::sptree::layout::{Item, LEAF_BYTES, OFFSET_BITS, RECORD, low_bits};
use crate::sptree::logs::Logs;
use crate::sptree::mnode::{Locked, Mnode, Version};
use crate::sptree::page::Page;
use crate::sptree::split::Fresh;
use crate::sptree::write::free_slot;
use crate::sptree::{Core, Garbage};

mod entries;

pub(super) use entries::{
    BOXED, Entries, MAX_ENTRIES, WORDS, boxed_key, entries, free_key, free_keys, store,
};
use entries::{ENTRIES_AT, TAGS_AT, boxed, count_of, keep_key, kind_at, tagged, take_reserved};

impl Core {
    pub(in crate::sptree) fn is_buffered(&self) -> bool {
        self.logs.is_some()
    }

    /// The buffer's entry for a key: none; or its word as of this version, 0 if it is removed; `Some(None)` if the
    /// version has moved on.
    #[inline]
    pub(in crate::sptree) fn in_buffer(
        &self,
        node: &Mnode,
        probe: &Probe<'_>,
        version: Version,
    ) -> Option<Option<u64>> {
        self.logs.as_ref()?;
        self.buffered(node, probe, version).map(|found| found.map(|(_, word)| word))
    }

    /// [`in_buffer`](Self::in_buffer) with the entry's place.
    fn buffered(&self, node: &Mnode, probe: &Probe<'_>, version: Version) -> Option<Option<(usize, u64)>> {
        let words = node.buffer(&self.arena.shape).first_chunk::<WORDS>()?;
        let head = words[0].load(Ordering::Relaxed);
        let tags = [TAGS_AT, TAGS_AT + 1].map(|i| words[i].load(Ordering::Relaxed));
        let mut left = tagged(tags, probe.hash as u8) & low_bits(count_of(head));
        while left != 0 {
            let i = left.trailing_zeros() as usize;
            left &= left - 1;
            let key_word = words[ENTRIES_AT + 2 * i].load(Ordering::Relaxed);
            let word = words[ENTRIES_AT + 2 * i + 1].load(Ordering::Relaxed);
            if !node.is_still(version) {
                return Some(None);
            }
            let is_key = match kind_at(head, i) {
                // SAFETY: the entry was there in this version, and the caller is present.
                BOXED => probe.key == unsafe { boxed(key_word) },
                kind => kind == probe.kind() && key_word == probe.word,
            };
            if is_key {
                return Some(Some((i, word)));
            }
        }
        None
    }

    /// [`apply`](Self::apply) to a locked node with a buffer; `None`: look again, since the leaf has been changed to
    /// make room, or logs are being given up.
    pub(in crate::sptree) fn apply_buffered(
        &self,
        locked: Locked<'_>,
        probe: &Probe<'_>,
        wish: &mut dyn FnMut(Option<u64>) -> Wish,
    ) -> Result<Option<Option<u64>>> {
        let node = locked.0;
        let version = node.version();
        let found = self.buffered(node, probe, version).flatten();
        let in_leaf = match found {
            Some(_) => None,
            None => self.find(node, probe, version)?.flatten().map(|(_, item)| item.1),
        };
        let before = found.map_or(in_leaf, |(_, word)| (word != 0).then_some(word));
        let Some(new) = wish(before) else { return Ok(Some(before)) };
        let new = new.map(NonZeroU64::get);
        if before.is_none() && new.is_none() {
            return Ok(Some(before));
        }
        let mut now = entries(node, &self.arena.shape);
        if !self.has_room(node, &now, found, new.unwrap_or(0)) {
            self.make_room(locked, probe, usize::from(new.is_some()))?;
            return Ok(None);
        }
        let kept = found.is_none().then(|| self.keep(probe, new, in_leaf)).transpose()?;
        let number = match self.log(probe.key, new.unwrap_or(0)) {
            Ok(Some(number)) => number,
            other => {
                kept.into_iter().for_each(|kept| self.forget_kept(kept));
                other?;
                drop(locked);
                self.logs.iter().for_each(Logs::wait);
                return Ok(None);
            }
        };
        self.put_entry(&locked, &mut now, found, kept, new.unwrap_or(0));
        if now.len() == 1 {
            locked.set_oldest_odd(number & 1 == 1);
        }
        self.count_change(before.is_some(), new.is_some());
        drop(locked);
        self.keep_logs_short();
        Ok(Some(before))
    }

    /// Whether an entry with this word can be added: the buffer has a place for it, and the leaf has room for all.
    fn has_room(&self, node: &Mnode, now: &[Item], found: Option<(usize, u64)>, word: u64) -> bool {
        if found.is_none() && now.len() >= self.buffer_entries() {
            return false;
        }
        let is_more = word != 0 && found.is_none_or(|(_, word)| word == 0);
        let words = now.iter().filter(|entry| entry.1 != 0).count();
        let items = node.bitmap.load(Ordering::Relaxed).count_ones() as usize;
        !is_more || items + words < self.capacity
    }

    /// Flushes the buffer, or splits the leaf if it has no room for that and `more` items.
    fn make_room(&self, locked: Locked<'_>, probe: &Probe<'_>, more: usize) -> Result<()> {
        if self.buffer_len(locked.0) == 0 || !self.flush_buffer(&locked, more)? {
            return self.split(locked, Some(probe.key));
        }
        let left = locked.0.bitmap.load(Ordering::Relaxed).count_ones() as usize;
        drop(locked);
        if left < self.capacity / 4 {
            self.merge_near(probe)?;
        }
        Ok(())
    }

    /// Key word and sort for a new entry. For a key that its leaf does not have, the place of its record is reserved.
    fn keep(&self, probe: &Probe<'_>, new: Option<u64>, in_leaf: Option<u64>) -> Result<(u64, u8)> {
        let needs = probe.kind() == RECORD && new.is_some() && in_leaf.is_none();
        let bytes = KEY_HEAD_BYTES + probe.key.len() as u64;
        let slot = needs.then(|| self.pool.reserve(kinds::SPTREE_KEY, bytes)).transpose()?;
        Ok(keep_key(probe, slot))
    }

    /// Takes back a key of [`keep`](Self::keep) that is in no buffer.
    fn forget_kept(&self, (key_word, kind): (u64, u8)) {
        self.give_back_reserved(&[(key_word, 0, kind)]);
        if kind == BOXED {
            // SAFETY: no other thread has seen it.
            unsafe { free_key(key_word as usize) };
        }
    }

    /// Stores an entry to the buffer, in the place of the one `found` or as a new one with the key `kept`.
    fn put_entry(
        &self,
        locked: &Locked<'_>,
        now: &mut Entries,
        found: Option<(usize, u64)>,
        kept: Option<(u64, u8)>,
        word: u64,
    ) {
        match (found, kept) {
            (Some((i, _)), _) => now[i].1 = word,
            (None, Some((key_word, kind))) => now.push((key_word, word, kind)),
            (None, None) => {}
        }
        // The leaf's order does not change.
        locked.change(locked.0.version().is_sorted(), |node| store(node, &self.arena.shape, now));
    }

    /// Puts an entry of a log back into the buffer of its node, whose leaf says `before` of the key; false if there
    /// is no room: look again.
    pub(in crate::sptree) fn put_back(
        &self,
        locked: Locked<'_>,
        probe: &Probe<'_>,
        (word, set): (u64, u64),
        before: Option<u64>,
    ) -> Result<bool> {
        let mut now = entries(locked.0, &self.arena.shape);
        if !self.has_room(locked.0, &now, None, word) {
            self.make_room(locked, probe, usize::from(word != 0))?;
            return Ok(false);
        }
        let new = (word != 0).then_some(word);
        // Slots that were reserved before the crash may have been taken since.
        let kept = self.keep(probe, new, before).unwrap_or_else(|_| keep_key(probe, None));
        self.put_entry(&locked, &mut now, None, Some(kept), word);
        let current = self.logs.as_ref().map_or(0, Logs::current);
        if now.len() == 1 || set < current {
            locked.set_oldest_odd(set & 1 == 1);
        }
        self.count_change(before.is_some(), new.is_some());
        Ok(true)
    }

    /// Entries a buffer may hold: so few that a leaf without room for them has two items at least.
    pub(in crate::sptree) fn buffer_entries(&self) -> usize {
        self.logs.as_ref().map_or(0, |logs| logs.buffer_entries).min(self.capacity - 2)
    }

    /// Writes the buffer's entries to the leaf, durably, and empties the buffer; false if the leaf must be split first,
    /// also to have room for `more` items afterwards.
    ///
    /// As for single writes: all slots first, one drain, then the bitmap.
    pub(in crate::sptree) fn flush_buffer(&self, locked: &Locked<'_>, more: usize) -> Result<bool> {
        let (node, shape) = (locked.0, &self.arena.shape);
        let entries = entries(node, shape);
        if entries.is_empty() {
            return Ok(true);
        }
        let leaf = node.leaf();
        self.prefetch_leaf(leaf);
        self.pool.charge_read(leaf, LEAF_BYTES);
        let old = node.bitmap.load(Ordering::Relaxed);
        let (mut gone, mut gone_records, mut puts) = (0u64, Vec::new(), Vec::new());
        for entry in &entries {
            let key = self.key_of(*entry)?;
            let probe = Probe::new(key.bytes());
            let found = self.find(node, &probe, node.version())?.flatten();
            if let Some((slot, item)) = found {
                gone |= 1 << slot;
                if entry.1 == 0 {
                    gone_records.push(item);
                }
            }
            if entry.1 != 0 {
                puts.push((*entry, probe.hash, found.map(|(_, item)| item)));
            }
        }
        let after = (old & !gone).count_ones() as usize + puts.len();
        if puts.len() > (!old).count_ones() as usize || after + more > self.capacity {
            return Ok(false);
        }
        let (mut fresh, mut bitmap, mut fingerprints) =
            (Fresh::new(self), old, Vec::with_capacity(puts.len()));
        for (entry, hash, item) in puts {
            let slot = free_slot(bitmap);
            bitmap |= 1 << slot;
            let (key_word, kind) = match (item, entry.2) {
                (Some(item), _) => (item.0, item.2),
                (None, BOXED) => {
                    let record = fresh.record_in(take_reserved(entry), self.key_of(entry)?.bytes())?;
                    (record | u64::from(hash) << OFFSET_BITS, RECORD)
                }
                (None, kind) => (entry.0, kind),
            };
            self.store_item(leaf, slot, (key_word, entry.1, kind))?;
            fingerprints.push((slot, hash));
        }
        let next = self.next_leaf(leaf)?;
        fresh.keep();
        self.pool.drain();
        let new = bitmap & !gone;
        self.store_state(leaf, (old, next), (new, next), (new, next));
        locked.change(false, |node| {
            node.bitmap.store(new, Ordering::Relaxed);
            fingerprints.iter().for_each(|(slot, hash)| node.note(shape, *slot, *hash));
            store(node, shape, &[]);
        });
        gone_records.into_iter().for_each(|item| self.retire_record(item));
        self.retire_keys(&entries);
        Ok(true)
    }

    /// Gives back slots that were reserved for entries and not needed.
    pub(in crate::sptree) fn give_back_reserved(&self, entries: &[Item]) {
        entries.iter().filter_map(|entry| take_reserved(*entry)).for_each(|slot| self.pool.cancel(slot));
    }

    /// Retires the keys of entries that have left their buffer.
    fn retire_keys(&self, entries: &[Item]) {
        self.give_back_reserved(entries);
        for (key_word, _, _) in entries.iter().filter(|entry| entry.2 == BOXED) {
            self.limbo.retire(Garbage::Key(*key_word as usize));
        }
    }

    /// Flushes a leaf's buffer if it is to be merged; false if it has no room.
    pub(in crate::sptree) fn flush_for_merge(&self, locked: &Locked<'_>) -> Result<bool> {
        if self.is_buffered() { self.flush_buffer(locked, 0) } else { Ok(true) }
    }

    /// Entries in a node's buffer.
    pub(in crate::sptree) fn buffer_len(&self, node: &Mnode) -> usize {
        node.buffer(&self.arena.shape).first().map_or(0, |head| count_of(head.load(Ordering::Relaxed)))
    }

    /// Empties the buffer of a new node that no other thread has seen.
    pub(in crate::sptree) fn empty_buffer(&self, node: &Mnode) {
        store(node, &self.arena.shape, &[]);
    }

    /// The entries of a buffer: those below `low`, and the others.
    pub(in crate::sptree) fn part_buffer(&self, node: &Mnode, low: &Bound) -> Result<(Entries, Entries)> {
        let (mut stay, mut go) = (Entries::new(), Entries::new());
        for entry in entries(node, &self.arena.shape) {
            let key = self.key_of(entry)?;
            let to = if low.cmp_key(&Probe::plain(key.bytes())).is_lt() { &mut stay } else { &mut go };
            to.push(entry);
        }
        Ok((stay, go))
    }

    /// All items of a node, with its buffer's entries applied, in the order of their keys, as of this version; `None`
    /// if it has moved on.
    pub(in crate::sptree) fn read_page(
        &self,
        node: &Mnode,
        version: Version,
        page: &mut Page,
    ) -> Result<Option<()>> {
        if !self.is_buffered() {
            return self.page(node, version, page);
        }
        let buffered = entries(node, &self.arena.shape);
        // The page is of this version, and if it is, so are the entries.
        let Some(()) = self.page(node, version, page)? else { return Ok(None) };
        for entry in buffered {
            let key = self.key_of(entry)?;
            let probe = Probe::plain(key.bytes());
            let (mut at, mut is_there) = (0, false);
            // Errors end the search where they are met.
            for item in page.items() {
                match self.cmp_item(*item, &probe)? {
                    Order::Less => at += 1,
                    order => {
                        is_there = order.is_eq();
                        break;
                    }
                }
            }
            match (is_there, entry.1) {
                (true, 0) => page.remove(at),
                (true, _) => page.items[at] = entry,
                (false, 0) => {}
                (false, _) => page.insert(at, entry),
            }
        }
        Ok(Some(()))
    }

    /// How many more keys there are with the buffers than in the leaves; problems of buffers go to `problems`.
    pub(in crate::sptree) fn check_buffers(&self, problems: &mut Vec<String>) -> Result<i64> {
        let mut more = 0;
        self.for_each_node(&mut |node, _, high| {
            let low = node.low();
            for entry in entries(node, &self.arena.shape) {
                let key = self.key_of(entry)?;
                let probe = Probe::new(key.bytes());
                if low.cmp_key(&probe).is_lt() || high.cmp_key(&probe).is_ge() {
                    problems
                        .push(format!("sptree: leaf at {}: a buffered key outside its range", node.leaf()));
                }
                let there = self.find(node, &probe, node.version())?.flatten().is_some();
                more += i64::from(entry.1 != 0) - i64::from(there);
            }
            Ok(())
        })?;
        Ok(more)
    }
}
