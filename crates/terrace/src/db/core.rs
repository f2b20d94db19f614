//! What the store and its engine share.

use std::path::PathBuf;
use std::sync::Arc;

use terrace_base::Result;
use terrace_disk::{Fs, MeteredFs};
use terrace_table::BlockCache;

use crate::db::health::Health;
use crate::db::snapshots::Snapshots;
use crate::env::Env;
use crate::options::Options;
use crate::stats::Counters;

/// Share of the memory budget, in sixteenths, that the block cache takes; tables and the
/// allocator's tables live in the rest.
const CACHE_SHARE: u64 = 12;

/// The store's shared state.
#[derive(Debug)]
pub(crate) struct Core {
    pub dir: PathBuf,
    pub options: Options,
    pub env: Env,
    pub fs: Arc<MeteredFs>,
    pub snapshots: Arc<Snapshots>,
    pub health: Health,
    pub counters: Counters,
    pub cache: Arc<BlockCache>,
}

impl Core {
    pub fn new(dir: PathBuf, options: Options, env: Env) -> Result<Arc<Core>> {
        options.validate()?;
        let cache = Arc::new(BlockCache::new(options.memory_budget / 16 * CACHE_SHARE));
        Ok(Arc::new(Core {
            fs: Arc::new(MeteredFs::new(env.fs.clone())),
            dir,
            options,
            env,
            snapshots: Arc::default(),
            health: Health::default(),
            counters: Counters::default(),
            cache,
        }))
    }

    /// The metered file system.
    pub fn fs(&self) -> &dyn Fs {
        &*self.fs
    }
}
