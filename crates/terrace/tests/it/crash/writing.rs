//! How the writes of an operation are made: as a batch, by a swap or a transaction, or as a deletion of a range.

use terrace::{Db, Error, Ingest, Result, WriteBatch, WriteOptions};
use terrace_sim::{Change, Map};

use super::ops::{ends, key};

/// How writes are made.
#[derive(Debug, Clone, Copy)]
pub enum How<'a> {
    /// As a batch.
    Batch(WriteOptions),
    /// As a swap of each key's value.
    Swap,
    /// By a transaction that first reads keys of these numbers.
    Transaction(&'a [u16]),
    /// As a deletion of the range between the keys of these numbers.
    Range(u16, u16),
    /// As an ingest.
    Ingest,
}

impl How<'_> {
    /// A batch with the usual options.
    pub const PLAIN: Self = How::Batch(WriteOptions { sync: false });

    /// Whether it is acknowledged as power-safe.
    pub fn is_synced(self) -> bool {
        match self {
            How::Batch(options) => options.sync,
            How::Ingest => true,
            How::Swap | How::Transaction(_) | How::Range(..) => false,
        }
    }

    /// Makes `change` in `db`, which holds `now`, if that is known.
    pub fn carry_out(self, db: &Db, change: &Change, now: Option<&Map>) -> Result<()> {
        match self {
            How::Batch(options) => {
                let mut batch = WriteBatch::new();
                for (k, v) in &change.0 {
                    match v {
                        Some(v) => batch.put(k, v),
                        None => batch.delete(k),
                    }
                }
                db.write_with(batch, options)
            }
            How::Swap => change.0.iter().try_for_each(|(k, v)| swap(db, k, v.as_deref())),
            How::Transaction(reads) => transact(db, reads, change, now),
            How::Range(from, to) => {
                let (first, last) = ends(from, to);
                db.delete_range(first..=last)
            }
            How::Ingest => ingest(db, change),
        }
    }
}

fn ingest(db: &Db, change: &Change) -> Result<()> {
    let entries = |ingest: &mut Ingest<'_>| {
        let puts = change.0.iter().filter_map(|(k, v)| v.as_ref().map(|v| (k, v)));
        puts.into_iter().try_for_each(|(k, v)| ingest.put(k, v))
    };
    db.ingest(entries).map(drop)
}

fn swap(db: &Db, key: &[u8], new: Option<&[u8]>) -> Result<()> {
    let current = db.get(key)?;
    let swapped = db.compare_and_swap(key, current.as_deref(), new)?;
    swapped.map_err(|mismatch| Error::invalid(format!("a swap finds another value than a get: {mismatch:?}")))
}

fn transact(db: &Db, reads: &[u16], change: &Change, now: Option<&Map>) -> Result<()> {
    let tx = db.transaction();
    for k in reads.iter().map(|number| key(*number)) {
        let got = tx.get(&k)?;
        if now.is_some_and(|now| now.get(&k).map(|v| &v[..]) != got.as_deref()) {
            return Err(Error::invalid(format!("a transaction reads another value of {}", k.escape_ascii())));
        }
    }
    if let Ok(range) = tx.range(key(3)..) {
        range.take(reads.len()).try_for_each(|entry| entry.map(drop))?;
    }
    let savepoint = tx.savepoint();
    tx.put("what is taken back", "")?;
    tx.rollback_to(savepoint)?;
    for (k, v) in &change.0 {
        match v {
            Some(v) => tx.put(k, v)?,
            None => tx.delete(k)?,
        }
        if tx.get(k)?.as_deref() != v.as_deref() {
            return Err(Error::invalid("a transaction does not read what it has written"));
        }
    }
    tx.commit()
}
