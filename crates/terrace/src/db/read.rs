//! Reads: of the database as it is, and as of one moment (snapshots).

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::{Error, Result};

use crate::core::Core;
use crate::core::empty_ranges::EmptyRanges;
use crate::core::engine::Engine;
use crate::core::lent::Lent;
use crate::core::snapshots::Held;
use crate::db::iter::{DbIter, Entries};
use crate::db::range::KeyRange;
use crate::db::{Db, DirectoryLock, Inner, check_key};

/// Keys that are looked up together: they need memory and a moment without changes, and may be millions.
const TOGETHER: usize = 1024;

impl Db {
    /// The value of `key`, if it exists.
    ///
    /// # Errors
    ///
    /// `Corruption` if its data is damaged; `InvalidArgument` for an over-long key.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        let key = key.as_ref();
        check_key(key)?;
        let _timing = self.inner.core.begin_get();
        let found = self.inner.engine.get(key, None)?;
        self.inner.engine.intact()?;
        Ok(found)
    }

    /// What `f` makes of the value of `key`, without a copy of it where that is possible; `None` if the key does not
    /// exist.
    ///
    /// `f` is shown the value where it lies, in the write buffer, in persistent memory or in a cached block. What
    /// others replace meanwhile is not freed before it returns, so it should be short, and call nothing of this
    /// database.
    ///
    /// ```
    /// # fn main() -> terrace::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = terrace::Db::open(dir.path(), terrace::Options::default())?;
    /// db.put("picture", [7; 10_000])?;
    /// assert_eq!(db.get_with("picture", |value| value.len())?, Some(10_000));
    /// assert_eq!(db.get_with("sound", |value| value.len())?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As of [`get`](Self::get); `Io` if a table could not be read through a mapping meanwhile: then a repetition may
    /// succeed. If `f` was called nevertheless, what it was shown is not to be relied upon.
    pub fn get_with<T>(&self, key: impl AsRef<[u8]>, f: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let key = key.as_ref();
        check_key(key)?;
        let _timing = self.inner.core.begin_get();
        shown(&self.inner.core, &*self.inner.engine, key, None, f)
    }

    /// Whether `key` exists; its value is not read.
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let key = key.as_ref();
        check_key(key)?;
        let _timing = self.inner.core.begin_get();
        let found = self.inner.engine.contains(key)?;
        self.inner.engine.intact()?;
        Ok(found)
    }

    /// The values of `keys`, all at one moment, in the order of the keys, which may be any and repeat keys. `None`
    /// stands for a key that does not exist.
    ///
    /// It is meant for more than a few keys: what has to be read from the disk is requested together, and what is in
    /// memory is loaded side by side. It takes a [`snapshot`](Self::snapshot) first, which costs more than a
    /// [`get`](Self::get).
    ///
    /// ```
    /// # fn main() -> terrace::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = terrace::Db::open(dir.path(), terrace::Options::default())?;
    /// db.put("apple", "red")?;
    /// db.put("plum", "blue")?;
    /// let colours = db.multi_get(["plum", "pear", "apple"])?;
    /// assert_eq!(colours, [Some("blue".into()), None, Some("red".into())]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As of [`get`](Self::get). One key that cannot be read fails the call.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Bytes>>> {
        self.snapshot().multi_get(keys)
    }

    /// All entries, in key order.
    pub fn iter(&self) -> Result<DbIter> {
        self.range(..)
    }

    /// All entries, as of now, in key order if the engine has one: the one walk that every engine offers.
    pub fn entries(&self) -> Result<Entries> {
        self.snapshot().entries()
    }

    /// The entries whose keys lie in `range`, as of now: `..`, `"a".."b"`, `key..`, bounds in a pair.
    pub fn range(&self, range: impl KeyRange) -> Result<DbIter> {
        self.snapshot().range(range)
    }

    /// The entries whose keys begin with `prefix`, as of now.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<DbIter> {
        self.snapshot().prefix(prefix)
    }

    /// The database as it is now, as long as the snapshot is kept.
    pub fn snapshot(&self) -> Snapshot {
        let Inner { core, engine, lock, .. } = &*self.inner;
        core.reconsider_reads();
        Snapshot::new(core.clone(), engine.clone(), lock.clone())
    }
}

/// The database as it was when the snapshot was taken, whatever is written, flushed or compacted
/// meanwhile. Space that only old versions take is kept until it is dropped.
///
/// ```
/// # fn main() -> terrace::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let db = terrace::Db::open(dir.path(), terrace::Options::default())?;
/// db.put(b"k", b"old")?;
/// let before = db.snapshot();
/// db.put(b"k", b"new")?;
/// assert_eq!(before.get(b"k")?.as_deref(), Some(&b"old"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Snapshot {
    hold: Arc<Hold>,
}

/// The registered sequence number, released before the engine is told.
#[derive(Debug)]
pub(crate) struct Hold {
    held: Option<Held>,
    seq: u64,
    core: Arc<Core>,
    engine: Arc<dyn Engine>,
    _lock: DirectoryLock,
}

