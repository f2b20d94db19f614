//! The keyspace that a command works on.

use std::time::Duration;

use clap::Args;
use terrace::{
    Bytes, Db, DbIter, Entries, Error, Expiry, Explanation, Ingest, Ingested, KeyRange, Keyspace,
    KeyspaceOptions, Result, WriteBatch,
};

use crate::escape::unescape;

/// How long records live, on the command line.
pub fn expiry(text: &str) -> std::result::Result<Expiry, String> {
    match text {
        "forever" => Ok(Expiry::ByEntry),
        _ => humantime::parse_duration(text)
            .map(Expiry::After)
            .map_err(|e| format!("{e}; it is a duration like 30m, 12h or 7days, or forever")),
    }
}

/// The name that `text` on the command line stands for, escaped as keys are: what is printed can be given.
pub fn name(text: &str) -> std::result::Result<String, String> {
    let mut name = Vec::with_capacity(text.len());
    unescape(text.as_bytes(), &mut name)?;
    String::from_utf8(name).map_err(|_| "a name is text in UTF-8".to_string())
}

/// The flag that says which keyspace.
#[derive(Debug, Clone, Default, Args)]
pub struct KeyspaceArg {
    /// The keyspace, if it is not the default one
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub keyspace: Option<String>,
}

impl KeyspaceArg {
    /// Says why no such keyspace has `key`, if it cannot.
    pub fn takes(&self, key: &[u8]) -> std::result::Result<(), String> {
        let (len, most) = (key.len(), Keyspace::MAX_KEY_BYTES);
        match &self.keyspace {
            Some(_) if len > most => {
                Err(format!("a key of {len} bytes is over the limit of {most} in a keyspace"))
            }
            _ => Ok(()),
        }
    }

    /// Sets `key` to `value` for `ttl` in a keyspace that is made if there is none.
    pub fn put_with_ttl(&self, db: &Db, key: &[u8], value: &[u8], ttl: Duration) -> Result<()> {
        let Some(name) = &self.keyspace else {
            return Err(Error::InvalidArgument("records of the default keyspace do not expire".into()));
        };
        let existing = KeyspaceOptions { create_if_missing: false, ..KeyspaceOptions::default() };
        let keyspace = match db.keyspace_with(name, existing) {
            Err(Error::NoKeyspace { .. }) => {
                let made = KeyspaceOptions { expiry: Some(Expiry::ByEntry), ..KeyspaceOptions::default() };
                db.keyspace_with(name, made)
            }
            opened => opened,
        };
        keyspace?.put_with_ttl(key, value, ttl)
    }

    /// The keyspace of `db`, which must exist unless it may be made.
    pub fn of(&self, db: &Db, create_if_missing: bool) -> Result<Records> {
        let options = KeyspaceOptions { create_if_missing, ..KeyspaceOptions::default() };
        let named = |name| db.keyspace_with(name, options);
        Ok(match &self.keyspace {
            None => Records::Default(db.clone()),
            Some(name) => Records::Of(named(name)?),
        })
    }
}

/// The records of one keyspace.
#[derive(Debug, Clone)]
pub enum Records {
    /// The default one.
    Default(Db),
    /// Another one.
    Of(Keyspace),
}

impl Records {
    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match self {
            Records::Default(db) => db.get(key),
            Records::Of(keyspace) => keyspace.get(key),
        }
    }

    /// What a read of `key` touches.
    pub fn explain(&self, key: &[u8]) -> Result<Explanation> {
        match self {
            Records::Default(db) => db.explain(key),
            Records::Of(keyspace) => keyspace.explain(key),
        }
    }

    /// Whether there is `key`.
    pub fn contains_key(&self, key: &[u8]) -> Result<bool> {
        match self {
            Records::Default(db) => db.contains_key(key),
            Records::Of(keyspace) => keyspace.contains_key(key),
        }
    }

    /// Sets `key` to `value`.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        match self {
            Records::Default(db) => db.put(key, value),
            Records::Of(keyspace) => keyspace.put(key, value),
        }
    }

    /// Puts what `fill` passes, in key order.
    pub fn ingest(&self, fill: impl FnOnce(&mut Ingest<'_>) -> Result<()>) -> Result<Ingested> {
        match self {
            Records::Default(db) => db.ingest(fill),
            Records::Of(keyspace) => keyspace.ingest(fill),
        }
    }

    /// Removes `key`.
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        match self {
            Records::Default(db) => db.delete(key),
            Records::Of(keyspace) => keyspace.delete(key),
        }
    }

    /// Removes all keys in `range`.
    pub fn delete_range(&self, range: impl KeyRange) -> Result<()> {
        match self {
            Records::Default(db) => db.delete_range(range),
            Records::Of(keyspace) => keyspace.delete_range(range),
        }
    }

    /// The records with keys in `range`, in key order.
    pub fn range(&self, range: impl KeyRange) -> Result<DbIter> {
        match self {
            Records::Default(db) => db.range(range),
            Records::Of(keyspace) => keyspace.range(range),
        }
    }

    /// All records, in key order if there is one.
    pub fn entries(&self) -> Result<Entries> {
        match self {
            Records::Default(db) => db.entries(),
            Records::Of(keyspace) => keyspace.entries(),
        }
    }

    /// Adds a put to `batch`.
    pub fn add(&self, batch: &mut WriteBatch, key: &[u8], value: &[u8]) {
        match self {
            Records::Default(_) => batch.put(key, value),
            Records::Of(keyspace) => batch.put_in(keyspace, key, value),
        }
    }
}
