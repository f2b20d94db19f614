//! Recovers everything that is not itself damaged.
//!
//! The manifest says little; if it cannot be read, it is made again from the command's arguments. If
//! everything in the pool is sound, that is all. Otherwise the repair gathers what the index still leads to,
//! and then every other record in the pool; then it makes the pool again with these. Where the index says
//! nothing, a deletion or overwritten value that has not been freed yet looks like a valid one: the report
//! says so.
//!
//! Tables hold what is gathered (`gathered`).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use terrace_base::{Error, Result};
use terrace_index::{PointIndex, ScanBatch};
use terrace_pmem::{CLOSED_WITH, Opened, Pool, PoolOptions};
use terrace_table::{Kind, TableMeta, TableOptions};

use super::elsewhere::{Elsewhere, Place, PlaceOf, Salvaged, VersionRef};
use super::gathered::{Content, Rank, each_content, highest_number, is_merely_found, number_of, take};
use super::index::{KeyIndex, PmEngine, PositionOf};
use super::open;
use super::undo;
use super::{PmStore, check};
use crate::batch::Op;
use crate::core::Core;
use crate::core::engine::Engine;
use crate::manifest::{Identity, Manifest, State};
use crate::pool::{self, MEDIA, StartState};
use crate::salvage::{Salvage, TableSorter};
use crate::versions::{LINKED_KIND, RECORD_KIND, Record};

/// Keys whose words lead to nothing sound, with these words and reasons.
type Missed = BTreeMap<Vec<u8>, (u64, String)>;

/// A number, and the content found.
type FoundVersion = (u64, Content);

/// Repairs the database in the view that `base` works in.
pub(crate) fn repair<E: PmEngine>(mut base: Salvage) -> Result<Salvage> {
    let core = base.core.clone();
    let (known, mut identity) = base.begin(E::KIND)?;
    identity.options.entry(MEDIA.into()).or_insert_with(|| "memory".into());
    let elsewhere = E::Home::salvage(&mut base, known.as_ref(), &mut identity)?;
    let mut state = Manifest::state_of(identity.clone(), &elsewhere.tables, 0)?;
    state.next_file = state.next_file.max(base.next);
    state.stamp = elsewhere.stamp;
    let manifest = || Manifest::rebuild(core.fs.clone(), &core.dir, state.clone());
    let (path, media) = pool::request(&core, &identity)?;
    let options = pool::pool_options(&core, media);
    let owner = base.sought(&identity);
    let opened = match core.env.pm.exists(&path)? {
        true => pool::open_to_repair(&core, &path, &options, owner.clone())?,
        false => Err(Error::corruption(&path, 0, "the database's pool", "no such file")),
    };
    let opened = opened.and_then(refuse_torn);
    let is_being_created = known.as_ref().is_some_and(State::is_being_created);
    if let Ok(pool) = &opened
        && is_being_created
        && matches!(open::has_numbers::<E>(pool), Ok(false))
    {
        base.did("its creation was cut short: nothing was in it yet");
        drop(opened);
        base.pool_aside = Some("it was being made".into());
        renew::<E>(&path, &identity, manifest()?, &[], 0, &mut base)?;
        return Ok(base);
    }
    let problem = match &opened {
        Ok(pool) => match prove_as_it_is::<E>(pool, &identity, known.as_ref(), manifest()?, &mut base)? {
            Ok(()) => {
                // What the proof has noted about the pool holds for the copy that it saw.
                manifest()?;
                base.did("the pool is sound");
                return Ok(base);
            }
            Err(problem) => problem,
        },
        Err(e) => {
            if may_be_older(e) {
                base.lost(format!("{e}: what was written last"));
            }
            e.to_string()
        }
    };
    let opened = opened.or_else(|_| salvage_pool(&core, &path, &options, owner)?);
    match &opened {
        Ok(_) => base.did(format!("{problem}: making the pool anew from what is sound")),
        Err(_) => base.lost(format!("{problem}: everything in it")),
    }
    base.pool_aside = Some(problem);
    let home = E::open_home(&core, &Arc::new(manifest()?), None)?;
    let (tables, highest) = gather::<E>(opened.as_ref().ok(), &home, &elsewhere, &mut base)?;
    drop(home);
    // It is locked as long as it is open.
    drop(opened);
    renew::<E>(&path, &identity, manifest()?, &tables, highest, &mut base)?;
    Ok(base)
}

