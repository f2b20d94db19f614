//! A simulated machine with a database directory on it.

use std::path::Path;
use std::sync::Arc;

use terrace::{Db, Env, Options, Result};
use terrace_base::clock::ManualClock;
use terrace_base::exec::{Executor, Inline, ThreadPool};
use terrace_disk::SimFs;
use terrace_sim::{PmOptions, World, WorldOptions};

use super::HASH_SEED;
use super::setups::{Background, Setup};
use super::two_pools::TwoPools;

const DIR: &str = "/db";

/// A machine, before or after it lost a process or its power.
#[derive(Clone)]
pub struct Machine {
    world: World,
    setup: Setup,
}

impl Machine {
    /// A new machine with empty media.
    pub fn new(setup: &Setup) -> Machine {
        Machine::with_memory(setup, 64 << 10)
    }

    /// The same with a pool of that many bytes to begin with.
    pub fn with_memory(setup: &Setup, bytes: u64) -> Machine {
        let pm = PmOptions { bytes, capacity: 16 << 20, granularity: setup.granularity };
        Machine { world: World::new(7, WorldOptions { pm }), setup: setup.clone() }
    }

    /// The same machine after the process died at this moment. This one goes on as if nothing happened.
    pub fn kill(&self) -> Machine {
        Machine { world: self.world.kill(), setup: self.setup.clone() }
    }

    /// The same machine after its power was cut at this moment.
    pub fn power_cut(&self, seed: u64) -> Machine {
        Machine { world: self.world.crash(seed), setup: self.setup.clone() }
    }

    /// The same machine in another world.
    pub fn on(&self, world: World) -> Machine {
        Machine { world, setup: self.setup.clone() }
    }

    /// The world it is in, to be told of its events.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Its disk.
    pub fn fs(&self) -> SimFs {
        self.world.fs()
    }

    /// The database directory.
    pub fn dir(&self) -> &'static Path {
        Path::new(DIR)
    }

    /// The options the database is opened with.
    pub fn options(&self) -> Options {
        self.setup.options()
    }

    /// Opens the database with a process of its own.
    pub fn open(&self) -> Result<Db> {
        self.open_with(self.options())
    }

    /// Opens the database with other options.
    pub fn open_with(&self, options: Options) -> Result<Db> {
        Db::open_in(self.env(), DIR, options)
    }

    /// A new process on this machine.
    pub fn env(&self) -> Env {
        self.env_on(match self.setup.background {
            Background::Inline => Arc::new(Inline::default()),
            Background::Threads(n) => Arc::new(ThreadPool::new("conformance", n)),
        })
    }

    /// A new process on this machine whose background work `executor` does.
    pub fn env_on(&self, executor: Arc<dyn Executor>) -> Env {
        let fs = Arc::new(self.world.fs());
        let pm = TwoPools::new(self.world.fs(), self.world.media(), self.world.boot_id());
        let clock = Arc::new(ManualClock::default());
        Env { fs, pm: Arc::new(pm), executor, clock, hash_seed: Some(HASH_SEED) }
    }
}
