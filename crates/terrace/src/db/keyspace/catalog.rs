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
use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use terrace_base::{Error, ErrorKind, Result};
use terrace_table::Kind;

use super::ranges_file;
use super::records::{
    self, CATALOGUE, LATEST, NEXT, Named, VERSION, VERSION_WITH_OPERANDS, VERSION_WITH_RANGES,
    VERSION_WITH_TABLES, named,
};
use crate::batch::{Op, WriteBatch};
use crate::core::Core;
use crate::core::engine::Engine;
use crate::db::{Db, Store, range_delete};
use crate::keyspaces::{ESCAPE, MergeOperator, OpenKeyspace, Space, Writing, is_high};
use crate::options::WriteOptions;
use crate::stats::KeyspaceStats;

/// The place of the marker: of no key in keyspace 0.
const MARKER_PLACE: [u8; 2] = [ESCAPE, 0];

/// Where the default keyspace lies.
const ALONE: u8 = 0;
/// Alone still: everybody is kept out.
const MOVING: u8 = 1;
const BESIDE: u8 = 2;
/// Beside others, unless those cannot be named: everybody is kept out.
const NAMING: u8 = 3;

/// The number of the next opening of a database.
static OPENINGS: AtomicU64 = AtomicU64::new(0);

/// Keyspaces that are open, by name.
type Open = HashMap<String, Weak<OpenKeyspace>>;

#[derive(Debug)]
pub(in crate::db) struct Catalog {
    /// Tells the keyspaces of this opening from those of others.
    pub owner: u64,
    dir: PathBuf,
    /// Why it is not known whether there are keyspaces, if it is not. Then keys that begin with byte 255 are refused.
    unreadable: Option<Error>,
    default: AtomicU8,
    /// The version that the marker has, or gets next.
    version: AtomicU8,
    /// Whether only something else than the marker has told that there are keyspaces.
    is_marker_lost: bool,
    may_have_ranges: AtomicBool,
    /// Whether both the marker and the file say that there may be range tombstones.
    has_ranges: AtomicBool,
    moving: RwLock<()>,
    changing: Mutex<()>,
    /// Locked for moments, by whoever has locked `changing` or only looks.
    open: Mutex<Open>,
    /// The merge operators that were given since the opening and are not built in, by the numbers of their keyspaces.
    pub(super) operators: Mutex<HashMap<u32, MergeOperator>>,
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
    pub fn open(engine: &dyn Engine, core: &Core) -> Result<Catalog> {
        let dir = &core.dir;
        // Each says so alone, should damage have taken the other.
        let places = [MARKER_PLACE.to_vec(), CATALOGUE.encode(NEXT).into_owned()];
        let (mut found, mut unreadable, mut has_marker) = (None, None, false);
        for place in places {
            let version = match engine.get(&place, None) {
                Ok(found) => found.as_deref().and_then(records::version_of),
                // What else there is can be read, and a check tells what is damaged.
                Err(e) if e.kind() == ErrorKind::Corruption => {
                    unreadable = Some(e);
                    continue;
                }
                Err(e) => return Err(e),
            };
            match version {
                Some(version @ VERSION..=LATEST) => {
                    found = found.max(Some(version));
                    has_marker |= place == MARKER_PLACE;
                }
                Some(version) => {
                    let found = format!("version {version} of the catalogue of keyspaces");
                    return Err(Error::other_version(dir, found, LATEST.to_string()));
                }
                None => {}
            }
        }
        let has_file = ranges_file::is_there(core)?;
        // Without the marker the file counts if there may be a catalogue.
        let is_beside =
            found.is_some() || has_file && (unreadable.is_some() || range_delete::are_noted(engine, true)?);
        let unreadable = unreadable.filter(|_| !is_beside);
        let default = AtomicU8::new(if is_beside { BESIDE } else { ALONE });
        let is_marked = found >= Some(VERSION_WITH_RANGES);
        let may_have_ranges = is_beside
            && (has_file
                || found == Some(VERSION_WITH_RANGES)
                || is_marked && range_delete::are_noted(engine, false)?);
        let least = if may_have_ranges { VERSION_WITH_RANGES } else { VERSION };
        let version = AtomicU8::new(found.unwrap_or(VERSION).max(least));
        if is_beside {
            core.deadlines.begin(0);
        }
        core.filters.set_beside(is_beside);
        let has_ranges = AtomicBool::new(is_marked && has_file);
        let (moving, changing, open) = (RwLock::new(()), Mutex::default(), Mutex::default());
        let owner = OPENINGS.fetch_add(1, Ordering::Relaxed);
        Ok(Catalog {
            owner,
            dir: dir.to_path_buf(),
            unreadable,
            default,
            version,
            is_marker_lost: is_beside && !has_marker,
            may_have_ranges: AtomicBool::new(may_have_ranges),
            has_ranges,
            moving,
            changing,
            open,
            operators: Mutex::default(),
        })
    }

