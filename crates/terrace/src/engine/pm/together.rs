//! Reading the versions of several keys side by side, for walks and for reads of many keys.
//!
//! Records are loaded into the processor's caches together, and what lies elsewhere is requested together. The caller
//! is present in the store's limbo from before the words were loaded until everything is read.

use bytes::Bytes;
use terrace_base::Result;
use terrace_index::PointIndex;

use super::PmStore;
use super::elsewhere::{Elsewhere, PlaceOf, VersionRef, VersionRefOf};
use super::index::PmEngine;
use super::read::value;
use super::versions::Named;
use crate::core::lent::to_keep;
use crate::versions::Record;

/// Records whose reading begins together, and the bytes of each that are prefetched.
pub(super) const TOGETHER: usize = 16;
const FRONT_BYTES: u64 = 128;

/// A version that lies elsewhere: the place of its key among the others, its own place, and the highest number that the
/// reader sees.
pub(super) type Wanted<E> = (usize, PlaceOf<E>, u64);

/// A reader of versions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader {
    /// The number of its snapshot.
    pub at: u64,
    /// Whether it has asked for these very keys. A walk has not, and does not make them warmer.
    pub is_of_keys: bool,
}

impl<E: PmEngine> PmStore<E> {
    /// The values of `keys` as a snapshot of number `at` sees them, in their order.
    pub(super) fn get_many_at(&self, keys: &[&[u8]], at: u64) -> Result<Vec<Option<Bytes>>> {
        let reader = Reader { at, is_of_keys: true };
        let _here = self.limbo.enter();
        let mut values = vec![None; keys.len()];
        let (mut bits, mut elsewhere) = (Vec::new(), Vec::new());
        for (chunk, first) in keys.chunks(TOGETHER).zip((0..).step_by(TOGETHER)) {
            bits.clear();
            self.index.get_many(chunk, &mut bits)?;
            let mut words = [None; TOGETHER];
            for (word, bits) in words.iter_mut().zip(&bits) {
                *word = self.decode_some(*bits)?;
            }
            let from = elsewhere.len();
            let values = &mut values[first..first + chunk.len()];
            self.read_records(reader, chunk, &words, values, &mut elsewhere)?;
            elsewhere[from..].iter_mut().for_each(|wanted| wanted.0 += first);
        }
        self.read_elsewhere(at, keys, &elsewhere, &mut values)?;
        Ok(values)
    }

    /// Reads the versions in records that `reader` sees of up to `TOGETHER` `keys`, whose newest versions are `words`,
    /// into `values`. Appends what lies elsewhere to `elsewhere`.
    pub(super) fn read_records(
        &self,
        reader: Reader,
        keys: &[&[u8]],
        words: &[Option<VersionRefOf<E>>; TOGETHER],
        values: &mut [Option<Bytes>],
        elsewhere: &mut Vec<Wanted<E>>,
    ) -> Result<()> {
        let words = &words[..keys.len()];
        let records = words.iter().flatten().filter_map(|word| word.record());
        records.for_each(|word| self.pool.prefetch(word.offset(), FRONT_BYTES));
        let mut newest = [None; TOGETHER];
        for ((word, key), version) in words.iter().zip(keys).zip(&mut newest) {
            *version = match *word {
                None => None,
                Some(VersionRef::Place(place)) => Some(Named::Place(place)),
                Some(VersionRef::Record(word)) => {
                    // SAFETY: the caller is present.
                    let found = unsafe { Record::peek(&self.pool, word)? };
                    Some(Named::Record(found.of(&self.pool, key)?))
                }
            };
        }
        self.pool.charge_reads(newest.iter().flatten().filter_map(|version| match version {
            Named::Record(record) => Some(record.range()),
            Named::Place(_) => None,
        }));
        for (i, version) in newest.iter().enumerate() {
            let Some(version) = version else { continue };
            match self.version_from(*version, reader.at)? {
                None => {}
                Some(Named::Place(place)) => elsewhere.push((i, place, reader.at)),
                Some(Named::Record(record)) => match self.place_in(&record)? {
                    // A greater number would be that of another version.
                    Some(place) => elsewhere.push((i, place, record.number)),
                    None => {
                        if reader.is_of_keys {
                            self.home.was_read(record.word);
                        }
                        values[i] = value(&record).map(to_keep);
                    }
                },
            }
        }
        Ok(())
    }

    /// Reads what is `wanted` of `keys` together, into `values`.
    pub(super) fn read_elsewhere(
        &self,
        at: u64,
        keys: &[&[u8]],
        wanted: &[Wanted<E>],
        values: &mut [Option<Bytes>],
    ) -> Result<()> {
        if wanted.is_empty() {
            return Ok(());
        }
        let places: Vec<PlaceOf<E>> = wanted.iter().map(|(_, place, _)| *place).collect();
        let coming = self.home.begin(&places);
        let places: Vec<_> = wanted.iter().map(|(i, place, _)| (keys[*i], *place)).collect();
        for ((i, _, most), loaded) in wanted.iter().zip(self.home.finish(coming, &places, None)) {
            values[*i] = match loaded {
                Some(loaded) => (loaded.number <= *most).then_some(loaded.value),
                // It has moved, or cannot be read: the index knows where, and a read tells why.
                None => self.get_at(keys[*i], at, to_keep)?,
            };
        }
        Ok(())
    }
}
