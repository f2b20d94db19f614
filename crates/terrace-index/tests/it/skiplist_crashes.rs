//! The skiplist as a memtable: what crashes leave of groups.

use std::cmp::Reverse;

use terrace_index::{Record, SkipList, kinds};
use terrace_pmem::Pool;
use terrace_sim::{Explorer, Recorder, Scenario, Survival, World, WorldOptions};

use crate::bed::{assert_marked, create_in, open_in};
use crate::skiplist::{ARENA, Batch, contents, put};

/// What is acknowledged, and the batches that are on their way.
#[derive(Default)]
struct Progress {
    acknowledged: Vec<(u64, Batch)>,
    in_flight: Vec<(u64, Batch)>,
}

struct Groups;

impl Scenario for Groups {
    type Op = Vec<Batch>;
    type Model = Progress;

    fn model(&self) -> Progress {
        Progress::default()
    }

    fn run(
        &self,
        world: &World,
        recorder: &mut Recorder<Progress>,
        ops: &[Vec<Batch>],
    ) -> Result<(), String> {
        let mut attempt = || -> terrace_base::Result<()> {
            let pool = create_in(world)?;
            let list = SkipList::create(&pool, kinds::MEMTABLE, 4096)?;
            pool.set_root("list", list.head_offset())?;
            let mut seq = 1;
            for group in ops {
                let mut at = seq;
                let numbered = group.iter().map(|batch| {
                    at += batch.len() as u64;
                    (at - batch.len() as u64, batch.clone())
                });
                let numbered: Vec<_> = numbered.collect();
                recorder.update(|m| m.in_flight = numbered.clone());
                seq = put(&list, seq, group)?;
                recorder.update(|m| {
                    m.in_flight.clear();
                    m.acknowledged.extend(numbered);
                });
            }
            Ok(())
        };
        attempt().map_err(|e| e.to_string())
    }

    fn verify(&self, world: &World, model: &Progress) -> Result<(), String> {
        let started = || -> Option<(Pool, SkipList)> {
            let pool = open_in(world).ok()?;
            let head = pool.root("list").ok()??;
            let list = SkipList::open(&pool, kinds::MEMTABLE, head);
            Some((pool, list.expect("a list that a root names opens")))
        };
        let Some((pool, list)) = started() else {
            return if model.acknowledged.is_empty() { Ok(()) } else { Err("the list is gone".into()) };
        };
        let problems = list.check().map_err(|e| e.to_string())?;
        if !problems.is_empty() {
            return Err(problems.join("; "));
        }
        let mut left = contents(&list);
        let mut take = |(first, batch): &(u64, Batch)| {
            let places = batch.iter().zip(*first..);
            places
                .filter(|((key, value), seq)| {
                    left.remove(&(key.clone(), Reverse(*seq))) == Some((1, value.clone()))
                })
                .count()
        };
        for batch in &model.acknowledged {
            if take(batch) != batch.1.len() {
                return Err(format!("of the acknowledged batch {} something is lost", batch.0));
            }
        }
        for batch in &model.in_flight {
            let there = take(batch);
            if there != 0 && there != batch.1.len() {
                return Err(format!("of the batch {} only {there} records are there", batch.0));
            }
        }
        if !left.is_empty() {
            return Err(format!("{} records that nobody put", left.len()));
        }
        world.recovery_done();
        // It must go on working: the same sequence numbers may be used again.
        let next = list.max_seq() + 1;
        put(&list, next, &[vec![(b"later".to_vec(), vec![1]), (b"a".to_vec(), vec![2])]])
            .map_err(|e| e.to_string())?;
        let (reopened, now) = (SkipList::open(&pool, kinds::MEMTABLE, list.head_offset()), contents(&list));
        if contents(&reopened.map_err(|e| e.to_string())?) != now {
            return Err("what was put after recovery is lost".into());
        }
        assert_marked(&pool, |marks| list.mark(marks));
        Ok(())
    }
}

/// Must catch a batch of which a crash leaves a part, and a record that is linked before it is durable.
#[test]
fn groups_survive_crashes_batch_by_batch() {
    let word = |i: u64| format!("k{:03}", i * 37 % 101).into_bytes();
    let groups = (0..10u64).map(|g| {
        let batch = |b: u64| {
            (0..1 + (g + b) % 4)
                .map(move |i| (word(g * 11 + b * 5 + 4 - i), vec![b as u8; 30 + 200 * i as usize]))
        };
        (0..1 + g % 3).map(|b| batch(b).collect()).collect()
    });
    let summary = Explorer::new(11).images(1500).must_pass(Groups, groups.collect());
    assert!(summary.images > 500);
}

/// Must catch a record that hangs from a neighbour of its own group whose link is not durable.
#[test]
fn adjacent_keys_in_any_order_survive_crashes() {
    // Each group's records are neighbours in the list, linked in ascending and in descending order.
    let pair = |a: &str, b: &str| vec![vec![(a.into(), b"1".to_vec()), (b.into(), b"2".to_vec())]];
    let single = |keys: &[&str]| {
        keys.iter().map(|k| vec![(k.as_bytes().to_vec(), b"v".to_vec())]).collect::<Vec<Batch>>()
    };
    let ops = vec![
        pair("b", "a"),
        single(&["d", "c", "e"]),
        pair("c1", "c2"),
        single(&["a2", "a1"]),
        single(&["a3"]),
    ];
    Explorer::new(12).images(1500).must_pass(Groups, ops);
}

/// Must catch a staged record that a recovery takes for a linked one.
#[test]
fn nothing_survives_of_what_was_only_staged() {
    let world = World::new(3, WorldOptions::default());
    let pool = create_in(&world).unwrap();
    let list = SkipList::create(&pool, kinds::MEMTABLE, ARENA).unwrap();
    pool.set_root("list", list.head_offset()).unwrap();
    let record = Record { key: b"a", seq: 1, kind: 1, value: b"", batch_first: 1, batch_len: 1 };
    let staged = list.stage(&record).unwrap();
    pool.drain();
    drop(staged);
    let survivor = world.capture().power_cut(Survival::Everything);
    let pool = open_in(&survivor).unwrap();
    let list = SkipList::open(&pool, kinds::MEMTABLE, pool.root("list").unwrap().unwrap()).unwrap();
    assert_eq!(list.entries(), 0);
}