    /// Where the default keyspace lies: exactly, if `moving` is held.
    pub fn default_space(&self) -> Space {
        space_of(self.default.load(Ordering::Acquire))
    }

    /// The place of a key of the default keyspace.
    #[inline]
    pub fn place<'a>(&'a self, key: &'a [u8]) -> Result<Placed<'a>> {
        if !is_high(key) {
            return Ok(Placed { place: Space::Alone.place(key)?, _stays: None });
        }
        self.check_readable()?;
        let stays = self.stay();
        Ok(Placed { place: self.default_space().place(key)?, _stays: Some(stays) })
    }

    /// # Errors
    ///
    /// What keeps it from being known whether there are keyspaces.
    pub fn check_readable(&self) -> Result<()> {
        self.unreadable.clone().map_or(Ok(()), Err)
    }

    /// Keeps the default keyspace where it lies.
    pub fn stay(&self) -> RwLockReadGuard<'_, ()> {
        self.moving.read()
    }

    /// What `take` takes, and where the default keyspace lies at that moment.
    pub fn at_one_moment<T>(&self, take: impl Fn() -> T) -> (T, Space) {
        let before = self.default.load(Ordering::Acquire);
        if before == ALONE || before == BESIDE {
            let taken = take();
            if self.default.load(Ordering::Acquire) == before {
                return (taken, space_of(before));
            }
        }
        let _stays = self.stay();
        (take(), self.default_space())
    }

    pub fn is_marker_lost(&self) -> bool {
        self.is_marker_lost
    }

    /// Whether there may be range tombstones, as far as is known.
    pub fn may_have_ranges(&self) -> bool {
        self.may_have_ranges.load(Ordering::Acquire)
    }

    /// Whether some keyspace may have settings of tables.
    pub(super) fn may_have_tables(&self) -> bool {
        self.version.load(Ordering::Acquire) >= VERSION_WITH_TABLES
    }

    /// Whether some keyspace may have operands.
    pub(super) fn may_have_operands(&self) -> bool {
        self.version.load(Ordering::Acquire) >= VERSION_WITH_OPERANDS
    }

    /// There may be range tombstones: the marker that is written next says so.
    pub fn note_ranges(&self) {
        self.may_have_ranges.store(true, Ordering::Release);
        self.note_version(VERSION_WITH_RANGES);
    }

    /// There is something that needs a marker of version `least` at least: the one that is written next has it.
    pub fn note_version(&self, least: u8) {
        self.version.fetch_max(least, Ordering::AcqRel);
    }

    /// Keeps the keyspaces that there are from being changed.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        self.changing.lock()
    }

    /// What was done to each keyspace that is open.
    pub fn stats_of_open(&self) -> BTreeMap<String, KeyspaceStats> {
        let open: Vec<_> = self.open.lock().values().filter_map(Weak::upgrade).collect();
        open.iter().map(|keyspace| (keyspace.name.clone(), keyspace.counts.figures())).collect()
    }

    /// Keyspace `name`, if it is open.
    pub(super) fn opened(&self, name: &str) -> Option<Arc<OpenKeyspace>> {
        self.open.lock().get(name).and_then(Weak::upgrade)
    }

    /// Keyspace `keyspace` is open. `changing` is locked.
    pub(super) fn note_opened(&self, keyspace: &Arc<OpenKeyspace>) {
        let mut open = self.open.lock();
        if open.len() == open.capacity() {
            // Before it grows: each one is looked at once for as many that come.
            open.retain(|_, keyspace| keyspace.strong_count() > 0);
        }
        open.insert(keyspace.name.clone(), Arc::downgrade(keyspace));
    }

    /// Keyspace `name` is not open any more. `changing` is locked.
    pub(super) fn close(&self, name: &str) {
        self.open.lock().remove(name);
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

    /// Keeps everybody from keys that begin with byte 255.
    pub(super) fn keep_out(&self) -> RwLockWriteGuard<'_, ()> {
        self.moving.write()
    }

    /// Whether the default keyspace lies beside others, and will do so as long as the database is open.
    pub(super) fn is_beside(&self) -> bool {
        self.default.load(Ordering::Acquire) == BESIDE
    }

    /// Whether the default keyspace lies beside others. Everybody else is kept out.
    pub(super) fn set_beside(&self, is_beside: bool) {
        self.default.store(if is_beside { BESIDE } else { ALONE }, Ordering::Release);
    }

    /// The default keyspace lies beside others for the caller, who keeps everybody else out and tells then whether it
    /// [does](Self::set_beside).
    pub(super) fn set_naming(&self) {
        self.default.store(NAMING, Ordering::Release);
    }

    /// The keys of the default keyspace move: the same until somebody tells where they lie.
    pub(super) fn set_moving(&self) {
        self.default.store(MOVING, Ordering::Release);
    }

    /// Sets the marker, to be of version `least` at least. `changing` is locked.
    pub(super) fn set_marker(&self, batch: &mut WriteBatch, least: u8) {
        let value = records::marker(self.version.load(Ordering::Relaxed).max(least));
        batch.push(Op { kind: Kind::Put, key: &MARKER_PLACE, value: &value });
    }

    /// A record that is not what it should be.
    pub(in crate::db) fn damaged(&self, what: &str, found: &[u8]) -> Error {
        Error::Corruption {
            file: self.dir.clone(),
            offset: 0,
            expected: format!("{what} in the catalogue of keyspaces"),
            found: found[..found.len().min(32)].escape_ascii().to_string(),
        }
    }
}