/// The number of keys in a pool that is sound and may stay, or the reason why it may not. An older copy may
/// stay.
fn prove_as_it_is<E: PmEngine>(
    pool: &Pool,
    identity: &Identity,
    known: Option<&State>,
    manifest: Manifest,
    base: &mut Salvage,
) -> Result<std::result::Result<(), String>> {
    let altered = pool.altered().first().map(ToString::to_string);
    let doubts = pool::take_as_it_is(pool, known.and_then(|state| state.pool));
    doubts.into_iter().for_each(|doubt| base.lost(doubt));
    if pool::owner_in(pool) != Some((E::KIND, identity.owner())) {
        return Ok(Err("the pool does not say whose it is".to_string()));
    }
    match altered {
        Some(problem) => Ok(Err(problem)),
        None => attach::<E>(&base.core, manifest, pool.clone()),
    }
}

/// The expected state of a pool that may be torn.
const NOT_TORN: &str = "a pool that nothing can have torn";

/// A torn pool's contents may date from any time: it cannot be proved.
fn refuse_torn(pool: Pool) -> Result<Pool> {
    match pool.opened() {
        Opened::Torn => Err(pool.corruption(0, NOT_TORN, "one that may be torn")),
        _ => Ok(pool),
    }
}

/// Whether this damage means that the pool may be an older copy.
fn may_be_older(error: &Error) -> bool {
    matches!(error, Error::Corruption { expected, .. } if [NOT_TORN, CLOSED_WITH].contains(&&**expected))
}

/// Opens the usable parts of a damaged pool.
fn salvage_pool(
    core: &Core,
    path: &Path,
    options: &PoolOptions,
    owner: pool::Sought<'_>,
) -> Result<Result<Pool>> {
    if !core.env.pm.exists(path)? {
        return Ok(Err(Error::io(path, "open", std::io::ErrorKind::NotFound.into())));
    }
    pool::open_to_repair(core, path, &PoolOptions { salvage: true, ..options.clone() }, owner)
}

/// Opens the pool as it is seen and proves it; returns the number of keys, or what is wrong.
fn attach<E: PmEngine>(
    core: &Arc<Core>,
    manifest: Manifest,
    pool: Pool,
) -> Result<std::result::Result<(), String>> {
    let proved = open::assemble::<E>(core.clone(), manifest, pool, None).and_then(|store| {
        let outcome = prove(&store);
        store.close()?;
        outcome
    });
    match proved {
        Err(e) if pool::is_unusable(&e) && !e.is_of_another_version() => Ok(Err(e.to_string())),
        other => other,
    }
}

/// Proves an open database; returns what is wrong, if anything is. The remains of a crash are reclaimed only
/// once everything that leads to something is sound.
fn prove<E: PmEngine>(store: &PmStore<E>) -> Result<std::result::Result<(), String>> {
    let report = check::prove(store)?;
    if let Some(problem) = report.problems.first() {
        return Ok(Err(problem.clone()));
    }
    store.reclaim()?;
    let report = store.check()?;
    Ok(report.problems.first().map_or(Ok(()), |problem| Err(problem.clone())))
}

/// Puts everything that can still be read into tables; returns these, and the highest number that anything
/// there can have. Versions found elsewhere that nothing names stay there: a later repair must not take them
/// for newer than what is written until then.
fn gather<E: PmEngine>(
    pool: Option<&Pool>,
    home: &E::Home,
    elsewhere: &Salvaged,
    base: &mut Salvage,
) -> Result<(Vec<TableMeta>, u64)> {
    let (core, options) = (base.core.clone(), TableOptions::default());
    let before = pool.map_or_else(BTreeMap::new, |pool| before_the_group::<E>(pool, home, base));
    let mut next = base.next;
    let mut runs = TableSorter::new(&core, &options, &mut next);
    let index = pool.map(|pool| E::open_to_salvage(pool, &core));
    let mut missed = Missed::new();
    let whole = match (pool, index) {
        (Some(pool), Some(Ok(index))) => gather_named::<E>(pool, home, &index, &mut runs, &mut missed, base)?,
        (_, Some(Err(e))) => {
            base.lost(format!("{e}: the index"));
            false
        }
        _ => false,
    };
    if !whole && let Some(pool) = pool {
        gather_rest::<E>(pool, home, &mut runs)?;
    }
    let mark = pool.and_then(|pool| open::read_header::<E>(pool).ok()).map(|(_, mark)| mark);
    let mut highest = mark.unwrap_or(0);
    if !whole || !missed.is_empty() || mark.is_none() {
        home.gather(&mut |key, number, word| {
            highest = highest.max(number);
            // A version that the index does not lead to counts only if the index is silent there, or if it is
            // where the version that the index led to lies now.
            if !whole && !missed.contains_key(key) {
                return take(&mut runs, key, number, &Content::At(word), Rank::Found);
            }
            let table = |bits| PlaceOf::<E>::from_bits(bits).and_then(PlaceOf::<E>::table);
            let was_in = table(word).and_then(|number| elsewhere.salvaged.get(&number).copied());
            match missed.get(key) {
                Some((bits, _)) if was_in.is_some() && table(*bits) == was_in => {
                    missed.remove(key);
                    take(&mut runs, key, number, &Content::At(word), Rank::Named)
                }
                _ => Ok(()),
            }
        })?;
    }
    for (key, (_, why)) in missed {
        base.lost(format!("{why}: the value of {}", key.escape_ascii()));
    }
    if !whole && (pool.is_some() || E::Home::NUMBERS_EACH) {
        base.lost("which of the keys that the index does not lead to had been deleted, or had a newer value");
    }
    for (key, (number, content)) in before {
        take(&mut runs, &key, number, &content, Rank::Undone)?;
    }
    let made = runs.finish()?;
    base.next = next;
    Ok((made, highest))
}

