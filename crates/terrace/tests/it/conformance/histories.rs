//! Histories under threads: see `histories`. `HISTORY_ROUNDS` makes it longer, `HISTORY_SEED` repeats a seed
//! (what the threads ask for; not who is first).

use terrace_base::rng::Rng;

use crate::harness::{Engine, setups};
use crate::histories::{Plan, run};

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// One order of commits explains all that threads are told, while flushes and compactions run.
pub fn one_order_explains_what_threads_are_told(engine: &Engine) {
    let rounds = variable("HISTORY_ROUNDS").unwrap_or(1);
    for round in 0..rounds {
        let seed = variable("HISTORY_SEED").unwrap_or_else(Rng::fresh_seed);
        for (i, setup) in setups(engine).iter().enumerate() {
            for expires in [false, true] {
                let plan =
                    Plan { seed, threads: 3 + (round as usize + i) % 3, ops: 250, sessions: 3, expires };
                run(setup, &plan);
            }
        }
        if round % 10 == 9 {
            println!("{} of {rounds} rounds", round + 1);
        }
    }
}