impl Hold {
    pub fn seq(&self) -> u64 {
        self.seq
    }

    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// Ranges that walks have found empty.
    pub fn empty_ranges(&self) -> &EmptyRanges {
        &self.core.empty_ranges
    }

    /// The number of failed mappings of tables so far.
    pub fn failed_maps(&self) -> u64 {
        self.core.table_reader.maps().failures()
    }

    /// Refuses what was read since `failed_maps` mappings had failed, if it may depend on data that differs
    /// from what was written.
    #[inline]
    pub fn intact_since(&self, failed_maps: u64) -> Result<()> {
        self.engine.intact()?;
        self.core.table_reader.intact_since(failed_maps, &self.core.dir)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.held = None;
        self.engine.released();
    }
}

impl Snapshot {
    pub(super) fn new(core: Arc<Core>, engine: Arc<dyn Engine>, lock: DirectoryLock) -> Snapshot {
        let held = engine.hold(&core.snapshots);
        let seq = held.seq();
        Snapshot { hold: Arc::new(Hold { held: Some(held), seq, core, engine, _lock: lock }) }
    }

    pub(super) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// The value of `key` at that moment.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        let key = key.as_ref();
        check_key(key)?;
        let _timing = self.hold.core.begin_get();
        let found = self.hold.engine.get(key, Some(self.hold.seq))?;
        self.hold.engine.intact()?;
        Ok(found)
    }

    /// What `f` makes of the value of `key` at that moment: see [`Db::get_with`].
    pub fn get_with<T>(&self, key: impl AsRef<[u8]>, f: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let key = key.as_ref();
        check_key(key)?;
        let _timing = self.hold.core.begin_get();
        shown(&self.hold.core, &*self.hold.engine, key, Some(self.hold.seq), f)
    }

    /// Whether `key` existed at that moment.
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.get(key).map(|value| value.is_some())
    }

    /// The values of `keys` at that moment: see [`Db::multi_get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Bytes>>> {
        let keys: Vec<K> = keys.into_iter().collect();
        let keys: Vec<&[u8]> = keys.iter().map(K::as_ref).collect();
        keys.iter().try_for_each(|key| check_key(key))?;
        self.hold.core.counters.gets.add(keys.len() as u64);
        loop {
            let failed_maps = self.hold.failed_maps();
            let found = keys.chunks(TOGETHER).map(|keys| self.hold.engine.get_many(keys, self.hold.seq));
            let found = found.collect::<Result<Vec<_>>>().map(|parts| parts.into_iter().flatten().collect());
            // If a mapping fails meanwhile, what was read through it is read again, by calls.
            if self.hold.failed_maps() == failed_maps {
                self.hold.engine.intact()?;
                return found;
            }
        }
    }

    /// All entries, in key order.
    pub fn iter(&self) -> Result<DbIter> {
        self.range(..)
    }

    /// The entries whose keys lie in `range`.
    pub fn range(&self, range: impl KeyRange) -> Result<DbIter> {
        let (from, to) = range.bounds();
        self.bounded(from, to)
    }

    /// The entries whose keys begin with `prefix`.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<DbIter> {
        let prefix = prefix.as_ref();
        match after_prefix(prefix) {
            Some(end) => self.bounded(Bound::Included(prefix), Bound::Excluded(&end)),
            None => self.bounded(Bound::Included(prefix), Bound::Unbounded),
        }
    }

    /// All entries, in key order if the engine has one.
    pub fn entries(&self) -> Result<Entries> {
        self.hold.core.counters.iterators.add(1);
        Entries::new(self.hold.clone())
    }

    fn bounded(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<DbIter> {
        self.hold.engine.ordered()?;
        self.hold.core.counters.iterators.add(1);
        Ok(DbIter::new(self.hold.clone(), from, to))
    }
}

/// What `f` makes of the value of `key`, at snapshot `at` or now.
fn shown<T>(
    core: &Core,
    engine: &dyn Engine,
    key: &[u8],
    at: Option<u64>,
    f: impl FnOnce(&[u8]) -> T,
) -> Result<Option<T>> {
    let (mut f, mut made) = (Some(f), None);
    let failures = || core.table_reader.maps().failures();
    let (failed_maps, mut has_failed) = (failures(), false);
    engine.get_with(key, at, &mut |value| {
        made = f.take().map(|f| f(&value));
        // As long as the value keeps its mapping.
        has_failed = matches!(value, Lent::Own(_)) && failures() != failed_maps;
    })?;
    engine.intact()?;
    if has_failed {
        // What could not be read through a mapping has been shown as zeros.
        let why =
            std::io::Error::other("a table could not be read through its mapping while a value was shown");
        return Err(Error::io(&core.dir, "read", why));
    }
    Ok(made)
}

/// The smallest key above every key that begins with `prefix`; `None` if there is none.
pub(super) fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix() {
        assert_eq!(after_prefix(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(after_prefix(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(after_prefix(b"\xff"), None);
        assert_eq!(after_prefix(b""), None);
    }
}
