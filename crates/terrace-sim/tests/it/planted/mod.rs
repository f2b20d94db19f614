//! Small persistent structures with a switch for each bug that the simulator must find.
//!
//! Every structure passes without a bug, on the same operations with which each bug is found; and the
//! route of each failure leads to it again.

mod ledger;
mod node;
mod pair;
mod table;

use std::path::Path;

use terrace_disk::Fs;
use terrace_pmem::{Granularity, Pool};
use terrace_sim::{Explorer, PmOptions, Scenario, World, WorldOptions};

/// A mistake that one of the structures makes when told to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A record is never flushed.
    MissingFlush,
    /// Only the first line of a record is flushed.
    FirstLineOnly,
    /// A record is linked before it is durable.
    PublishBeforePersist,
    /// The manifest names a table that is not synced yet.
    ManifestBeforeTable,
    /// The directory is not synced after a table was created.
    NoDirSyncAfterCreate,
    /// The directory is not synced after the manifest was renamed.
    NoDirSyncAfterRename,
    /// Records are activated, and what a crash leaves unlinked is never reclaimed.
    NoReclaim,
    /// Records are never freed.
    NeverFreed,
    /// Two words are taken to be one atomic store.
    TornPair,
    /// Words of a line are shifted without ordering their stores.
    UnorderedShift,
}

pub(crate) fn explorer(granularity: Granularity) -> Explorer {
    let pm = PmOptions { bytes: 256 << 10, capacity: 1 << 20, granularity };
    Explorer::new(11).world(WorldOptions { pm }).images(600)
}

/// Opens the world's pool, or makes one where a crash came before it was whole, which a directory tells.
pub(crate) fn pool(world: &World) -> terrace_base::Result<Pool> {
    let (media, name, options) = (world.media(), Path::new("pool"), world.pool_options());
    let made = Path::new("/made");
    if world.fs().exists(made)? {
        return Pool::open_on(media, name, &options);
    }
    let pool = Pool::recreate_on(media, name, &options)?;
    world.fs().create_dir_all(made)?;
    Ok(pool)
}

/// The correct structure passes; with `bug` it fails, and the same route fails again, in the same way.
pub(crate) fn must_catch<S: Scenario>(make: impl Fn(Option<Bug>) -> S, ops: &[S::Op], bug: Bug) {
    let explorer = explorer(Granularity::CacheLine);
    let failure = explorer.explore(make(Some(bug)), ops.to_vec()).expect_err("the bug goes unnoticed");
    assert!(!failure.is_of_scenario(), "{failure}");
    let again = explorer.replay(make(Some(bug)), ops.to_vec(), &failure.route).expect_err("it replays");
    assert_eq!(again.message, failure.message, "the replay of {} differs", failure.route);
    explorer.replay(make(None), ops.to_vec(), &failure.route).unwrap_or_else(|failure| {
        // With the bug mended the same event may not come to pass; anything else is wrong.
        assert!(failure.message.contains("never reached"), "{failure}");
    });
    let shrunk = failure.shrunk.map_or(ops.len(), |shrunk| shrunk.ops.len());
    assert!(shrunk < ops.len(), "{bug:?} did not shrink from {shrunk} operations");
}
