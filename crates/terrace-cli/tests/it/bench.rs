//! bench.

use crate::engines;
use crate::support::{Bed, run};

#[test]
fn figures_come_as_lines_a_table_and_json() {
    let bed = Bed::new();
    let small = ["--num", "500", "--value-size", "20", "--seed", "7"];
    let text = bed
        .run("bench", &[&small[..], &["--benchmarks", "fillrandom,readrandom,flush,ycsb"]].concat())
        .text();
    assert!(text.contains("500 records of 16 + 20 bytes, 1 thread, seed 7"), "{text}");
    assert!(text.contains("WA SSD") && text.contains("p99.9"), "{text}");
    assert_eq!(text.lines().filter(|l| l.starts_with("load ")).count(), 4, "{text}");
    // A later run goes on with the database it finds.
    let json =
        bed.run("bench", &[&small[..], &["--benchmarks", "c", "--json", "--threads", "2"]].concat()).text();
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let c = &value["benchmarks"][0]["outcome"];
    assert_eq!((c["name"].as_str(), c["threads"].as_u64()), (Some("c"), Some(2)), "{json}");
    assert_eq!(c["counts"]["missing"], 0, "{json}");
    assert!(c["latency"]["p50_ns"].as_u64().unwrap() > 0, "{json}");
}

#[test]
fn each_fill_begins_anew_with_the_pool_that_is_asked_for() {
    let bed = Bed::new();
    for engine in engines::names() {
        let pool = format!("emulated:dram@{}", bed.path(&format!("{engine}.pool")).display());
        let args = ["--benchmarks", "fillseq,fillrandom", "--num", "1k", "--engine", engine, "--pool", &pool];
        let text = bed.run("bench", &args).text();
        assert!(text.contains("fillrandom"), "{text}");
        // And over what the last run has left.
        assert!(bed.run("bench", &args).text().contains("fillrandom"));
        // Unless told otherwise, what the engine can do.
        let usual = bed.run("bench", &args[2..]).text();
        assert_eq!(usual.contains("readseq"), engines::is_ordered(engine), "{usual}");
        std::fs::remove_dir_all(bed.path("db")).unwrap();
        std::fs::remove_file(bed.path(&format!("{engine}.pool"))).unwrap();
    }
}

#[test]
fn what_cannot_be_measured_is_explained() {
    let bed = Bed::new();
    bed.run("bench", &["--benchmarks", "quicksort"]).fails(2, &["quicksort", "bench --help"]);
    bed.run("bench", &["--benchmarks", "readrandom", "--num", "10"]).fails(3, &["fillrandom"]);
    bed.run("bench", &["--key-size", "4", "--num", "100000"]).fails(2, &["65536"]);
    bed.run("bench", &["--duration", "-1"]).fails(2, &["--duration"]);
    let other = Bed::new();
    other.run("put", &["a", "1"]).text();
    other.run("bench", &["--num", "10"]).fails(2, &["not from a bench"]);
    assert_eq!(other.run("get", &["a"]).text(), "1\n");
}

#[test]
fn help_lists_the_benchmarks() {
    let help = run(&["bench", "--help"]).text();
    for name in ["fillseq", "readmissing", "deleterandom", "ycsb", "read-modify-write"] {
        assert!(help.contains(name), "{name}");
    }
}
