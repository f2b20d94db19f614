//! Keyspaces of a sample: one that merges and keeps operands where its engine does, one whose entries expire, one with
//! settings of tables of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::time::Duration;

use terrace::{
    Bytes, Compression, Db, DbIter, EngineKind, Entries, ErrorKind, Expiry, Keyspace, KeyspaceOptions,
    MergeOperator, Result, TableSettings, WriteBatch, WriteOptions,
};

use terrace_disk::Access;
use terrace_index::pmlist::Lists;
use terrace_table::{BlockCache, Cursor, Kind, Table};

use super::image::Image;
use super::sample::{key, samples_with_keyspaces, value};
use crate::harness::{Contents, Map, key_in, there_is};

/// The keyspaces, as they got their numbers, from 1 on.
const NAMES: [&str; 3] = [MERGED, DATED, SET];
const MERGED: &str = "merged";
const DATED: &str = "dated";
const SET: &str = "set";

/// Keys of each.
const KEYS: u32 = 24;

/// More than a sample has.
const VERSIONS: u32 = 12;

/// What happens to a key.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    Put,
    /// It is put, and due at once.
    PutDue,
    Delete,
    /// Something is appended.
    Merge,
}

/// A change of one key of a keyspace.
#[derive(Debug, Clone)]
pub struct Step {
    name: &'static str,
    i: u32,
    version: u32,
    change: Change,
}

impl Step {
    fn key(&self) -> Vec<u8> {
        key_in(Some(self.name), &key(self.i))
    }

    /// What it makes of the value that there was.
    fn of(&self, before: Option<&Vec<u8>>) -> Option<Vec<u8>> {
        let own = value(self.i, self.version);
        match self.change {
            Change::Put => Some(own),
            Change::PutDue | Change::Delete => None,
            Change::Merge => Some([before.map_or(&[][..], |before| before), &own].concat()),
        }
    }

    pub fn enter(&self, map: &mut Map) {
        match self.of(map.get(&self.key())) {
            Some(value) => drop(map.insert(self.key(), value)),
            None => drop(map.remove(&self.key())),
        }
    }
}

/// Values that a key may have, or none.
type Values = BTreeSet<Option<Vec<u8>>>;

/// What is written of a version, in order.
pub fn steps(version: u32) -> Vec<Step> {
    assert!(version <= VERSIONS + 1, "what a damaged one may have is not known");
    let mut steps = Vec::new();
    for i in 0..KEYS {
        let at = i + version;
        let mut step = |name, change| steps.push(Step { name, i, version, change });
        match at {
            _ if at % 13 == 6 => step(MERGED, Change::Delete),
            _ if at % 11 == 1 => step(MERGED, Change::Put),
            _ if at.is_multiple_of(2) => step(MERGED, Change::Merge),
            _ => {}
        }
        match at {
            _ if at % 9 == 4 => step(DATED, Change::PutDue),
            _ if at % 17 == 5 => step(DATED, Change::Delete),
            _ if at.is_multiple_of(4) => step(DATED, Change::Put),
            _ => {}
        }
        match at {
            _ if at % 19 == 6 => step(SET, Change::Delete),
            _ if at % 4 == 1 => step(SET, Change::Put),
            _ => {}
        }
    }
    steps
}

/// Whether a key may have this value where any of the changes were lost, and none was made twice or in another order.
pub fn may_be(key: &[u8], value: Option<&Vec<u8>>) -> bool {
    static ALL: OnceLock<BTreeMap<Vec<u8>, Values>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let mut all: BTreeMap<_, Values> = BTreeMap::new();
        for step in (0..VERSIONS).flat_map(steps) {
            let values = all.entry(step.key()).or_insert_with(|| [None].into());
            let made: Vec<_> = values.iter().map(|before| step.of(before.as_ref())).collect();
            values.extend(made);
        }
        all
    });
    all.get(key).is_none_or(|values| values.contains(&value.cloned()))
}

