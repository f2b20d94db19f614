//! Reads: of the database as it is, and as of one moment (snapshots).

use std::borrow::Cow;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::Result;

use crate::db::entries::Entries;
use crate::db::hold::Hold;
use crate::db::iter::DbIter;
use crate::db::keyspace::{Keyspace, catalog};
use crate::db::range::KeyRange;
use crate::db::shown::shown;
use crate::db::{Db, Store};
use crate::keyspaces::{Space, after_prefix};

impl Db {
    /// The value of `key`, if it exists.
    ///
    /// # Errors
    ///
    /// `Corruption` if its data is damaged; `InvalidArgument` for an over-long key; `Closed` after
    /// [`close`](Self::close).
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        let placed = self.inner.catalog.place(key.as_ref())?;
        self.inner.get(&placed)
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
        let placed = self.inner.catalog.place(key.as_ref())?;
        self.inner.get_with(&placed, f)
    }

    /// Whether `key` exists; its value is not read.
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let placed = self.inner.catalog.place(key.as_ref())?;
        self.inner.contains(&placed)
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
        self.now()?.multi_get(keys)
    }

    /// All entries, in key order.
    pub fn iter(&self) -> Result<DbIter> {
        self.range(..)
    }

    /// All entries, as of now, in key order if the engine has one: the one walk that every engine offers.
    pub fn entries(&self) -> Result<Entries> {
        self.now()?.entries()
    }

    /// The entries whose keys lie in `range`, as of now: `..`, `"a".."b"`, `key..`, bounds in a pair.
    pub fn range(&self, range: impl KeyRange) -> Result<DbIter> {
        self.now()?.range(range)
    }

    /// The entries whose keys begin with `prefix`, as of now.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<DbIter> {
        self.now()?.prefix(prefix)
    }

    /// The database as it is now, as long as the snapshot is kept: once the database is closed, as it was then.
    pub fn snapshot(&self) -> Snapshot {
        self.inner.core.look_at_clock();
        self.snapshot_in_passing()
    }

    /// The same for one call, which a closed database refuses.
    fn now(&self) -> Result<Snapshot> {
        self.inner.check_not_closed()?;
        Ok(self.snapshot())
    }

    /// The same without a look at the clock.
    pub(super) fn snapshot_in_passing(&self) -> Snapshot {
        let (mut hold, space) =
            self.inner.catalog.at_one_moment(|| Hold::new(&self.inner.reading, &self.inner.catalog));
        hold.default = space;
        Snapshot { hold: Arc::new(hold), space }
    }
}

impl Store {
    /// The value of the key at `place`.
    pub(super) fn get(&self, place: &[u8]) -> Result<Option<Bytes>> {
        self.check_not_closed()?;
        let _timing = self.core.begin_get();
        let found = self.engine.get(place, None)?;
        self.engine.intact()?;
        Ok(found)
    }

    /// What `f` makes of that value.
    pub(super) fn get_with<T>(&self, place: &[u8], f: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        self.check_not_closed()?;
        let _timing = self.core.begin_get();
        shown(&self.core, &*self.engine, place, None, f)
    }

    /// What `look` finds in the database at one moment, now, by sound data.
    pub(super) fn looked_through<T>(&self, look: impl FnOnce(u64) -> Result<T>) -> Result<T> {
        let failed_maps = self.core.table_reader.maps().failures();
        let held = self.engine.hold(&self.core.snapshots);
        let found = look(held.seq());
        drop(held);
        self.engine.released();
        self.engine.intact()?;
        self.core.table_reader.intact_since(failed_maps, &self.core.dir)?;
        found
    }

    /// Whether there is one.
    pub(super) fn contains(&self, place: &[u8]) -> Result<bool> {
        self.check_not_closed()?;
        let _timing = self.core.begin_get();
        let found = self.engine.contains(place)?;
        self.engine.intact()?;
        Ok(found)
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
    /// Where the keys lie that it is asked for.
    space: Space,
}

impl Snapshot {
    pub(super) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub(super) fn space(&self) -> Space {
        self.space
    }

    /// `keyspace` at that moment, to be read as this snapshot is. It is empty if it was made later, and what it was if
    /// it was dropped since.
    ///
    /// ```
    /// # fn main() -> terrace::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = terrace::Db::open(dir.path(), terrace::Options::default())?;
    /// let users = db.keyspace("users")?;
    /// users.put("ada", "1815")?;
    /// let before = db.snapshot();
    /// users.delete("ada")?;
    /// assert_eq!(before.keyspace(&users)?.get("ada")?.as_deref(), Some(&b"1815"[..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the keyspace is another database's; `NoKeyspace` if it was dropped before.
    pub fn keyspace(&self, keyspace: &Keyspace) -> Result<Snapshot> {
        let open = keyspace.open();
        open.check_is_of(self.hold.owner())?;
        let there = || self.hold.get(&catalog::place_of(&open.name));
        let space = match self.hold.default {
            Space::Alone => Space::Nowhere,
            // One that was not dropped was never another one.
            _ if open.check_exists().is_ok() || catalog::is_of(there()?.as_deref(), open.number) => {
                open.space()
            }
            _ => return open.check_exists().map(|()| self.clone()),
        };
        Ok(Snapshot { hold: self.hold.clone(), space })
    }

    /// The place of `key`, if it is known whose it is.
    pub(in crate::db) fn place<'a>(&self, key: &'a [u8]) -> Result<Cow<'a, [u8]>> {
        self.hold.check_owner_of(key)?;
        self.space.place(key)
    }

    /// The value of `key` at that moment.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        let place = self.place(key.as_ref())?;
        if self.space == Space::Nowhere { Ok(None) } else { self.hold.get(&place) }
    }

    /// What `f` makes of the value of `key` at that moment: see [`Db::get_with`].
    pub fn get_with<T>(&self, key: impl AsRef<[u8]>, f: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let place = self.place(key.as_ref())?;
        if self.space == Space::Nowhere {
            return Ok(None);
        }
        self.hold.get_with(&place, f)
    }

    /// Whether `key` existed at that moment.
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let place = self.place(key.as_ref())?;
        if self.space == Space::Nowhere { Ok(false) } else { self.hold.contains(&place) }
    }

    /// The values of `keys` at that moment: see [`Db::multi_get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Bytes>>> {
        let keys: Vec<K> = keys.into_iter().collect();
        let places = keys.iter().map(|key| self.place(key.as_ref())).collect::<Result<Vec<_>>>()?;
        if self.space == Space::Nowhere {
            return Ok(vec![None; places.len()]);
        }
        let places: Vec<&[u8]> = places.iter().map(AsRef::as_ref).collect();
        self.hold.get_many(&places)
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
        let (prefix, end) = (prefix.as_ref(), after_prefix(prefix.as_ref()));
        self.bounded(Bound::Included(prefix), end.as_deref().map_or(Bound::Unbounded, Bound::Excluded))
    }

    /// All entries, in key order if the engine has one.
    pub fn entries(&self) -> Result<Entries> {
        if self.space != Space::Alone && self.hold.engine().ordered().is_ok() {
            return self.iter().map(Entries::in_order);
        }
        self.hold.count_iterator();
        Entries::new(self.hold.clone(), self.space)
    }

    fn bounded(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<DbIter> {
        DbIter::new(&self.hold, self.space, from, to)
    }
}
