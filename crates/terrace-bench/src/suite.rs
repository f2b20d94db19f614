//! Several workloads one after the other, with the databases they need.

use std::sync::Arc;

use crate::keys::{KeyMaker, KeyOrder};
use crate::outcome::Outcome;
use crate::run::{Plan, Watch, run};
use crate::space::KeySpace;
use crate::store::{Store, StoreResult};
use crate::workload::{Action, Start, Workload};

/// Makes and opens the databases of a suite.
pub trait Provider {
    /// An empty store in place of the former one; the caller has dropped the store that was opened before.
    fn fresh(&mut self) -> StoreResult<Arc<dyn Store>>;

    /// The store as an earlier suite left it, and its contents; `None` if there is none.
    fn existing(&mut self) -> StoreResult<Option<(Arc<dyn Store>, Contents)>>;

    /// Notes the store's contents, for [`existing`](Self::existing) of a later suite.
    fn note(&mut self, contents: Contents) -> StoreResult<()>;
}

/// The contents of a benchmark database, as far as needed to draw its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Contents {
    /// Key numbers below this one were written.
    pub records: u64,
    /// How numbers relate to keys.
    pub order: KeyOrder,
    /// Bytes of a key.
    pub key_size: usize,
}

/// A list of workloads and the plan they share.
#[derive(Debug)]
pub struct Suite<'a> {
    /// Run in this order.
    pub workloads: &'a [&'static Workload],
    /// How long and how large.
    pub plan: Plan,
}

struct Open {
    store: Arc<dyn Store>,
    space: Arc<KeySpace>,
}

impl Suite<'_> {
    /// An error if something is wrong with the plan.
    pub fn validate(&self) -> Result<(), String> {
        let most = KeyMaker::capacity(self.plan.key_size);
        if self.plan.num > most {
            return Err(format!(
                "keys of {} bytes tell {most} records apart, {} were asked for",
                self.plan.key_size, self.plan.num
            ));
        }
        Ok(())
    }

    /// Runs the workloads. Before each one `begin` gives it a [`Watch`]; after each one `end` is shown
    /// its outcome. Stops after the first that was interrupted.
    pub fn run(
        &self,
        provider: &mut dyn Provider,
        begin: &mut dyn FnMut(&Workload, u64) -> Arc<Watch>,
        end: &mut dyn FnMut(&Workload, &Outcome),
    ) -> StoreResult<Vec<Outcome>> {
        let mut open: Option<Open> = None;
        let mut outcomes = Vec::new();
        for workload in self.workloads {
            let Open { store, space } = match (workload.start, open.take()) {
                (Start::Existing, Some(open)) => open,
                (Start::Existing, None) => self.reopen(provider, workload)?,
                (Start::Fresh(order), previous) => {
                    drop(previous);
                    Open { store: provider.fresh()?, space: Arc::new(empty(workload, order, self.plan.num)) }
                }
            };
            let watch = begin(workload, self.plan.operations(workload));
            let outcome = run(&store, workload, &self.plan, &space, &watch)?;
            end(workload, &outcome);
            // A fill that inserts knows how far it came; one that writes chosen keys does not.
            let counted = space.visible();
            let records = if workload.fills() && counted == 0 { self.plan.num } else { counted };
            let contents = Contents { records, order: space.order(), key_size: self.plan.key_size };
            provider.note(contents)?;
            let stopped = outcome.interrupted;
            outcomes.push(outcome);
            if stopped {
                break;
            }
            open = Some(Open { store, space: Arc::new(space.grown(records)) });
        }
        Ok(outcomes)
    }

    fn reopen(&self, provider: &mut dyn Provider, workload: &Workload) -> StoreResult<Open> {
        let Some((store, contents)) = provider.existing()? else {
            return Err(format!(
                "{} needs a database to work on; put fillrandom, fillseq or load before it",
                workload.name
            )
            .into());
        };
        if contents.key_size != self.plan.key_size {
            return Err(format!(
                "the database holds keys of {} bytes; use --key-size {}",
                contents.key_size, contents.key_size
            )
            .into());
        }
        // Some numbers may be missing: a fill may repeat keys, and records may have been deleted.
        Ok(Open { store, space: Arc::new(KeySpace::unknown(contents.records, contents.order)) })
    }
}

/// The key numbers of a database that `workload` is about to fill with `num` records.
pub(crate) fn empty(workload: &Workload, order: KeyOrder, num: u64) -> KeySpace {
    match workload.action {
        Action::Replay => KeySpace::unknown(0, order),
        _ if workload.draws_from_all_keys() => KeySpace::unknown(0, order),
        Action::Operations { mix, .. } if mix.update > 0 => KeySpace::marked(num, order),
        _ => KeySpace::new(0, order),
    }
}
