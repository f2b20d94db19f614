//! Checking one image: recover it, judge it, and cut the power again while it recovers.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use terrace_base::rng::Rng;

use super::quiet;
use super::route::{FIRST_DRAWN, Step};
use super::scenario::Scenario;
use crate::event::EventKind;
use crate::seed::mix;
use crate::world::{Snapshot, World};

/// One in so many images also has its recovery interrupted.
const NESTED_ONE_IN: u64 = 3;

/// The number of first events of a recovery. Half of the interruptions are among them: the scenario's checks after the
/// recovery proper have many more events.
const NESTED_EARLY: u64 = 16;

/// The images an interrupted recovery is left in.
const NESTED_IMAGES: [u32; 7] = [0, 1, 2, 4, 5, FIRST_DRAWN, FIRST_DRAWN + 1];

/// The images to take, by event.
pub(super) type Picks = BTreeMap<u64, Vec<u32>>;

/// A failing image.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) steps: Vec<Step>,
    /// A description of each step.
    pub(super) story: Vec<String>,
    pub(super) message: String,
}

/// How deep and how often recoveries are interrupted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nesting {
    pub(super) depth: u32,
    pub(super) events: u32,
    /// No more nested images than this.
    pub(super) budget: u64,
}

/// Images checked so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) images: u64,
    pub(super) nested: u64,
}

/// Checks the images of one run of a scenario.
pub(super) struct Checker<S: Scenario> {
    pub(super) scenario: Arc<S>,
    pub(super) model: Arc<RwLock<S::Model>>,
    pub(super) nesting: Nesting,
    pub(super) tally: Mutex<Tally>,
}

/// The place of an image in the tree of crashes.
#[derive(Debug, Clone, Default)]
pub(super) struct Place {
    steps: Vec<Step>,
    story: Vec<String>,
    /// The remaining steps of a given route.
    rest: Vec<Step>,
}

impl Place {
    /// The root, on the way along `route`.
    pub(super) fn following(route: &[Step]) -> Place {
        Place { rest: route.to_vec(), ..Place::default() }
    }

    fn next(&self, step: Step, kind: &EventKind) -> Place {
        let mut place = self.clone();
        place.steps.push(step);
        place.story.push(step.describe(kind));
        if !place.rest.is_empty() {
            place.rest.remove(0);
        }
        place
    }

    fn found(&self, message: String) -> Found {
        Found { steps: self.steps.clone(), story: self.story.clone(), message }
    }
}

impl<S: Scenario> Checker<S> {
    /// Has the images of `picks` checked as `world` goes on; the first failure is left in the result.
    pub(super) fn watch(
        self: &Arc<Self>,
        world: &World,
        place: Place,
        picks: Picks,
    ) -> Arc<Mutex<Option<Found>>> {
        let found = Arc::new(Mutex::new(None));
        let (me, result) = (self.clone(), found.clone());
        world.on_event(Box::new(move |event, world| {
            let Some(images) = picks.get(&event.index) else { return };
            if result.lock().is_some() {
                return;
            }
            let snapshot = world.capture();
            let checks = images.iter().map(|&image| {
                let step = Step { event: event.index, image };
                me.image(&snapshot, step, &place.next(step, &event.kind))
            });
            let first = checks.filter_map(Result::err).next();
            *result.lock() = first;
        }));
        found
    }

    /// Recovers and judges the image that `step` makes of `snapshot`.
    fn image(self: &Arc<Self>, snapshot: &Snapshot, step: Step, place: &Place) -> Result<(), Found> {
        self.count(place.steps.len() > 1);
        if let Some(&next) = place.rest.first() {
            return self.follow(&step.take(snapshot), next, place);
        }
        let world = step.take(snapshot);
        self.verify(&world).map_err(|message| place.found(message))?;
        self.interrupt(snapshot, step, place, world.recovery_events())
    }

    /// Goes on along a route: crashes the recovery of `world` at `next`.
    fn follow(self: &Arc<Self>, world: &World, next: Step, place: &Place) -> Result<(), Found> {
        let picks = Picks::from([(next.event, vec![next.image])]);
        let found = self.watch(world, place.clone(), picks);
        let outcome = self.verify(world);
        world.ignore_events();
        match found.lock().take() {
            Some(found) => Err(found),
            None => outcome.map_err(|message| place.found(message)),
        }
    }

    /// Recovers the same image once more, and crashes it at some of the `events` of its recovery.
    fn interrupt(
        self: &Arc<Self>,
        snapshot: &Snapshot,
        step: Step,
        place: &Place,
        events: u64,
    ) -> Result<(), Found> {
        let mut rng = Rng::new(mix(mix(snapshot.seed(), step.event), 7 + u64::from(step.image)));
        let spent = self.tally.lock().nested >= self.nesting.budget;
        let deepest = place.steps.len() > self.nesting.depth as usize;
        if spent || deepest || events == 0 || !rng.one_in(NESTED_ONE_IN) {
            return Ok(());
        }
        let mut picks = Picks::new();
        for _ in 0..self.nesting.events {
            let image = NESTED_IMAGES[rng.below(NESTED_IMAGES.len() as u64) as usize];
            let among = if rng.one_in(2) { events.min(NESTED_EARLY) } else { events };
            picks.insert(rng.below(among), vec![image]);
        }
        let world = step.take(snapshot);
        let found = self.watch(&world, place.clone(), picks);
        let outcome = self.verify(&world);
        world.ignore_events();
        if let Some(found) = found.lock().take() {
            return Err(found);
        }
        outcome.map_err(|message| {
            place.found(format!("this image was in order when verified first and now is not: {message}"))
        })
    }

    fn verify(&self, world: &World) -> Result<(), String> {
        // Recursive, since a nested check runs while the check around it reads.
        let model = self.model.read_recursive();
        quiet::catch(|| self.scenario.verify(world, &model))
    }

    fn count(&self, nested: bool) {
        let mut tally = self.tally.lock();
        tally.images += 1;
        tally.nested += u64::from(nested);
    }
}
