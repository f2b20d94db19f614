//! What threads ask: the default keyspace, or one whose entries can expire.

use std::time::Duration;

use terrace::{
    Bytes, Db, DbIter, Expiry, Keyspace, KeyspaceOptions, Result, Snapshot, Transaction, WriteBatch,
};

/// The keys of one keyspace. In one whose entries can expire a deletion may be the put of an entry that is due at once.
pub enum Target<'a> {
    Default(&'a Db),
    Expiring(Keyspace),
}

impl<'a> Target<'a> {
    pub fn of(db: &'a Db, expires: bool) -> Target<'a> {
        if !expires {
            return Target::Default(db);
        }
        let options = KeyspaceOptions { expiry: Some(Expiry::ByEntry), ..KeyspaceOptions::default() };
        Target::Expiring(db.keyspace_with("expiring", options).unwrap())
    }

    pub fn db(&self) -> &Db {
        match self {
            Target::Default(db) => db,
            Target::Expiring(space) => space.db(),
        }
    }

    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        match self {
            Target::Default(db) => db.put(key, value),
            Target::Expiring(space) => space.put(key, value),
        }
    }

    /// Deletes `key`, or lets it be due.
    pub fn delete(&self, key: &[u8], is_due: bool) -> Result<()> {
        match self {
            Target::Default(db) => db.delete(key),
            Target::Expiring(space) if is_due => space.put_with_ttl(key, b"due", Duration::ZERO),
            Target::Expiring(space) => space.delete(key),
        }
    }

    pub fn add_put(&self, batch: &mut WriteBatch, key: &[u8], value: &[u8]) {
        match self {
            Target::Default(_) => batch.put(key, value),
            Target::Expiring(space) => batch.put_in(space, key, value),
        }
    }

    pub fn add_delete(&self, batch: &mut WriteBatch, key: &[u8], is_due: bool) {
        match self {
            Target::Default(_) => batch.delete(key),
            Target::Expiring(space) if is_due => batch.put_in_with_ttl(space, key, b"due", Duration::ZERO),
            Target::Expiring(space) => batch.delete_in(space, key),
        }
    }

    pub fn add_delete_range(&self, batch: &mut WriteBatch, first: &[u8], last: &[u8]) {
        match self {
            Target::Default(_) => batch.delete_range(first..=last),
            Target::Expiring(space) => batch.delete_range_in(space, first..=last),
        }
    }

    pub fn write_if(&self, exists: bool, key: &[u8], value: &[u8]) -> Result<bool> {
        match (self, exists) {
            (Target::Default(db), true) => db.update_if_exists(key, value),
            (Target::Default(db), false) => db.put_if_absent(key, value),
            (Target::Expiring(space), true) => space.update_if_exists(key, value),
            (Target::Expiring(space), false) => space.put_if_absent(key, value),
        }
    }

    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match self {
            Target::Default(db) => db.get(key),
            Target::Expiring(space) => space.get(key),
        }
    }

    pub fn contains_key(&self, key: &[u8]) -> Result<bool> {
        match self {
            Target::Default(db) => db.contains_key(key),
            Target::Expiring(space) => space.contains_key(key),
        }
    }

    pub fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        match self {
            Target::Default(db) => db.multi_get(keys),
            Target::Expiring(space) => space.multi_get(keys),
        }
    }

    pub fn snapshot(&self) -> Result<Snapshot> {
        match self {
            Target::Default(db) => Ok(db.snapshot()),
            Target::Expiring(space) => space.snapshot(),
        }
    }

    pub fn iter(&self) -> Result<DbIter> {
        match self {
            Target::Default(db) => db.iter(),
            Target::Expiring(space) => space.iter(),
        }
    }

    pub fn get_in(&self, tx: &Transaction, key: &[u8]) -> Result<Option<Bytes>> {
        match self {
            Target::Default(_) => tx.get(key),
            Target::Expiring(space) => tx.keyspace(space)?.get(key),
        }
    }

    pub fn put_in(&self, tx: &Transaction, key: &[u8], value: &[u8]) -> Result<()> {
        match self {
            Target::Default(_) => tx.put(key, value),
            Target::Expiring(space) => tx.keyspace(space)?.put(key, value),
        }
    }

    pub fn all_in(&self, tx: &Transaction) -> Result<Vec<(Bytes, Bytes)>> {
        match self {
            Target::Default(_) => tx.iter()?.collect(),
            Target::Expiring(space) => tx.keyspace(space)?.iter()?.collect(),
        }
    }
}
