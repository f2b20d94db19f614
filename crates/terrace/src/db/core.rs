//! What the store and its engine share.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use terrace_base::Result;
use terrace_disk::{Fs, MeteredFs};
use terrace_table::BlockCache;

use crate::background::Room;
use crate::db::health::Health;
use crate::db::memory::Memory;
use crate::db::snapshots::Snapshots;
use crate::env::Env;
use crate::options::Options;
use crate::stats::Counters;
use crate::tables::Files;

/// The store's shared state.
#[derive(Debug)]
pub(crate) struct Core {
    pub dir: PathBuf,
    pub options: Options,
    pub env: Env,
    pub fs: Arc<MeteredFs>,
    pub files: Arc<Files>,
    pub snapshots: Arc<Snapshots>,
    pub health: Health,
    pub counters: Counters,
    pub memory: Arc<Memory>,
    /// Whether what is written is gone when it is closed: then nothing is compacted.
    pub is_scratch: bool,
}

impl Core {
    pub fn new(dir: PathBuf, options: Options, env: Env) -> Result<Arc<Core>> {
        Self::over(dir, options, env, false)
    }

    /// Of a database in whose environment nothing is kept.
    pub fn scratch(dir: PathBuf, options: Options, env: Env) -> Result<Arc<Core>> {
        Self::over(dir, options, env, true)
    }

    fn over(dir: PathBuf, options: Options, env: Env, is_scratch: bool) -> Result<Arc<Core>> {
        options.validate()?;
        let memory = Memory::new(options.memory_budget);
        let fs = Arc::new(MeteredFs::new(env.fs.clone()));
        Ok(Arc::new(Core {
            files: Files::new(fs.clone(), &dir),
            fs,
            dir,
            options,
            env,
            snapshots: Arc::default(),
            health: Health::default(),
            counters: Counters::default(),
            memory,
            is_scratch,
        }))
    }

    /// Blocks in memory.
    pub fn cache(&self) -> &Arc<BlockCache> {
        self.memory.cache()
    }

    /// Waits for `delay`, to slow a writer down, and counts it.
    pub fn slow_down(&self, delay: Duration) {
        if !delay.is_zero() {
            self.counters.stalls.add(1);
            self.counters.stall_nanos.add(delay.as_nanos() as u64);
            self.env.clock.sleep(delay);
        }
    }

    /// Does what a writer has to wait for, and counts how long it takes.
    pub fn stalled(&self, wait: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = self.env.clock.now();
        let outcome = wait();
        self.counters.stalls.add(1);
        self.counters.stall_nanos.add((self.env.clock.now() - start).as_nanos() as u64);
        outcome
    }

    /// Waits until a memtable that awaits its flush is `gone`. If nobody has `flushing` locked, because the background
    /// threads are busy or the flush has failed before, it is flushed right here, and the caller gets its cause if it fails.
    pub fn wait_for_flush(
        &self,
        gone: impl Fn() -> bool,
        flushing: &Mutex<()>,
        room: &Room,
        flush: impl Fn() -> Result<()>,
    ) -> Result<()> {
        self.stalled(|| {
            while !gone() {
                if self.env.executor.help() {
                    continue;
                }
                if flushing.is_locked() {
                    room.wait_until(&gone, || !flushing.is_locked());
                } else {
                    flush()?;
                }
            }
            Ok(())
        })
    }

    /// The metered file system.
    pub fn fs(&self) -> &dyn Fs {
        &*self.fs
    }
}
