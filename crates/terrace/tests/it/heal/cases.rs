//! Cases: a scenario, and which of its operations are refused.
//!
//! Every operation of a scenario that a trouble can befall is refused in turn, or a sample where these are many. How
//! many operations the trouble lasts for is drawn. `HEAL_CASES` says how many cases each scenario has at most, and
//! `HEAL_CASE` names the one to be run: `Io:17:3` refuses three operations from the seventeenth on.

use std::panic::{AssertUnwindSafe, catch_unwind};

use terrace::{EngineKind, Options, Stats};
use terrace_base::rng::Rng;
use terrace_pmem::Granularity;
use terrace_sim::{OwnWorld, PmOptions, Refusal, Survival, Trouble, World, WorldOptions};

use super::life::{Life, Verdict};
use super::space;
use crate::crash::env::{runs_on, share, tiny};
use crate::crash::judge::judge;
use crate::crash::ops::Op;
use crate::harness::with_memtables_of;

/// Cases of a scenario of one engine on one medium; of more than that a sample is taken.
const CASES: u64 = 40;

/// For how many operations a trouble lasts.
const LASTING: [u64; 6] = [1, 1, 2, 3, 6, 14];

/// Failures that are shown.
const SHOWN: usize = 8;

/// What something happens to.
#[derive(Debug, Clone)]
pub struct Subject {
    pub engine: EngineKind,
    pub granularity: Granularity,
    pub options: Options,
    pub pm: PmOptions,
}

impl Subject {
    /// `engine` with everything small, on a medium of such granularity.
    pub fn new(engine: EngineKind, granularity: Granularity) -> Subject {
        let mut options = tiny(engine);
        // A flush makes several tables, and a compaction merges several.
        options.slm.table_bytes = 1 << 10;
        options.lsm.table_bytes = 1 << 10;
        let pm = PmOptions { bytes: 1280 << 10, capacity: 8 << 20, granularity };
        Subject { engine, granularity, options, pm }
    }

    fn world(&self, seed: u64) -> OwnWorld {
        OwnWorld(World::new(seed, WorldOptions { pm: self.pm }))
    }
}

/// Every engine on every medium that it runs on, for cases of this seed.
pub fn everywhere(seed: u64) -> impl Iterator<Item = Subject> {
    let media = [Granularity::CacheLine, Granularity::Page];
    let all = crate::crash::env::ENGINES.into_iter().flat_map(move |e| media.map(|g| (e, g)));
    all.filter(|(engine, granularity)| runs_on(*engine, *granularity)).map(move |(engine, granularity)| {
        let subject = Subject::new(engine, granularity);
        Subject { options: with_memtables_of(seed, subject.options.clone()), ..subject }
    })
}

/// What a store has to say of itself after `ops`, with nothing refused.
pub fn stats_after(subject: &Subject, seed: u64, ops: &[Op]) -> Verdict<Stats> {
    let world = subject.world(seed);
    let mut life = Life::open(&world, subject.options.clone())?;
    ops.iter().try_for_each(|op| life.carry_out(op))?;
    Ok(life.db().stats())
}

/// Runs the cases of `ops` on `subject`; the failures, each with its case.
pub fn explore(subject: &Subject, seed: u64, ops: &[Op]) -> Verdict {
    let asked = std::env::var("HEAL_CASE").ok().map(|text| parse(&text));
    let (mut cases, mut met, mut failures) = (0u64, 0u64, Vec::new());
    let all = match asked {
        Some(refusal) => vec![refusal],
        None => draw(subject, seed, ops)?,
    };
    for refusal in all {
        cases += 1;
        match outcome(subject, seed, ops, Some(refusal)) {
            Ok(refused) => met += refused,
            Err(e) => failures
                .push(format!("HEAL_CASE={:?}:{}:{}: {e}", refusal.trouble, refusal.after, refusal.count)),
        }
    }
    let name = format!("{:?} {:?} seed {seed}", subject.engine, subject.granularity);
    println!("{name}: {cases} cases, {met} operations refused, {} failed", failures.len());
    let shown = failures.len().min(SHOWN);
    match failures.is_empty() {
        true => Ok(()),
        false => {
            Err(format!("{name}: {} of {cases} cases\n{}", failures.len(), failures[..shown].join("\n")))
        }
    }
}

fn parse(text: &str) -> Refusal {
    let mut parts = text.split(':');
    let mut next = || parts.next().expect("a trouble, a place and a length");
    let trouble = next();
    let trouble = Trouble::ALL.into_iter().find(|t| format!("{t:?}") == trouble).expect("a trouble");
    Refusal { trouble, after: next().parse().expect("a number"), count: next().parse().expect("a number") }
}

/// The cases to be run, each trouble with its share.
fn draw(subject: &Subject, seed: u64, ops: &[Op]) -> Verdict<Vec<Refusal>> {
    live(subject, &subject.world(seed), ops)
        .map_err(|e| format!("{:?} {:?}, nothing refused: {e}", subject.engine, subject.granularity))?;
    let world = subject.world(seed);
    let mut life = Life::open(&world, subject.options.clone())?;
    ops.iter().try_for_each(|op| life.carry_out(op))?;
    let most = std::env::var("HEAL_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(CASES);
    let each = (most / share(subject.engine) / Trouble::ALL.len() as u64).max(1);
    let mut rng = Rng::new(seed ^ 0x4ea1);
    let mut cases = Vec::new();
    for trouble in Trouble::ALL {
        let befallen = world.befallen_by(trouble);
        let count = each.min(befallen);
        for i in 0..count {
            // One of each stretch, so that no part of the scenario is left out.
            let (from, to) = (befallen * i / count, befallen * (i + 1) / count);
            let lasting = LASTING[rng.below(LASTING.len() as u64) as usize];
            cases.push(Refusal { trouble, after: from + rng.below(to - from), count: lasting });
        }
    }
    Ok(cases)
}

fn outcome(subject: &Subject, seed: u64, ops: &[Op], refusal: Option<Refusal>) -> Verdict<u64> {
    let world = subject.world(seed);
    if let Some(refusal) = refusal {
        world.refuse(refusal);
    }
    let caught = catch_unwind(AssertUnwindSafe(|| live(subject, &world, ops)));
    caught.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or("a panic".into()))
    })?;
    Ok(world.refused())
}

/// Lives through `ops` in `world`, and on when all is well.
fn live(subject: &Subject, world: &World, ops: &[Op]) -> Verdict {
    let mut life = Life::open(world, subject.options.clone())?;
    let mut first = None;
    for (i, op) in ops.iter().enumerate() {
        life.carry_out(op).map_err(|e| format!("operation {i}, {op:?}: {e}"))?;
        if first.is_none() && world.refused() > 0 {
            first = Some((world.capture(), life.model().clone()));
        }
    }
    let refused = world.refused();
    world.heal();
    life.goes_on()?;
    let last = (world.capture(), life.model().clone());
    let mut rng = Rng::new(world.seed() ^ refused ^ world.events());
    let (snapshot, model) = first.filter(|_| rng.one_in(2)).unwrap_or(last);
    let survivor = match rng.below(3) {
        0 => snapshot.kill(),
        1 => snapshot.power_cut(Survival::Nothing),
        _ => snapshot.power_cut(Survival::Seeded(rng.next_u64())),
    };
    judge(&subject.options, &survivor, &model).map_err(|e| format!("a survivor: {e}"))?;
    life.comes_to_rest()?;
    space::judge(world, &life, &subject.options, WorldOptions { pm: subject.pm })?;
    life.lives_again()
}
