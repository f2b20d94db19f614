//! Steps of any kind in any order.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Flush(Vec<(u8, bool)>),
    /// The same, for writes that are not visible before the next flush is.
    FlushUnseen(Vec<(u8, bool)>),
    /// A key becomes larger than a bucket: this many versions of it, each with a snapshot that sees it.
    Pin(u8, usize),
    Snapshot,
    Release(usize),
    Start(u64),
    Finish(usize),
    Fail(usize),
    /// All jobs are run, with this many reads of each level.
    MergeAll(u64),
    /// The database is closed and opened: notes in memory are lost.
    Reopen,
    /// The disk has room for this many bytes.
    Room(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let writes = |keys: u8| prop::collection::vec((0..keys, prop::bool::weighted(0.7)), 1..6);
    let step = prop_oneof![
        8 => writes(60).prop_map(Step::Flush),
        2 => writes(3).prop_map(Step::Flush),
        2 => writes(60).prop_map(Step::FlushUnseen),
        1 => (0u8..60, 8usize..45).prop_map(|(key, versions)| Step::Pin(key, versions)),
        1 => Just(Step::Snapshot),
        1 => any::<usize>().prop_map(Step::Release),
        6 => prop_oneof![3 => Just(0), 1 => 1u64..1000].prop_map(Step::Start),
        5 => any::<usize>().prop_map(Step::Finish),
        1 => any::<usize>().prop_map(Step::Fail),
        1 => prop_oneof![Just(0), 1u64..1000].prop_map(Step::MergeAll),
        1 => Just(Step::Reopen),
        1 => prop_oneof![0u64..1000, Just(u64::MAX)].prop_map(Step::Room),
    ];
    prop::collection::vec(step, 0..120)
}

fn take(model: &mut Model, step: Step) {
    match step {
        Step::Flush(writes) => model.flush(&writes),
        Step::FlushUnseen(writes) => model.flush_unseen(&writes),
        Step::Pin(key, versions) => {
            for _ in 0..versions {
                model.flush(&[(key, true)]);
                model.snapshots.insert(model.seq);
            }
        }
        Step::Snapshot => {
            model.snapshots.insert(model.visible);
        }
        Step::Release(i) if !model.snapshots.is_empty() => {
            let seq = model.snapshots.iter().nth(i % model.snapshots.len()).copied();
            model.snapshots.remove(&seq.unwrap_or(0));
        }
        Step::Release(_) => {}
        Step::Start(reads) => {
            model.start(reads);
        }
        Step::Finish(at) => model.finish(at),
        Step::Fail(at) => model.fail(at),
        Step::MergeAll(reads) => model.merge_all(reads),
        Step::Room(bytes) => model.options.room = bytes,
        Step::Reopen => {
            while !model.jobs.is_empty() {
                model.fail(0);
            }
            model.buckets.values_mut().for_each(|bucket| (bucket.merged, bucket.overlap) = (0, 0.0));
        }
    }
}

fn estimates() -> impl Strategy<Value = Estimate> {
    prop_oneof![Just(Estimate::Right), (0u8..5).prop_map(Estimate::Noted)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn choices_end_and_lose_nothing(
        steps in steps(), sublevels in 1usize..4, split_into in 2usize..5, capacity in 8u64..40,
        estimate in estimates(), table_bytes in prop_oneof![Just(0), 1u64..60],
    ) {
        let options = BucketOptions {
            sublevels,
            min_sublevels: 2,
            jitter: 1,
            capacity: capacity * ENTRY_BYTES,
            split_into,
            memtable_bytes: 3 * ENTRY_BYTES,
            ..BucketOptions::default()
        };
        let mut model = Model { estimate, table_bytes, ..Model::new(options) };
        for step in steps {
            take(&mut model, step);
            model.check();
        }
        model.options.room = u64::MAX;
        model.merge_all(0);
        model.visible = model.seq;
        model.merge_all(0);
        model.snapshots.clear();
        model.merge_all(0);
        let live = model.history.values().filter(|v| v.last().is_some_and(|(_, put)| *put)).count() as u64;
        for bucket in model.buckets.values() {
            let tables = tables_of(bucket, table_bytes);
            let bytes: u64 = tables.iter().map(|t| t.bytes).sum();
            let most = model.options.capacity * 11 / 8;
            prop_assert!(bytes < most.max(bucket.merged * 3 / 2), "a bucket of {} bytes", bytes);
            let is_fully_merged = tables.iter().all(|t| t.level == 2) && sublevels_of(&tables) <= 1;
            prop_assert!(!is_fully_merged || tables.iter().all(|t| t.deletes == 0 && !t.keeps_old));
        }
        // There is little garbage, or it is not known as such.
        prop_assert!(model.bytes() >= live * ENTRY_BYTES);
    }
}

#[test]
fn a_store_whose_keys_are_deleted_shrinks_to_few_buckets() {
    let options = BucketOptions {
        sublevels: 2,
        jitter: 1,
        capacity: 20 * ENTRY_BYTES,
        split_into: 4,
        memtable_bytes: ENTRY_BYTES / 2,
        ..BucketOptions::default()
    };
    let mut model = Model::new(options);
    let write = |model: &mut Model, put| {
        for key in 0..=255u8 {
            model.flush(&[(key, put), (key.wrapping_mul(7), put)]);
            model.merge_all(0);
        }
    };
    write(&mut model, true);
    let buckets = model.buckets.len();
    assert!(buckets > 20, "{buckets} buckets");
    write(&mut model, false);
    assert!(model.buckets.len() < buckets / 4, "{} of {buckets} buckets", model.buckets.len());
    write(&mut model, true);
    assert!(model.buckets.len() > buckets / 2);
}

fn sublevels_of(tables: &[BucketTable<'_>]) -> usize {
    sublevels(&tables.iter().map(|t| (t.smallest, t.largest)).collect::<Vec<_>>())
}
