//! Measurements of one kind each, on small databases: what they count is right, and what is printed and drawn is whole.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Options of `wip` with which a few thousand records fill buckets.
const TINY: [&str; 4] = [
    "wip.memtable_bytes=16384",
    "wip.most_memtable_bytes=16384",
    "wip.bucket_bytes=131072",
    "wip.log_bytes=262144",
];

/// Runs `terrace-bench` in `dir`.
fn bench(dir: &Path, args: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_terrace-bench");
    Command::new(program).args(args).args(["--dir", "."]).current_dir(dir).output().unwrap()
}

/// What it prints and what it writes as JSON, with small buckets.
fn measured(dir: &Path, args: &[&str]) -> (String, Vec<Value>) {
    let sets = TINY.iter().flat_map(|set| ["--set", set]);
    let args: Vec<&str> =
        args.iter().copied().chain(sets).chain(["--json", "runs.json", "--svg", "svg"]).collect();
    let output = bench(dir, &args);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(dir.join("runs.json")).unwrap()).unwrap();
    assert!(report["command"].as_str().unwrap().contains(args[0]));
    // Nothing is left of the databases.
    let left = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| name == "runs.json" || name == "svg"));
    (text, report["runs"].as_array().unwrap().clone())
}

/// The pictures, of which each is whole.
fn pictures(dir: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir.join("svg")).unwrap() {
        let path = entry.unwrap().path();
        assert!(std::fs::read_to_string(&path).unwrap().trim_end().ends_with("</svg>"), "{path:?}");
        names.push(path.file_name().unwrap().to_str().unwrap().to_string());
    }
    names.sort();
    names
}

fn numbers(list: &Value) -> Vec<u64> {
    list.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

#[test]
fn buckets_follow_the_keys_from_region_to_region() {
    let dir = tempfile::tempdir().unwrap();
    let (text, runs) = measured(
        dir.path(),
        &["regions", "--stores", "wip,lsm", "--num", "10k", "--memory", "8M", "--batch", "10"],
    );
    let (wip, lsm) = (&runs[0], &runs[1]);
    assert_eq!(wip["outcome"]["counts"]["operations"], 40_000);
    let bounds = wip["bounds"].as_array().unwrap();
    for (region, look) in bounds.iter().enumerate() {
        let parts = numbers(&look["parts"]);
        assert_eq!(
            (parts.len(), parts.iter().sum::<u64>()),
            (60, look["moment"]["partitions"].as_u64().unwrap())
        );
        // No bucket begins where no keys have come.
        assert_eq!(parts[(region + 1) * 15..].iter().sum::<u64>(), 0, "{parts:?}");
    }
    let buckets: Vec<u64> =
        bounds.iter().map(|look| look["moment"]["partitions"].as_u64().unwrap()).collect();
    assert!(buckets.len() == 4 && buckets[0] < buckets[3] && buckets[3] > 10, "{buckets:?}");
    assert!(lsm["bounds"].as_array().unwrap().iter().all(|look| look["moment"]["partitions"] == 0));
    assert!(lsm["files"].as_array().unwrap().iter().any(|class| class["files"].as_u64() > Some(0)));
    assert!(text.contains("reversed exponential") && text.contains("KiB"), "{text}");
    // What ends within a slice of time has no curve, and without buckets no other picture.
    assert!(pictures(dir.path()).contains(&"regions-wip.svg".to_string()));
}

#[test]
fn reads_go_on_beside_writes() {
    for keys in ["uniform", "exponential"] {
        let dir = tempfile::tempdir().unwrap();
        let args = "reads-while-writing --stores lsm,wip+wip.read_aware=false --num 20k --before 0.2 --after 0.2 \
                    --writes 5k --rate 20k --readers 2 --memory 8M --reads";
        let (text, runs) = measured(dir.path(), &args.split_whitespace().chain([keys]).collect::<Vec<_>>());
        assert_eq!(runs.len(), 2);
        for run in &runs {
            assert_eq!(run["writes"]["counts"]["operations"], 5000);
            for phase in ["before", "during", "after"] {
                let counts = &run[phase]["counts"];
                assert_eq!(run[phase]["threads"], 2);
                // Every read had to find its record, and did.
                assert!(
                    counts["due"].as_u64() > Some(0) && counts["due"] == counts["operations"],
                    "{counts}"
                );
            }
            assert!(run["during_ratio"].as_f64() > Some(0.0) && run["recovered_ratio"].as_f64() > Some(0.0));
        }
        assert_eq!(runs[1]["store"], "wip+wip.read_aware=false");
        assert!(text.contains("its last fifth"), "{text}");
        assert_eq!(pictures(dir.path()), [format!("reads-while-writing-{keys}.svg")]);
    }
}

#[test]
fn what_was_acknowledged_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let args = "restart --stores wip,lsm --buckets 1,6 --least 3k --num 60k --batch 7 --memory 8M";
    let (text, runs) = measured(dir.path(), &args.split_whitespace().collect::<Vec<_>>());
    assert_eq!(runs.len(), 8);
    for run in &runs {
        let (wip, wanted) = (run["spec"]["contender"]["name"] == "wip", run["spec"]["buckets"].as_u64());
        let records = run["records"].as_u64().unwrap();
        assert!((3000..=60_000).contains(&records) && run["log_bytes"].as_u64() > Some(0), "{run}");
        assert_eq!((run["missing"].as_u64(), run["wrong"].as_u64()), (Some(0), Some(0)));
        // A store that is not cut is filled as far as it may be.
        assert!(if wip { run["buckets"].as_u64() >= wanted } else { records == 60_000 }, "{run}");
    }
    assert!(text.contains("fillexponential"), "{text}");
    assert_eq!(pictures(dir.path()), ["restart.svg"]);
}

