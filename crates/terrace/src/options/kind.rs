//! The engines, and their properties for users who do not care how they work.

use std::fmt;
use std::str::FromStr;

use terrace_base::{Error, Result};

use crate::keyspaces::TableSettings;

/// What an engine keeps in the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InPool {
    /// Logs, or nothing: logs may lie in files, and then there is no pool.
    Logs,
    /// An index that needs a pool, which may be an ordinary file.
    Index,
    /// Logs, and runs or values that are in no table, so that persistent memory is needed, real or emulated.
    Newest,
    /// Everything, so that persistent memory is needed, real or emulated.
    Everything,
}

/// Where an engine keeps new writes before they go to their final place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferPlace {
    /// Nowhere: a write goes to its final place at once.
    None,
    /// In memtables in DRAM, which are part of `memory_budget`.
    Dram,
    /// In many memtables in DRAM, which together take a share of `memory_budget`, whatever the size of each.
    DramShare,
    /// In memtables in the pool, outside `memory_budget`: an ordinary file's pages take memory all the same.
    Pool,
}

/// The properties of an engine.
struct Facts {
    name: &'static str,
    /// Its number in files.
    number: u8,
    in_pool: InPool,
    buffer_place: BufferPlace,
    /// What it can, as bits.
    can: u8,
}

/// Keys have an order.
const ORDER: u8 = 1;
/// An ingest takes place as a whole.
const INGESTS: u8 = 2;
/// Tables have filters.
const FILTERS: u8 = 4;
/// Merge operands are kept.
const OPERANDS: u8 = 8;

