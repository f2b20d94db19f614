//! The records of the catalogue, and what lies in each keyspace, read from the engine.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::Result;
use terrace_table::{Compression, Kind};

use crate::batch::{Op, WriteBatch};
use crate::core::engine::{Direction, Engine, EngineIter};
use crate::db::{Store, range_delete};
use crate::keyspaces::merge_operator::MOST_NAME_BYTES;
use crate::keyspaces::{DATED, ESCAPE, MergeOperator, NEVER, OperatorName, Prefix, Space, TableSettings};

/// The keyspace of the catalogue.
pub(super) const CATALOGUE: Space = Space::Numbered(Prefix::of(0));

/// Keys in it: of the next number, the numbers of dropped keyspaces; what precedes a name.
pub(super) const NEXT: &[u8] = b"i";
const DROPPED: &[u8] = b"d";
const NAMES: &[u8] = b"n";

/// What the value of each begins with: what it is, and the version of the catalogue.
const MAGIC: &[u8; 15] = b"terrace-spaces\0";
pub(super) const VERSION: u8 = 1;

/// The version of the marker from the first range tombstone on.
pub(super) const VERSION_WITH_RANGES: u8 = 2;

/// The same from the first dated keyspace on.
pub(super) const VERSION_WITH_EXPIRY: u8 = 3;

/// The same from the first keyspace with a merge operator on, and that of the record of such a keyspace's name.
pub(super) const VERSION_WITH_MERGE: u8 = 4;

/// The same for settings of tables.
pub(super) const VERSION_WITH_TABLES: u8 = 5;

/// The same for a deferred merge operator: there may be operands.
pub(super) const VERSION_WITH_OPERANDS: u8 = 6;

/// The latest version.
pub(super) const LATEST: u8 = VERSION_WITH_OPERANDS;

/// What stands for a setting that is as for the database.
const AS_OTHERS: u8 = 255;

/// What stands for an operator where there is none.
const NO_OPERATOR: u8 = 2;

/// What a deferred operator's byte is more than another's.
const DEFERRED: u8 = 3;

/// The version of the catalogue that a record is of; `None` if it is of none.
pub(super) fn version_of(value: &[u8]) -> Option<u8> {
    value.strip_prefix(MAGIC)?.first().copied()
}

/// Whether a value is that of a record of the catalogue, or looks like one.
pub(super) fn is_record(value: &[u8]) -> bool {
    version_of(value).is_some() || range_delete::is_record(value)
}

/// The marker.
pub(super) fn marker(version: u8) -> Vec<u8> {
    MAGIC.iter().copied().chain([version]).collect()
}

/// A record with these numbers.
pub(super) fn of_numbers(numbers: &[u32]) -> Vec<u8> {
    versioned(VERSION, numbers)
}

fn versioned(version: u8, numbers: &[u32]) -> Vec<u8> {
    let numbers = numbers.iter().flat_map(|number| number.to_le_bytes());
    MAGIC.iter().copied().chain([version]).chain(numbers).collect()
}

/// The numbers in a record; `None` if it is damaged.
fn numbers_of(value: &[u8]) -> Option<Vec<u32>> {
    let rest = value.strip_prefix(MAGIC)?.strip_prefix(&[VERSION])?;
    let (numbers, rest) = rest.as_chunks::<4>();
    rest.is_empty().then(|| numbers.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect())
}

/// The one number in a record.
pub(super) fn number_of(value: &[u8]) -> Option<u32> {
    match numbers_of(value)?[..] {
        [number] => Some(number),
        _ => None,
    }
}

/// What the record of a name says of its keyspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::db) struct Named {
    pub number: u32,
    /// In the unit of deadlines; for a dated one.
    pub time_to_live: u64,
    /// The name of the operator by which values are merged.
    pub operator: Option<OperatorName>,
    /// Whether its operands are kept as they come.
    pub is_deferred: bool,
    /// How its keys are written into tables.
    pub tables: TableSettings,
}

impl Named {
    /// That of a keyspace whose entries do not expire by themselves, and that has nothing of its own.
    pub fn plain(number: u32) -> Named {
        let (operator, is_deferred, tables) = (None, false, TableSettings::default());
        Named { number, time_to_live: NEVER, operator, is_deferred, tables }
    }

