//! Bringing back all that is not itself damaged.
//!
//! The manifest says little, and is made anew from what the command says where it cannot be read. If everything in the
//! pool is sound that is all. Else what the index still leads to is gathered, and after it what else is in the pool and
//! is a record; then the pool is made anew with it. What of a deletion or an overwritten value has not been freed yet
//! cannot be told from what is valid where the index says nothing: the report says so.
//!
//! What is gathered goes through tables, sorted, so that it need not fit into memory. There a version has its number with
//! a rank above it, by which what is told for certain stands before what is merely found.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_index::ScanBatch;
use terrace_pmem::{CLOSED_WITH, Opened, Pool, PoolOptions};
use terrace_table::{Kind, TableMeta, TableOptions};

use super::index::KeyIndex;
use super::open;
use super::undo;
use super::{PmStore, check};
use crate::batch::Op;
use crate::core::Core;
use crate::core::engine::Engine;
use crate::core::request::Condition;
use crate::manifest::{Identity, Manifest, State};
use crate::pool::{self, MEDIA};
use crate::salvage::{Runs, Salvage, each_newest};
use crate::versions::{LINKED_KIND, RECORD_KIND, Record, RecordRef};

/// A number, and a value or none for a deletion.
type Found = (u64, Option<Vec<u8>>);

/// Bits of a version's number; its rank stands above them.
const NUMBER_BITS: u32 = 48;

/// How certain it is that a version is a key's newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// It is there.
    Found,
    /// The index leads to it.
    Named,
    /// It was so before a group that was cut short.
    Undone,
}