/// Declares the engines, a row each: name, number in files, what is in the pool, where memtables are, what they can.
macro_rules! engines {
    ($($(#[$about:meta])* $kind:ident: $name:literal, $number:literal, $in_pool:ident, $buffer:ident, $can:expr;)*) => {
        /// The design that stores the data.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub enum EngineKind {
            $($(#[$about])* $kind,)*
        }

        impl EngineKind {
            /// Every engine of this build.
            pub const ALL: &'static [EngineKind] = &[$(EngineKind::$kind),*];

            fn facts(self) -> Facts {
                let (name, number, in_pool, buffer_place, can) = match self {
                    $(EngineKind::$kind => ($name, $number, InPool::$in_pool, BufferPlace::$buffer, $can),)*
                };
                Facts { name, number, in_pool, buffer_place, can }
            }
        }

        // By its path: in scope, its `number` would take the place of the engine's.
        impl super::settings::Choice for EngineKind {
            const NAMES: &'static [&'static str] = &[$($name),*];

            fn number(&self) -> usize {
                *self as usize
            }

            fn take(&mut self, number: usize) {
                *self = Self::ALL[number];
            }
        }
    };
}

engines! {
    /// SLM-DB (FAST '19): persistent memtable, one level of SSTables, a persistent B+-tree over all keys.
    #[default]
    Slm: "slm", 1, Index, Pool, ORDER;
    /// A leveled LSM-tree like LevelDB and RocksDB: memtables in DRAM, a commit log, leveled compaction.
    Lsm: "lsm", 2, Logs, Dram, ORDER | INGESTS | FILTERS | OPERANDS;
    /// TurboHash (Spot-On): everything in persistent memory behind a hash table, without key order.
    Turbo: "turbo", 3, Everything, None, 0;
    /// SPTree (Spot-On): everything in persistent memory behind a range index with its inner nodes in DRAM.
    Sptree: "sptree", 4, Everything, None, ORDER;
    /// SplitKV: small items in persistent memory and later, sorted, on the SSD; large ones on the SSD at once; one index in
    /// persistent memory.
    Split: "split", 8, Newest, None, ORDER;
    /// WipDB (Zhao's dissertation): the keys are divided into buckets, each with its own memtable and a small
    /// tiered LSM-tree.
    Wip: "wip", 5, Logs, DramShare, ORDER | INGESTS | FILTERS | OPERANDS;
    /// LAB-DB, reconstructed from its abstract: a leveled LSM-tree with the newest values of busy keys in persistent memory.
    Lab: "lab", 7, Newest, Dram, ORDER | FILTERS;
    /// TLSM: a leveled LSM-tree whose upper runs lie in persistent memory and are merged by moving records'
    /// places.
    Tlsm: "tlsm", 6, Newest, Dram, ORDER | INGESTS | FILTERS | OPERANDS;
}

impl EngineKind {
    /// The engine's name on the command line, in `stats` and in the manifest.
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// The engine's number in files.
    pub(crate) fn number(self) -> u8 {
        self.facts().number
    }

    /// The engine of a file, by the origin that the file names.
    pub(crate) fn of_origin(origin: u64) -> Option<EngineKind> {
        Self::ALL.iter().copied().find(|engine| u64::from(engine.number()) == origin >> 56)
    }

    fn can(self, what: u8) -> bool {
        self.facts().can & what != 0
    }

    /// Whether it keeps keys in order: otherwise there are no iterators over ranges.
    pub fn is_ordered(self) -> bool {
        self.can(ORDER)
    }

    /// Whether it needs persistent memory, real or emulated.
    pub fn needs_memory(self) -> bool {
        matches!(self.facts().in_pool, InPool::Newest | InPool::Everything)
    }

    /// Whether it keeps everything there, and no tables.
    pub fn keeps_all_in_memory(self) -> bool {
        self.facts().in_pool == InPool::Everything
    }

    /// Whether an [ingest](crate::Db::ingest) takes place as a whole or not at all. The others write it in large
    /// batches, and so does `tlsm` if all its levels stay in persistent memory.
    pub fn ingests_atomically(self) -> bool {
        self.can(INGESTS)
    }

    /// Whether it keeps merge operands of a [deferred](crate::MergeOperator::deferred) operator. The others fold them at
    /// once.
    pub fn keeps_operands(self) -> bool {
        self.can(OPERANDS)
    }

    /// # Errors
    ///
    /// `Unsupported` if nothing is ever compacted.
    pub(crate) fn check_compacts(self) -> Result<()> {
        match self.keeps_all_in_memory() {
            true => Err(Error::Unsupported { engine: self.name(), operation: "compaction filters" }),
            false => Ok(()),
        }
    }

    /// # Errors
    ///
    /// `Unsupported` if there are no tables, or none with filters and these are to have some; `InvalidArgument` if
    /// something is not in its range.
    pub(crate) fn check_tables(self, tables: &TableSettings) -> Result<()> {
        let operation = match tables.filter_bits_per_key {
            _ if !tables.are_there() => return Ok(()),
            _ if self.keeps_all_in_memory() => "settings of tables",
            Some(1..) if !self.can(FILTERS) => "filters of tables",
            _ => return tables.check(),
        };
        Err(Error::Unsupported { engine: self.name(), operation })
    }

    /// Where it keeps new writes. An engine with memtables has an option `memtable_bytes`.
    pub fn buffer_place(self) -> BufferPlace {
        self.facts().buffer_place
    }

    /// Whether its database may have no pool.
    pub(crate) fn may_lack_pool(self) -> bool {
        self.facts().in_pool == InPool::Logs
    }

    /// The engine called `name`; [`str::parse`] does the same.
    ///
    /// # Errors
    /// `InvalidArgument` if there is none, with the names of the existing ones.
    ///
    /// ```
    /// use terrace::EngineKind;
    ///
    /// let engine: EngineKind = "lsm".parse()?;
    /// assert_eq!((engine, engine.to_string()), (EngineKind::parse("lsm")?, "lsm".to_string()));
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn parse(name: &str) -> Result<Self> {
        Self::ALL.iter().copied().find(|e| e.name() == name).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|e| e.name()).collect();
            Error::invalid(format!("no engine is called {name:?}; there are: {}", known.join(", ")))
        })
    }
}

impl FromStr for EngineKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::parse(name)
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_lead_back_to_their_engines() {
        for &kind in EngineKind::ALL {
            assert_eq!(kind.to_string().parse::<EngineKind>().unwrap(), kind);
            assert_eq!(EngineKind::of_origin(u64::from(kind.number()) << 56 | 7), Some(kind));
        }
        assert!(
            EngineKind::parse("rocks")
                .unwrap_err()
                .to_string()
                .contains("slm, lsm, turbo, sptree, split, wip, lab, tlsm")
        );
    }
}
