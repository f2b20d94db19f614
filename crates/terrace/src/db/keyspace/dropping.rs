//! Dropping a keyspace. What removes its keys afterwards is in `sweep`.

use std::sync::Arc;

use terrace_base::{Error, Result};
use terrace_table::Kind;

use super::catalog::place_of;
use crate::batch::{Op, WriteBatch};
use crate::db::{Db, Store};
use crate::keyspaces::{NEVER, OpenKeyspace, TableSettings, callbacks};
use crate::options::WriteOptions;

impl Db {
    /// Drops keyspace `name`: its keys are nobody's from then on.
    pub(super) fn drop_named(&self, name: &str) -> Result<()> {
        let store = &*self.inner;
        callbacks::check_none_runs()?;
        let _changing = store.catalog.hold();
        if store.read_only {
            return Err(Error::ReadOnly);
        }
        let record = store.named_as(name)?;
        let number = record.ok_or_else(|| Error::NoKeyspace { name: name.to_owned() })?.number;
        let keyspace = store
            .catalog
            .opened(name)
            .unwrap_or_else(|| Arc::new(OpenKeyspace::new(name, number, store.catalog.owner, NEVER)));
        keyspace.drop_by(|| {
            let mut batch = WriteBatch::new();
            batch.push(Op { kind: Kind::Delete, key: &place_of(name), value: &[] });
            let mut dropped = store.dropped()?;
            dropped.push(number);
            Store::note_dropped(&mut batch, &dropped)?;
            batch.counts_as_deletion = true;
            self.write_placed(batch, WriteOptions::default())
        })?;
        store.catalog.close(name);
        store.catalog.operators.lock().remove(&number);
        store.core.filters.forget(number);
        store.core.keyspace_tables.set(number, TableSettings::default());
        Ok(())
    }
}
