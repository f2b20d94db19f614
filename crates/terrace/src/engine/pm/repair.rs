//! Bringing back all that is not itself damaged.
//!
//! The manifest says little, and is made anew from what the command says where it cannot be read. If everything in the
//! pool is sound that is all. Else what the index still leads to is gathered, and after it what else is in the pool and
//! is a record; then the pool is made anew with it. What of a deletion or an overwritten value has not been freed yet
//! cannot be told from what is valid where the index says nothing: the report says so.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use terrace_base::{Error, Result};
use terrace_index::ScanBatch;
use terrace_pmem::{CLOSED_WITH, Opened, Pool, PoolOptions};
use terrace_table::TableOptions;

use super::index::KeyIndex;
use super::layout::{LINKED_KIND, RECORD_KIND, Word};
use super::open;
use super::record::Record;
use super::undo;
use super::{PmStore, check};
use crate::batch::Op;
use crate::db::commit::Condition;
use crate::db::core::Core;
use crate::db::report::RepairReport;
use crate::engine::Engine;
use crate::manifest::{Identity, Manifest};
use crate::pool;
use crate::salvage::Salvage;

/// A number, and a value or none for a deletion.
type Found = (u64, Option<Vec<u8>>);

/// Keys with what was newest of each.
type Gathered = BTreeMap<Vec<u8>, Found>;

/// Repairs the database in `core.dir`, which nobody has open.
pub(crate) fn repair<I: KeyIndex>(core: Arc<Core>) -> Result<RepairReport> {
    let mut base = Salvage::new(core.clone(), TableOptions::default());
    let known = base.begin()?;
    let is_known = known.is_some();
    let identity = known.as_ref().map(|state| state.identity.clone());
    let identity = identity.unwrap_or_else(|| pool::new_identity(&core.options, I::KIND));
    let mut state = Manifest::state_of(identity.clone(), &[], 0)?;
    // With 1 it would be taken for one that was begun and not finished, and made anew.
    state.next_file = state.next_file.max(base.next).max(2);
    let manifest = || Manifest::rebuild(core.fs.clone(), &core.dir, state.clone());
    let (path, media) = pool::request(&core, &identity)?;
    let options = pool::pool_options(&core, media);
    let owner = (&identity, is_known);
    let opened = match core.env.pm.exists(&path)? {
        true => pool::open_to_repair(&core, &path, &options, owner)?,
        false => Err(Error::corruption(&path, 0, "the database's pool", "no such file")),
    };
    let gathered = match opened.and_then(refuse_torn) {
        Ok(pool) => {
            let doubts = pool::take_as_it_is(&pool, known.as_ref().and_then(|state| state.pool));
            doubts.into_iter().for_each(|doubt| base.lost(doubt));
            let owned = match pool::set_owner(&pool, &identity) {
                Err(e) if pool::is_unusable(&e) => Err(e.to_string()),
                done => Ok(done?),
            };
            let proved = match owned {
                Ok(()) => attach::<I>(&core, manifest()?, pool.clone())?,
                Err(problem) => Err(problem),
            };
            match proved {
                Ok(keys) => {
                    base.report.keys = keys;
                    return Ok(base.report);
                }
                Err(problem) => {
                    base.did(format!("{problem}: making the pool anew from what is sound"));
                    gather::<I>(&core, &pool, &mut base)
                }
            }
        }
        Err(e) => match salvage_pool(&core, &path, &options, owner)? {
            Ok(pool) => {
                if may_be_older(&e) {
                    base.lost(format!("{e}: what was written last"));
                }
                base.did(format!("{e}: making the pool anew from what is sound"));
                gather::<I>(&core, &pool, &mut base)
            }
            Err(_) => {
                base.lost(format!("{e}: everything"));
                Gathered::new()
            }
        },
    };
    renew::<I>(&core, &path, &identity, manifest()?, gathered, &mut base)?;
    Ok(base.report)
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
    owner: (&Identity, bool),
) -> Result<Result<Pool>> {
    if !core.env.pm.exists(path)? {
        return Ok(Err(Error::io(path, "open", std::io::ErrorKind::NotFound.into())));
    }
    pool::open_to_repair(core, path, &PoolOptions { salvage: true, ..options.clone() }, owner)
}

/// Opens the pool and proves it; how many keys there are, or what is wrong.
fn attach<I: KeyIndex>(
    core: &Arc<Core>,
    manifest: Manifest,
    pool: Pool,
) -> Result<std::result::Result<u64, String>> {
    let proved = open::assemble::<I>(core.clone(), manifest, pool, open::Found::Doubtful).and_then(|store| {
        let outcome = prove(&store);
        store.close()?;
        outcome
    });
    match proved {
        Err(e) if pool::is_unusable(&e) && !pool::is_of_another_version(&e) => Ok(Err(e.to_string())),
        other => other,
    }
}