/// The versions that the keys of a group that was cut short had before it.
fn before_the_group<E: PmEngine>(
    pool: &Pool,
    home: &E::Home,
    base: &mut Salvage,
) -> BTreeMap<Vec<u8>, FoundVersion> {
    let header = pool.root(E::HEADER_ROOT);
    let changes = match header.and_then(|at| at.map_or(Ok(Vec::new()), |at| undo::pending(pool, at))) {
        Ok(changes) => changes,
        Err(e) => {
            base.lost(format!("{e}: whether a group of batches was cut short, of which a part may be there"));
            return BTreeMap::new();
        }
    };
    let mut before = BTreeMap::new();
    for undo in changes {
        let undo = match undo {
            Ok(undo) => undo,
            Err(e) => {
                base.lost(format!(
                    "{e}: the value that a key had before a group of batches that was cut short"
                ));
                continue;
            }
        };
        let old = match undo.change.old {
            0 => Ok((0, Content::Nothing)),
            // It is read, since a place may be damaged, and its word does not tell its number.
            old => found_at::<E>(pool, home, &undo.key, old),
        };
        if let Err(e) = &old {
            let key = undo.key.escape_ascii();
            base.lost(format!("{e}: the value that {key} had before a group of batches that was cut short"));
        }
        before.insert(undo.key.to_vec(), old.unwrap_or_default());
    }
    before
}

/// Gathers what the index leads to; returns whether it could be read to its end and nothing was missing.
fn gather_named<E: PmEngine>(
    pool: &Pool,
    home: &E::Home,
    index: &E::Index,
    runs: &mut TableSorter<'_>,
    missed: &mut Missed,
    base: &mut Salvage,
) -> Result<bool> {
    let (mut cursor, mut batch) = (PositionOf::<E>::default(), ScanBatch::new());
    loop {
        batch.clear();
        let more = index.walk(&mut cursor, 1024, &mut batch);
        for (key, bits) in batch.iter() {
            match found_at::<E>(pool, home, key, bits) {
                Ok((number, content)) => take(runs, key, number, &content, Rank::Named)?,
                Err(e) => drop(missed.insert(key.to_vec(), (bits, e.to_string()))),
            }
        }
        match more {
            Ok(true) => {}
            Ok(false) => return Ok(true),
            Err(e) => {
                base.lost(format!("{e}: a part of the index"));
                return Ok(false);
            }
        }
    }
}

/// The version of `key` whose word is `bits`.
fn found_at<E: PmEngine>(pool: &Pool, home: &E::Home, key: &[u8], bits: u64) -> Result<FoundVersion> {
    let at = |place: PlaceOf<E>| {
        let loaded = home.load(key, place)?.ok_or_else(|| home.lost(place))?;
        Ok((loaded.number, Content::At(place.bits())))
    };
    match VersionRef::<PlaceOf<E>>::decode(bits) {
        Some(VersionRef::Place(place)) => at(place),
        Some(VersionRef::Record(word)) => {
            // SAFETY: nobody else uses the pool.
            let record = unsafe { Record::load(pool, word) }?.of(pool, key)?;
            match record.place().and_then(PlaceOf::<E>::from_bits) {
                Some(place) => at(place),
                None => Ok(version(&record)),
            }
        }
        None => Err(pool.corruption(0, "the word of a version in the index", format!("{bits:#018x}"))),
    }
}

