//! The catalogue: which keyspaces there are, and whether the default one makes room for them.
//!
//! It consists of records in keyspace 0 (docs/formats/keyspaces.md).
//!
//! 1. A database without a marker has no keyspace, and all its keys are in their own places. The first keyspace
//!    moves those that begin with byte 255, and sets the marker, in one batch.
//! 2. A number is given once. A dropped keyspace is nobody's from the batch on that takes its name and notes its
//!    number, which stays noted until all its keys are gone.
//! 3. Names change while `changing` is locked. Where the default keyspace lies changes while `moving` is written, and
//!    nobody reads or writes a key that moves.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::{Bound, Deref};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
use terrace_base::codec::Reader;
use terrace_base::{Error, Result};
use terrace_table::Kind;

use super::KeyspaceOptions;
use crate::batch::{Op, WriteBatch};
use crate::core::engine::{Direction, Engine};
use crate::db::{Db, Store};
use crate::keyspaces::{ESCAPE, OpenKeyspace, Prefix, Space, Writing, is_high};
use crate::options::WriteOptions;

/// The keyspace of the catalogue.
pub(super) const CATALOGUE: Space = Space::Numbered(Prefix::of(0));

/// Keys in it: of the marker, the next number, the numbers of dropped keyspaces; what precedes a name.
const MARKER: &[u8] = b"";
const NEXT: &[u8] = b"i";
const DROPPED: &[u8] = b"d";
const NAMES: &[u8] = b"n";

/// The place of the marker.
const MARKER_PLACE: [u8; 2] = [ESCAPE, 0];

/// The marker's value: what it is, and the version of the catalogue.
const MAGIC: &[u8; 15] = b"terrace-spaces\0";
const VERSION: u8 = 1;

/// Longest name in bytes.
const MOST_NAME_BYTES: usize = 255;

/// Most bytes of keys and values that the first keyspace moves.
const MOST_MOVED_BYTES: usize = 64 << 20;

/// Where the default keyspace lies.
const ALONE: u8 = 0;
const MOVING: u8 = 1;
const BESIDE: u8 = 2;

/// The number of the next opening of a database.
static OPENINGS: AtomicU64 = AtomicU64::new(0);

/// Keyspaces that are open, by name.
type Open = BTreeMap<String, Weak<OpenKeyspace>>;

#[derive(Debug)]
pub(in crate::db) struct Catalog {
    /// Tells the keyspaces of this opening from those of others.
    pub owner: u64,
    dir: PathBuf,
    default: AtomicU8,
    moving: RwLock<()>,
    changing: Mutex<Open>,
}

/// The place of a key. It stays that as long as this is kept.
#[derive(Debug)]
pub(in crate::db) struct Placed<'a> {
    place: Cow<'a, [u8]>,
    _stays: Option<RwLockReadGuard<'a, ()>>,
}

impl Deref for Placed<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.place
    }
}

impl Catalog {
    /// The catalogue of a database that is being opened.
    ///
    /// # Errors
    ///
    /// `InvalidFormat` if it is of a later version.
    pub fn open(engine: &dyn Engine, dir: &Path) -> Result<Catalog> {
        let default = match engine.get(&MARKER_PLACE, None)?.as_deref().and_then(|v| v.strip_prefix(MAGIC)) {
            Some([VERSION]) => BESIDE,
            Some([version]) => {
                return Err(Error::InvalidFormat {
                    file: dir.to_path_buf(),
                    found: format!("version {version} of the catalogue of keyspaces"),
                    supported: VERSION.to_string(),
                });
            }
            _ => ALONE,
        };
        let (default, moving, changing) = (AtomicU8::new(default), RwLock::new(()), Mutex::default());
        let owner = OPENINGS.fetch_add(1, Ordering::Relaxed);
        Ok(Catalog { owner, dir: dir.to_path_buf(), default, moving, changing })
    }

    /// Where the default keyspace lies: exactly, if `moving` is held.
    pub fn default_space(&self) -> Space {
        if self.default.load(Ordering::Acquire) == BESIDE { Space::Default } else { Space::Alone }
    }

    /// The place of a key of the default keyspace.
    #[inline]
    pub fn place<'a>(&'a self, key: &'a [u8]) -> Result<Placed<'a>> {
        if !is_high(key) {
            return Ok(Placed { place: Space::Alone.place(key)?, _stays: None });
        }
        let stays = self.stay();
        Ok(Placed { place: self.default_space().place(key)?, _stays: Some(stays) })
    }

