//! The memtables of engines, alone: for `terrace-bench memtables`.

use std::sync::Arc;

use terrace_table::Kind;

use crate::memtable::MemList;
use crate::memtable::chunks::Chunks;
use crate::memtable::hash::{HashTable, Overflow};

/// The design of the memtables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Design {
    /// An ordered list each, in ordinary pages.
    Skiplists,
    /// One ordered list instead of all, in ordinary pages.
    OneSkiplist,
    /// A hash table each, in ordinary pages.
    Hash,
    /// A hash table each, in huge pages if the system has them.
    HugeHash,
}

/// Memtables, each with its own keys.
#[derive(Debug)]
pub struct Memtables(Tables);

#[derive(Debug)]
enum Tables {
    Lists(Vec<MemList>),
    Hash(Vec<HashTable>, Arc<Chunks>),
}

impl Memtables {
    /// `count` empty ones.
    pub fn new(design: Design, count: usize) -> Self {
        let hash = |chunks: Arc<Chunks>| {
            let tables = (0..count).map(|_| HashTable::new(&chunks, Overflow::Chain)).collect();
            Tables::Hash(tables, chunks)
        };
        let lists = |count| {
            let chunks = Chunks::in_ordinary_pages();
            Tables::Lists((0..count).map(|_| MemList::new(&chunks)).collect())
        };
        Memtables(match design {
            Design::Skiplists => lists(count),
            Design::OneSkiplist => lists(1),
            Design::Hash => hash(Chunks::in_ordinary_pages()),
            Design::HugeHash => hash(Chunks::new()),
        })
    }

    /// Puts a version into one of them.
    pub fn put(&self, table: usize, key: &[u8], seq: u64, value: &[u8]) {
        match &self.0 {
            Tables::Lists(lists) => lists[table % lists.len()].writer().insert(key, seq, Kind::Put, value),
            Tables::Hash(tables, _) => tables[table].writer().insert(key, seq, Kind::Put, value),
        }
    }

    /// The sequence number of the newest version of `key` in one of them.
    pub fn get(&self, table: usize, key: &[u8]) -> Option<u64> {
        let found = match &self.0 {
            Tables::Lists(lists) => lists[table % lists.len()].get(key, u64::MAX),
            Tables::Hash(tables, _) => tables[table].get(key, u64::MAX),
        };
        found.map(|version| version.seq)
    }

    /// Bytes of DRAM that all hold.
    pub fn dram_bytes(&self) -> u64 {
        match &self.0 {
            Tables::Lists(lists) => lists.iter().map(MemList::dram_bytes).sum(),
            Tables::Hash(_, chunks) => chunks.given_bytes(),
        }
    }
}
