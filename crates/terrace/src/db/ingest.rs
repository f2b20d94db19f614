//! Ingesting a sorted stream.
//!
//! An engine that can writes tables of it, beside other writers, with a number ahead of those given out. Then the
//! leader has them appear, and gives out that number. If others have come that far meanwhile, the tables are written once
//! more with a number further ahead. Other engines get the stream as large batches.

use std::borrow::Cow;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::RwLockReadGuard;
use terrace_base::{Error, Result};
use terrace_table::Kind;

use super::{Db, Store};
use crate::batch::{MAX_KEY_BYTES, MAX_VALUE_BYTES, Op, WriteBatch};
use crate::core::engine::{HiddenTables, Take};
use crate::db::keyspace::{Keyspace, sweep};
use crate::keyspaces::{Space, Writing, callbacks, is_high, millis};
use crate::options::WriteOptions;

/// Numbers that others may be given while a stream is written: some minutes of writing. Numbers take one byte more in
/// tables for each seven bits.
const AHEAD: u64 = 1 << 28;

/// By so many bits further ahead is the number of a stream each time that it was overtaken, and at most.
const FURTHER_BITS: u32 = 4;
const MOST_FURTHER_BITS: u32 = 16;

/// Bytes of a batch, from an engine that gets batches.
const BATCH_BYTES: usize = 1 << 20;

/// What an ingest has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ingested {
    /// Keys put.
    pub entries: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
}

/// Where the entries go.
enum Sink<'a> {
    Tables(&'a mut Take<'a>),
    Batches(WriteBatch),
}

/// Takes the entries of one ingest, in ascending order of their keys: see [`Db::ingest`].
pub struct Ingest<'a> {
    db: &'a Db,
    keyspace: Option<&'a Keyspace>,
    sink: Sink<'a>,
    /// The key before, once there is one.
    last: Option<Vec<u8>>,
    done: Ingested,
    /// The part of it that is written, if batches are.
    written: Ingested,
    /// Where the default keyspace lay when a key that begins with byte 255 was first passed to it.
    lay: Option<Space>,
    /// The first error: nothing more is taken after it.
    failed: Option<Error>,
}