    /// The record's value.
    pub fn encode(&self) -> Vec<u8> {
        let all = [self.number, self.time_to_live as u32, (self.time_to_live >> 32) as u32];
        let version = self.own_version();
        if version < VERSION_WITH_MERGE {
            return of_numbers(if self.number & DATED == 0 { &all[..1] } else { &all });
        }
        let mut record = versioned(version, &all);
        if version >= VERSION_WITH_TABLES {
            record.extend(encode_tables(&self.tables));
        }
        match &self.operator {
            Some(OperatorName { name, is_built_in }) => {
                let deferred = if self.is_deferred { DEFERRED } else { 0 };
                record.push(u8::from(*is_built_in) + deferred);
                record.extend(name.bytes());
            }
            None => record.push(NO_OPERATOR),
        }
        record
    }

    /// The version of the record itself.
    fn own_version(&self) -> u8 {
        match &self.operator {
            Some(_) if self.is_deferred => VERSION_WITH_OPERANDS,
            _ if self.tables.are_there() => VERSION_WITH_TABLES,
            Some(_) => VERSION_WITH_MERGE,
            None => VERSION,
        }
    }

    /// The version that the marker needs beside it.
    pub fn version(&self) -> u8 {
        version_with(self.number).max(self.own_version())
    }

    /// `None` if the value is damaged.
    pub fn decode(value: &[u8]) -> Option<Named> {
        let time = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        let (version, rest) = value.strip_prefix(MAGIC)?.split_first()?;
        if !(VERSION_WITH_MERGE..=LATEST).contains(version) {
            return match numbers_of(value)?[..] {
                [number] if number & DATED == 0 => Some(Named::plain(number)),
                [number, low, high] if number & DATED != 0 => {
                    Some(Named { time_to_live: time(low, high), ..Named::plain(number) })
                }
                _ => None,
            };
        }
        let (numbers, rest) = rest.split_first_chunk::<12>()?;
        let (numbers, _) = numbers.as_chunks::<4>();
        let [number, low, high] = *<&[[u8; 4]; 3]>::try_from(numbers).ok()?;
        let [number, low, high] = [number, low, high].map(u32::from_le_bytes);
        let (tables, rest) = match *version {
            VERSION_WITH_MERGE => (TableSettings::default(), rest),
            _ => decode_tables(rest)?,
        };
        let (operator, is_deferred) = match rest {
            [NO_OPERATOR] => (None, false),
            _ => decode_operator(rest).map(|(operator, is_deferred)| (Some(operator), is_deferred))?,
        };
        let named = Named { number, time_to_live: time(low, high), operator, is_deferred, tables };
        // Another one would have been written otherwise.
        let is_own = named.own_version() == *version;
        (is_own && (number & DATED != 0 || named.time_to_live == NEVER)).then_some(named)
    }
}

/// An operator, and whether it is deferred.
fn decode_operator(record: &[u8]) -> Option<(OperatorName, bool)> {
    let (kind, name) = record.split_first()?;
    let (is_deferred, kind) = kind.checked_sub(DEFERRED).map_or((false, *kind), |kind| (true, kind));
    let name = str::from_utf8(name).ok().filter(|name| (1..=MOST_NAME_BYTES).contains(&name.len()))?;
    let is_built_in = [false, true].into_iter().find(|is| u8::from(*is) == kind)?;
    Some((OperatorName { name: name.to_owned(), is_built_in }, is_deferred))
}

fn encode_tables(tables: &TableSettings) -> [u8; 6] {
    let [a, b, c, d] = (tables.block_bytes.unwrap_or(0) as u32).to_le_bytes();
    let compression = tables.compression.map_or(AS_OTHERS, |compression| compression as u8);
    let filter = tables.filter_bits_per_key.map_or(AS_OTHERS, |bits| bits as u8);
    [a, b, c, d, compression, filter]
}

/// The settings that a record begins with, and the rest of it.
fn decode_tables(record: &[u8]) -> Option<(TableSettings, &[u8])> {
    let (&[a, b, c, d, compression, filter], rest) = record.split_first_chunk::<6>()?;
    let block_bytes = Some(u32::from_le_bytes([a, b, c, d]) as usize).filter(|bytes| *bytes > 0);
    let compression = match compression {
        AS_OTHERS => None,
        byte => Some(Compression::from_u8(byte)?),
    };
    let filter_bits_per_key = Some(filter).filter(|bits| *bits != AS_OTHERS).map(u32::from);
    let tables = TableSettings { compression, block_bytes, filter_bits_per_key };
    tables.check().is_ok().then_some((tables, rest))
}

