//! Every instruction set, on the same operations.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use terrace_base::rng::Rng;
use terrace_pmem::{Granularity, MemMedia, Pool, PoolOptions};

use super::simd::Level;
use super::{Garbage, TurboHash, TurboOptions};
use crate::{ByteMap, HashIndex};

fn table(options: &TurboOptions) -> TurboHash {
    let max = 64 << 20;
    let media = MemMedia::new(1 << 20, max, Granularity::CacheLine).unwrap();
    let pool_options = PoolOptions { max_size: max, extent_bytes: 4096, ..PoolOptions::default() };
    let pool = Pool::create_on(Arc::new(media), Path::new("memory"), &pool_options).unwrap();
    TurboHash::create(&pool, "table", options).unwrap()
}

#[test]
fn every_instruction_set_and_both_ways_to_read_agree_with_a_map() {
    let options = TurboOptions { shards: 4, initial_buckets: 1, probing_scope: 4, ..TurboOptions::default() };
    for level in Level::all() {
        for glances in [false, true] {
            let mut table = table(&options);
            table.level = level;
            table.glances &= glances;
            let (mut map, mut rng) = (BTreeMap::new(), Rng::new(1));
            for i in 1..6000u64 {
                let key = rng.below(700);
                match rng.below(4) {
                    0 => assert_eq!(table.remove_u64(key).unwrap(), map.remove(&key)),
                    1 => assert_eq!(table.get_u64(key).unwrap(), map.get(&key).copied()),
                    _ => assert_eq!(table.insert_u64(key, i).unwrap(), map.insert(key, i)),
                }
            }
            assert_eq!(table.check().unwrap(), Vec::<String>::new());
            (0..800)
                .for_each(|key| assert_eq!(table.get_u64(key).unwrap(), map.get(&key).copied(), "{level:?}"));
        }
    }
}

#[test]
fn a_table_made_for_its_keys_fills_well_and_probes_little() {
    let table = table(&TurboOptions { shards: 128, initial_buckets: 16, ..TurboOptions::for_keys(20_000) });
    let mut peak: f64 = 0.0;
    for i in 0..32_000u64 {
        table.insert_u64(i, i + 1).unwrap();
        if i.is_multiple_of(250) {
            peak = peak.max(table.figures().unwrap().load_factor());
        }
    }
    let figures = table.figures().unwrap();
    assert!(peak >= 0.85, "{peak}");
    assert!(figures.mean_hit() < 1.02 && figures.mean_miss() < 1.1, "{figures:?}");
    assert!(table.put(b"long", &[7; 1000]).is_ok_and(|existed| !existed));
}

#[test]
fn a_part_of_an_extent_that_is_lost_or_given_out_twice_is_found() {
    // Shards of 4 buckets have a quarter of an extent each.
    let table = table(&TurboOptions { shards: 8, initial_buckets: 4, ..TurboOptions::default() });
    (0..100).for_each(|key| assert_eq!(table.insert_u64(key, 7).unwrap(), None));
    let finding = |what: &str| {
        let findings = table.check().unwrap();
        assert!(matches!(&findings[..], [one] if one.contains(what)), "{findings:?}");
    };
    let bytes = table.view(0).bytes();
    assert_eq!((bytes, table.check().unwrap()), (1024, Vec::new()));
    let offset = table.blocks.reserve(bytes).unwrap().offset;
    finding("lost");
    // What waits for readers is not lost.
    let reader = table.limbo.enter();
    table.limbo.retire(Garbage::Shard { offset, bytes });
    assert_eq!((table.drain(), table.check().unwrap()), (false, Vec::new()));
    drop(reader);
    assert_eq!((table.drain(), table.check().unwrap()), (true, Vec::new()));
    let named = table.offset_of(table.view(0).address(0));
    table.blocks.free(named, bytes).unwrap();
    finding("free too");
}
