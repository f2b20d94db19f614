//! Terrace behind the trait answers as the model does.

use std::sync::Arc;

use terrace::{Db, Options};
use terrace_bench::outcome::Counts;
use terrace_bench::suite::Contents;
use terrace_bench::trace::Trace;
use terrace_bench::{
    Batch, Direction, Plan, Provider, Store, StoreResult, Suite, TerraceStore, Watch, Workload,
};

use crate::model::{Model, Models};

/// A database for each fill, in a directory of its own.
struct Databases {
    root: tempfile::TempDir,
    made: u32,
}

impl Databases {
    fn new() -> Self {
        Databases { root: tempfile::tempdir().unwrap(), made: 0 }
    }
}

impl Provider for Databases {
    fn fresh(&mut self) -> StoreResult<Arc<dyn Store>> {
        self.made += 1;
        let db = Db::open(self.root.path().join(self.made.to_string()), Options::default())?;
        Ok(Arc::new(TerraceStore::new(db)))
    }

    fn existing(&mut self) -> StoreResult<Option<(Arc<dyn Store>, Contents)>> {
        Ok(None)
    }

    fn note(&mut self, _: Contents) -> StoreResult<()> {
        Ok(())
    }
}

const TRACE: &str =
    "terrace-trace 1\nput a%00b 5000\nput c 10\nput d 0\ndelete c\nget a%00b\nget c\nscan a 5\n";

fn counts(provider: &mut dyn Provider, plan: &Plan) -> Vec<(String, Counts)> {
    let list = "fillrandom,overwrite,flush,deleterandom,readrandom,multireadrandom,readseq,readreverse,seekrandom,\
                compact,readmissing,timeseries,queue,readseq,fillmixed,updatemixed,fillmixedbytes,updatezipfian,replay,readseq,ycsb";
    let workloads = Workload::parse_list(list).unwrap();
    let suite = Suite { workloads: &workloads, plan: plan.clone() };
    let outcomes = suite.run(provider, &mut |_, _| Arc::new(Watch::default()), &mut |_, _| {}).unwrap();
    outcomes.into_iter().map(|o| (o.name, o.counts)).collect()
}

#[test]
fn counts_are_those_of_the_model() {
    for batch in [1, 17] {
        let trace = Some(Arc::new(Trace::parse(TRACE.as_bytes()).unwrap()));
        let plan = Plan { num: 1500, value_size: 40, batch, trace, ..Plan::default() };
        assert_eq!(counts(&mut Databases::new(), &plan), counts(&mut Models::default(), &plan));
    }
}

#[test]
fn scans_are_those_of_the_model() {
    let mut databases = Databases::new();
    let (db, model) = (databases.fresh().unwrap(), Model::default());
    let mut batch = Batch::default();
    for key in [&b""[..], b"a", b"b\xff", b"c", b"\xff"] {
        batch.put(key, &[key, b"!"].concat());
    }
    batch.delete(b"c");
    let stores: [&dyn Store; 2] = [&*db, &model];
    stores.iter().for_each(|s| s.write_batch(&batch).unwrap());
    let scan = |store: &dyn Store, from: Option<&[u8]>, direction, limit: usize| {
        let mut seen = Vec::new();
        store
            .scan(from, direction, &mut |key, value| {
                seen.push((key.to_vec(), value.to_vec()));
                seen.len() < limit
            })
            .unwrap();
        seen
    };
    for direction in [Direction::Forward, Direction::Backward] {
        for from in [None, Some(&b""[..]), Some(b"a"), Some(b"bb"), Some(b"c"), Some(b"\xff\xff")] {
            for limit in [1, 2, 100] {
                let [ours, models] = stores.map(|s| scan(s, from, direction, limit));
                assert_eq!(ours, models, "{from:?} {direction:?} {limit}");
            }
        }
    }
}

#[test]
fn media_and_work_are_counted() {
    let mut databases = Databases::new();
    let store = databases.fresh().unwrap();
    let before = store.stats();
    store.put(b"key", &[7; 1000]).unwrap();
    store.flush().unwrap();
    let delta = store.stats().since(&before);
    assert!(delta.ssd_bytes_written.unwrap() > 1000, "{delta:?}");
    assert_eq!(delta.flushes, Some(1));
    assert!(delta.pm_drains.unwrap() > 0);
}
