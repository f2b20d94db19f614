//! What a keyspace is opened with.

use terrace_base::{Error, Result};

use super::Expiry;
use super::records::Named;
use crate::db::Db;
use crate::keyspaces::{CompactionFilter, MergeOperator, OpenKeyspace, TableSettings};

/// Options of opening a keyspace.
///
/// ```
/// # fn main() -> terrace::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let db = terrace::Db::open(dir.path(), terrace::Options::default())?;
/// use terrace::{ErrorKind, KeyspaceOptions};
///
/// let existing = KeyspaceOptions { create_if_missing: false, ..KeyspaceOptions::default() };
/// assert_eq!(db.keyspace_with("users", existing).unwrap_err().kind(), ErrorKind::NoKeyspace);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyspaceOptions {
    /// Whether a keyspace that does not exist is made.
    pub create_if_missing: bool,
    /// How long its entries live. `None`: as long as they do in a keyspace that exists; for good in one that is made,
    /// and whether they can expire is fixed then. Another time to live than before is that of what is put from now on.
    pub expiry: Option<Expiry>,
    /// How operands are merged into its values. `None`: as they were before, if that operator is built in or was given
    /// since the database was opened. A keyspace that has an operator keeps it; another function of the same name is
    /// taken no notice of.
    pub merge: Option<MergeOperator>,
    /// What compactions let go of its entries. `None`: what they did before, since the database was opened.
    pub compaction_filter: Option<CompactionFilter>,
    /// How its keys are written into tables. `None`: as they were before; as the database's if it is made.
    pub tables: Option<TableSettings>,
}

impl Default for KeyspaceOptions {
    fn default() -> Self {
        let (expiry, merge, compaction_filter, tables) = (None, None, None, None);
        KeyspaceOptions { create_if_missing: true, expiry, merge, compaction_filter, tables }
    }
}

impl Db {
    /// Whether operands of a keyspace with `operator` are kept as they come.
    pub(super) fn defers(&self, operator: &MergeOperator, is_dated: bool) -> bool {
        operator.is_deferred() && !is_dated && self.inner.engine.keeps_operands()
    }

    /// Gives `keyspace` those of `options` that say anything. `changing` is locked.
    pub(super) fn change_options(&self, keyspace: &OpenKeyspace, options: &KeyspaceOptions) -> Result<()> {
        let name = &keyspace.name;
        let time_to_live = options.expiry.map_or(keyspace.time_to_live(), Expiry::time_to_live);
        if options.expiry.is_some() && !keyspace.is_dated() {
            return Err(Error::invalid(format!("keyspace \"{name}\" was made without expiry, and stays so")));
        }
        let known = keyspace.operator_name();
        let operator = match (options.merge.as_ref().map(MergeOperator::whole_name), known) {
            (Some(new), Some(known)) if new != known => {
                return Err(Error::invalid(format!(
                    "keyspace \"{name}\" merges by {known}, and not by {new}"
                )));
            }
            (new, known) => new.or(known),
        };
        let tables = options.tables.unwrap_or(keyspace.tables());
        let merge = options.merge.as_ref();
        let is_deferred =
            merge.map_or(keyspace.is_deferred(), |operator| self.defers(operator, keyspace.is_dated()));
        let is_other = time_to_live != keyspace.time_to_live()
            || operator != known
            || tables != keyspace.tables()
            || is_deferred != keyspace.is_deferred() && !self.inner.read_only;
        if is_other {
            let (number, operator) = (keyspace.number, operator.cloned());
            let record = Named { number, time_to_live, operator, is_deferred, tables };
            self.name_keyspaces(&[(name.clone(), record)], None)?;
            keyspace.set_time_to_live(time_to_live);
            keyspace.set_tables(tables);
        }
        self.inner.core.keyspace_tables.set(keyspace.number, tables);
        if let Some(operator) = &options.merge {
            keyspace.set_operator_name(operator.whole_name());
            keyspace.set_operator(operator.clone());
            if !operator.whole_name().is_built_in {
                let given = &mut self.inner.catalog.operators.lock();
                given.entry(keyspace.number).or_insert_with(|| operator.clone());
            }
        }
        if let Ok(operator) = keyspace.operator() {
            // Before any operand is kept.
            self.inner.core.merging.set(keyspace.number, operator);
        }
        if is_deferred {
            self.inner.core.merging.set_any(true);
        }
        keyspace.set_deferred(is_deferred);
        if let Some(filter) = &options.compaction_filter {
            self.inner.core.filters.set(Some(keyspace.number), filter.clone());
        }
        Ok(())
    }
}
