//! Power cuts and kills at every drain.

use std::ops::Bound;
use terrace_base::rng::Rng;
use terrace_index::ScanBatch;
use terrace_pmem::Pool;
use terrace_sim::{Change, Explorer, KvModel, Map, Recorder, World, kv_scenario};

use super::{Case, Subject};
use crate::bed::{assert_marked, create_in, open_in};

/// An operation: key, and its new word or none.
type Op = (Vec<u8>, Option<u64>);

fn run<C: Case>(world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]) -> Result<(), String> {
    let text = |e: terrace_base::Error| e.to_string();
    let pool = create_in(world).map_err(text)?;
    let index = C::create(&pool).map_err(text)?;
    for (key, word) in ops {
        let change = match word {
            Some(word) => Change::put(key.clone(), word.to_le_bytes()),
            None => Change::delete(key.clone()),
        };
        recorder
            .apply(change, || match word {
                Some(word) => index.insert(key, *word).map(drop),
                None => index.remove(key).map(drop),
            })
            .map_err(text)?;
    }
    Ok(())
}

fn contents(index: &impl Subject, step: usize) -> Map {
    index.contents(step).into_iter().map(|(k, w)| (k, w.to_le_bytes().to_vec())).collect()
}

/// The keys by a scan downward.
fn downward(index: &impl Subject) -> Option<Map> {
    let mut batch = ScanBatch::new();
    index.ordered()?.scan(Bound::Unbounded, true, usize::MAX, &mut batch).unwrap();
    let keys: Vec<_> = batch.iter().map(|(k, _)| k.to_vec()).collect();
    assert!(keys.is_sorted_by(|a, b| a > b), "a scan in order");
    Some(batch.iter().map(|(k, w)| (k.to_vec(), w.to_le_bytes().to_vec())).collect())
}

fn assert_no_leaks(pool: &Pool, index: &impl Subject) {
    // Empties limbo.
    index.close().unwrap();
    assert_marked(pool, |marks| index.mark(marks));
}

fn verify<C: Case>(world: &World, model: &KvModel) -> Result<(), String> {
    let attempt = || -> Option<(Pool, C::Index)> {
        let pool = open_in(world).ok()?;
        pool.root("index").ok()??;
        let index = C::open(&pool).expect("an index that a root names opens");
        Some((pool, index))
    };
    let Some((pool, index)) = attempt() else { return model.accepts_in(world, &Map::new()) };
    let found = contents(&index, 7);
    model.accepts_in(world, &found)?;
    if downward(&index).is_some_and(|down| down != found) {
        return Err("the scans upward and downward differ".into());
    }
    for (key, word) in &found {
        if index.get(key).unwrap().map(u64::to_le_bytes).as_ref().map(<[u8; 8]>::as_slice) != Some(word) {
            return Err(format!("{key:?} is not found"));
        }
    }
    let problems = index.check().unwrap();
    if !problems.is_empty() {
        return Err(problems.join("; "));
    }
    world.recovery_done();
    assert_no_leaks(&pool, &index);
    goes_on(&index, found)?;
    assert_no_leaks(&pool, &index);
    Ok(())
}

/// Writers repair what the crash has left: everything is removed, put back, and looked at.
fn goes_on(index: &impl Subject, mut map: Map) -> Result<(), String> {
    let mut rng = Rng::new(map.len() as u64);
    let keys: Vec<_> = map.keys().cloned().collect();
    for (i, key) in keys.iter().enumerate() {
        let beside = [&key[..], b"+"].concat();
        if rng.one_in(2) {
            index.remove(key).unwrap();
            map.remove(key);
        }
        if rng.one_in(2) {
            index.insert(&beside, 1 + i as u64).unwrap();
            map.insert(beside, (1 + i as u64).to_le_bytes().to_vec());
        }
    }
    let problems = index.check().unwrap();
    if !problems.is_empty() {
        return Err(format!("after further writes: {}", problems.join("; ")));
    }
    if contents(index, usize::MAX) != map {
        return Err("further writes are lost".into());
    }
    if index.len() != map.len() as u64 {
        return Err(format!("{} keys counted, {} there", index.len(), map.len()));
    }
    index.check_figures();
    Ok(())
}

fn ops(seed: u64, n: usize, keys: u64, key: impl Fn(u64) -> Vec<u8>) -> Vec<Op> {
    let mut rng = Rng::new(seed);
    // Grow, then shrink to nothing, so that every structure change comes up both ways.
    let mut out: Vec<Op> = (0..n)
        .map(|i| {
            let grow = i < n * 2 / 3;
            let put = if grow { !rng.one_in(5) } else { rng.one_in(5) };
            (key(rng.below(keys)), put.then(|| 1 + rng.below(1000)))
        })
        .collect();
    out.extend((0..keys).map(|i| (key(i), None)));
    out
}

/// The crash test: dense keys, ascending keys with a long common prefix, and mixed ones.
pub fn survives_crashes<C: Case>() {
    let explore = |seed, ops| {
        Explorer::new(seed).images(700).nested(1, 1).must_pass(kv_scenario(run::<C>, verify::<C>), ops)
    };
    explore(1, ops(1, 40, 16, |i| vec![b'a' + (i % 16) as u8]));
    let mut ascending: Vec<Op> =
        (0..24u64).map(|i| (format!("user{i:018}").into_bytes(), Some(i + 1))).collect();
    ascending.extend((0..24u64).map(|i| (format!("user{i:018}").into_bytes(), None)));
    explore(2, ascending);
    explore(
        3,
        ops(3, 50, 30, |i| {
            if i % 3 == 0 { vec![b'x'; (i % 7) as usize] } else { format!("key-{}", i * i).into_bytes() }
        }),
    );
}
