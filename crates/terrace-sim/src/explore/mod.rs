//! The explorer: runs a scenario, cuts the power at its events, and has every image verified.
//!
//! A first run counts the events. A second takes images at all of them, or, when the budget does not reach,
//! at a seeded sample that always holds the last. Every chosen event gets the extremes (of what was pending,
//! nothing survives, or all, or one medium's share), a kill, and drawn images. Some recoveries are interrupted
//! in their turn. The first failure ends the run, is shrunk to fewer operations, and names its route.
//!
//! Invariant: the choice of images and their contents follow from the seed, the operations and the budget alone.

mod check;
mod quiet;
mod report;
mod route;
mod scenario;
mod shrink;

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use terrace_base::rng::Rng;
use terrace_pmem::Granularity;

use crate::own::OwnWorld;
use crate::seed::mix;
use crate::world::{World, WorldOptions};
use check::{Checker, Found, Nesting, Picks, Place, Tally};
use route::FIRST_DRAWN;

pub use report::{Failure, Shrunk, Summary};
pub use route::{Route, Step};
pub use scenario::{Recorder, Scenario, kv_scenario};

/// Sets the number of images of every explorer: many for a long run.
const IMAGES_VARIABLE: &str = "TERRACE_CRASH_IMAGES";
/// Makes explorers of the seed it names check that one image only.
const REPLAY_VARIABLE: &str = "TERRACE_CRASH_REPLAY";

/// Explores the crashes of scenarios. Settings apart, it holds no state and may be used again.
#[derive(Debug, Clone)]
pub struct Explorer {
    seed: u64,
    world: WorldOptions,
    images: u64,
    drawn: u64,
    kills: bool,
    wipes: bool,
    nested_depth: u32,
    nested_events: u32,
    shrink_runs: u32,
}

/// The least number of moments of a run with a fault at which images are taken.
const FAULT_MOMENTS: u64 = 3;

/// Separates the seed of the sample of faults without images from that of the others.
const PLAIN_RUNS: u64 = 0x504c_4149;

/// The outcome of one run of a scenario: its figures, and the first image that failed.
struct Verdict {
    tally: Tally,
    found: Option<Found>,
}

impl Explorer {
    /// An explorer of about 1,000 images, fixed by `seed`.
    pub fn new(seed: u64) -> Explorer {
        let images = std::env::var(IMAGES_VARIABLE).ok().and_then(|n| n.parse().ok());
        Explorer {
            seed,
            world: WorldOptions::default(),
            images: images.unwrap_or(1000),
            drawn: 4,
            kills: true,
            wipes: true,
            nested_depth: 1,
            nested_events: 2,
            shrink_runs: 200,
        }
    }

    /// Sets the properties of the worlds.
    pub fn world(mut self, options: WorldOptions) -> Explorer {
        self.world = options;
        self
    }

    /// Sets the budget: about so many images of the scenario itself, and at most as many within recoveries.
    /// The environment variable `TERRACE_CRASH_IMAGES` overrides it.
    pub fn images(mut self, images: u64) -> Explorer {
        if std::env::var_os(IMAGES_VARIABLE).is_none() {
            self.images = images;
        }
        self
    }

    /// Sets how many drawn images an event gets at least, on top of the fixed ones. More are taken while
    /// the budget allows.
    pub fn drawn(mut self, drawn: u64) -> Explorer {
        self.drawn = drawn;
        self
    }

    /// Whether the process is killed, too, at every chosen event. On by default.
    pub fn kills(mut self, kills: bool) -> Explorer {
        self.kills = kills;
        self
    }

    /// Whether, on `Page` media, the persistent memory is wiped, too, at every chosen event. On by default.
    pub fn wipes(mut self, wipes: bool) -> Explorer {
        self.wipes = wipes;
        self
    }

    /// How deep recoveries are interrupted (0: never), and at how many events each. By default once
    /// and at two.
    pub fn nested(mut self, depth: u32, events: u32) -> Explorer {
        self.nested_depth = depth;
        self.nested_events = events;
        self
    }

    /// The most runs that shrinking a failure may take; 0 for none.
    pub fn shrink_runs(mut self, runs: u32) -> Explorer {
        self.shrink_runs = runs;
        self
    }

    /// Explores the crashes of `scenario` over `ops`.
    ///
    /// # Errors
    /// The first failure, shrunk.
    pub fn explore<S: Scenario>(&self, scenario: S, ops: Vec<S::Op>) -> Result<Summary, Box<Failure<S::Op>>> {
        let scenario = Arc::new(scenario);
        if let Some(route) = self.asked_route() {
            return self.replay_on(&scenario, &ops, &route).map(|()| Summary::of_replay());
        }
        let explored = self.once(&scenario, &ops).map_err(|mut failure| {
            failure.shrunk = shrink::shrink(self, &scenario, &ops, &failure);
            failure
        });
        explored.inspect(tell)
    }

