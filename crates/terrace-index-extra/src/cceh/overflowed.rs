//! Keys that are in the overflow, and when a segment's are to go there.

use terrace_base::Result;
use terrace_index::kinds;
use terrace_index::parts::{NewPair, Pair, Unlinked};
use terrace_pmem::POff;

use super::layout::Entry;
use super::probe::{SlotAt, Wanted};
use super::{Cceh, Garbage};

/// The most entries of a directory for each segment (and for as many more); beyond that it is not doubled. With random
/// hashes that does not happen.
const SPARSE: u64 = 64;

impl<const BUCKETS: usize, const PROBE: usize> Cceh<BUCKETS, PROBE> {
    /// Takes the overflow over. A key that a crash has left here and in its segment counts only there.
    pub(super) fn load_overflow(&self) -> Result<()> {
        self.overflow.load(|key| self.hash.of(key))?;
        for (hash, record) in self.overflow.records(0..=u64::MAX) {
            // SAFETY: the table is being opened, so nothing is freed.
            let key = unsafe { Pair::read(&self.pool, record)? }.key;
            if !self.pool.is_read_only() && self.is_in_segment(&Wanted::new(key, hash))? {
                self.retire(self.overflow.remove(hash, key)?);
            }
        }
        Ok(())
    }

    /// Whether a segment of this depth may be split: its bits suffice, and they do not lead to a directory that is much
    /// too large for its segments.
    pub(super) fn may_split(&self, entry: Entry) -> Result<bool> {
        let segments = self.space.bytes() / Self::SEGMENT_BYTES;
        let doubles = self.directory()?.depth == entry.depth;
        Ok(Self::splits(entry.depth) && !(doubles && 2u64 << entry.depth > SPARSE * (segments + SPARSE)))
    }

    /// The pair of a key in the overflow. The caller is present in limbo.
    #[inline]
    pub(super) fn overflowed(&self, wanted: &Wanted<'_>) -> Result<Option<Pair<'_>>> {
        match self.overflow.may_hold(wanted.hash) {
            // SAFETY: the caller is present in limbo.
            true => unsafe { self.overflow.get(wanted.hash, wanted.key) },
            false => Ok(None),
        }
    }

    /// Puts a key into the overflow, or gives it another value there, durably. Its segment is locked.
    pub(super) fn put_overflowed(&self, wanted: &Wanted<'_>, value: &[u8]) -> Result<()> {
        let pair = NewPair::write(&self.pool, kinds::CCEH_PAIR, wanted.key, value)?;
        self.retire(self.overflow.put(wanted.hash, wanted.key, pair)?);
        Ok(())
    }

    /// Puts a key into the overflow whose slot, in the locked segment at `offset`, has no room for a record.
    pub(super) fn turn_to_overflow(
        &self,
        offset: u64,
        inline: SlotAt,
        wanted: &Wanted<'_>,
        value: &[u8],
    ) -> Result<()> {
        self.put_overflowed(wanted, value)?;
        self.pool.publish(POff::new(offset + inline.key_at()), 0);
        self.totals.add(-1, 0);
        Ok(())
    }

    /// Retires an object that is no longer named; it is freed when its readers have left.
    pub(super) fn retire(&self, unlinked: impl IntoIterator<Item = Unlinked>) {
        unlinked.into_iter().for_each(|thing| {
            self.limbo.retire(match thing {
                Unlinked::Pair(at) => Garbage::Pair(at),
                Unlinked::Page(at) => Garbage::Page(at),
            });
        });
    }
}