/// Gathers all records, whether the index leads to them or not. A record whose value lies elsewhere counts if
/// that value is there.
fn gather_rest<E: PmEngine>(pool: &Pool, home: &E::Home, runs: &mut TableSorter<'_>) -> Result<()> {
    for kind in [RECORD_KIND, LINKED_KIND] {
        for (at, _) in pool.slots(kind) {
            // SAFETY: nobody else uses the pool.
            let Some(record) = (unsafe { Record::at(pool, kind, at) }) else { continue };
            let (number, content) = version(&record);
            let is_there = match content {
                Content::At(word) => PlaceOf::<E>::from_bits(word)
                    .is_some_and(|place| matches!(home.load(record.key, place), Ok(Some(_)))),
                _ => true,
            };
            if is_there {
                take(runs, record.key, number, &content, Rank::Found)?;
            }
        }
    }
    Ok(())
}

fn version(record: &Record<'_>) -> FoundVersion {
    let content = match record.place() {
        Some(word) => Content::At(word),
        None if record.word.is_tombstone() => Content::Nothing,
        None => Content::Value(record.value.to_vec()),
    };
    (record.number, content)
}

/// Makes the pool again from what was gathered, and compares the two. Numbers continue after `highest`.
fn renew<E: PmEngine>(
    path: &Path,
    identity: &Identity,
    manifest: Manifest,
    tables: &[TableMeta],
    highest: u64,
    base: &mut Salvage,
) -> Result<()> {
    let core = base.core.clone();
    let (_, media) = pool::request(&core, identity)?;
    core.env.pm.remove(path)?;
    let pool = core.env.pm.create(path, &pool::pool_options(&core, media))?;
    let highest = highest_number(&core, tables)?.max(highest);
    open::fill_pool::<E>(&core, &pool, highest)?;
    pool::set_owner(&pool, identity)?;
    let store: Arc<PmStore<E>> = open::assemble(core.clone(), manifest, pool, Some(StartState::New))?;
    store.home.stay_as_it_is();
    store.jobs.closed_unless(refill(&store, tables, highest, base))?;
    store.close()
}

/// Fills an empty database with what was gathered, and removes the tables that held it.
fn refill<E: PmEngine>(
    store: &Arc<PmStore<E>>,
    tables: &[TableMeta],
    highest: u64,
    base: &mut Salvage,
) -> Result<()> {
    let core = &base.core.clone();
    let (mut keys, mut merely_found) = (0, 0);
    each_content(core, tables, &mut |key, seq, content| {
        match content {
            Content::Nothing => return Ok(()),
            Content::Value(value) => {
                let op = Op { kind: Kind::Put, key, value: &value };
                store.write_under(number_of(seq), &op)?;
            }
            Content::At(word) => drop(store.index.insert(key, word)?),
        }
        keys += 1;
        merely_found += u64::from(is_merely_found(seq));
        Ok(())
    })?;
    store.number_from(highest);
    compare(core, &**store, tables)?;
    for meta in tables {
        core.fs().remove(&core.files.table(meta.number))?;
    }
    if merely_found > 0 {
        base.did(format!("found {merely_found} keys in what the index does not lead to"));
    }
    base.did(format!("made the pool anew with {keys} keys"));
    Ok(())
}

/// The new pool must hold every gathered key with its value, and no other key.
fn compare<E: PmEngine>(core: &Core, store: &PmStore<E>, tables: &[TableMeta]) -> Result<()> {
    let mut keys = 0;
    let wrong = || Error::corruption(&core.dir, 0, "what was gathered in the new pool", "something else");
    each_content(core, tables, &mut |key, _, content| {
        keys += u64::from(content != Content::Nothing);
        let is_there = match content {
            Content::Nothing => store.get(key, None)?.is_none(),
            Content::Value(value) => store.get(key, None)?.as_deref() == Some(&value[..]),
            Content::At(word) => store.index.get(key)? == Some(word) && store.get(key, None)?.is_some(),
        };
        if is_there { Ok(()) } else { Err(wrong()) }
    })?;
    let found = store.index.len();
    if found != keys {
        return Err(Error::corruption(
            &core.dir,
            0,
            format!("{keys} keys in the new pool"),
            format!("{found}"),
        ));
    }
    Ok(())
}
