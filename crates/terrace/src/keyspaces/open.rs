//! A keyspace that is open: its name and number, and whether it was dropped meanwhile.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use terrace_base::{Error, Result};
use terrace_table::Kind;

use super::{DATED, MergeOperator, NEVER, OperatorName, Prefix, Space, TableSettings, callbacks, dated};
use crate::batch::Op;
use crate::stats::{Counter, KeyspaceStats};

/// What all handles of a keyspace share.
#[derive(Debug)]
pub(crate) struct OpenKeyspace {
    pub name: String,
    pub number: u32,
    /// The opening of a database that it belongs to.
    pub owner: u64,
    pub counts: KeyspaceCounts,
    /// How long entries live that are put without saying so, in the unit of deadlines. For dated ones.
    time_to_live: AtomicU64,
    tables: Mutex<TableSettings>,
    /// How values are merged, if that is known: the name is set before the operator is.
    operator_name: OnceLock<OperatorName>,
    /// Whether operands are kept as they come.
    is_deferred: AtomicBool,
    operator: OnceLock<MergeOperator>,
    /// Written while it is dropped, read by each write to it.
    dropped: RwLock<bool>,
}

/// What was done to a keyspace since the database was opened.
#[derive(Debug, Default)]
pub(crate) struct KeyspaceCounts {
    pub gets: Counter,
    pub puts: Counter,
    pub deletes: Counter,
    pub user_bytes: Counter,
}

/// Keeps a keyspace from being dropped while it is written to.
#[derive(Debug)]
pub(crate) struct Writing<'a> {
    _not_dropped: RwLockReadGuard<'a, bool>,
}

impl KeyspaceCounts {
    pub fn add(&self, other: &KeyspaceCounts) {
        self.gets.add(other.gets.get());
        self.puts.add(other.puts.get());
        self.deletes.add(other.deletes.get());
        self.user_bytes.add(other.user_bytes.get());
    }

    pub fn figures(&self) -> KeyspaceStats {
        KeyspaceStats {
            gets: self.gets.get(),
            puts: self.puts.get(),
            deletes: self.deletes.get(),
            user_bytes: self.user_bytes.get(),
        }
    }

    pub fn count(&self, op: Op<'_>) {
        match op.kind {
            Kind::Put | Kind::Operand => self.puts.add(1),
            Kind::Delete => self.deletes.add(1),
        }
        self.user_bytes.add((op.key.len() + op.value.len()) as u64);
    }
}

impl OpenKeyspace {
    pub fn new(name: &str, number: u32, owner: u64, time_to_live: u64) -> OpenKeyspace {
        let (counts, dropped) = (KeyspaceCounts::default(), RwLock::new(false));
        let (time_to_live, tables) = (AtomicU64::new(time_to_live), Mutex::default());
        let (operator_name, operator, is_deferred) =
            (OnceLock::new(), OnceLock::new(), AtomicBool::default());
        let name = name.to_owned();
        OpenKeyspace {
            name,
            number,
            owner,
            counts,
            time_to_live,
            tables,
            operator_name,
            is_deferred,
            operator,
            dropped,
        }
    }

    /// Whether its entries can expire.
    pub fn is_dated(&self) -> bool {
        self.number & DATED != 0
    }

    pub fn time_to_live(&self) -> u64 {
        self.time_to_live.load(Ordering::Relaxed)
    }

    /// Entries that are put from now on live for so long.
    pub fn set_time_to_live(&self, time_to_live: u64) {
        self.time_to_live.store(time_to_live, Ordering::Relaxed);
    }

    /// How its keys are written into tables.
    pub fn tables(&self) -> TableSettings {
        *self.tables.lock()
    }

    pub fn set_tables(&self, tables: TableSettings) {
        *self.tables.lock() = tables;
    }

    /// The name of the operator by which values are merged.
    pub fn operator_name(&self) -> Option<&OperatorName> {
        self.operator_name.get()
    }