/// A reader of all keys of a keyspace, of the default one, too.
pub trait Reader {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>>;
    fn contains_key(&self, key: &[u8]) -> Result<bool>;
    fn in_order(&self) -> Result<DbIter>;
    fn in_any_order(&self) -> Result<Entries>;
}

impl Reader for Db {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Db::get(self, key)
    }

    fn contains_key(&self, key: &[u8]) -> Result<bool> {
        Db::contains_key(self, key)
    }

    fn in_order(&self) -> Result<DbIter> {
        self.iter()
    }

    fn in_any_order(&self) -> Result<Entries> {
        self.entries()
    }
}

impl Reader for Keyspace {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Keyspace::get(self, key)
    }

    fn contains_key(&self, key: &[u8]) -> Result<bool> {
        Keyspace::contains_key(self, key)
    }

    fn in_order(&self) -> Result<DbIter> {
        self.iter()
    }

    fn in_any_order(&self) -> Result<Entries> {
        self.entries()
    }
}

/// The names of the keyspaces in `map`.
pub fn names(map: &Map) -> Vec<&'static str> {
    NAMES.into_iter().filter(|name| map.contains_key(&there_is(name))).collect()
}

/// What `map` has of a keyspace.
pub fn part_of(map: &Map, name: &str) -> Map {
    let prefix = key_in(Some(name), b"");
    let of_it =
        map.iter().filter_map(|(key, value)| Some((key.strip_prefix(&prefix[..])?.to_vec(), value.clone())));
    of_it.collect()
}