    /// Keeps the default keyspace where it lies.
    pub fn stay(&self) -> RwLockReadGuard<'_, ()> {
        self.moving.read()
    }

    /// What `take` takes, and where the default keyspace lies at that moment.
    pub fn at_one_moment<T>(&self, take: impl Fn() -> T) -> (T, Space) {
        let before = self.default.load(Ordering::Acquire);
        if before != MOVING {
            let taken = take();
            if self.default.load(Ordering::Acquire) == before {
                return (taken, self.default_space());
            }
        }
        let _stays = self.stay();
        (take(), self.default_space())
    }

    /// Keeps the keyspaces that there are from being changed.
    pub fn hold(&self) -> MutexGuard<'_, Open> {
        self.changing.lock()
    }

    /// Keeps `keyspaces` from being dropped.
    ///
    /// # Errors
    ///
    /// `NoKeyspace` if one was; `InvalidArgument` if one is another database's.
    pub fn write_to<'k>(&self, keyspaces: &'k [Arc<OpenKeyspace>]) -> Result<Vec<Writing<'k>>> {
        keyspaces.iter().try_for_each(|keyspace| keyspace.check_is_of(self.owner))?;
        keyspaces.iter().map(|keyspace| keyspace.write()).collect()
    }

    fn damaged(&self, what: &str, found: &[u8]) -> Error {
        Error::Corruption {
            file: self.dir.clone(),
            offset: 0,
            expected: format!("{what} in the catalogue of keyspaces"),
            found: found[..found.len().min(32)].escape_ascii().to_string(),
        }
    }
}

/// Whether a write of this key of the default keyspace would set the marker.
fn is_marker(key: &[u8]) -> bool {
    key == MARKER_PLACE
}

fn named(name: &str) -> Vec<u8> {
    [NAMES, name.as_bytes()].concat()
}

impl Store {
    fn record(&self, key: &[u8]) -> Result<Option<bytes::Bytes>> {
        let found = self.engine.get(&CATALOGUE.place(key)?, None)?;
        self.engine.intact()?;
        Ok(found)
    }

    fn number_in(&self, key: &[u8]) -> Result<Option<u32>> {
        let Some(found) = self.record(key)? else { return Ok(None) };
        let number = found[..].try_into().map(u32::from_le_bytes);
        number.map(Some).map_err(|_| self.catalog.damaged("a number of four bytes", &found))
    }

    /// The number that the next keyspace gets.
    pub(super) fn next_number(&self) -> Result<u32> {
        self.number_in(NEXT)?.ok_or_else(|| self.catalog.damaged("the next number", b"nothing"))
    }

    /// The numbers of dropped keyspaces of which there may still be keys.
    pub(super) fn dropped(&self) -> Result<Vec<u32>> {
        if self.catalog.default_space() == Space::Alone {
            return Ok(Vec::new());
        }
        let Some(found) = self.record(DROPPED)? else { return Ok(Vec::new()) };
        let (numbers, rest) = found.as_chunks::<4>();
        match rest {
            [] => Ok(numbers.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()),
            _ => Err(self.catalog.damaged("numbers of four bytes", &found)),
        }
    }

    /// Notes in `batch` which dropped keyspaces there are.
    pub(super) fn note_dropped(batch: &mut WriteBatch, numbers: &[u32]) -> Result<()> {
        let value: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let kind = if numbers.is_empty() { Kind::Delete } else { Kind::Put };
        batch.push(Op { kind, key: &CATALOGUE.place(DROPPED)?, value: &value });
        Ok(())
    }

    /// The names of all keyspaces and their numbers.
    pub(super) fn names(&self) -> Result<BTreeMap<String, u32>> {
        let mut names = BTreeMap::new();
        if self.catalog.default_space() == Space::Alone {
            return Ok(names);
        }
        self.visit(Prefix::of(0), |key, value| {
            let Some(name) = key.strip_prefix(NAMES) else { return Ok(true) };
            let mut reader = Reader::new(value);
            let name = str::from_utf8(name).ok().zip(reader.u32().filter(|_| reader.is_empty()));
            let (name, number) = name.ok_or_else(|| self.catalog.damaged("a name and its number", key))?;
            names.insert(name.to_owned(), number);
            Ok(true)
        })?;
        Ok(names)
    }