/// The version that the marker needs beside a keyspace with this number.
pub(super) fn version_with(number: u32) -> u8 {
    if number & DATED != 0 { VERSION_WITH_EXPIRY } else { VERSION }
}

/// The key of a name.
pub(super) fn named(name: &str) -> Vec<u8> {
    [NAMES, name.as_bytes()].concat()
}

impl Store {
    fn record(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let found = self.engine.get(&CATALOGUE.place(key)?, None)?;
        self.engine.intact()?;
        Ok(found)
    }

    /// The number in the record `key`.
    pub(super) fn number_in(&self, key: &[u8]) -> Result<Option<u32>> {
        let Some(found) = self.record(key)? else { return Ok(None) };
        number_of(&found).map(Some).ok_or_else(|| self.catalog.damaged("a record with a number", &found))
    }

    /// The record of the keyspace `name`.
    pub(super) fn named_as(&self, name: &str) -> Result<Option<Named>> {
        if self.catalog.default_space() == Space::Alone {
            return Ok(None);
        }
        let Some(found) = self.record(&named(name))? else { return Ok(None) };
        Named::decode(&found).map(Some).ok_or_else(|| self.catalog.damaged("a record of a name", &found))
    }

    /// The number that the next keyspace gets, but for the bit of dated ones.
    pub(super) fn next_number(&self) -> Result<u32> {
        match self.number_in(NEXT)? {
            Some(next) => Ok(next),
            None if self.has_keyspaces()? => Err(self.catalog.damaged("the next number", b"nothing")),
            // A repair has lost the record, and no number is in use.
            None => Ok(1),
        }
    }

    fn has_keyspaces(&self) -> Result<bool> {
        let is_catalogue = |number| number == 0;
        Ok(!self.names()?.is_empty()
            || !self.dropped()?.is_empty()
            || !self.unknown(is_catalogue)?.is_empty())
    }

    /// The numbers of dropped keyspaces of which there may still be keys.
    pub(super) fn dropped(&self) -> Result<Vec<u32>> {
        if self.catalog.default_space() == Space::Alone {
            return Ok(Vec::new());
        }
        let Some(found) = self.record(DROPPED)? else { return Ok(Vec::new()) };
        numbers_of(&found).ok_or_else(|| self.catalog.damaged("a record with numbers", &found))
    }

    /// Notes in `batch` which dropped keyspaces there are.
    pub(super) fn note_dropped(batch: &mut WriteBatch, numbers: &[u32]) -> Result<()> {
        let value = of_numbers(numbers);
        let kind = if numbers.is_empty() { Kind::Delete } else { Kind::Put };
        batch.push(Op { kind, key: &CATALOGUE.place(DROPPED)?, value: &value });
        Ok(())
    }

    /// The names of all keyspaces and their records.
    pub(super) fn names(&self) -> Result<BTreeMap<String, Named>> {
        let mut names = BTreeMap::new();
        if self.catalog.default_space() == Space::Alone {
            return Ok(names);
        }
        // Nobody hides them, and what is wrong with values elsewhere is not asked for.
        let catalogue = Prefix::of(0);
        self.visit_all_from(catalogue, catalogue.as_slice(), |key, value| {
            let Some(name) = key.strip_prefix(NAMES) else { return Ok(true) };
            let name = str::from_utf8(name).ok().zip(Named::decode(value?));
            let (name, record) = name.ok_or_else(|| self.catalog.damaged("a name and its number", key))?;
            names.insert(name.to_owned(), record);
            Ok(true)
        })?;
        Ok(names)
    }

    /// Shows `each` the keys of a keyspace with their values, or why one is not known, in order if there is one, as
    /// long as it wants more.
    pub(super) fn visit(
        &self,
        prefix: Prefix,
        each: impl FnMut(&[u8], Result<&[u8]>) -> Result<bool>,
    ) -> Result<()> {
        self.visit_in(&self.engine, prefix, prefix.as_slice(), each)
    }

    /// [`visit`](Self::visit), from a place on if there is an order, and with what is hidden or due.
    pub(super) fn visit_all_from(
        &self,
        prefix: Prefix,
        from: &[u8],
        each: impl FnMut(&[u8], Result<&[u8]>) -> Result<bool>,
    ) -> Result<()> {
        self.visit_in(&self.unmasked, prefix, from, each)
    }