/// What `map` has of the default keyspace.
pub fn default_of(map: &Map) -> Map {
    map.iter()
        .filter(|(key, _)| is_of_default(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Whether a key of such a map is one of the default keyspace.
pub fn is_of_default(key: &[u8]) -> bool {
    !key.starts_with(&key_in(Some(""), b"")[..3]) && !key.starts_with(&there_is(""))
}

/// The keyspace of that name, if there is one.
pub fn existing(db: &Db, name: &str) -> Result<Option<Keyspace>> {
    match db.keyspace_with(name, KeyspaceOptions { create_if_missing: false, ..KeyspaceOptions::default() }) {
        Err(e) if e.kind() == ErrorKind::NoKeyspace => Ok(None),
        found => found.map(Some),
    }
}

/// Everything that there is: the default keyspace's keys as they are, those of others behind their names.
pub fn all_of(db: &Db) -> Result<Map> {
    let mut map: Map = db.try_all()?.into_iter().collect();
    for name in db.keyspaces()? {
        let number =
            name.strip_prefix("recovered-").map(|rest| rest.trim_start_matches("expiring-").parse::<usize>());
        let original = match number {
            Some(number) => NAMES[number.expect("a number") - 1],
            None => &name,
        };
        let merge = (original == MERGED).then(|| MergeOperator::append().deferred());
        // Only one that was recovered lacks its operator.
        let options =
            KeyspaceOptions { merge: merge.filter(|_| original != name), ..KeyspaceOptions::default() };
        let entries = db.keyspace_with(&name, options)?.snapshot()?.try_all()?;
        map.insert(there_is(original), Vec::new());
        map.extend(entries.into_iter().map(|(key, value)| (key_in(Some(original), &key), value)));
    }
    Ok(map)
}

/// Makes the keyspaces.
pub fn make(db: &Db, map: &mut Map) {
    let merge = Some(MergeOperator::append().deferred());
    let expiry = Some(Expiry::After(Duration::from_secs(3600)));
    let (block_bytes, compression) = (Some(150), Some(Compression::Lz4));
    let settings = TableSettings { block_bytes, compression, filter_bits_per_key: Some(0) };
    let plain = KeyspaceOptions::default;
    db.keyspace_with(MERGED, KeyspaceOptions { merge, ..plain() }).unwrap();
    db.keyspace_with(DATED, KeyspaceOptions { expiry, ..plain() }).unwrap();
    if let Err(e) = db.keyspace_with(SET, KeyspaceOptions { tables: Some(settings), ..plain() }) {
        // There are no tables.
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        db.keyspace(SET).unwrap();
    }
    map.extend(NAMES.map(|name| (there_is(name), Vec::new())));
}

/// Takes a step, durably.
pub fn write(db: &Db, step: &Step) -> Result<()> {
    let (space, key, own) = (db.keyspace(step.name)?, key(step.i), value(step.i, step.version));
    let mut batch = WriteBatch::new();
    match step.change {
        Change::Put => batch.put_in(&space, key, own),
        Change::PutDue => batch.put_in_with_ttl(&space, key, own, Duration::ZERO),
        Change::Delete => batch.delete_in(&space, key),
        Change::Merge => batch.merge_in(&space, key, own),
    }
    db.write_with(batch, WriteOptions::SYNC)
}

/// Takes all steps of a version.
pub fn write_all(db: &Db, map: &mut Map, version: u32) {
    for step in steps(version) {
        write(db, &step).unwrap();
        step.enter(map);
    }
}

/// The same with keyspaces, closed.
pub fn with_keyspaces((image, map): &(Image, Map)) -> (Image, Map) {
    let bed = image.bed();
    let (db, mut map) = (bed.open().unwrap(), map.clone());
    make(&db, &mut map);
    for version in 0..5 {
        write_all(&db, &mut map, version);
        if version % 2 == 0 {
            db.flush().unwrap();
        }
    }
    db.close().unwrap();
    (bed.image(), map)
}

/// Writes some more to each keyspace that `right` has.
pub fn go_on(db: &Db, right: &mut Map) -> Result<()> {
    let there = names(right);
    for step in steps(VERSIONS + 1).into_iter().filter(|step| there.contains(&step.name)) {
        write(db, &step)?;
        step.enter(right);
    }
    Ok(())
}

/// How many operands lie in the tables and in the lists of an image.
fn operands(image: &Image) -> (usize, usize) {
    let bed = image.bed();
    let count = |cursor: &mut dyn Cursor| {
        let mut count = 0;
        cursor.seek_first().unwrap();
        while cursor.valid() {
            count += usize::from(cursor.kind() == Kind::Operand);
            cursor.next().unwrap();
        }
        count
    };
    let tables = image.files.keys().filter(|path| path.extension().is_some_and(|end| end == "sst"));
    let in_tables = tables.filter_map(|path| {
        let number = path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
        // One that was being written is no table yet.
        let table = Table::open(bed.fs(), path, number, BlockCache::new(0).into(), Access::Random).ok()?;
        Some(count(&mut table.cursor(false, 0)))
    });
    let in_tables = in_tables.sum();
    if image.pool.is_none() {
        return (in_tables, 0);
    }
    let pool = bed.open_pool();
    let lists = Lists::new(&pool, u64::MAX);
    let in_lists = lists.heads().into_iter().filter_map(|head| {
        let (list, mut count) = (lists.open(head).ok()?, 0);
        let mut cursor = list.cursor();
        cursor.seek_first().unwrap();
        while cursor.valid() {
            count += usize::from(cursor.kind() == Kind::Operand);
            cursor.next().unwrap();
        }
        Some(count)
    });
    (in_tables, in_lists.sum())
}

/// Must catch samples without what they are for.
#[test]
fn samples_have_operands_in_tables_and_lists() {
    for sample in samples_with_keyspaces() {
        let (in_tables, in_lists) = operands(&sample.image);
        println!("{}: {in_tables} operands in tables, {in_lists} in lists", sample.name);
        let has_lists = sample.image.options.engine == EngineKind::Tlsm;
        assert!(if has_lists { in_lists } else { in_tables } > 4, "{}: {in_tables}, {in_lists}", sample.name);
    }
}
