//! Keys as an enemy would choose them, against a map: by one thread through crashes, and by several.

use std::collections::BTreeMap;

use terrace_base::rng::Rng;
use terrace_index::PointIndex;
use terrace_sim::{World, WorldOptions};

use super::{Case, SEED, Subject, colliding};
use crate::bed::{assert_marked, create_in, memory_pool_of, open_in};

/// Keys of which some are changed: more than any window or path of the indexes under test has slots.
const KEYS: u64 = 480;

fn hard(i: u64) -> Vec<u8> {
    terrace_sim::hard(SEED, i)
}

type Map = BTreeMap<Vec<u8>, u64>;

/// The contents are those of the map, and the index is sound.
fn agrees(index: &impl Subject, map: &Map) {
    assert_eq!(index.check().unwrap(), Vec::<String>::new());
    assert_eq!(index.len(), map.len() as u64);
    index.check_figures();
    assert_eq!(index.contents(usize::MAX), map.clone().into_iter().collect::<Vec<_>>());
    (0..KEYS).map(hard).for_each(|key| assert_eq!(index.get(&key).unwrap(), map.get(&key).copied()));
}

fn change(index: &impl Subject, map: &mut Map, rng: &mut Rng, grows: u64) {
    let (key, word) = (hard(rng.below(KEYS)), 1 + rng.below(1 << 50));
    let before = map.get(&key).copied();
    match rng.below(8) {
        0 => {
            let expected = if rng.one_in(2) { before } else { Some(word) };
            let done = index.compare_exchange(&key, expected, Some(word + 1)).unwrap();
            assert_eq!(done, if expected == before { Ok(()) } else { Err(before) });
            if expected == before {
                map.insert(key, word + 1);
            }
        }
        n if n <= grows => assert_eq!(index.insert(&key, word).unwrap(), map.insert(key, word)),
        _ => assert_eq!(index.remove(&key).unwrap(), map.remove(&key)),
    }
}

/// One thread, through crashes, until nothing is left.
fn agrees_with_a_map<C: Case>() {
    let mut world = World::new(5, WorldOptions::default());
    let mut index = C::create(&create_in(&world).unwrap()).unwrap();
    let (mut map, mut rng) = (Map::new(), Rng::new(5));
    for grows in [7, 6, 3, 7, 1] {
        (0..700).for_each(|_| change(&index, &mut map, &mut rng, grows));
        agrees(&index, &map);
        world = world.kill();
        let pool = open_in(&world).unwrap();
        index = C::open(&pool).unwrap();
        agrees(&index, &map);
        index.close().unwrap();
        assert_marked(&pool, |marks| index.mark(marks));
    }
    for key in map.keys() {
        assert!(index.remove(key).unwrap().is_some());
    }
    agrees(&index, &Map::new());
    index.close().unwrap();
}

/// Several threads, of which each has keys of its own among those of one hash.
fn bears_threads<C: Case>() {
    const THREADS: u64 = 4;
    let pool = memory_pool_of(64 << 20);
    let index = C::create(&pool).unwrap();
    std::thread::scope(|s| {
        for t in 0..THREADS {
            let index = &index;
            s.spawn(move || {
                let (mut map, mut rng) = (Map::new(), Rng::new(t));
                for step in 0..1500u64 {
                    let (key, word) = (colliding(rng.below(100) * THREADS + t), step + 1);
                    match rng.below(5) {
                        0 => assert_eq!(index.get(&key).unwrap(), map.get(&key).copied()),
                        1 | 2 if step > 200 => {
                            assert_eq!(index.remove(&key).unwrap(), map.remove(&key));
                        }
                        _ => assert_eq!(index.insert(&key, word).unwrap(), map.insert(key, word)),
                    }
                }
                map.keys().for_each(|key| assert!(index.remove(key).unwrap().is_some()));
            });
        }
    });
    assert_eq!((index.len(), index.check().unwrap()), (0, Vec::new()));
    index.close().unwrap();
    assert_marked(&pool, |marks| index.mark(marks));
}

/// The test.
pub fn bears_hard_keys<C: Case>() {
    agrees_with_a_map::<C>();
    bears_threads::<C>();
}