#[test]
fn what_cannot_be_measured_is_told_plainly() {
    let dir = tempfile::tempdir().unwrap();
    for command in ["regions", "reads-while-writing", "restart"] {
        for (args, told) in [
            (&["--stores", "dbase"][..], "there is no store \"dbase\""),
            (
                &["--stores", "lsm", "--set", "wip.sublevels=6"],
                "none of the stores has the option wip.sublevels",
            ),
            (&["--set", "wip.sublevels=1"], "wip.sublevels"),
            (&["--set", "wip.bucket_bytes=4096", "--num", "1k"], "wip: invalid argument"),
            (&["--profile", "granite"], "granite"),
        ] {
            let output = bench(dir.path(), &[&[command], args].concat());
            let error = String::from_utf8(output.stderr).unwrap();
            assert!(!output.status.success() && error.contains(told), "{command} {args:?}: {error}");
            assert_eq!(
                (error.lines().count(), std::fs::read_dir(dir.path()).unwrap().count()),
                (1, 0),
                "{error}"
            );
        }
    }
}

/// Every size and depth is measured on both media, and nothing is left behind.
#[test]
fn bare_media_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    let memory = format!("emulated:dram@{}", pool.display());
    let output = bench(
        dir.path(),
        &["media", "--memory", &memory, "--bytes", "8M", "--time", "1", "--json", "runs.json"],
    );
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let report: Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("runs.json")).unwrap()).unwrap();
    let rows = report["runs"].as_array().unwrap();
    assert_eq!((rows.len(), text.lines().count()), (12 + 12 + 48 + 15, 1 + 12 + 12 + 48 + 15));
    assert!(rows.iter().all(|row| row["rate"].as_f64().unwrap() > 0.0));
    // None takes less than the calls of the system that it is made of.
    assert!(rows[12..].iter().all(|row| numbers(&serde_json::json!([row["p50"], row["p99"]]))[0] > 50));
    assert!(text.contains("emulated") && text.contains("one by one, unsynced"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "what was measured");
    let refused = bench(dir.path(), &["media", "--memory", "emulated:nonsense"]);
    assert!(!refused.status.success());
}
