use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use terrace_base::rng::Rng;

use super::*;

fn free(old: &mut Vec<Node>) {
    // SAFETY: the test has no searches under way.
    old.drain(..).for_each(|node| unsafe { node.free() });
}

fn floor_of(map: &BTreeMap<Vec<u8>, usize>, key: &[u8], strict: bool) -> Option<usize> {
    let end = if strict { Bound::Excluded(key) } else { Bound::Included(key) };
    map.range::<[u8], _>((Bound::Unbounded, end)).next_back().map(|(_, v)| *v)
}

fn compare(keys: &[(Vec<u8>, bool)], probes: &[Vec<u8>]) {
    let (art, mut map, mut old) = (Art::new(), BTreeMap::new(), Vec::new());
    for (i, (key, put)) in keys.iter().enumerate() {
        let value = (i + 1) * 2;
        if *put {
            let before = map.get(key).copied();
            assert_eq!(art.insert(key, value, &mut old), before.map_or(Ok(()), Err));
            map.entry(key.clone()).or_insert(value);
        } else {
            assert_eq!(art.remove(key, &mut old), map.remove(key));
        }
        free(&mut old);
    }
    for probe in probes.iter().chain(keys.iter().map(|(key, _)| key)) {
        for strict in [false, true] {
            assert_eq!(art.floor(probe, strict), floor_of(&map, probe, strict), "{probe:?} {strict}");
        }
    }
    let all: Vec<_> = map.keys().cloned().collect();
    all.iter().for_each(|key| assert!(art.remove(key, &mut old).is_some()));
    free(&mut old);
    assert_eq!(art.bytes(), 0, "an empty tree has no nodes");
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::collection::vec(0u8..3, 0..6),
        2 => prop::collection::vec(any::<u8>(), 0..4),
        2 => (0u32..300).prop_map(|i| format!("some/common/prefix/of/users/{i:08}").into_bytes()),
        2 => (0usize..60, 0u8..3).prop_map(|(n, b)| [vec![7; n], vec![b]].concat()),
        1 => (0usize..4).prop_map(|n| vec![9; 300 + n]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn floors_are_those_of_an_ordered_map(
        keys in prop::collection::vec((key(), prop::bool::weighted(0.7)), 0..120),
        probes in prop::collection::vec(key(), 0..60),
    ) {
        compare(&keys, &probes);
    }
}

#[test]
fn nodes_fill_up_and_thin_out() {
    let bytes = |i: u16| vec![(i * 37 % 256) as u8];
    let keys: Vec<_> =
        (0..256).map(|i| (bytes(i), true)).chain((0..250).map(|i| (bytes(i), false))).collect();
    let probes: Vec<_> = (0..256).map(|i| vec![i as u8, 1]).collect();
    for n in [0, 1, 48, 49, 50, 255, 256, 400, 460, 470, 506] {
        compare(&keys[..n], &probes);
    }
}

#[test]
fn searches_beside_changes_find_what_is_always_there() {
    let art = Art::new();
    let mut old = Vec::new();
    let fixed = |i: u64| format!("k{:04}", i * 10).into_bytes();
    for i in 0..200 {
        art.insert(&fixed(i), (i as usize + 1) * 2, &mut old).unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let changes = s.spawn(|| {
            let mut rng = Rng::new(1);
            let mut old = Vec::new();
            for _ in 0..30_000 {
                let key = format!("k{:04}", rng.below(2000));
                if key.ends_with('0') {
                    continue;
                }
                if rng.one_in(2) {
                    let _ = art.insert(key.as_bytes(), 4000, &mut old);
                } else {
                    art.remove(key.as_bytes(), &mut old);
                }
            }
            stop.store(true, Ordering::Relaxed);
            // Kept until the searches are over.
            old
        });
        s.spawn(|| {
            let mut i = 0;
            while !stop.load(Ordering::Relaxed) {
                i = (i * 31 + 7) % 200;
                // The key itself is found in spite of changes around it.
                assert_eq!(art.floor(&fixed(i), false), Some((i as usize + 1) * 2));
            }
        });
        old.extend(changes.join().unwrap());
    });
    free(&mut old);
}

/// No operation recurses for each node of a path: the longest key has thousands of nodes.
#[test]
fn the_longest_keys_come_and_go_on_a_small_stack() {
    let work = || {
        let (art, mut old) = (Art::new(), Vec::new());
        let keys: Vec<Vec<u8>> = (0..4u8).map(|last| [&vec![b'l'; 65_534][..], &[last]].concat()).collect();
        keys.iter().for_each(|key| art.insert(key, 8, &mut old).unwrap());
        keys.iter().for_each(|key| assert_eq!(art.remove(key, &mut old), Some(8)));
        free(&mut old);
        assert_eq!((art.bytes(), art.last()), (0, None));
    };
    let thread = std::thread::Builder::new().stack_size(128 << 10).spawn(work);
    thread.unwrap().join().unwrap();
}