/// What is wrong with an open database, or how many keys it has. What a crash has left is reclaimed only once all that
/// leads to something is sound.
fn prove<I: KeyIndex>(store: &PmStore<I>) -> Result<std::result::Result<u64, String>> {
    let report = check::prove(store)?;
    if let Some(problem) = report.problems.first() {
        return Ok(Err(problem.clone()));
    }
    store.reclaim()?;
    let report = store.check()?;
    Ok(report.problems.first().map_or(Ok(report.keys), |problem| Err(problem.clone())))
}

/// Everything that can still be read, the index's word first.
fn gather<I: KeyIndex>(core: &Core, pool: &Pool, base: &mut Salvage) -> Gathered {
    let mut found = Gathered::new();
    let before = before_the_group::<I>(pool, base);
    let whole = match I::open_to_salvage(pool, core) {
        Ok(index) => gather_named(pool, &index, &mut found, base),
        Err(e) => {
            base.lost(format!("{e}: the index"));
            false
        }
    };
    if !whole {
        let before = found.len();
        gather_rest(pool, &mut found);
        base.did(format!(
            "found {} more keys in records that the index does not lead to",
            found.len() - before
        ));
        base.lost("which of those keys had been deleted, or had a newer value, shortly before the end");
    }
    for (key, before) in before {
        match before {
            Some(version) => drop(found.insert(key, version)),
            None => drop(found.remove(&key)),
        }
    }
    found
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
        let load = |bits| Word::decode(bits).and_then(|word| unsafe { Record::load(pool, word) }.ok());
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
fn gather_named<I: KeyIndex>(pool: &Pool, index: &I, found: &mut Gathered, base: &mut Salvage) -> bool {
    let (mut cursor, mut batch) = (I::Cursor::default(), ScanBatch::new());
    loop {
        batch.clear();
        let more = index.walk(&mut cursor, 1024, &mut batch);
        for (key, bits) in batch.iter() {
            let Some(word) = Word::decode(bits) else {
                base.lost(format!("the value of {}: the index leads nowhere", key.escape_ascii()));
                continue;
            };
            // SAFETY: nobody else uses the pool.
            match unsafe { Record::load(pool, word) }.and_then(|record| record.of(pool, key)) {
                Ok(record) => drop(found.insert(key.to_vec(), version(&record))),
                Err(e) => base.lost(format!("{e}: the value of {}", key.escape_ascii())),
            }
        }
        match more {
            Ok(true) => {}
            Ok(false) => return true,
            Err(e) => {
                base.lost(format!("{e}: a part of the index"));
                return false;
            }
        }
    }
}

/// Records whose keys the index did not lead to, the newest of each.
fn gather_rest(pool: &Pool, found: &mut Gathered) {
    let named: std::collections::BTreeSet<Vec<u8>> = found.keys().cloned().collect();
    for (kind, linked) in [(RECORD_KIND, false), (LINKED_KIND, true)] {
        for (at, _) in pool.slots(kind) {
            let words = [false, true].map(|tombstone| Word::new(at, tombstone, linked));
            // SAFETY: nobody else uses the pool.
            let record = words.into_iter().find_map(|word| unsafe { Record::load(pool, word) }.ok());
            let Some(record) = record.filter(|record| !named.contains(record.key)) else { continue };
            let newer = found.get(record.key).is_some_and(|(number, _)| *number > record.number);
            if !newer {
                found.insert(record.key.to_vec(), version(&record));
            }
        }
    }
}

fn version(record: &Record<'_>) -> Found {
    (record.number, (!record.word.is_tombstone()).then(|| record.value.to_vec()))
}

/// Makes the pool anew with what was gathered.
fn renew<I: KeyIndex>(
    core: &Arc<Core>,
    path: &Path,
    identity: &Identity,
    manifest: Manifest,
    gathered: Gathered,
    base: &mut Salvage,
) -> Result<()> {
    let (_, media) = pool::request(core, identity)?;
    core.env.pm.remove(path)?;
    let pool = core.env.pm.create(path, &pool::pool_options(core, media))?;
    open::fill_pool::<I>(core, &pool)?;
    pool::set_owner(&pool, identity)?;
    let store: Arc<PmStore<I>> = open::assemble(core.clone(), manifest, pool, open::Found::New)?;
    for (key, (_, value)) in &gathered {
        if let Some(value) = value {
            store.write_single(&Op { kind: terrace_table::Kind::Put, key, value }, Condition::None)?;
            base.report.keys += 1;
        }
    }
    base.did(format!("made the pool anew with {} keys", base.report.keys));
    store.close()
}