    /// Values are merged by the operator `name`.
    pub fn set_operator_name(&self, name: &OperatorName) {
        let _ = self.operator_name.set(name.clone());
        if let Some(operator) = MergeOperator::built_in(&name.name).filter(|_| name.is_built_in) {
            self.set_operator(operator);
        }
    }

    /// Whether operands are kept as they come, where the engine keeps any.
    pub fn is_deferred(&self) -> bool {
        self.is_deferred.load(Ordering::Relaxed)
    }

    pub fn set_deferred(&self, is_deferred: bool) {
        self.is_deferred.store(is_deferred, Ordering::Relaxed);
    }

    /// This is the operator by which values are merged. Its name is set.
    pub fn set_operator(&self, operator: MergeOperator) {
        let _ = self.operator.set(operator);
    }

    /// The operator by which values are merged.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if there is none, or if only its name is known.
    pub fn operator(&self) -> Result<&MergeOperator> {
        self.operator.get().ok_or_else(|| {
            let name = &self.name;
            Error::invalid(match self.operator_name() {
                None => format!("keyspace \"{name}\" has no merge operator: KeyspaceOptions::merge sets it"),
                Some(OperatorName { name: operator, is_built_in: true }) => {
                    format!("keyspace \"{name}\" merges by the built-in operator \"{operator}\" of a later version")
                }
                Some(OperatorName { name: operator, .. }) => format!(
                    "keyspace \"{name}\" merges by operator \"{operator}\", which is not built in: it is to be opened \
                     with that in KeyspaceOptions::merge"
                ),
            })
        })
    }

    /// `value` as it is stored if it lives for `time_to_live`, or for as long as values do here; `deadline` is the one
    /// of what is put now with such a time to live.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the value is too long, or if it is to expire and the keyspace is not dated.
    pub fn stored<'v>(
        &self,
        value: &'v [u8],
        time_to_live: Option<u64>,
        deadline: impl FnOnce(u64) -> u64,
    ) -> Result<Cow<'v, [u8]>> {
        match time_to_live {
            _ if self.is_dated() => {
                let time_to_live = time_to_live.unwrap_or_else(|| self.time_to_live());
                dated(deadline(time_to_live), value).map(Cow::Owned)
            }
            None | Some(NEVER) => Ok(Cow::Borrowed(value)),
            Some(_) => Err(Error::invalid(format!(
                "entries of keyspace \"{}\" do not expire: it was made without KeyspaceOptions::expiry",
                self.name
            ))),
        }
    }

    /// # Errors
    ///
    /// `InvalidArgument` if it is not of the database opened as `owner`.
    pub fn check_is_of(&self, owner: u64) -> Result<()> {
        if self.owner != owner {
            return Err(Error::invalid(format!("keyspace \"{}\" is another database's", self.name)));
        }
        Ok(())
    }

    pub fn space(&self) -> Space {
        Space::Numbered(Prefix::of(self.number))
    }

    /// # Errors
    ///
    /// `NoKeyspace` if it was dropped; `InvalidArgument` if a merge operator calls this, whose thread may keep it from
    /// being dropped already.
    pub fn write(&self) -> Result<Writing<'_>> {
        callbacks::check_none_runs()?;
        let dropped = self.dropped.read();
        if *dropped {
            return Err(self.is_gone());
        }
        Ok(Writing { _not_dropped: dropped })
    }

    /// # Errors
    ///
    /// `NoKeyspace` if it was dropped.
    pub fn check_exists(&self) -> Result<()> {
        self.write().map(drop)
    }

    /// Does `work`, which drops it, while nobody writes to it. If that fails, it is as before.
    pub fn drop_by(&self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut dropped = self.dropped.write();
        if *dropped {
            return Err(self.is_gone());
        }
        work()?;
        *dropped = true;
        Ok(())
    }

    fn is_gone(&self) -> Error {
        Error::NoKeyspace { name: self.name.clone() }
    }
}
