//! Opening keyspaces, and making them.

use std::sync::Arc;

use terrace_base::{Error, Result};

use super::records::Named;
use super::{Expiry, KeyspaceOptions};
use crate::db::Db;
use crate::keyspaces::{DATED, MergeOperator, NEVER, OpenKeyspace, callbacks};

/// Longest name in bytes.
const MOST_NAME_BYTES: usize = 255;

impl Db {
    /// Opens keyspace `name`, or makes it.
    pub(super) fn open_keyspace(&self, name: &str, options: &KeyspaceOptions) -> Result<Arc<OpenKeyspace>> {
        callbacks::check_none_runs()?;
        check_name(name)?;
        options.merge.as_ref().map_or(Ok(()), MergeOperator::check_name)?;
        let store = &*self.inner;
        if let Some(tables) = &options.tables {
            store.core.options.engine.check_tables(tables)?;
        }
        if options.compaction_filter.is_some() {
            store.core.options.engine.check_compacts()?;
        }
        store.catalog.check_readable()?;
        let _changing = store.catalog.hold();
        if let Some(keyspace) = store.catalog.opened(name) {
            self.change_options(&keyspace, options)?;
            return Ok(keyspace);
        }
        let record = match store.named_as(name)? {
            Some(record) => record,
            None if !options.create_if_missing => return Err(Error::NoKeyspace { name: name.to_owned() }),
            None if store.read_only => return Err(Error::ReadOnly),
            None => self.make_keyspace(name, options)?,
        };
        let Named { number, time_to_live, operator, is_deferred, tables } = record;
        let keyspace = Arc::new(OpenKeyspace::new(name, number, store.catalog.owner, time_to_live));
        operator.iter().for_each(|operator| keyspace.set_operator_name(operator));
        keyspace.set_tables(tables);
        keyspace.set_deferred(is_deferred);
        if let Some(given) = store.catalog.operators.lock().get(&number) {
            keyspace.set_operator(given.clone());
        }
        self.change_options(&keyspace, options)?;
        store.catalog.note_opened(&keyspace);
        Ok(keyspace)
    }

    /// Makes keyspace `name`. `changing` is locked.
    fn make_keyspace(&self, name: &str, options: &KeyspaceOptions) -> Result<Named> {
        self.make_room_for_keyspaces()?;
        let dated = if options.expiry.is_some() { DATED } else { 0 };
        let mut number = self.inner.next_number()?;
        // Damage may have taken a later next number.
        while number < DATED && self.inner.engine.ordered().is_ok() && self.inner.has_any_keys(number)? {
            number += 1;
        }
        if number >= DATED {
            return Err(Error::invalid("all numbers of keyspaces were given"));
        }
        let record = Named {
            number: number | dated,
            time_to_live: options.expiry.map_or(NEVER, Expiry::time_to_live),
            operator: options.merge.as_ref().map(|operator| operator.whole_name().clone()),
            is_deferred: options.merge.as_ref().is_some_and(|operator| self.defers(operator, dated != 0)),
            tables: options.tables.unwrap_or_default(),
        };
        self.name_keyspaces(&[(name.to_owned(), record.clone())], Some(number + 1))?;
        Ok(record)
    }
}

fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MOST_NAME_BYTES {
        return Err(Error::invalid(format!(
            "the name of a keyspace has 1 to {MOST_NAME_BYTES} bytes, this one {}",
            name.len()
        )));
    }
    Ok(())
}