impl Db {
    /// Puts many keys, which come in ascending order and each once, much faster than by puts.
    ///
    /// `fill` passes the entries to the [`Ingest`] that it gets. The engines `lsm`, `tlsm` and `wip` write tables of
    /// them, which do not go through log and memtable, and are not merged again where nothing of their range was stored
    /// before. Others read and write meanwhile and see nothing of them; then all of them are there at once, and survive
    /// a power cut. If `fill` fails, or anything before the tables appear, nothing has happened. If they cannot be
    /// recorded, it is decided before the next write, or by the next opening, whether it has. The other engines write
    /// large batches, each atomic by itself, and what was written before an error stays:
    /// [`EngineKind::ingests_atomically`](crate::EngineKind::ingests_atomically) tells.
    ///
    /// In those engines an entry takes the place of what was put before the ingest ends, even if that was after it
    /// began. `fill` may use the database.
    ///
    /// ```
    /// # fn main() -> terrace::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// use terrace::{Db, Options};
    ///
    /// let db = Db::open(dir.path(), Options::default())?;
    /// let done = db.ingest(|ingest| {
    ///     for i in 0..10_000u32 {
    ///         ingest.put(format!("key{i:08}"), "value")?;
    ///     }
    ///     Ok(())
    /// })?;
    /// assert_eq!(done.entries, 10_000);
    /// assert!(db.contains_key("key00009999")?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a key that is not greater than the one before it, for one over 65,535 bytes and for a value
    /// over 1 GiB; also if the first keyspace is made meanwhile, or a recovery of keyspaces ends, and keys begin with byte
    /// 255. Otherwise those of [`put`](Self::put), and whatever `fill` returns.
    pub fn ingest(&self, fill: impl FnOnce(&mut Ingest<'_>) -> Result<()>) -> Result<Ingested> {
        self.ingest_into(None, fill)
    }

    fn ingest_into(
        &self,
        keyspace: Option<&Keyspace>,
        fill: impl FnOnce(&mut Ingest<'_>) -> Result<()>,
    ) -> Result<Ingested> {
        let store = &self.inner.store;
        if store.read_only {
            return Err(Error::ReadOnly);
        }
        callbacks::check_none_runs()?;
        store.check_open()?;
        let (mut fill, mut done, mut lay, mut panic) = (Some(fill), Ingested::default(), None, None);
        let number = store.number_ahead(0)?;
        let tables = store.unmasked.write_hidden(number, &mut |take| {
            let Some(fill) = fill.take() else { return Ok(()) };
            let ingest = Ingest::new(self, keyspace, Sink::Tables(take));
            // A panic of its user's is none of the engine's.
            match catch_unwind(AssertUnwindSafe(|| ingest.run(fill))) {
                Ok(outcome) => outcome.map(|passed| (done, lay) = passed),
                Err(payload) => {
                    panic = Some(payload);
                    Err(Error::invalid("the source of an ingest panicked"))
                }
            }
        });
        if let Some(payload) = panic {
            drop(tables);
            resume_unwind(payload);
        }
        match (tables, fill) {
            (Some(tables), _) if done.entries > 0 => {
                let shown = store.show_tables(tables?, number, (keyspace, lay), done);
                sweep::after_write(store, shown)?;
            }
            (Some(tables), _) => drop(tables?),
            (None, Some(fill)) => {
                (done, _) = Ingest::new(self, keyspace, Sink::Batches(WriteBatch::new())).run(fill)?;
                self.sync()?;
            }
            (None, None) => {}
        }
        Ok(done)
    }
}

impl Keyspace {
    /// Puts many keys, which come in ascending order and each once: see [`Db::ingest`].
    ///
    /// # Errors
    ///
    /// As of [`Db::ingest`]; `NoKeyspace` if the keyspace was dropped.
    pub fn ingest(&self, fill: impl FnOnce(&mut Ingest<'_>) -> Result<()>) -> Result<Ingested> {
        self.open().check_exists()?;
        self.db().ingest_into(Some(self), fill)
    }
}

impl<'a> Ingest<'a> {
    fn new(db: &'a Db, keyspace: Option<&'a Keyspace>, sink: Sink<'a>) -> Ingest<'a> {
        let (done, written) = (Ingested::default(), Ingested::default());
        Ingest { db, keyspace, sink, last: None, done, written, lay: None, failed: None }
    }

    /// Has all of it passed; returns what that was, and where the default keyspace lay, if that matters.
    fn run(mut self, fill: impl FnOnce(&mut Ingest<'_>) -> Result<()>) -> Result<(Ingested, Option<Space>)> {
        fill(&mut self)?;
        // Its user may have passed over it.
        self.failed.take().map_or(Ok(()), Err)?;
        self.write_batch()?;
        Ok((self.done, self.lay))
    }

    /// Sets `key`, which is greater than the one before it, to `value`. After an error every call repeats it, and the
    /// ingest fails.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.take(key.as_ref(), value.as_ref(), None)
    }

    /// The same for the time `ttl`: see [`Keyspace::put_with_ttl`].
    pub fn put_with_ttl(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<()> {
        self.take(key.as_ref(), value.as_ref(), Some(millis(ttl)))
    }

    fn take(&mut self, key: &[u8], value: &[u8], ttl: Option<u64>) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)?;
        let taken = self.try_take(key, value, ttl);
        taken.inspect_err(|error| self.failed = Some(error.clone()))
    }

    fn try_take(&mut self, key: &[u8], value: &[u8], ttl: Option<u64>) -> Result<()> {
        if self.last.as_deref().is_some_and(|last| last >= key) {
            let what = format!("key \"{}\" does not come after the one before it", key.escape_ascii());
            return Err(Error::invalid(what));
        }
        match self.keyspace {
            Some(keyspace) => {
                let place = keyspace.space().place(key)?;
                self.add(&place, &keyspace.stored(value, ttl)?)?;
            }
            None if ttl.is_some() => {
                return Err(Error::invalid("entries of the default keyspace do not expire"));
            }
            None if is_high(key) => {
                let place = self.place_high(key, value)?;
                self.add(&place, value)?;
            }
            None => self.add(key, value)?,
        }
        let last = self.last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
        self.done.entries += 1;
        self.done.bytes += (key.len() + value.len()) as u64;
        match &self.sink {
            Sink::Batches(batch) if batch.encoded().len() >= BATCH_BYTES => self.write_batch(),
            _ => Ok(()),
        }
    }

    /// The place of a key of the default keyspace that begins with byte 255.
    fn place_high(&mut self, key: &[u8], value: &[u8]) -> Result<Vec<u8>> {
        self.db.make_room_for(Op { kind: Kind::Put, key, value })?;
        let catalog = &self.db.inner.catalog;
        catalog.check_readable()?;
        let space = catalog.default_space();
        if *self.lay.get_or_insert(space) != space {
            return Err(moved());
        }
        space.place(key).map(Cow::into_owned)
    }

    /// Adds what is stored at a place.
    fn add(&mut self, place: &[u8], stored: &[u8]) -> Result<()> {
        check_sizes(place, stored)?;
        match &mut self.sink {
            Sink::Tables(take) => take(place, stored),
            Sink::Batches(batch) => {
                batch.push(Op { kind: Kind::Put, key: place, value: stored });
                Ok(())
            }
        }
    }

    fn write_batch(&mut self) -> Result<()> {
        let Sink::Batches(batch) = &mut self.sink else { return Ok(()) };
        let batch = std::mem::take(batch);
        let write = || {
            let _stays = self.db.inner.keep_in_place(self.keyspace, self.lay)?;
            self.db.write_placed(batch, WriteOptions::default())
        };
        sweep::after_write(&self.db.inner.store, write())?;
        count(self.keyspace, self.done.beyond(self.written));
        self.written = self.done;
        Ok(())
    }
}

impl Ingested {
    /// What it has more than `before`.
    fn beyond(self, before: Ingested) -> Ingested {
        Ingested { entries: self.entries - before.entries, bytes: self.bytes - before.bytes }
    }
}

/// Counts `done` as puts to `keyspace`.
fn count(keyspace: Option<&Keyspace>, done: Ingested) {
    let Some(keyspace) = keyspace else { return };
    let counts = &keyspace.open().counts;
    counts.puts.add(done.entries);
    counts.user_bytes.add(done.bytes);
}

/// # Errors
///
/// `InvalidArgument` if one is too long.
fn check_sizes(key: &[u8], value: &[u8]) -> Result<()> {
    let (what, len, most) = match (key.len(), value.len()) {
        (len, _) if len > MAX_KEY_BYTES => ("key", len, MAX_KEY_BYTES),
        (_, len) if len > MAX_VALUE_BYTES => ("value", len, MAX_VALUE_BYTES),
        _ => return Ok(()),
    };
    Err(Error::invalid(format!("a {what} of {len} bytes is over the limit of {most}")))
}

/// The default keyspace has made room for others, or what was found of others has changed.
fn moved() -> Error {
    Error::invalid(
        "where keys that begin with byte 255 lie was decided anew while they were ingested: ingest again",
    )
}

/// Keeps the places of entries.
type Stays<'s> = (Option<Writing<'s>>, Option<RwLockReadGuard<'s, ()>>);

impl Store {
    /// Keeps `keyspace` from being dropped, and the default one where it `lay`, if that matters.
    ///
    /// # Errors
    ///
    /// `NoKeyspace` if it was dropped; `InvalidArgument` if the default one lies elsewhere by now.
    fn keep_in_place<'s>(&'s self, keyspace: Option<&'s Keyspace>, lay: Option<Space>) -> Result<Stays<'s>> {
        let not_dropped = keyspace.map(|keyspace| keyspace.open().write()).transpose()?;
        let Some(lay) = lay else { return Ok((not_dropped, None)) };
        let stays = self.catalog.stay();
        match self.catalog.default_space() == lay {
            true => Ok((not_dropped, Some(stays))),
            false => Err(moved()),
        }
    }

    /// A number that is given out to nobody soon. The more often a stream was overtaken, the further ahead: many others
    /// that begin later and end sooner do not come that far.
    fn number_ahead(&self, overtaken: u32) -> Result<u64> {
        let ahead = AHEAD << (FURTHER_BITS * overtaken).min(MOST_FURTHER_BITS);
        // Streams of one moment have different ones, so that as few as possible are overtaken.
        let apart = self.streams.fetch_add(1, Ordering::Relaxed) % AHEAD;
        let number = self.last_seq.load(Ordering::Relaxed).checked_add(ahead + apart);
        number.ok_or_else(|| Error::invalid("there are no sequence numbers left for an ingest"))
    }

    /// Has `tables` appear, which were written with this number.
    fn show_tables(
        &self,
        tables: Box<dyn HiddenTables>,
        mut number: u64,
        (keyspace, lay): (Option<&Keyspace>, Option<Space>),
        done: Ingested,
    ) -> Result<()> {
        let (waiting, mut times) = (Cell::new(Some(tables)), 0);
        loop {
            if let Some(mut tables) = waiting.take() {
                tables.prepare()?;
                waiting.set(Some(tables));
            }
            {
                let _stays = self.keep_in_place(keyspace, lay)?;
                self.alone(|store| store.show_if_ahead(&waiting, number))?;
            }
            let Some(overtaken) = waiting.take() else { break };
            times += 1;
            number = self.number_ahead(times)?;
            waiting.set(Some(overtaken.renumbered(number)?));
        }
        self.core.counters.puts.add(done.entries);
        self.core.counters.user_bytes.add(done.bytes);
        count(keyspace, done);
        Ok(())
    }

    /// As the leader: has the waiting tables appear under their number, unless others have been given that.
    fn show_if_ahead(&self, waiting: &Cell<Option<Box<dyn HiddenTables>>>, number: u64) -> Result<()> {
        self.check_open()?;
        if number <= self.last_seq.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Some(tables) = waiting.take() else { return Ok(()) };
        // Given out even if this fails: the manifest may have it.
        self.last_seq.store(number, Ordering::Relaxed);
        self.core.empty_ranges.write_anywhere(number);
        self.core.range_tombstones.note_puts_anywhere();
        tables.show()?;
        self.unmasked.intact()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{EngineKind, Options};

    /// Short streams that began later overtook a long one for ever.
    #[test]
    fn a_stream_that_was_overtaken_gets_ahead_of_many_others() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { engine: EngineKind::Lsm, ..Options::default() };
        let db = Db::open(dir.path(), options).unwrap();
        let store = &db.inner.store;
        for overtaken in 1..4 {
            let long = store.number_ahead(overtaken).unwrap();
            for _ in 1..1 << (FURTHER_BITS * overtaken - 1) {
                let short = store.number_ahead(0).unwrap();
                assert!(short > store.last_seq.load(Ordering::Relaxed));
                assert!(short < long, "{short} and {long}");
                store.last_seq.store(short, Ordering::Relaxed);
            }
        }
        let apart = [store.number_ahead(0).unwrap(), store.number_ahead(0).unwrap()];
        assert_ne!(apart[0], apart[1], "of one moment");
    }
}
