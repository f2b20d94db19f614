//! Entries that expire, as users call them.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use terrace_base::Result;
use terrace_table::Kind;

use super::Keyspace;
use crate::batch::{Op, WriteBatch};
use crate::core::condition::Condition;
use crate::keyspaces::{NEVER, deadline_of, millis};
use crate::options::WriteOptions;

/// How long the entries of a keyspace live.
///
/// ```
/// # fn main() -> terrace::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// use std::time::Duration;
/// use terrace::{Db, Expiry, KeyspaceOptions, Options};
///
/// let db = Db::open(dir.path(), Options::default())?;
/// let hour = Expiry::After(Duration::from_secs(3600));
/// let options = KeyspaceOptions { expiry: Some(hour), ..KeyspaceOptions::default() };
/// let sessions = db.keyspace_with("sessions", options)?;
/// sessions.put("ada", "signed in")?;
/// sessions.put_with_ttl("guest", "signed in", Duration::ZERO)?;
/// assert!(sessions.contains_key("ada")?);
/// assert!(!sessions.contains_key("guest")?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// As long as each put says; for good if it says nothing.
    ByEntry,
    /// For this time after they were put, unless the put says something else. One of 2^64 milliseconds or more is as
    /// `ByEntry`.
    After(Duration),
}

impl Expiry {
    /// The time to live of what is put without one, in the unit of deadlines.
    pub(super) fn time_to_live(self) -> u64 {
        match self {
            Expiry::ByEntry => NEVER,
            Expiry::After(duration) => millis(duration),
        }
    }

    /// What makes entries live so.
    fn of(time_to_live: u64) -> Expiry {
        match time_to_live {
            NEVER => Expiry::ByEntry,
            millis => Expiry::After(Duration::from_millis(millis)),
        }
    }
}

impl Keyspace {
    /// How long its entries live; `None` if they cannot expire.
    pub fn expiry(&self) -> Option<Expiry> {
        self.open.is_dated().then(|| Expiry::of(self.open.time_to_live()))
    }

    /// Sets `key` to `value` for `ttl`: from then on the key does not exist. See [`Expiry`].
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put); `InvalidArgument` if the keyspace was made without
    /// [`KeyspaceOptions::expiry`](super::KeyspaceOptions::expiry), unless `ttl` is for ever, as
    /// `Duration::MAX` is.
    pub fn put_with_ttl(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: Duration) -> Result<()> {
        let op = Op { kind: Kind::Put, key: key.as_ref(), value: value.as_ref() };
        self.write_for(op, Some(millis(ttl)), Condition::None, WriteOptions::default()).map(drop)
    }

    /// The same if `key` does not exist; returns whether it did so. Of several threads one alone gets a lease that
    /// way, for `ttl`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use terrace::{Expiry, KeyspaceOptions};
    /// # fn main() -> terrace::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = terrace::Db::open(dir.path(), terrace::Options::default())?;
    /// let options = KeyspaceOptions { expiry: Some(Expiry::ByEntry), ..KeyspaceOptions::default() };
    /// let leases = db.keyspace_with("leases", options)?;
    /// assert!(leases.put_if_absent_with_ttl("job 7", "ada", Duration::from_secs(30))?);
    /// assert!(!leases.put_if_absent_with_ttl("job 7", "bob", Duration::from_secs(30))?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`put_with_ttl`](Self::put_with_ttl).
    pub fn put_if_absent_with_ttl(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<bool> {
        let op = Op { kind: Kind::Put, key: key.as_ref(), value: value.as_ref() };
        self.write_for(op, Some(millis(ttl)), Condition::IfAbsent, WriteOptions::default())
    }

    /// When the entry of `key` expires; `None` if it does not, or if there is none.
    pub fn expires_at(&self, key: impl AsRef<[u8]>) -> Result<Option<SystemTime>> {
        let (store, place) = (&self.db.inner, self.space().place(key.as_ref())?);
        let mut deadline = None;
        if self.open.is_dated() && store.contains(&place)? {
            store.unmasked.get_with(&place, None, &mut |stored| deadline = deadline_of(&stored))?;
            store.unmasked.intact()?;
        }
        self.open.check_exists()?;
        let expires = deadline.filter(|deadline| *deadline != NEVER);
        Ok(expires.and_then(|millis| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis))))
    }

    /// `value` as it is stored if it is put now, for `ttl` in the unit of deadlines.
    pub(in crate::db) fn stored<'v>(&self, value: &'v [u8], ttl: Option<u64>) -> Result<Cow<'v, [u8]>> {
        self.db.inner.core.deadlines.stored(&self.open, value, ttl)
    }
}

impl WriteBatch {
    /// Adds a put of a key of `keyspace` that lives for `ttl` from now on: see [`Keyspace::put_with_ttl`]. What is
    /// refused there makes the whole batch fail when it is written.
    pub fn put_in_with_ttl(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) {
        let op = Op { kind: Kind::Put, key: key.as_ref(), value: value.as_ref() };
        self.put_stored(keyspace, op, Some(millis(ttl)));
    }

    pub(super) fn put_stored(&mut self, keyspace: &Keyspace, op: Op<'_>, ttl: Option<u64>) {
        match keyspace.stored(op.value, ttl) {
            Ok(value) => self.push_in(keyspace.open(), Op { value: &value, ..op }),
            Err(error) => self.refuse(error),
        }
    }
}