impl Store {
    /// Whether the marker is stored. Where nobody can tell nothing is written any more: it might go to places where
    /// the next opening does not look for it.
    pub(super) fn has_marker(&self) -> bool {
        match self.engine.get(&MARKER_PLACE, None) {
            Ok(marker) => marker.is_some_and(|value| records::version_of(&value).is_some()),
            Err(e) => {
                self.core.health.fail(Error::Poisoned { cause: Arc::new(e) });
                false
            }
        }
    }
}

/// Where the default keyspace lies in a state of it.
fn space_of(default: u8) -> Space {
    match default {
        BESIDE | NAMING => Space::Default,
        _ => Space::Alone,
    }
}

/// Whether this key of the default keyspace lies where the catalogue does.
pub(super) fn is_in_catalogue(key: &[u8]) -> bool {
    key.starts_with(&MARKER_PLACE)
}

/// The place of the record that names a keyspace.
pub(in crate::db) fn place_of(name: &str) -> Vec<u8> {
    CATALOGUE.encode(&named(name)).into_owned()
}

/// Whether such a record is that of a keyspace with this number.
pub(in crate::db) fn is_of(record: Option<&[u8]>, number: u32) -> bool {
    record.and_then(Named::decode).is_some_and(|named| named.number == number)
}

impl Db {
    /// Writes what is known of keyspaces by their names, and the number of the next one if that changes. `changing` is
    /// locked.
    pub(super) fn name_keyspaces(&self, named_now: &[(String, Named)], next: Option<u32>) -> Result<()> {
        let mut batch = WriteBatch::new();
        for (name, record) in named_now {
            let place = CATALOGUE.place(&named(name))?.into_owned();
            batch.push(Op { kind: Kind::Put, key: &place, value: &record.encode() });
        }
        let least = named_now.iter().map(|(_, record)| record.version()).max().unwrap_or(VERSION);
        self.inner.catalog.set_marker(&mut batch, least);
        if let Some(next) = next {
            let value = records::of_numbers(&[next]);
            batch.push(Op { kind: Kind::Put, key: &CATALOGUE.place(NEXT)?, value: &value });
        }
        self.write_placed(batch, WriteOptions::default())?;
        self.inner.catalog.note_version(least);
        Ok(())
    }

    /// Makes the catalogue, if there is none, and has the marker say that it may have range tombstones.
    pub(in crate::db) fn make_catalogue_for_ranges(&self) -> Result<()> {
        let catalog = &self.inner.catalog;
        catalog.check_readable()?;
        if catalog.has_ranges.load(Ordering::Acquire) {
            return Ok(());
        }
        let _changing = catalog.hold();
        if catalog.has_ranges.load(Ordering::Acquire) {
            return Ok(());
        }
        self.make_room_for_keyspaces()?;
        catalog.note_ranges();
        let mut batch = WriteBatch::new();
        catalog.set_marker(&mut batch, VERSION);
        batch.counts_as_deletion = true;
        // Before the file, which says that the marker is there.
        self.write_placed(batch, WriteOptions::SYNC)?;
        ranges_file::make(&self.inner.core)?;
        catalog.has_ranges.store(true, Ordering::Release);
        Ok(())
    }
}
