//! The medium against the contract's own words: every crash image of random stores, flushes, orderings and
//! drains is one that the contract allows, and the states it allows do come up.
//!
//! The judge knows nothing of the simulator's journal. It keeps each line's stores as a list: what was stored
//! where, in which ordering epoch. A line is allowed if some epoch `e` exists such that every store before
//! `e` has happened, none after it, and of those in `e` any; each word then holds the last of the stores
//! to it that happened. Nothing that was drained is undone.

use std::collections::HashSet;

use proptest::prelude::*;
use terrace_pmem::{Granularity, Media};
use terrace_sim::{PmOptions, SimPm, Survival};

use crate::raw::{load, store};

const LINES: u64 = 2;
const WORDS: u64 = 3;
const LINE_BYTES: u64 = 64;

#[derive(Debug, Clone, Copy)]
enum Act {
    Store(u64, u64),
    Flush(u64),
    Order(u64),
    Drain,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0..LINES, 0..WORDS).prop_map(|(line, word)| Act::Store(line, word)),
        2 => (0..LINES).prop_map(Act::Flush),
        2 => (0..LINES).prop_map(Act::Order),
        1 => Just(Act::Drain),
    ]
}

/// The stores to one line: word, value, epoch.
#[derive(Debug, Default, Clone)]
struct Judge {
    stores: Vec<(u64, u64, u64)>,
    epoch: u64,
    /// Stores that the last flush covers, and those that a drain made durable.
    flushed: usize,
    drained: usize,
}

impl Judge {
    /// The contents of a word when `happened` says which of the stores did.
    fn word(&self, word: u64, happened: impl Fn(usize) -> bool) -> u64 {
        let last = self.stores.iter().enumerate().rfind(|&(i, s)| s.0 == word && happened(i));
        last.map_or(0, |(_, s)| s.1)
    }

    fn allows(&self, found: &[u64]) -> bool {
        (0..=self.epoch).any(|epoch| {
            // An epoch that ended before something drained began cannot be where it stopped.
            let ended = |i: usize| self.stores[i].2 < epoch;
            if (0..self.drained).any(|i| self.stores[i].2 > epoch) {
                return false;
            }
            (0..WORDS).all(|word| {
                let must = |i: usize| ended(i) || i < self.drained;
                let last_must = (0..self.stores.len()).rfind(|&i| self.stores[i].0 == word && must(i));
                let may = (0..self.stores.len()).filter(|&i| {
                    let (at, _, e) = self.stores[i];
                    at == word && (last_must == Some(i) || (e == epoch && last_must.is_none_or(|m| i > m)))
                });
                let mut values: HashSet<u64> = may.map(|i| self.stores[i].1).collect();
                if last_must.is_none() {
                    values.insert(0);
                }
                values.contains(&found[word as usize])
            })
        })
    }
}

/// Carries out `acts` on a medium and beside it.
fn carry_out(acts: &[Act]) -> (SimPm, Vec<Judge>) {
    let pm = SimPm::new(PmOptions { bytes: 4096, capacity: 4096, granularity: Granularity::CacheLine });
    let mut judges = vec![Judge::default(); LINES as usize];
    for (value, &act) in (1..).zip(acts) {
        match act {
            Act::Store(line, word) => {
                store(&pm, line * LINE_BYTES + word * 8, value);
                let judge = &mut judges[line as usize];
                judge.stores.push((word, value, judge.epoch));
            }
            Act::Flush(line) => {
                pm.flush(line * LINE_BYTES, 1);
                judges[line as usize].flushed = judges[line as usize].stores.len();
            }
            Act::Order(line) => {
                pm.order(line * LINE_BYTES + 8);
                judges[line as usize].epoch += 1;
            }
            Act::Drain => {
                pm.drain();
                judges.iter_mut().for_each(|judge| judge.drained = judge.drained.max(judge.flushed));
            }
        }
    }
    (pm, judges)
}

fn words(pm: &SimPm, line: u64) -> Vec<u64> {
    (0..WORDS).map(|word| load(pm, line * LINE_BYTES + word * 8)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_image_is_one_the_contract_allows(acts in prop::collection::vec(act(), 1..40)) {
        let (pm, judges) = carry_out(&acts);
        let snapshot = pm.capture();
        let drawn = (0..60).map(Survival::Seeded);
        for survival in [Survival::Nothing, Survival::Everything].into_iter().chain(drawn) {
            let survivor = snapshot.power_cut(survival);
            for (line, judge) in (0..).zip(&judges) {
                let found = words(&survivor, line);
                prop_assert!(judge.allows(&found), "{survival:?}: line {line} is {found:?} of {judge:?}");
            }
        }
    }

    #[test]
    fn the_extremes_are_what_was_drained_and_what_was_stored(acts in prop::collection::vec(act(), 1..40)) {
        let (pm, judges) = carry_out(&acts);
        let snapshot = pm.capture();
        let least = snapshot.power_cut(Survival::Nothing);
        let most = snapshot.power_cut(Survival::Everything);
        for (line, judge) in (0..).zip(&judges) {
            let all = |happened: usize| {
                (0..WORDS).map(|word| judge.word(word, |i| i < happened)).collect::<Vec<_>>()
            };
            prop_assert_eq!(words(&least, line), all(judge.drained));
            prop_assert_eq!(words(&most, line), all(judge.stores.len()));
        }
    }

    #[test]
    fn what_the_contract_allows_comes_up(acts in prop::collection::vec(act(), 1..12)) {
        // Only the last value of a word within an epoch is seen by the simulator unless it was flushed or
        // ordered meanwhile, so the claim is made for stores that are not overwritten.
        let mut once = HashSet::new();
        let acts: Vec<Act> = acts.into_iter().filter(|act| match act {
            Act::Store(line, word) => once.insert((*line, *word)),
            _ => true,
        }).collect();
        let (pm, judges) = carry_out(&acts);
        let snapshot = pm.capture();
        let survivors: Vec<SimPm> = (0..1500).map(|seed| snapshot.power_cut(Survival::Seeded(seed))).collect();
        for (line, judge) in (0..).zip(&judges) {
            let seen: HashSet<Vec<u64>> = survivors.iter().map(|pm| words(pm, line)).collect();
            let full = words(&pm, line);
            for kept in 0..1u32 << WORDS {
                let pick = |(i, &value): (usize, &u64)| if kept >> i & 1 == 1 { value } else { 0 };
                let state: Vec<u64> = full.iter().enumerate().map(pick).collect();
                prop_assert!(!judge.allows(&state) || seen.contains(&state), "{state:?} never of {judge:?}");
            }
        }
    }
}