    /// As [`explore`](Self::explore).
    ///
    /// # Panics
    /// With the report of the first failure.
    pub fn must_pass<S: Scenario>(&self, scenario: S, ops: Vec<S::Op>) -> Summary {
        self.explore(scenario, ops).unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Checks the one image that `route` leads to, or the scenario itself.
    ///
    /// # Errors
    /// A failure of the image, or that the scenario never reached it.
    pub fn replay<S: Scenario>(
        &self,
        scenario: S,
        ops: Vec<S::Op>,
        route: &Route,
    ) -> Result<(), Box<Failure<S::Op>>> {
        self.replay_on(&Arc::new(scenario), &ops, route)
    }

    /// Runs the scenario once for each operation that can fail (or a sample, if the budget does not reach), with that
    /// operation failing. The state is verified, after a kill and after power cuts: right after the failure, at some
    /// later moment, and at the end. Further operations fail in runs without images, at most as many as there are
    /// images. The scenario must cope with errors.
    ///
    /// # Errors
    /// The first failure, not shrunk.
    pub fn explore_faults<S: Scenario>(
        &self,
        scenario: S,
        ops: Vec<S::Op>,
    ) -> Result<Summary, Box<Failure<S::Op>>> {
        let scenario = Arc::new(scenario);
        if let Some(route) = self.asked_route() {
            return self.replay_on(&scenario, &ops, &route).map(|()| Summary::of_replay());
        }
        let dry = self.dry(&scenario, &ops)?;
        let least = self.image_numbers(0).len() as u64;
        let runs = (self.images / (least * FAULT_MOMENTS)).max(1);
        let faults = sample(self.seed, dry.fallible_operations(), runs);
        // If every operation has failed once, the rest of the budget goes to more moments after each.
        let moments = (self.images / (least * faults.len().max(1) as u64)).max(FAULT_MOMENTS);
        let mut summary = Summary::new(dry.events());
        // A run without images is as cheap as one image, and shows failures that need no crash.
        let plain = sample(mix(self.seed, PLAIN_RUNS), dry.fallible_operations(), self.images);
        for fault in plain.into_iter().filter(|fault| faults.binary_search(fault).is_err()) {
            self.counted(&scenario, &ops, fault)?;
        }
        for fault in faults {
            let counted = self.counted(&scenario, &ops, fault)?;
            let picks = self.picks_after(&counted, fault, moments);
            let pass = self.pass_with_fault(&scenario, &ops, fault, Place::default(), picks)?;
            summary.add(&pass.tally);
            summary.events_tried += 1;
            if let Some(found) = pass.found {
                return Err(Box::new(Failure::new(self.seed, Some(fault), found, &ops)));
            }
        }
        tell(&summary);
        Ok(summary)
    }

    /// One exploration, without shrinking.
    fn once<S: Scenario>(&self, scenario: &Arc<S>, ops: &[S::Op]) -> Result<Summary, Box<Failure<S::Op>>> {
        let dry = self.dry(scenario, ops)?;
        // The end of the scenario is an event too.
        let picks = self.plan(dry.events() + 1);
        let mut summary = Summary::new(dry.events() + 1);
        summary.events_tried = picks.len() as u64;
        let pass = self.pass(scenario, ops, None, Place::default(), picks)?;
        summary.add(&pass.tally);
        match pass.found {
            Some(found) => Err(Box::new(Failure::new(self.seed, None, found, ops))),
            None => Ok(summary),
        }
    }

    fn replay_on<S: Scenario>(
        &self,
        scenario: &Arc<S>,
        ops: &[S::Op],
        route: &Route,
    ) -> Result<(), Box<Failure<S::Op>>> {
        let explorer = Explorer { seed: route.seed, nested_depth: 0, ..self.clone() };
        let place = Place::following(&route.steps);
        let picks = route.steps.first().map(|first| (first.event, vec![first.image])).into_iter().collect();
        let pass = match route.fault {
            Some(fault) => explorer.pass_with_fault(scenario, ops, fault, place, picks)?,
            None => explorer.pass(scenario, ops, None, place, picks)?,
        };
        if let Some(found) = pass.found {
            return Err(Box::new(Failure::new(route.seed, route.fault, found, ops)));
        }
        if pass.tally.images < route.steps.len() as u64 {
            let message = format!("{route} was never reached: the scenario or its operations are others");
            return Err(Box::new(Failure::of_scenario(route.seed, message, ops)));
        }
        Ok(())
    }

    /// The scenario's run without any crash: how many events it has.
    fn dry<S: Scenario>(&self, scenario: &Arc<S>, ops: &[S::Op]) -> Result<OwnWorld, Box<Failure<S::Op>>> {
        let world = self.new_world();
        self.run(scenario, &world, &Arc::new(RwLock::new(scenario.model())), ops)?;
        Ok(world)
    }

    fn new_world(&self) -> OwnWorld {
        OwnWorld(World::new(self.seed, self.world))
    }

    fn run<S: Scenario>(
        &self,
        scenario: &Arc<S>,
        world: &World,
        model: &Arc<RwLock<S::Model>>,
        ops: &[S::Op],
    ) -> Result<(), Box<Failure<S::Op>>> {
        let mut recorder = Recorder::new(model.clone());
        quiet::catch(|| scenario.run(world, &mut recorder, ops))
            .map_err(|message| Box::new(Failure::of_scenario(self.seed, message, ops)))
    }

    /// One run with the images of `picks` checked.
    fn pass<S: Scenario>(
        &self,
        scenario: &Arc<S>,
        ops: &[S::Op],
        fault: Option<u64>,
        place: Place,
        picks: Picks,
    ) -> Result<Verdict, Box<Failure<S::Op>>> {
        let world = self.new_world();
        let checker = Arc::new(Checker {
            scenario: scenario.clone(),
            model: Arc::new(RwLock::new(scenario.model())),
            nesting: Nesting { depth: self.nested_depth, events: self.nested_events, budget: self.images },
            tally: Mutex::default(),
        });
        let found = checker.watch(&world, place, picks);
        if let Some(fault) = fault {
            world.fail_nth(fault);
        }
        self.run(scenario, &world, &checker.model, ops)?;
        world.end();
        world.ignore_events();
        let tally = *checker.tally.lock();
        Ok(Verdict { tally, found: found.lock().take() })
    }

    /// One run with a fault and without images. How many events such a run has is not known before.
    fn counted<S: Scenario>(
        &self,
        scenario: &Arc<S>,
        ops: &[S::Op],
        fault: u64,
    ) -> Result<OwnWorld, Box<Failure<S::Op>>> {
        let world = self.new_world();
        world.fail_nth(fault);
        let outcome = self.run(scenario, &world, &Arc::new(RwLock::new(scenario.model())), ops);
        outcome.map_err(|failure| of_fault(failure, fault))?;
        Ok(world)
    }

    /// One run with a fault and the images of `picks` checked.
    fn pass_with_fault<S: Scenario>(
        &self,
        scenario: &Arc<S>,
        ops: &[S::Op],
        fault: u64,
        place: Place,
        picks: Picks,
    ) -> Result<Verdict, Box<Failure<S::Op>>> {
        self.pass(scenario, ops, Some(fault), place, picks).map_err(|failure| of_fault(failure, fault))
    }

    /// The images of a run in which operation `fault` failed as it did in `counted`, at `moments` of its events: the
    /// one after the fault, the end, and some between.
    fn picks_after(&self, counted: &World, fault: u64, moments: u64) -> Picks {
        let (end, images) = (counted.events(), self.image_numbers(0));
        let after = counted.fault_met().unwrap_or(end).min(end);
        let later = sample(mix(self.seed, fault), end - after + 1, moments - 1);
        let events = later.into_iter().map(|later| after + later).chain([after]);
        events.map(|event| (event, images.clone())).collect()
    }

    /// The images to take of a run with `events` events.
    fn plan(&self, events: u64) -> Picks {
        let least = self.image_numbers(0).len() as u64;
        let tried = sample(self.seed, events, (self.images / least).max(1));
        let spare = (self.images / tried.len().max(1) as u64).saturating_sub(least);
        let images = self.image_numbers(spare);
        tried.into_iter().map(|event| (event, images.clone())).collect()
    }

    /// The numbers of the images an event gets: the fixed ones and the drawn ones, and `spare` more of these.
    fn image_numbers(&self, spare: u64) -> Vec<u32> {
        let page = self.world.pm.granularity == Granularity::Page;
        let mut images = vec![0, 1];
        images.extend(self.kills.then_some(2));
        images.extend((self.wipes && page).then_some(3));
        images.extend([4, 5]);
        let drawn = u32::try_from(self.drawn + spare).unwrap_or(u32::MAX - FIRST_DRAWN);
        images.extend(FIRST_DRAWN..FIRST_DRAWN + drawn);
        images
    }

    /// The route that the environment asks this explorer to replay.
    fn asked_route(&self) -> Option<Route> {
        let text = std::env::var(REPLAY_VARIABLE).ok()?;
        let route: Route = text.parse().unwrap_or_else(|e| panic!("{REPLAY_VARIABLE}: {e}"));
        (route.seed == self.seed).then_some(route)
    }
}

/// The scenario failed by itself, with operation `fault` failing.
fn of_fault<Op>(mut failure: Box<Failure<Op>>, fault: u64) -> Box<Failure<Op>> {
    failure.route.fault = Some(fault);
    failure
}

/// At most `count` distinct numbers below `bound`, ascending, the last always among them.
fn sample(seed: u64, bound: u64, count: u64) -> Vec<u64> {
    if count >= bound {
        return (0..bound).collect();
    }
    let mut rng = Rng::new(mix(seed, 8));
    let mut left: Vec<u64> = (0..bound - 1).collect();
    rng.shuffle(&mut left);
    left.truncate(count as usize - 1);
    left.push(bound - 1);
    left.sort_unstable();
    left
}

/// In a long run tells how many images there were, so that they can be counted over all scenarios.
fn tell(summary: &Summary) {
    if std::env::var_os(IMAGES_VARIABLE).is_some() {
        println!("crash images verified: {}", summary.images);
    }
}
