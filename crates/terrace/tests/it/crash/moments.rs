//! Every event of a few operations as a moment at which the power goes or the process dies.

use std::sync::Arc;

use parking_lot::Mutex;
use terrace::Options;
use terrace_sim::{EventKind, KvModel, Snapshot, Survival, World};

use super::judge::{Shared, judge};
use super::ops::Op;
use super::run::{Errors, Ledger, Session, give_room};

/// Of so many events of an opening one is looked at, from another one in each survivor.
const OPENING_SHARE: u64 = 7;

/// A moment, what was about to happen, and what must be there.
pub struct Moment {
    event: EventKind,
    snapshot: Snapshot,
    model: KvModel,
}

impl Moment {
    /// Whether persistent memory, and not a file, was about to change.
    pub fn is_of_memory(&self) -> bool {
        matches!(self.event, EventKind::Drain | EventKind::PmSync | EventKind::PmGrow(_))
    }

    /// What is left of the `i`th one by a power cut, or by a kill.
    fn survivors(&self, i: usize) -> Vec<World> {
        let snapshot = &self.snapshot;
        match i % 3 {
            0 => vec![snapshot.power_cut(Survival::Seeded(i as u64)), snapshot.kill()],
            1 => vec![snapshot.power_cut(Survival::Nothing)],
            _ => vec![snapshot.power_cut(Survival::Seeded(i as u64))],
        }
    }
}

/// Has `session` carry out `ops` and what these leave to the background, and takes what there is at every
/// event.
pub fn at_every_event(session: &mut Session<'_>, world: &World, ops: &[Op], ledger: &Shared) -> Vec<Moment> {
    let moments: Arc<Mutex<Vec<Moment>>> = Arc::default();
    let (taken, model) = (moments.clone(), ledger.clone());
    world.on_event(Box::new(move |event, world| {
        let moment = Moment { event: event.kind, snapshot: world.capture(), model: model.model() };
        taken.lock().push(moment);
    }));
    let mut ledger = ledger.clone();
    ops.iter().for_each(|op| session.carry_out(op, &mut ledger).unwrap());
    session.rest();
    world.ignore_events();
    std::mem::take(&mut *moments.lock())
}

/// Judges what is left of each moment, once there is room again.
pub fn judge_all(options: &Options, moments: &[Moment], what: &str) {
    for (i, moment) in moments.iter().enumerate() {
        for (n, world) in moment.survivors(i).iter().enumerate() {
            give_room(world);
            judge(options, world, &moment.model).unwrap_or_else(|e| {
                panic!("{what}, event {i} of {}, {}, survivor {n}: {e}", moments.len(), moment.event)
            });
        }
    }
}

/// Of so many moments one is looked at.
pub struct Every(pub usize);

/// Opens what a power cut has left of some moments, cuts that short in its turn, and judges; how often.
pub fn judge_openings(options: &Options, moments: &[Moment], every: Every, what: &str) -> u64 {
    let mut looks = 0;
    for (i, Moment { snapshot, model, .. }) in moments.iter().enumerate().step_by(every.0) {
        let world = snapshot.power_cut(Survival::Seeded(i as u64));
        give_room(&world);
        let caught: Arc<Mutex<Vec<Snapshot>>> = Arc::default();
        let (taken, mut seen) = (caught.clone(), i as u64);
        world.on_event(Box::new(move |_, world| {
            seen += 1;
            if seen % OPENING_SHARE == 0 {
                taken.lock().push(world.capture());
            }
        }));
        let session = Session::open(&world, options, Errors::Fail).unwrap();
        session.rest();
        world.ignore_events();
        for (n, snapshot) in caught.lock().iter().enumerate() {
            for world in [snapshot.power_cut(Survival::Seeded(n as u64)), snapshot.kill()] {
                give_room(&world);
                judge(options, &world, model)
                    .unwrap_or_else(|e| panic!("{what}, event {i}, then look {n}: {e}"));
                looks += 1;
            }
        }
    }
    looks
}