    /// Shows `each` the keys of a keyspace with their values, in order if there is one, as long as it wants more.
    pub(super) fn visit(
        &self,
        prefix: Prefix,
        mut each: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<()> {
        let held = self.engine.hold(&self.core.snapshots);
        let is_ordered = self.engine.ordered().is_ok();
        let mut walk = match is_ordered {
            true => self.engine.clone().walk(held.seq(), Direction::Forward)?,
            false => self.engine.clone().walk_all(held.seq())?,
        };
        if is_ordered {
            walk.seek(Bound::Included(prefix.as_slice()))?;
        }
        while let Some((place, value)) = walk.next()? {
            match place.strip_prefix(prefix.as_slice()) {
                Some(key) if each(key, &value)? => {}
                None if !is_ordered => {}
                _ => break,
            }
        }
        drop(walk);
        drop(held);
        self.engine.released();
        self.engine.intact()
    }

    /// The keyspaces with keys in them, as far as `is_known` does not know them, with a key of each; `None` is for
    /// places that are no keyspace's.
    pub(super) fn unknown(&self, is_known: impl Fn(u32) -> bool) -> Result<BTreeMap<Option<u32>, Vec<u8>>> {
        let mut unknown = BTreeMap::new();
        let held = self.engine.hold(&self.core.snapshots);
        let is_ordered = self.engine.ordered().is_ok();
        let mut walk = match is_ordered {
            true => self.engine.clone().walk(held.seq(), Direction::Forward)?,
            false => self.engine.clone().walk_all(held.seq())?,
        };
        if is_ordered {
            walk.seek(Bound::Included(&[ESCAPE]))?;
        }
        while let Some((place, _)) = walk.next()? {
            if Space::Default.holds(&place) {
                if is_ordered {
                    break;
                }
                continue;
            }
            let number = Prefix::number_at(&place);
            if !number.is_some_and(&is_known) {
                unknown.entry(number).or_insert_with(|| place.to_vec());
            }
            if let Some(number) = number.filter(|_| is_ordered) {
                walk.seek(Bound::Included(&Prefix::of(number).end()))?;
            }
        }
        drop(walk);
        drop(held);
        self.engine.released();
        Ok(unknown)
    }
}

impl Db {
    /// Opens keyspace `name`, or makes it.
    pub(super) fn open_keyspace(&self, name: &str, options: &KeyspaceOptions) -> Result<Arc<OpenKeyspace>> {
        check_name(name)?;
        let store = &*self.inner;
        let mut open = store.catalog.changing.lock();
        if let Some(keyspace) = open.get(name).and_then(Weak::upgrade) {
            return Ok(keyspace);
        }
        let is_alone = store.catalog.default_space() == Space::Alone;
        let number = if is_alone { None } else { store.number_in(&named(name))? };
        let number = match number {
            Some(number) => number,
            None if !options.create_if_missing => return Err(Error::NoKeyspace { name: name.to_owned() }),
            None if store.read_only => return Err(Error::ReadOnly),
            None => self.make_keyspace(name)?,
        };
        let keyspace = Arc::new(OpenKeyspace::new(name, number, store.catalog.owner));
        open.retain(|_, keyspace| keyspace.strong_count() > 0);
        open.insert(name.to_owned(), Arc::downgrade(&keyspace));
        Ok(keyspace)
    }

    /// Makes keyspace `name`; returns its number. `changing` is locked.
    fn make_keyspace(&self, name: &str) -> Result<u32> {
        self.make_room_for_keyspaces()?;
        let number = self.inner.next_number()?;
        let next =
            number.checked_add(1).ok_or_else(|| Error::invalid("all numbers of keyspaces were given"))?;
        self.name_keyspaces(&[(name.to_owned(), number)], next)?;
        Ok(number)
    }

    /// Gives keyspaces their names. `changing` is locked.
    fn name_keyspaces(&self, named_now: &[(String, u32)], next: u32) -> Result<()> {
        let mut batch = WriteBatch::new();
        for (name, number) in named_now {
            let place = CATALOGUE.place(&named(name))?.into_owned();
            batch.push(Op { kind: Kind::Put, key: &place, value: &number.to_le_bytes() });
        }
        batch.push(Op { kind: Kind::Put, key: &CATALOGUE.place(NEXT)?, value: &next.to_le_bytes() });
        self.write_placed(batch, WriteOptions::default())
    }

    /// Has the default keyspace lie beside others, if it lies alone. `changing` is locked.
    fn make_room_for_keyspaces(&self) -> Result<()> {
        let catalog = &self.inner.catalog;
        if catalog.default_space() == Space::Default {
            return Ok(());
        }
        let _alone = catalog.moving.write();
        catalog.default.store(MOVING, Ordering::Release);
        let outcome = self.moved().and_then(|batch| self.write_placed(batch, WriteOptions::default()));
        let lies = if outcome.is_ok() { BESIDE } else { ALONE };
        catalog.default.store(lies, Ordering::Release);
        outcome
    }

