//! Inserting records: staging, linking, and making other threads' links durable.
//!
//! Each node has a volatile *owner* word: the token of the thread that linked it, 0 once the node is known
//! to be durable. Before linking behind a node that another thread owns, `link` persists the links that
//! lead to it (`make_durable`); behind its own nodes it need not, since the same drain covers both.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_base::{Error, Result};
use terrace_pmem::{POff, StartedRead};

use super::layout::{NodeFields, OWNER_BYTES, value_offset};
use super::read::compare;
use super::{Inner, Record, SkipList};
use crate::btree::{Place, Target, Trail};

/// A record that lies in the arena and is not in the list yet. Dropping it leaves it out for good.
///
/// The data that linking needs is kept here: the record's lines have just been flushed, and reading them again would
/// wait for memory.
#[must_use = "a staged record is in the list only once it is linked"]
pub struct Staged<'k> {
    target: Target<'k>,
    /// The token of the thread that staged it, which its owner word holds.
    owner: u64,
    offset: u64,
    /// Its place when it was staged; the record's durable link names `place.next`.
    place: Place,
    trail: Trail,
    /// The record before it, on its way into the caches.
    prev: StartedRead,
}

/// The position of staging at some moment.
#[derive(Debug)]
pub struct Staging(super::arena::Mark);

/// The outcome of linking.
pub(super) enum Linked {
    /// The record is in the list.
    New,
    /// A record with this key and sequence number was there, at this offset.
    Exists(u64),
}

