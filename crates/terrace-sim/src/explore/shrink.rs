//! Making a failure small: the same exploration over fewer and fewer operations.
//!
//! Delta debugging: leave out halves, then quarters, then single operations, and keep a list that still fails. Any
//! crash failure counts, since with fewer operations all events have other numbers; a scenario that fails without a
//! crash does not. Lists that do not fail cost a whole exploration, so that its budget is kept small here; image
//! numbers, and so routes, do not depend on it.

use std::sync::Arc;

use super::Explorer;
use super::report::{Failure, Shrunk};
use super::scenario::Scenario;

/// Images of one exploration, at most.
const IMAGES_A_RUN: u64 = 1000;

/// The smallest failing list found in the explorer's number of runs; `None` if none is smaller.
pub(super) fn shrink<S: Scenario>(
    explorer: &Explorer,
    scenario: &Arc<S>,
    ops: &[S::Op],
    failure: &Failure<S::Op>,
) -> Option<Shrunk<S::Op>> {
    if failure.is_of_scenario() {
        return None;
    }
    let explorer = Explorer { images: explorer.images.min(IMAGES_A_RUN), ..explorer.clone() };
    let mut search = Search { runs: explorer.shrink_runs, explorer, scenario, best: None };
    search.reduce(ops.to_vec());
    search.best.map(|failure| Shrunk {
        ops: failure.ops,
        route: failure.route,
        story: failure.story,
        message: failure.message,
    })
}

struct Search<'a, S: Scenario> {
    explorer: Explorer,
    scenario: &'a Arc<S>,
    runs: u32,
    best: Option<Failure<S::Op>>,
}

impl<S: Scenario> Search<'_, S> {
    fn reduce(&mut self, mut ops: Vec<S::Op>) {
        let mut chunk = ops.len().div_ceil(2);
        while chunk > 0 && self.runs > 0 {
            let before = ops.len();
            let mut at = 0;
            while at < ops.len() && self.runs > 0 {
                let mut fewer = ops.clone();
                fewer.drain(at..(at + chunk).min(ops.len()));
                if self.fails(&fewer) {
                    ops = fewer;
                } else {
                    at += chunk;
                }
            }
            // Single operations are tried until none can be left out.
            chunk = if chunk == 1 { usize::from(ops.len() < before) } else { chunk / 2 };
        }
    }

    /// Whether exploring `ops` fails; remembers how.
    fn fails(&mut self, ops: &[S::Op]) -> bool {
        self.runs -= 1;
        match self.explorer.once(self.scenario, ops) {
            Err(failure) if !failure.is_of_scenario() => {
                self.best = Some(*failure);
                true
            }
            _ => false,
        }
    }
}
