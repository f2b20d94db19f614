//! Every target over the corpus and over drawn inputs: quick, and every time.

use std::path::{Path, PathBuf};

use terrace_base::rng::Rng;
use terrace_fuzz::TARGETS;

/// Drawn inputs for each target; `TERRACE_FUZZ_DRAWN` says how many others.
const DRAWN: u64 = 300;

/// Numbers that an input which is no image begins with: targets have several images.
const VARIANTS: u64 = 12;

fn drawn() -> u64 {
    std::env::var("TERRACE_FUZZ_DRAWN").map_or(DRAWN, |n| n.parse().expect("a number of inputs"))
}

/// Whether a target is to be run: `TERRACE_FUZZ_TARGET` names the only one.
fn is_wanted(name: &str) -> bool {
    std::env::var("TERRACE_FUZZ_TARGET").map_or(true, |wanted| wanted == name)
}

fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name)
}

#[test]
fn the_corpus_is_decoded() {
    for (name, target) in TARGETS {
        let files = std::fs::read_dir(corpus(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let paths: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
        assert!(!paths.is_empty(), "{name} has no corpus");
        for path in paths {
            println!("{}", path.display());
            target(&std::fs::read(path).unwrap());
        }
    }
}

/// A few edits of the sound image, or a few bytes.
fn draw(rng: &mut Rng) -> Vec<u8> {
    let mut data = vec![if rng.one_in(20) { 0 } else { 1 + rng.below(VARIANTS) as u8 }];
    for _ in 0..rng.below(4) {
        let (len, what) = (rng.below(8) as usize, rng.below(8) as u8);
        let at = if rng.one_in(2) { rng.below(1 << 9) } else { rng.below(1 << 20) };
        data.push(what);
        data.extend(&at.to_le_bytes()[..3]);
        match what {
            1 => data.extend(rng.below(1 << 17).to_le_bytes()),
            2 => data.extend(&rng.below(1 << 17).to_le_bytes()[..3]),
            3 => {}
            4 | 6 => data.push(len as u8),
            _ => {
                data.push(len as u8);
                data.extend((0..=len).map(|_| rng.next_u64() as u8));
            }
        }
    }
    data
}

#[test]
fn drawn_inputs_are_decoded() {
    for (name, target) in TARGETS.iter().filter(|(name, _)| is_wanted(name)) {
        for seed in 0..drawn() {
            let data = draw(&mut Rng::new(seed));
            let outcome = std::panic::catch_unwind(|| target(&data));
            assert!(outcome.is_ok(), "{name}, seed {seed}: {data:?}");
        }
    }
}
