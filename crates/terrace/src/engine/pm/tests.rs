//! What the store cannot be brought to from outside.

use std::path::Path;
use std::sync::Arc;

use terrace_base::ErrorKind;
use terrace_base::clock::ManualClock;
use terrace_base::exec::Inline;
use terrace_disk::RealFs;
use terrace_index::PointIndex;
use terrace_pmem::Profile;

use super::{PmStore, open};
use crate::batch::WriteBatch;
use crate::core::Core;
use crate::core::condition::Condition;
use crate::core::engine::Engine;
use crate::engine::turbo::Turbo;
use crate::env::{Env, RealPm};
use crate::options::{EngineKind, Options, PoolChoice};

fn open_in(dir: &Path) -> Arc<PmStore<Turbo>> {
    let env = Env {
        fs: Arc::new(RealFs),
        pm: Arc::new(RealPm::default()),
        // Jobs are queued, and not run.
        executor: Arc::new(Inline::default()),
        clock: Arc::new(ManualClock::default()),
        hash_seed: Some(1),
    };
    let pool = PoolChoice::Emulated { path: None, profile: Profile::DRAM };
    let options = Options { engine: EngineKind::Turbo, pool, pm_bytes: 4 << 20, ..Options::default() };
    open::open_store(Core::new(dir.into(), options, env).unwrap()).unwrap()
}

/// A collapse changes names before it retires what had them: one that fails in between leaves versions that nothing
/// leads to.
#[test]
fn a_collapse_that_fails_leaves_a_debt() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_in(dir.path());
    let mut batch = WriteBatch::new();
    batch.put(b"key", b"value");
    let op = batch.ops().next().unwrap();
    assert!(store.write_single(&op, Condition::None).unwrap());
    let word = store.decode_some(store.index.get(b"key").unwrap()).unwrap().unwrap();
    let at = word.record().unwrap().offset();
    // SAFETY: nothing stores to it meanwhile.
    let whole = unsafe { store.pool.bytes(at, 16) }.unwrap().to_vec();
    store.pool.copy_persist(at, &[0xee; 16]);
    let failed = store.collapse(b"key", &[]).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Corruption);
    store.pool.copy_persist(at, &whole);
    store.close().unwrap();
    drop(store);
    assert!(open_in(dir.path()).pool.needs_reclaim());
}
