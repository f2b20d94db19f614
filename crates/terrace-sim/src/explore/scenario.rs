//! Scenarios: a program to run, and a check of the state after a crash.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::World;
use crate::model::{Change, KvModel};

/// A program over a world's media, and the check of its state after crashes.
///
/// Both functions must be deterministic: everything they draw comes from the operations or from
/// [`World::seed`].
pub trait Scenario: Send + Sync + 'static {
    /// One operation; failing lists of them are shrunk.
    type Op: Clone + Debug + Send + Sync + 'static;
    /// The model of the state that must survive.
    type Model: Send + Sync + 'static;

    /// The model before the first operation.
    fn model(&self) -> Self::Model;

    /// Makes the program and carries out `ops`, notifying `recorder` of each before it starts and after it is
    /// acknowledged. An error is a failure of the scenario itself.
    fn run(
        &self,
        world: &World,
        recorder: &mut Recorder<Self::Model>,
        ops: &[Self::Op],
    ) -> Result<(), String>;

    /// Recovers the program in `world`, which crashed when the model was `model`; the error says what is wrong.
    fn verify(&self, world: &World, model: &Self::Model) -> Result<(), String>;
}

/// The model of a running scenario.
#[derive(Debug)]
pub struct Recorder<M> {
    model: Arc<RwLock<M>>,
}

impl<M> Recorder<M> {
    pub(super) fn new(model: Arc<RwLock<M>>) -> Self {
        Recorder { model }
    }

    /// Changes the model. `change` must not touch the world: its events read the model.
    pub fn update<T>(&mut self, change: impl FnOnce(&mut M) -> T) -> T {
        change(&mut self.model.write())
    }

    /// Reads the model.
    pub fn read<T>(&self, see: impl FnOnce(&M) -> T) -> T {
        see(&self.model.read())
    }
}

impl Recorder<KvModel> {
    /// Carries out `change` by `work`; success acknowledges it.
    pub fn apply<T, E>(&mut self, change: Change, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.step(change, work, KvModel::acknowledge)
    }

    /// Carries out `change` by `work`; success acknowledges it, and everything before, as synced.
    pub fn apply_synced<T, E>(
        &mut self,
        change: Change,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.step(change, work, KvModel::acknowledge_synced)
    }

    fn step<T, E>(
        &mut self,
        change: Change,
        work: impl FnOnce() -> Result<T, E>,
        success: fn(&mut KvModel),
    ) -> Result<T, E> {
        self.update(|model| model.begin(change));
        let outcome = work();
        self.update(if outcome.is_ok() { success } else { KvModel::fail });
        outcome
    }
}

/// A scenario over a [`KvModel`] made of two functions.
///
/// ```
/// use terrace_sim::{KvModel, Recorder, World, kv_scenario};
/// let scenario = kv_scenario(
///     |_world: &World, _recorder: &mut Recorder<KvModel>, _ops: &[u64]| Ok(()),
///     |_world: &World, model: &KvModel| model.accepts(&Default::default()),
/// );
/// terrace_sim::Explorer::new(1).explore(scenario, vec![1, 2, 3]).unwrap();
/// ```
pub fn kv_scenario<Op, R, V>(run: R, verify: V) -> impl Scenario<Op = Op, Model = KvModel>
where
    Op: Clone + Debug + Send + Sync + 'static,
    R: Fn(&World, &mut Recorder<KvModel>, &[Op]) -> Result<(), String> + Send + Sync + 'static,
    V: Fn(&World, &KvModel) -> Result<(), String> + Send + Sync + 'static,
{
    Functions { run, verify, op: PhantomData }
}

struct Functions<Op, R, V> {
    run: R,
    verify: V,
    op: PhantomData<fn(&Op)>,
}

impl<Op, R, V> Scenario for Functions<Op, R, V>
where
    Op: Clone + Debug + Send + Sync + 'static,
    R: Fn(&World, &mut Recorder<KvModel>, &[Op]) -> Result<(), String> + Send + Sync + 'static,
    V: Fn(&World, &KvModel) -> Result<(), String> + Send + Sync + 'static,
{
    type Op = Op;
    type Model = KvModel;

    fn model(&self) -> KvModel {
        KvModel::new()
    }

    fn run(&self, world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]) -> Result<(), String> {
        (self.run)(world, recorder, ops)
    }

    fn verify(&self, world: &World, model: &KvModel) -> Result<(), String> {
        (self.verify)(world, model)
    }
}