    fn visit_in(
        &self,
        engine: &Arc<dyn Engine>,
        prefix: Prefix,
        from: &[u8],
        mut each: impl FnMut(&[u8], Result<&[u8]>) -> Result<bool>,
    ) -> Result<()> {
        let is_ordered = engine.ordered().is_ok();
        self.walk_from(engine, from, |walk| {
            while let Some((place, value)) = walk.next()? {
                let value = walk.failure().map_or(Ok(&value[..]), |why| Err(why.clone()));
                match place.strip_prefix(prefix.as_slice()) {
                    Some(key) if each(key, value)? => {}
                    None if !is_ordered => {}
                    _ => break,
                }
            }
            Ok(())
        })
    }

    /// Whether there is a key in the keyspace with this number, dated or not, even if nobody sees it.
    pub(super) fn has_any_keys(&self, number: u32) -> Result<bool> {
        let mut found = false;
        for prefix in [Prefix::of(number), Prefix::of(number | DATED)] {
            self.visit_all_from(prefix, prefix.as_slice(), |_, _| {
                found = true;
                Ok(false)
            })?;
        }
        Ok(found)
    }

    /// Recalls the version of the marker, if damage has taken it.
    pub(in crate::db) fn recall_marker(&self) {
        if self.catalog.is_marker_lost() {
            // What there is beside the records of names they do not tell, so older builds are better refused.
            self.catalog.note_version(LATEST);
        }
    }

    /// Recalls what the engine is to know of keyspaces, as far as their records can be read: how their keys are written
    /// into tables, and which operators fold operands.
    pub(in crate::db) fn recall_keyspaces(&self) {
        self.core.merging.set_any(self.catalog.may_have_operands());
        if !self.catalog.may_have_tables() {
            return;
        }
        self.core.keyspace_tables.note_any();
        for Named { number, operator, tables, .. } in self.names().unwrap_or_default().into_values() {
            self.core.keyspace_tables.set(number, tables);
            let built_in = operator.filter(|operator| operator.is_built_in);
            if let Some(operator) = built_in.and_then(|operator| MergeOperator::built_in(&operator.name)) {
                self.core.merging.set(number, &operator);
            }
        }
    }

    /// Whether there are records of the catalogue. There is a marker beside them, unless damage has taken it.
    pub(super) fn has_lost_marker(&self) -> Result<bool> {
        let mut found = false;
        self.visit(Prefix::of(0), |_, value| {
            found = found || is_record(value?);
            Ok(!found)
        })?;
        Ok(found)
    }

    /// The keyspaces with keys in them, seen or not, as far as `is_known` does not know them, with a key of each; `None` is for
    /// places that are no keyspace's.
    pub(super) fn unknown(&self, is_known: impl Fn(u32) -> bool) -> Result<BTreeMap<Option<u32>, Vec<u8>>> {
        let mut unknown = BTreeMap::new();
        let is_ordered = self.engine.ordered().is_ok();
        self.walk_from(&self.unmasked, &[ESCAPE], |walk| {
            while let Some((place, _)) = walk.next()? {
                match Prefix::number_at(&place) {
                    number if !Space::Default.holds(&place) => {
                        if !number.is_some_and(&is_known) {
                            unknown.entry(number).or_insert_with(|| place.to_vec());
                        }
                        if let Some(number) = number.filter(|_| is_ordered) {
                            walk.seek(Bound::Included(&Prefix::of(number).end()))?;
                        }
                    }
                    _ if is_ordered => break,
                    _ => {}
                }
            }
            Ok(())
        })?;
        Ok(unknown)
    }

    /// Has `look` walk over the keys of `engine` as of now, from `place` on if it has an order of keys.
    pub(in crate::db) fn walk_from<T>(
        &self,
        engine: &Arc<dyn Engine>,
        place: &[u8],
        look: impl FnOnce(&mut dyn EngineIter) -> Result<T>,
    ) -> Result<T> {
        self.looked_through(|at| {
            if engine.ordered().is_err() {
                return look(&mut *engine.clone().walk_all(at)?);
            }
            let mut walk = engine.clone().walk(at, Direction::Forward)?;
            walk.seek(Bound::Included(place))?;
            look(&mut *walk)
        })
    }

    /// Entries may be dated from now on.
    pub(super) fn begin_deadlines(&self) {
        let held = self.engine.hold(&self.core.snapshots);
        self.core.deadlines.begin(held.seq());
        drop(held);
        self.engine.released();
    }
}