/// Repairs the database in the view that `base` works in.
pub(crate) fn repair<I: KeyIndex>(mut base: Salvage) -> Result<Salvage> {
    let core = base.core.clone();
    let (known, mut identity) = base.begin(I::KIND)?;
    identity.options.entry(MEDIA.into()).or_insert_with(|| "memory".into());
    let mut state = Manifest::state_of(identity.clone(), &[], 0)?;
    // With 1 it would be taken for one that was begun and not finished, and made anew.
    state.next_file = state.next_file.max(base.next).max(2);
    let manifest = || Manifest::rebuild(core.fs.clone(), &core.dir, state.clone());
    let (path, media) = pool::request(&core, &identity)?;
    let options = pool::pool_options(&core, media);
    let owner = base.sought(&identity);
    let opened = match core.env.pm.exists(&path)? {
        true => pool::open_to_repair(&core, &path, &options, owner)?,
        false => Err(Error::corruption(&path, 0, "the database's pool", "no such file")),
    };
    let opened = opened.and_then(refuse_torn);
    let problem = match &opened {
        Ok(pool) => match prove_as_it_is::<I>(pool, &identity, known.as_ref(), manifest()?, &mut base)? {
            Ok(()) => {
                // What the proof has noted of the pool is true of the copy that it saw.
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
    let tables = match &opened {
        Ok(pool) => {
            base.did(format!("{problem}: making the pool anew from what is sound"));
            base.pool_aside = Some(problem);
            gather::<I>(pool, &mut base)?
        }
        Err(_) => {
            base.lost(format!("{problem}: everything"));
            base.pool_aside = Some(problem);
            Vec::new()
        }
    };
    // It is locked as long as it is open.
    drop(opened);
    renew::<I>(&path, &identity, manifest()?, &tables, &mut base)?;
    Ok(base)
}

/// How many keys there are in a pool that is sound and may stay, or why it may not. An older copy may.
fn prove_as_it_is<I: KeyIndex>(
    pool: &Pool,
    identity: &Identity,
    known: Option<&State>,
    manifest: Manifest,
    base: &mut Salvage,
) -> Result<std::result::Result<(), String>> {
    let altered = pool.altered().first().map(ToString::to_string);
    let doubts = pool::take_as_it_is(pool, known.and_then(|state| state.pool));
    doubts.into_iter().for_each(|doubt| base.lost(doubt));
    if pool::owner_in(pool) != Some((I::KIND, identity.owner())) {
        return Ok(Err("the pool does not say whose it is".to_string()));
    }
    match altered {
        Some(problem) => Ok(Err(problem)),
        None => attach::<I>(&base.core, manifest, pool.clone()),
    }
}

/// What was expected of a pool that may be torn.
const NOT_TORN: &str = "a pool that nothing can have torn";

/// What a torn pool holds may be of any time: it cannot be proved.
fn refuse_torn(pool: Pool) -> Result<Pool> {
    match pool.opened() {
        Opened::Torn => Err(pool.corruption(0, NOT_TORN, "one that may be torn")),
        _ => Ok(pool),
    }
}

/// Whether what is sound in a pool that this is wrong with need not be what was written last.
fn may_be_older(error: &Error) -> bool {
    matches!(error, Error::Corruption { expected, .. } if [NOT_TORN, CLOSED_WITH].contains(&&**expected))
}

/// Opens what can be opened of a damaged pool.
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

/// Opens the pool, as it is seen, and proves it; how many keys there are, or what is wrong.
fn attach<I: KeyIndex>(
    core: &Arc<Core>,
    manifest: Manifest,
    pool: Pool,
) -> Result<std::result::Result<(), String>> {
    let proved = open::assemble::<I>(core.clone(), manifest, pool, open::Found::Doubtful).and_then(|store| {
        let outcome = prove(&store);
        store.close()?;
        outcome
    });
    match proved {
        Err(e) if pool::is_unusable(&e) && !e.is_of_another_version() => Ok(Err(e.to_string())),
        other => other,
    }
}

/// What is wrong with an open database, if something is. What a crash has left is reclaimed only once all that
/// leads to something is sound.
fn prove<I: KeyIndex>(store: &PmStore<I>) -> Result<std::result::Result<(), String>> {
    let report = check::prove(store)?;
    if let Some(problem) = report.problems.first() {
        return Ok(Err(problem.clone()));
    }
    store.reclaim()?;
    let report = store.check()?;
    Ok(report.problems.first().map_or(Ok(()), |problem| Err(problem.clone())))
}

/// Puts everything that can still be read into tables.
fn gather<I: KeyIndex>(pool: &Pool, base: &mut Salvage) -> Result<Vec<TableMeta>> {
    let (core, options) = (base.core.clone(), TableOptions::default());
    let before = before_the_group::<I>(pool, base);
    let mut next = base.next;
    let mut runs = Runs::new(&core, &options, &mut next);
    let whole = match I::open_to_salvage(pool, &core) {
        Ok(index) => gather_named(pool, &index, &mut runs, base)?,
        Err(e) => {
            base.lost(format!("{e}: the index"));
            false
        }
    };
    if !whole {
        gather_rest(pool, &mut runs)?;
        base.lost("which of the keys that the index does not lead to had been deleted, or had a newer value");
    }
    for (key, before) in before {
        let (number, value) = before.unwrap_or_default();
        take(&mut runs, &key, number, value, Rank::Undone)?;
    }
    let made = runs.finish()?;
    base.next = next;
    Ok(made)
}

fn take(runs: &mut Runs<'_>, key: &[u8], number: u64, value: Option<Vec<u8>>, rank: Rank) -> Result<()> {
    let kind = if value.is_some() { Kind::Put } else { Kind::Delete };
    let seq = number | (rank as u64) << NUMBER_BITS;
    runs.add(key, seq, kind, Bytes::from(value.unwrap_or_default()))
}

/// What the keys of a group that was cut short had before it.
fn before_the_group<I: KeyIndex>(pool: &Pool, base: &mut Salvage) -> BTreeMap<Vec<u8>, Option<Found>> {
    let header = pool.root(I::HEADER_ROOT);
    let changes = match header.and_then(|at| at.map_or(Ok(Vec::new()), |at| undo::pending(pool, at))) {
        Ok(changes) => changes,
        Err(e) => {
            base.lost(format!("{e}: whether a group of batches was cut short, of which a part may be there"));
            return BTreeMap::new();
        }
    };
    let mut before = BTreeMap::new();
    for change in changes {
        // SAFETY: nobody else uses the pool.
        let load = |bits| RecordRef::decode(bits).and_then(|word| unsafe { Record::load(pool, word) }.ok());
        let (new, old) = (load(change.new), load(change.old));
        match (old, new) {
            (Some(old), _) => drop(before.insert(old.key.to_vec(), Some(version(&old)))),
            (None, Some(new)) if change.old == 0 => drop(before.insert(new.key.to_vec(), None)),
            (None, new) => {
                let key = new.map(|new| new.key.to_vec());
                let named = key.as_ref().map_or("a key".into(), |key| key.escape_ascii().to_string());
                base.lost(format!("the value that {named} had before a group of batches that was cut short"));
                before.extend(key.map(|key| (key, None)));
            }
        }
    }
    before
}

/// What the index leads to; whether it could be read to its end.
fn gather_named<I: KeyIndex>(
    pool: &Pool,
    index: &I,
    runs: &mut Runs<'_>,
    base: &mut Salvage,
) -> Result<bool> {
    let (mut cursor, mut batch) = (I::Cursor::default(), ScanBatch::new());
    loop {
        batch.clear();
        let more = index.walk(&mut cursor, 1024, &mut batch);
        for (key, bits) in batch.iter() {
            let Some(word) = RecordRef::decode(bits) else {
                base.lost(format!("the value of {}: the index leads nowhere", key.escape_ascii()));
                continue;
            };
            // SAFETY: nobody else uses the pool.
            match unsafe { Record::load(pool, word) }.and_then(|record| record.of(pool, key)) {
                Ok(record) => {
                    let (number, value) = version(&record);
                    take(runs, key, number, value, Rank::Named)?;
                }
                Err(e) => base.lost(format!("{e}: the value of {}", key.escape_ascii())),
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

/// All records, whether the index leads to them or not.
fn gather_rest(pool: &Pool, runs: &mut Runs<'_>) -> Result<()> {
    for (kind, linked) in [(RECORD_KIND, false), (LINKED_KIND, true)] {
        for (at, _) in pool.slots(kind) {
            let words = [false, true].map(|tombstone| RecordRef::new(at, tombstone, linked));
            // SAFETY: nobody else uses the pool.
            let record = words.into_iter().find_map(|word| unsafe { Record::load(pool, word) }.ok());
            if let Some(record) = record {
                let (number, value) = version(&record);
                take(runs, record.key, number, value, Rank::Found)?;
            }
        }
    }
    Ok(())
}

fn version(record: &Record<'_>) -> Found {
    (record.number, (!record.word.is_tombstone()).then(|| record.value.to_vec()))
}

/// Makes the pool anew with what was gathered, and compares it with that.
fn renew<I: KeyIndex>(
    path: &Path,
    identity: &Identity,
    manifest: Manifest,
    tables: &[TableMeta],
    base: &mut Salvage,
) -> Result<()> {
    let core = base.core.clone();
    let (_, media) = pool::request(&core, identity)?;
    core.env.pm.remove(path)?;
    let pool = core.env.pm.create(path, &pool::pool_options(&core, media))?;
    open::fill_pool::<I>(&core, &pool)?;
    pool::set_owner(&pool, identity)?;
    let store: Arc<PmStore<I>> = open::assemble(core.clone(), manifest, pool, open::Found::New)?;
    let (mut keys, mut merely_found) = (0, 0);
    each_newest(&core, tables, &mut |key, seq, kind, value| {
        if kind == Kind::Put {
            store.write_single(&Op { kind, key, value }, Condition::None)?;
            keys += 1;
            merely_found += u64::from(seq >> NUMBER_BITS == Rank::Found as u64);
        }
        Ok(())
    })?;
    compare(&core, &*store, tables)?;
    for meta in tables {
        core.fs().remove(&core.files.table(meta.number))?;
    }
    if merely_found > 0 {
        base.did(format!("found {merely_found} keys in records that the index does not lead to"));
    }
    base.did(format!("made the pool anew with {keys} keys"));
    store.close()
}

/// Every key that was gathered must be in the new pool with its value, and none that was not.
fn compare<I: KeyIndex>(core: &Core, store: &PmStore<I>, tables: &[TableMeta]) -> Result<()> {
    let mut keys = 0;
    each_newest(core, tables, &mut |key, _, kind, value| {
        let wanted = (kind == Kind::Put).then_some(value);
        keys += u64::from(wanted.is_some());
        match store.get(key, None)?.as_deref() == wanted {
            true => Ok(()),
            false => {
                Err(Error::corruption(&core.dir, 0, "what was gathered in the new pool", "something else"))
            }
        }
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
