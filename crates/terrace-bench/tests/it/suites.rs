//! What the benchmarks leave in a store and what they count.

use std::sync::Arc;
use std::time::Duration;

use terrace_bench::outcome::Kind;
use terrace_bench::{Outcome, Plan, Suite, Watch, Workload};

use crate::model::{Models, Tamper};

fn plan() -> Plan {
    Plan { num: 2000, value_size: 20, ..Plan::default() }
}

fn run(list: &str, plan: Plan, models: &mut Models) -> Vec<Outcome> {
    let workloads = Workload::parse_list(list).unwrap();
    let suite = Suite { workloads: &workloads, plan };
    suite.validate().unwrap();
    suite.run(models, &mut |_, _| Arc::new(Watch::default()), &mut |_, _| {}).unwrap()
}

#[test]
fn every_benchmark_runs_on_one_and_on_several_threads() {
    for threads in [1, 3] {
        let outcomes = run("db_bench,ycsb,flush,compact", Plan { threads, ..plan() }, &mut Models::default());
        assert_eq!(outcomes.len(), 19);
        for o in &outcomes {
            // Deletions have gone before nothing; walks end where the records do.
            let whole = !matches!(o.name.as_str(), "readseq" | "readreverse" | "flush" | "compact");
            assert!(!whole || o.counts.operations == 2000, "{} {:?}", o.name, o.counts);
            assert!(o.latency.count > 0 && !o.interrupted, "{}", o.name);
        }
    }
}

#[test]
fn fills_leave_what_they_say() {
    let mut models = Models::default();
    run("fillseq", Plan { threads: 4, ..plan() }, &mut models);
    assert_eq!(models.last.as_ref().unwrap().records.read().len(), 2000);
    run("load", Plan { threads: 3, batch: 7, ..plan() }, &mut models);
    assert_eq!(models.last.as_ref().unwrap().records.read().len(), 2000);
    run("fillrandom", plan(), &mut models);
    let distinct = models.last.as_ref().unwrap().records.read().len() as f64 / 2000.0;
    // As many draws as numbers leave 1 - 1/e of them drawn.
    assert!((distinct - 0.632).abs() < 0.03, "{distinct}");
}

#[test]
fn reads_find_what_was_written_and_nothing_else() {
    let outcomes = run("fillseq,readrandom,readmissing,load,c", plan(), &mut Models::default());
    let found: Vec<(u64, u64)> = outcomes.iter().map(|o| (o.counts.found, o.counts.missing)).collect();
    assert_eq!(found, [(0, 0), (2000, 0), (0, 2000), (0, 0), (2000, 0)]);
}

#[test]
fn what_must_be_found_is_known_of_every_fill() {
    let list = "fillrandom,readrandom,a,c,seekrandom,readseq,load,e,c,readreverse,queue";
    for threads in [1, 3] {
        let plan = Plan { threads, ..plan() };
        for o in run(list, plan, &mut Models::default()) {
            let counts = &o.counts;
            match o.name.as_str() {
                "fillrandom" | "load" => assert_eq!(counts.due, 0),
                // Of these it is known of each key whether it was written.
                "readrandom" | "c" | "readseq" | "readreverse" => {
                    assert_eq!(counts.due, counts.found + counts.scanned, "{} {counts:?}", o.name);
                }
                name => assert!(counts.due > 0, "{name} {counts:?}"),
            }
            assert_eq!((counts.lost, counts.unwritten), (0, 0), "{}", o.name);
        }
    }
}

/// How `list` ends on a store whose records are tampered with after each workload.
fn tampered(list: &str, tamper: Tamper) -> Result<Vec<Outcome>, String> {
    let workloads = Workload::parse_list(list).unwrap();
    let suite = Suite { workloads: &workloads, plan: Plan { reads: Some(40_000), ..plan() } };
    let mut models = Models { tamper: Some(tamper), ..Models::default() };
    let outcomes = suite.run(&mut models, &mut |_, _| Arc::new(Watch::default()), &mut |_, _| {});
    outcomes.map_err(|e| e.to_string())
}

