//! Databases in real files, damaged at random and judged through the command itself, with its real locks: what it
//! shows, checks and repairs.
//!
//! A case is an engine and a seed: some sessions that write, the last closed or killed with SIGKILL; damages; then
//! `get`, `export`, `check`, `repair`, which may be killed and begun again, and `check` and `export` again. Every value
//! tells of which key and write it is. What must never be is in [`Verdict::is_fault`]. `TERRACE_DAMAGES=200` draws so
//! many cases for each engine, from `TERRACE_DAMAGES_FROM` on; with `--nocapture` the verdicts are counted in a table.

mod blocks;
mod harm;
mod image;
mod judge;
mod strays;

use std::collections::BTreeMap;

use terrace_base::rng::Rng;

use image::Image;
use judge::Verdict;
use strays::Strays;

use crate::engines;

/// Cases of each engine.
const CASES: u64 = 4;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |n| n.parse().unwrap())
}

/// Damages the database; in one case of three something lies there that is nobody's to remove, and perhaps that is all.
fn spoil(image: &Image, seed: u64, rng: &mut Rng) -> (Vec<String>, Option<Strays>) {
    let mut of_strays = Rng::new(seed ^ u64::from_le_bytes(*b"strays-1"));
    let (lies, is_all) = (of_strays.one_in(3), of_strays.one_in(2));
    let damages = if lies && is_all { Vec::new() } else { harm::harm(image, rng) };
    (damages, lies.then(|| strays::lay(image, &mut of_strays)))
}

fn explore(engine: &'static str) {
    let (cases, from) = (number("TERRACE_DAMAGES", CASES), number("TERRACE_DAMAGES_FROM", 0));
    let mut counts: BTreeMap<Verdict, u64> = BTreeMap::new();
    let mut faults = Vec::new();
    for seed in from..from + cases {
        let mut rng = Rng::new(seed ^ u64::from_le_bytes(*b"damage-1"));
        let image = Image::make(engine, &mut rng);
        let (mut damages, strays) = spoil(&image, seed, &mut rng);
        damages.extend(strays.iter().map(|strays| strays.said.clone()));
        let mut judged = judge::judge(&image, &mut rng);
        if image.may_have_ended_early(&damages) {
            judged.verdicts = judged.verdicts.into_iter().map(Verdict::of_an_early_end).collect();
        }
        let touched: Vec<_> = strays.iter().flat_map(Strays::touched).collect();
        if !touched.is_empty() {
            damages.push(format!("touched: {touched:?}"));
            judged.verdicts.push(Verdict::StrayTouched);
        }
        for verdict in &judged.verdicts {
            *counts.entry(*verdict).or_default() += 1;
        }
        if judged.verdicts.iter().any(|v| v.is_fault()) {
            let case = format!("{engine}, seed {seed} ({}): {}", image.about(), damages.join("; "));
            println!("{case}\n{}", judged.story);
            faults.push(format!("{case}: {:?}", judged.verdicts));
        }
    }
    let table: Vec<String> = counts.iter().map(|(verdict, n)| format!("{n:>6}  {verdict:?}")).collect();
    println!("{engine}: {cases} cases from seed {from}\n{}", table.join("\n"));
    assert!(faults.is_empty(), "{} of {cases}:\n{}", faults.len(), faults.join("\n"));
}

macro_rules! explored {
    ($($engine:ident)*) => {
        $(#[test]
        fn $engine() {
            explore(stringify!($engine));
        })*

        /// Must catch an engine that is not damaged here.
        #[test]
        fn every_engine_is_explored() {
            let mut here = [$(stringify!($engine)),*];
            let mut all: Vec<_> = engines::names().collect();
            here.sort_unstable();
            all.sort_unstable();
            assert_eq!(here[..], all);
        }
    };
}

explored!(slm lsm wip turbo sptree split lab tlsm);
