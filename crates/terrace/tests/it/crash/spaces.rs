//! What scenarios share that are about several keyspaces: a session, and how its survivor is judged.

use std::sync::Arc;
use std::time::Duration;

use terrace::{Db, EngineKind, Keyspace, KeyspaceOptions, Options};
use terrace_base::clock::ManualClock;
use terrace_base::exec::Executor;
use terrace_pmem::Granularity;
use terrace_sim::{Change, KvModel, Recorder, Scenario, World, kv_scenario};

use super::env::{DIR, Process};
use super::judge::{may_end_early, options};
use super::scenarios::{Exploration, Nested};
use crate::harness::{Deferred, all_keyspaces, assert_clean, there_is};

/// Images of each engine on each medium; a long run gets more by the environment.
pub const IMAGES: u64 = 60;

/// The hour of the survivor.
const AFTERWARDS: u32 = 10_000;

/// A process that has the database open.
pub struct Session<'a> {
    world: &'a World,
    options: Options,
    process: Process,
    /// What tidying waits in; without it, who causes tidying does it at once.
    deferred: Option<Arc<Deferred>>,
    db: Option<Db>,
    /// Counts operations.
    pub stamp: u32,
}

impl<'a> Session<'a> {
    /// Opens it at an hour: time goes on from one process to the next.
    fn open(world: &'a World, options: &Options, defers: bool, hour: u32) -> Result<Self, String> {
        let (mut process, deferred) = (Process::new(world), defers.then(Arc::<Deferred>::default));
        let clock = ManualClock::default();
        clock.advance(hour * Duration::from_secs(3600));
        process.env.clock = Arc::new(clock);
        if let Some(deferred) = &deferred {
            process.env.executor = deferred.clone();
        }
        let db =
            Db::open_in(process.env.clone(), DIR, options.clone()).map_err(|e| format!("opening: {e}"))?;
        Ok(Session { world, options: options.clone(), process, deferred, db: Some(db), stamp: 0 })
    }

    pub fn db(&self) -> &Db {
        self.db.as_ref().expect("a session has its database open")
    }

    /// Has `write` do what `changes` say, and the model know.
    pub fn write<T>(
        &self,
        recorder: &mut Recorder<KvModel>,
        changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
        write: impl FnOnce(&Db) -> terrace::Result<T>,
    ) -> Result<T, String> {
        recorder.update(|model| model.begin(Change(changes)));
        let written = write(self.db()).map_err(|e| format!("writing: {e}"))?;
        recorder.update(KvModel::acknowledge);
        Ok(written)
    }

    /// Opens a keyspace, which may make it.
    pub fn make(&self, recorder: &mut Recorder<KvModel>, name: &str) -> Result<Keyspace, String> {
        self.make_with(recorder, name, KeyspaceOptions::default())
    }

    pub fn make_with(
        &self,
        recorder: &mut Recorder<KvModel>,
        name: &str,
        options: KeyspaceOptions,
    ) -> Result<Keyspace, String> {
        self.write(recorder, vec![(there_is(name), Some(Vec::new()))], |db| db.keyspace_with(name, options))
    }

    /// Does one piece of tidying; false if there was none.
    pub fn tidy(&self) -> bool {
        self.deferred.as_ref().is_some_and(|deferred| deferred.tidy())
    }

    /// Runs one other background job; false if there was none.
    pub fn help(&self) -> bool {
        self.deferred.as_ref().map_or_else(|| self.process.help(), |deferred| deferred.help())
    }

    pub fn reopen(&mut self) -> Result<(), String> {
        let db = self.db.take().expect("a session has its database open");
        db.close().map_err(|e| format!("closing: {e}"))?;
        drop(db);
        let defers = self.deferred.is_some();
        *self =
            Session { stamp: self.stamp, ..Session::open(self.world, &self.options, defers, self.stamp)? };
        Ok(())
    }

    fn all(&self) -> Result<crate::harness::Map, String> {
        all_keyspaces(self.db()).map_err(|e| format!("reading: {e}"))
    }
}

/// A scenario of operations `Op`.
pub struct Story<Op> {
    pub seed: u64,
    /// So many images are looked at.
    pub images: u64,
    pub ops: Vec<Op>,
    /// Whether tidying waits until the session does it.
    pub defers: bool,
    pub carry_out: fn(&mut Session<'_>, &Op, &mut Recorder<KvModel>) -> Result<(), String>,
    /// What a survivor must be able to do that was found right.
    pub finally: fn(&Session<'_>) -> Result<(), String>,
}

impl<Op: Clone + Send + Sync + std::fmt::Debug + 'static> Story<Op> {
    pub fn explore(self, engine: EngineKind, granularity: Granularity, nested: Nested) {
        let (seed, images) = (self.seed, self.images);
        let explorer = Exploration { engine, granularity, seed, images }.explorer();
        let ops = self.ops.clone();
        let summary = nested.within(explorer).must_pass(self.scenario(options(engine)), ops);
        println!("{} on {granularity:?}, seed {seed}: {summary:?}", engine.name());
    }

    fn scenario(self, options: Options) -> impl Scenario<Op = Op, Model = KvModel> {
        let Story { defers, carry_out, finally, .. } = self;
        let for_judge = options.clone();
        kv_scenario(
            move |world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]| {
                let mut session = Session::open(world, &options, defers, 0)?;
                ops.iter().try_for_each(|op| {
                    session.stamp += 1;
                    carry_out(&mut session, op, recorder)
                })
            },
            move |world: &World, model: &KvModel| {
                let session = Session::open(world, &for_judge, defers, AFTERWARDS)?;
                judge(&session, world, model)?;
                finally(&session)
            },
        )
    }
}

fn judge(session: &Session<'_>, world: &World, model: &KvModel) -> Result<(), String> {
    let found = session.all()?;
    model.accepts_in(world, &found).or_else(|e| match may_end_early(world) {
        true => model.accepts_prefix(&found),
        false => Err(e),
    })?;
    world.recovery_done();
    while session.tidy() || session.help() {}
    assert_clean(session.db());
    if session.all()? != found {
        return Err("background work has changed what there is".into());
    }
    Ok(())
}