#[test]
fn a_store_that_has_lost_records_has_no_outcome() {
    let one: Tamper = |records| {
        let key = records.keys().nth(records.len() / 2).cloned();
        records.remove(&key.unwrap());
    };
    let last: Tamper = |records| {
        records.pop_last();
    };
    let half: Tamper = |records| {
        let mut at = 0;
        records.retain(|_, _| {
            at += 1;
            at % 2 == 0
        });
    };
    for (list, tamper) in [
        ("load,readrandom", one),
        ("fillrandom,readrandom", one),
        ("fillrandom,a,readrandom", one),
        ("fillrandom,readseq", one),
        ("load,readreverse", one),
        ("queue,readseq", one),
        ("fillseq,seekrandom", last),
        ("load,c", half),
        ("load,f", half),
        ("load,e", half),
    ] {
        let error = tampered(list, tamper).expect_err(list);
        assert!(error.contains("not found"), "{list}: {error}");
    }
}

#[test]
fn a_store_that_makes_records_up_has_no_outcome() {
    let error = tampered("fillrandom,readrandom", |records| {
        for number in 0..2000 {
            records.entry(format!("{number:016x}").into_bytes()).or_default();
        }
    });
    assert!(error.unwrap_err().contains("never written"));
    let absent = tampered("load,readmissing", |records| {
        let keys: Vec<Vec<u8>> = records.keys().map(|key| [&key[..], b"."].concat()).collect();
        records.extend(keys.into_iter().map(|key| (key, Vec::new())));
    });
    assert!(absent.unwrap_err().contains("never written"));
}

#[test]
fn after_deletions_nothing_has_to_be_found() {
    let outcomes = run("load,deleterandom,readrandom,readseq", plan(), &mut Models::default());
    assert!(outcomes[2].counts.missing > 0);
    assert!(outcomes.iter().all(|o| o.counts.due == 0));
}

#[test]
fn inserts_are_found_by_later_workloads() {
    let mut models = Models::default();
    let outcomes = run("load,d,c", Plan { threads: 2, ..plan() }, &mut models);
    assert!(outcomes.iter().all(|o| o.counts.missing == 0));
    let records = models.last.as_ref().unwrap().records.read().len() as u64;
    assert_eq!(records, models.contents.unwrap().records);
    assert!((2050..2150).contains(&records), "{records}");
}

#[test]
fn a_later_suite_works_on_what_an_earlier_one_left() {
    let mut models = Models::default();
    run("fillseq", plan(), &mut models);
    let outcomes = run("readrandom", plan(), &mut models);
    assert_eq!(outcomes[0].counts.found, 2000);
}

#[test]
fn what_cannot_run_says_why() {
    let workloads = Workload::parse_list("readrandom").unwrap();
    let suite = Suite { workloads: &workloads, plan: plan() };
    let mut watch = |_: &Workload, _| Arc::new(Watch::default());
    let error = suite.run(&mut Models::default(), &mut watch, &mut |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("fillrandom"), "{error}");
    let narrow = Suite { workloads: &workloads, plan: Plan { key_size: 4, num: 70_000, ..plan() } };
    assert!(narrow.validate().unwrap_err().contains("65536"));
}

#[test]
fn bytes_and_kinds_are_counted() {
    let outcomes = run("load,f,e", Plan { key_size: 24, ..plan() }, &mut Models::default());
    assert_eq!(outcomes[0].counts.bytes_written, 2000 * (24 + 20));
    let kinds: Vec<Kind> = outcomes[1].by_kind.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [Kind::Read, Kind::Modify]);
    let scans = &outcomes[2].counts;
    assert_eq!(scans.bytes_read, scans.scanned * (24 + 20));
}

#[test]
fn a_stopped_run_ends_early_and_says_so() {
    let workloads = Workload::parse_list("fillseq,readrandom").unwrap();
    let suite = Suite { workloads: &workloads, plan: plan() };
    let mut stopped = |_: &Workload, _| {
        let watch = Watch::default();
        watch.stop();
        Arc::new(watch)
    };
    let outcomes = suite.run(&mut Models::default(), &mut stopped, &mut |_, _| {}).unwrap();
    assert_eq!(outcomes.len(), 1);
    assert!(outcomes[0].interrupted && outcomes[0].counts.operations < 2000);
}

#[test]
fn a_duration_ends_what_has_no_number() {
    let plan = Plan { duration: Some(Duration::from_millis(5)), ..plan() };
    let outcomes = run("fillseq,readrandom", plan, &mut Models::default());
    assert_eq!(outcomes[0].counts.operations, 2000);
    assert!(outcomes[1].counts.operations > 0);
}
