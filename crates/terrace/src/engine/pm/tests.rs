//! What the store cannot be brought to from outside.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use terrace_base::clock::ManualClock;
use terrace_base::exec::Inline;
use terrace_base::{Error, ErrorKind};
use terrace_disk::RealFs;
use terrace_index::PointIndex;
use terrace_pmem::Profile;

use super::group::Overlay;
use super::versions::Named;
use super::{PmStore, VersionRefOf, open};
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

fn put(store: &PmStore<Turbo>, key: &[u8], value: &[u8]) -> VersionRefOf<Turbo> {
    let mut batch = WriteBatch::new();
    batch.put(key, value);
    assert!(store.write_single(&batch.ops().next().unwrap(), Condition::None).unwrap());
    store.decode_some(store.index.get(key).unwrap()).unwrap().unwrap()
}

/// Who comes after a group that could not be taken back sees what was there before it.
#[test]
fn half_a_group_is_shown_to_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_in(dir.path());
    let before = put(&store, b"replaced", b"before");
    // So that what is replaced stays, as it does while a group is being applied.
    let _here = store.limbo.enter();
    let earlier = store.hold(&store.core.snapshots);
    let first = put(&store, b"replaced", b"after");
    put(&store, b"new", b"after");
    let Named::Record(record) = store.named(first, b"replaced").unwrap();
    let words = HashMap::from([(b"replaced"[..].into(), Some(before)), (b"new"[..].into(), None)]);
    store.group.store(Some(Arc::new(Overlay { words })));
    store.pending.store(record.number, Ordering::Release);
    let cause = Arc::new(Error::invalid("it could not be taken back"));
    store.core.health.fail(Error::Poisoned { cause });
    let later = store.hold(&store.core.snapshots);
    for at in [earlier.seq(), later.seq()] {
        assert_eq!(store.get(b"replaced", Some(at)).unwrap().as_deref(), Some(&b"before"[..]));
        assert_eq!(store.get(b"new", Some(at)).unwrap(), None);
        let values = store.get_many(&[b"new", b"replaced"], at).unwrap();
        assert_eq!(values, [None, Some(Bytes::from_static(b"before"))]);
    }
    assert!(store.clone().walk_all(earlier.seq()).is_ok());
    let refused = store.clone().walk_all(later.seq()).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Poisoned);
}

/// A collapse changes names before it retires what had them: one that fails in between leaves versions that nothing
/// leads to.
#[test]
fn a_collapse_that_fails_leaves_a_debt() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_in(dir.path());
    let at = put(&store, b"key", b"value").record().unwrap().offset();
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