impl SkipList {
    /// Copies a record into the arena and starts writing it back. The caller drains before it links.
    pub fn stage<'k>(&self, record: &Record<'k>) -> Result<Staged<'k>> {
        self.inner.stage(record.key, record)
    }

    /// The position of staging, for [`take_back`](Self::take_back).
    pub fn staging(&self) -> Staging {
        Staging(self.inner.arena.mark())
    }

    /// Gives back the room of all records that were staged since `staging`, none of which is linked: their group has
    /// failed. No other thread has staged anything meanwhile.
    pub fn take_back(&self, staging: &Staging) -> Result<()> {
        self.inner.arena.take_back(&staging.0)
    }

    /// Links a staged record, whose contents the calling thread has drained, and starts writing the link
    /// back: once the caller has drained again the record is durable. Readers see it at once.
    ///
    /// A second record with the same key and sequence number is refused.
    pub fn link(&self, staged: Staged<'_>) -> Result<()> {
        match self.inner.link(staged)? {
            Linked::New => Ok(()),
            Linked::Exists(at) => Err(Error::invalid(format!(
                "a record with this key and sequence number is in the skiplist already, at byte {at}"
            ))),
        }
    }

    /// Links staged records in this order, which is the list's, each as [`link`](Self::link) does: where several belong
    /// between the same two records that were there, the search for a place goes on from the one before.
    pub fn link_all<'k>(&self, staged: impl IntoIterator<Item = Staged<'k>>) -> Result<()> {
        let mut before: Option<(Target<'k>, Place)> = None;
        for mut one in staged {
            let follows = |(last, place): &(Target<'_>, Place)| {
                place.next == one.place.next && last.is_before(&one.target)
            };
            if let Some((_, place)) = before.filter(follows) {
                one.place.prev = place.prev;
            }
            before = Some((one.target, Place { prev: one.offset, ..one.place }));
            self.link(one)?;
        }
        Ok(())
    }

    /// Writes a group with two drains: all of it is durable on return. Batches are atomic each.
    pub fn put_group(&self, records: &[Record<'_>]) -> Result<()> {
        let mut staged = records.iter().map(|r| Ok((r, self.stage(r)?))).collect::<Result<Vec<_>>>()?;
        // In ascending order no record of the group comes between another and its staged successor.
        staged.sort_by(|(a, _), (b, _)| a.key.cmp(b.key).then_with(|| b.seq.cmp(&a.seq)));
        self.inner.pool.drain();
        self.link_all(staged.into_iter().map(|(_, staged)| staged))?;
        self.inner.pool.drain();
        Ok(())
    }

    /// Notes that every record up to `seq` is linked and drained. That saves later links the check of records that
    /// other threads have linked; without it they are only slower.
    pub fn durable_up_to(&self, seq: u64) {
        self.inner.durable_below.fetch_max(seq.saturating_add(1), Ordering::Release);
    }
}

impl Inner {
    /// Stages `record`, whose key is `key`.
    pub fn stage<'k>(&self, key: &'k [u8], record: &Record<'_>) -> Result<Staged<'k>> {
        let (trail, place) = self.known_place(key, record.seq)?;
        // Linking looks at it and changes it.
        let prev = self.pool.start_read(place.prev, 8);
        self.stage_at(key, record, (trail, place), prev)
    }

    /// Stages `record`, whose key is `key`, at its place.
    pub fn stage_at<'k>(
        &self,
        key: &'k [u8],
        record: &Record<'_>,
        (trail, place): (Trail, Place),
        prev: StartedRead,
    ) -> Result<Staged<'k>> {
        let klen =
            u16::try_from(key.len()).map_err(|_| Error::invalid("a key is longer than 65,535 bytes"))?;
        let vlen =
            u32::try_from(record.value.len()).map_err(|_| Error::invalid("a value is 4 GiB or longer"))?;
        let fields = NodeFields {
            seq: record.seq,
            batch_first: record.batch_first,
            batch_len: record.batch_len,
            vlen,
            klen,
            kind: record.kind,
            fields: 0,
        };
        let target = Target { key, seq: record.seq };
        let offset = self.arena.allocate(OWNER_BYTES + fields.above())? + OWNER_BYTES;
        let covered = if record.kind == super::index::INDEX_KIND { &[][..] } else { record.value };
        let crc = fields.crc(self.id, offset, key, covered);
        self.pool.write(offset, &fields.encode(place.next, crc));
        self.pool.write(offset + super::layout::NODE_BYTES, key);
        let owner = token();
        self.set_owner(offset, owner, Ordering::Relaxed);
        let value_at = offset + value_offset(klen);
        if record.value.len() >= 256 {
            self.pool.flush(offset, value_at - offset);
            self.pool.copy_flush(value_at, record.value);
        } else {
            self.pool.write(value_at, record.value);
            self.pool.flush(offset, fields.above());
        }
        Ok(Staged { target, owner, offset, place, trail, prev })
    }

    pub fn link(&self, staged: Staged<'_>) -> Result<Linked> {
        self.link_chain(&[staged])
    }

    /// Links staged records that name each other, in the order of the list, by one store: if there is nothing in the
    /// list from the first one's place to the last one's.
    pub fn link_chain(&self, chain: &[Staged<'_>]) -> Result<Linked> {
        let [first, ..] = chain else { return Ok(Linked::New) };
        let last = chain.last().unwrap_or(first);
        for staged in chain.iter().filter(|staged| staged.owner != token()) {
            self.set_owner(staged.offset, token(), Ordering::Relaxed);
        }
        self.pool.await_read(first.prev);
        let mut place = Place { next: last.place.next, ..first.place };
        loop {
            let now = self.advance(place, first.target.key, first.target.seq)?;
            if now.exact || (now.next != place.next && self.is_at_or_before(now.next, last)?) {
                return Ok(Linked::Exists(now.next));
            }
            if now.next != place.next {
                self.rename_successor(last.offset, place.next, now.next)?;
            }
            place = now;
            self.make_durable_before(place.prev)?;
            let word = self.link_word(place.prev);
            if word.compare_exchange(place.next, first.offset, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                self.pool.flush(place.prev, 8);
                break;
            }
        }
        for Staged { target, offset, trail, .. } in chain {
            self.count(target.seq);
            if let Some(filter) = &self.filter {
                filter.add(target.key);
            }
            self.upper.insert(trail, *target, *offset, &|at, key| self.compare_key(at, key))?;
        }
        Ok(Linked::New)
    }

    /// Whether the node at `offset`, if there is one, is not behind the place of `staged`.
    fn is_at_or_before(&self, offset: u64, staged: &Staged<'_>) -> Result<bool> {
        let Target { key, seq } = staged.target;
        Ok(offset != 0 && compare(&self.node(offset)?, key, seq).is_le())
    }

    /// Makes the record at `offset`, not linked yet, name `next` instead of `named` as its successor.
    ///
    /// The new name must be durable before anything points to the record, or a power cut could skip the records in
    /// between; unless these belong to the same batch, which is dropped as a whole.
    fn rename_successor(&self, offset: u64, named: u64, next: u64) -> Result<()> {
        self.pool.store_flush(POff::new(offset), next);
        if !self.only_own_batch(offset, next, named)? {
            self.pool.drain();
        }
        Ok(())
    }

    fn only_own_batch(&self, offset: u64, mut from: u64, to: u64) -> Result<bool> {
        let own = self.node(offset)?.head;
        for _ in 0..own.batch_len {
            if from == to {
                return Ok(true);
            }
            if from == 0 || self.node(from)?.head.batch_first != own.batch_first {
                return Ok(false);
            }
            from = self.after(from);
        }
        Ok(false)
    }

    /// Counts a linked record.
    pub fn count(&self, seq: u64) {
        self.entries.fetch_add(1, Ordering::Relaxed);
        self.min_seq.fetch_min(seq, Ordering::Relaxed);
        self.max_seq.fetch_max(seq, Ordering::Relaxed);
    }

    /// Makes sure that the node at `offset` is durable, or becomes so with this thread's next drain.
    fn make_durable_before(&self, offset: u64) -> Result<()> {
        match self.is_durable(offset)? || self.owner(offset).load(Ordering::Acquire) == token() {
            true => Ok(()),
            false => self.make_durable(offset),
        }
    }

    /// Whether the node at `offset` is known to be durable.
    pub fn is_durable(&self, offset: u64) -> Result<bool> {
        Ok(offset == self.head
            || self.owner(offset).load(Ordering::Acquire) == 0
            || self.node(offset)?.head.seq < self.durable_below.load(Ordering::Acquire))
    }

    /// Persists the links that lead to the linked node at `offset`, back to one known to be durable.
    pub fn make_durable(&self, offset: u64) -> Result<()> {
        let mut path = vec![offset];
        let mut at = offset;
        loop {
            let node = self.node(at)?;
            let prev = match self.last_before(node.key, node.head.seq)? {
                0 => self.head,
                prev => prev,
            };
            self.pool.flush(prev, 8);
            if self.is_durable(prev)? {
                break;
            }
            path.push(prev);
            at = prev;
        }
        self.pool.drain();
        for node in path {
            // Readers call this, too; they note it if they may store.
            if let Some(_touching) = self.pool.touching(node - OWNER_BYTES, OWNER_BYTES) {
                self.mark_durable(node);
            }
        }
        Ok(())
    }

    /// Notes that the node at `offset` is durable.
    pub fn mark_durable(&self, offset: u64) {
        self.set_owner(offset, 0, Ordering::Release);
    }

    fn set_owner(&self, offset: u64, owner: u64, order: Ordering) {
        self.pool.touched(offset - OWNER_BYTES, OWNER_BYTES);
        self.owner(offset).store(owner, order);
    }

    fn owner(&self, offset: u64) -> &AtomicU64 {
        self.pool.atomic(POff::new(offset - OWNER_BYTES))
    }
}

impl<'k> Staged<'k> {
    /// Where the record lies.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Its key.
    pub(super) fn key(&self) -> &'k [u8] {
        self.target.key
    }
}

impl std::fmt::Debug for Staged<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Staged").field("offset", &self.offset).finish()
    }
}

/// A number that is unique to this thread, never 0.
fn token() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static MINE: Cell<u64> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed)));
    MINE.with(Cell::get)
}