    /// What moves the keys that begin with byte 255, and sets the marker.
    fn moved(&self) -> Result<WriteBatch> {
        let (mut bytes, mut high) = (0, Vec::new());
        let end = Prefix::escape();
        self.inner.visit(end, |rest, value| {
            bytes += rest.len() + value.len();
            high.push(([&[ESCAPE], rest].concat(), value.to_vec()));
            Ok(bytes <= MOST_MOVED_BYTES)
        })?;
        if bytes > MOST_MOVED_BYTES {
            return Err(Error::invalid(format!(
                "the first keyspace moves keys that begin with byte 255, and there are more than {} MiB of them",
                MOST_MOVED_BYTES >> 20
            )));
        }
        let mut batch = WriteBatch::new();
        for (key, _) in &high {
            batch.push(Op { kind: Kind::Delete, key, value: &[] });
        }
        for (key, value) in &high {
            batch.push(Op { kind: Kind::Put, key: &Space::Default.place(key)?, value });
        }
        let marker = [&MAGIC[..], &[VERSION]].concat();
        batch.push(Op { kind: Kind::Put, key: &CATALOGUE.place(MARKER)?, value: &marker });
        batch.push(Op { kind: Kind::Put, key: &CATALOGUE.place(NEXT)?, value: &1u32.to_le_bytes() });
        Ok(batch)
    }

    /// Drops keyspace `name`: its keys are nobody's from then on.
    pub(super) fn drop_named(&self, name: &str) -> Result<()> {
        let store = &*self.inner;
        let mut open = store.catalog.changing.lock();
        if store.read_only {
            return Err(Error::ReadOnly);
        }
        let is_alone = store.catalog.default_space() == Space::Alone;
        let number = if is_alone { None } else { store.number_in(&named(name))? };
        let number = number.ok_or_else(|| Error::NoKeyspace { name: name.to_owned() })?;
        let shared = open.get(name).and_then(Weak::upgrade);
        let keyspace =
            shared.unwrap_or_else(|| Arc::new(OpenKeyspace::new(name, number, store.catalog.owner)));
        keyspace.drop_by(|| {
            let mut batch = WriteBatch::new();
            let place = CATALOGUE.place(&named(name))?.into_owned();
            batch.push(Op { kind: Kind::Delete, key: &place, value: &[] });
            let mut dropped = store.dropped()?;
            dropped.push(number);
            Store::note_dropped(&mut batch, &dropped)?;
            self.write_placed(batch, WriteOptions::default())
        })?;
        open.remove(name);
        Ok(())
    }

    /// Names every keyspace that has keys and no name: see [`Db::recover_keyspaces`].
    pub(super) fn name_unknown(&self) -> Result<Vec<String>> {
        let store = &*self.inner;
        let _open = store.catalog.changing.lock();
        if store.catalog.default_space() == Space::Alone {
            return Ok(Vec::new());
        }
        let (names, dropped) = (store.names()?, store.dropped()?);
        let known = |number| number == 0 || dropped.contains(&number) || names.values().any(|n| *n == number);
        let unknown: Vec<u32> = store.unknown(known)?.into_keys().flatten().collect();
        let free = |number: &u32| {
            let plain = format!("recovered-{number}");
            let further = (2..).map(|i| format!("{plain}-{i}"));
            std::iter::once(plain.clone())
                .chain(further)
                .find(|name| !names.contains_key(name))
                .unwrap_or(plain)
        };
        let recovered: Vec<(String, u32)> = unknown.iter().map(|number| (free(number), *number)).collect();
        let highest = names.values().chain(&dropped).chain(&unknown).max().copied().unwrap_or(0);
        let next = store.number_in(NEXT)?.unwrap_or(0).max(highest.saturating_add(1));
        self.name_keyspaces(&recovered, next)?;
        Ok(recovered.into_iter().map(|(name, _)| name).collect())
    }

    /// The place of a key of the default keyspace that is about to be written.
    #[inline]
    pub(in crate::db) fn place_to_write<'a>(&'a self, key: &'a [u8]) -> Result<Placed<'a>> {
        if is_high(key) {
            self.make_room_if_marker(key)?;
        }
        self.inner.catalog.place(key)
    }

    /// Has the default keyspace make room if `key` would be taken for the marker; returns whether it would.
    pub(in crate::db) fn make_room_if_marker(&self, key: &[u8]) -> Result<bool> {
        if self.inner.read_only || !is_marker(key) {
            return Ok(false);
        }
        let _open = self.inner.catalog.changing.lock();
        self.make_room_for_keyspaces().map(|()| true)
    }

    /// `batch` with every key in its place, which it stays as long as the second part of the outcome is kept.
    pub(in crate::db) fn place_batch(
        &self,
        batch: WriteBatch,
    ) -> Result<(WriteBatch, Option<RwLockReadGuard<'_, ()>>)> {
        if !batch.has_high() {
            return Ok((batch, None));
        }
        batch.ops_of_default().try_for_each(|op| self.make_room_if_marker(op.key).map(drop))?;
        let stays = self.inner.catalog.stay();
        let batch = batch.into_places(self.inner.catalog.default_space())?;
        Ok((batch, Some(stays)))
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
