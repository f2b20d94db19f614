//! Values whose lengths change: a pair that lies in the table itself turns into a record, and back.

use terrace_base::Result;
use terrace_index::{ByteMap, PointIndex};
use terrace_pmem::Pool;
use terrace_sim::{Change, KvModel, Map, Recorder, World, kv_scenario};

use super::{long, short, try_each_event};
use crate::bed::{assert_marked, create_in, open_in};

/// How a table of bytes is made and opened.
pub trait ByteCase: 'static {
    type Table: ByteMap + PointIndex;
    fn create(pool: &Pool) -> Result<Self::Table>;
    fn open(pool: &Pool) -> Result<Self::Table>;
}

/// A key and its new value.
type Op = (Vec<u8>, Option<Vec<u8>>);

fn keys() -> impl Iterator<Item = Vec<u8>> {
    (0..4).flat_map(|i| [short(i), long(i)])
}

/// Every length after every other, for keys of both sorts; the table grows a little meanwhile.
fn ops() -> Vec<Op> {
    let lengths = [Some(8), Some(8), Some(0), Some(8), Some(700), Some(40), Some(8), None, Some(40), None];
    let each = |(i, key): (usize, Vec<u8>)| {
        let value = move |(n, len): (usize, &Option<usize>)| len.map(|len| vec![(i * 16 + n + 1) as u8; len]);
        lengths.iter().enumerate().skip(i % 3).map(move |op| (key.clone(), value(op))).collect::<Vec<_>>()
    };
    keys().enumerate().flat_map(each).collect()
}

fn run<C: ByteCase>(world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]) -> Result<(), String> {
    let text = |e: terrace_base::Error| e.to_string();
    let table = C::create(&create_in(world).map_err(text)?).map_err(text)?;
    ops.iter().try_for_each(|(key, value)| {
        let change = Change(vec![(key.clone(), value.clone())]);
        let apply = || match value {
            Some(value) => table.put(key, value),
            None => table.delete(key),
        };
        recorder.apply(change, apply).map(drop).map_err(text)
    })
}

fn found_in(table: &(impl ByteMap + PointIndex)) -> Result<Map> {
    let (mut found, mut value) = (Map::new(), Vec::new());
    for key in keys() {
        if ByteMap::get(table, &key, &mut value)? {
            found.insert(key, value.clone());
        }
    }
    assert_eq!(found.len() as u64, table.len());
    assert_eq!(table.check()?, Vec::<String>::new());
    Ok(found)
}

fn verify<C: ByteCase>(world: &World, model: &KvModel) -> Result<(), String> {
    let named = open_in(world).ok().filter(|pool| pool.root("table").is_ok_and(|root| root.is_some()));
    let Some(pool) = named else { return model.accepts_in(world, &Map::new()) };
    let table = C::open(&pool).unwrap();
    let found = found_in(&table).unwrap();
    model.accepts_in(world, &found)?;
    world.recovery_done();
    table.close().unwrap();
    assert_marked(&pool, |marks| table.mark(marks));
    // Whatever a crash has left of a turn is cleared away.
    let lengths = if world.seed().is_multiple_of(2) { [8, 40] } else { [40, 8] };
    for len in lengths {
        for key in keys() {
            table.put(&key, &vec![7; len]).unwrap();
        }
        let all: Map = keys().map(|key| (key, vec![7; len])).collect();
        assert_eq!(found_in(&table).unwrap(), all);
    }
    keys().for_each(|key| assert!(table.delete(&key).unwrap()));
    assert!(found_in(&table).unwrap().is_empty());
    table.close().unwrap();
    assert_marked(&pool, |marks| table.mark(marks));
    Ok(())
}

/// The test.
pub fn bears_values_of_all_lengths<C: ByteCase>(seed: u64) {
    try_each_event(seed, || kv_scenario(run::<C>, verify::<C>), &ops());
}
