//! The report of an exploration: a summary, or a failure and how to reproduce it.

use std::fmt;

use super::check::{Found, Tally};
use super::route::Route;

/// The figures of an exploration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Events of the scenario.
    pub events: u64,
    /// Events at which images were taken; for faults, runs with a fault.
    pub events_tried: u64,
    /// Images verified, nested ones included.
    pub images: u64,
    /// Images of interrupted recoveries.
    pub nested: u64,
}

impl Summary {
    pub(super) fn new(events: u64) -> Summary {
        Summary { events, events_tried: 0, images: 0, nested: 0 }
    }

    pub(super) fn of_replay() -> Summary {
        Summary { events: 1, events_tried: 1, images: 1, nested: 0 }
    }

    pub(super) fn add(&mut self, tally: &Tally) {
        self.images += tally.images;
        self.nested += tally.nested;
    }
}

/// A crash image that failed.
#[derive(Debug, Clone)]
pub struct Failure<Op> {
    /// The route to it. Without steps the scenario itself failed.
    pub route: Route,
    /// The steps on the way, a line each.
    pub story: Vec<String>,
    /// The failure's message.
    pub message: String,
    /// The operations that were run.
    pub ops: Vec<Op>,
    /// The same with fewer operations.
    pub shrunk: Option<Shrunk<Op>>,
}

/// A failure with as few operations as could be found.
#[derive(Debug, Clone)]
pub struct Shrunk<Op> {
    /// The operations that are left.
    pub ops: Vec<Op>,
    /// The way to the failure with them.
    pub route: Route,
    /// The steps on the way.
    pub story: Vec<String>,
    /// The failure's message.
    pub message: String,
}

impl<Op: Clone> Failure<Op> {
    pub(super) fn new(seed: u64, fault: Option<u64>, found: Found, ops: &[Op]) -> Failure<Op> {
        Failure {
            route: Route { seed, fault, steps: found.steps },
            story: found.story,
            message: found.message,
            ops: ops.to_vec(),
            shrunk: None,
        }
    }

    /// The scenario failed by itself.
    pub(super) fn of_scenario(seed: u64, message: String, ops: &[Op]) -> Failure<Op> {
        let found = Found { steps: Vec::new(), story: Vec::new(), message };
        Failure::new(seed, None, found, ops)
    }
}

impl<Op> Failure<Op> {
    /// Whether the scenario failed by itself, with no crash.
    pub fn is_of_scenario(&self) -> bool {
        self.route.steps.is_empty()
    }
}

impl<Op: fmt::Debug> fmt::Display for Failure<Op> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_of_scenario() {
            return write!(f, "the scenario failed without a crash ({}): {}", self.route, self.message);
        }
        writeln!(f, "a crash image of {} operations is wrong: {}", self.ops.len(), self.message)?;
        tell(f, &self.story, &self.route)?;
        let Some(shrunk) = &self.shrunk else { return Ok(()) };
        writeln!(f, "with {} operations: {}", shrunk.ops.len(), shrunk.message)?;
        tell(f, &shrunk.story, &shrunk.route)?;
        shrunk.ops.iter().try_for_each(|op| writeln!(f, "    {op:?}"))
    }
}

fn tell(f: &mut fmt::Formatter<'_>, story: &[String], route: &Route) -> fmt::Result {
    story.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
    writeln!(f, "  replay: {route}")
}

impl<Op: fmt::Debug> std::error::Error for Failure<Op> {}
