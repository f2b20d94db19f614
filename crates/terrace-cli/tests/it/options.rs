//! Options by name: listed, from a file, and refused; events.

use terrace::EngineKind;

use crate::support::{Bed, run};

#[test]
fn every_option_is_listed_with_its_bounds() {
    let all = run(&["options"]).text();
    for engine in EngineKind::ALL {
        let prefix = format!("{}.", engine.name());
        assert!(all.lines().any(|line| line.starts_with(&prefix)), "{engine:?}: {all}");
    }
    let line = all.lines().find(|line| line.starts_with("slm.block_bytes ")).unwrap();
    assert!(line.contains(" 1024 ") && line.contains("1 to 67108864 (64 MiB)"), "{line}");
    let own = run(&["options", "wip", "sync", "--set", "wip.jitter=7"]).text();
    assert!(own.lines().all(|line| line.starts_with("wip.") || line.starts_with("sync ")), "{own}");
    assert!(own.contains("0 to 64; by default 5"), "{own}");
    let json = run(&["options", "--json", "--changed", "--memory", "1GiB"]).text();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json.as_array().map(Vec::len), Some(1));
    assert_eq!((&json[0]["name"], &json[0]["value"]), (&"memory_budget".into(), &"1073741824".into()));
    run(&["options", "slm.blocks"]).fails(2, &["no option begins with slm.blocks"]);
    run(&["options", "--set", "split.low_share=0.9"]).fails(2, &["split.low_share must not be above"]);
}

#[test]
fn a_file_of_options_opens_a_database() {
    let bed = Bed::new();
    let text = run(&["options", "--engine", "lsm", "--toml", "--set", "lsm.memtables=3"]).text();
    assert!(text.contains("\n[lsm]\n") && !text.contains("[slm]"), "{text}");
    let file = bed.file("terrace.toml", &text);
    let file = file.to_str().unwrap();
    assert_eq!(run(&["options", "--config", file, "--toml"]).text(), text);
    bed.run("put", &["a", "1", "--config", file]).text();
    assert!(bed.run::<&str>("stat", &[]).text().contains("lsm"), "the file has named the engine");
    assert_eq!(bed.run("get", &["a", "--config", file]).text(), "1\n");
    // Flags go before the file, and what the database has cannot be changed by either.
    bed.run("get", &["a", "--config", file, "--engine", "wip"]).fails(2, &["lsm"]);
    let changed = run(&["options", "--config", file, "--set", "lsm.memtables=4", "--changed"]).text();
    assert!(changed.contains("lsm.memtables  4 ") && changed.contains("by default slm"), "{changed}");
}

#[test]
fn what_is_wrong_in_a_file_is_told_before_anything_is_made() {
    let bed = Bed::new();
    for (text, words) in [
        ("[slm]\nblock = 1", ["line 2: there is no option slm.block", "slm.block_bytes"]),
        ("sync = 1", ["line 1: sync cannot be 1", "true or false"]),
        ("\n[lsm]\nmemtables = 30", ["line 3: lsm.memtables cannot be 30", "2 to 7"]),
        ("sync = ", ["line 1", "terrace.toml"]),
    ] {
        let file = bed.file("terrace.toml", text);
        bed.run("put", &["a", "1", "--config", file.to_str().unwrap()]).fails(2, &words);
    }
    bed.run("put", &["a", "1", "--config", "/nowhere/terrace.toml"]).fails(2, &["/nowhere/terrace.toml"]);
    bed.run("put", &["a", "1", "--set", "pool="]).fails(2, &["pool cannot be"]);
    assert!(!bed.db.exists());
}

#[test]
fn what_happens_is_printed_on_request() {
    let bed = Bed::new();
    // An import writes a thousand at a time.
    let records: String = (0..4000).map(|i| format!("key {i}\t{}\n", "v".repeat(100))).collect();
    let file = bed.file("records.tsv", records);
    let small = ["--engine", "lsm", "--set", "lsm.memtable_bytes=4KiB"];
    let run = bed.run("import", &[&[file.to_str().unwrap(), "--events"][..], &small].concat());
    run.text();
    assert!(run.err.contains("FlushBegin {") && run.err.contains("FlushEnd {"), "{run:?}");
    let quiet = bed.run("get", &["key 7"]);
    assert!(quiet.err.is_empty(), "{quiet:?}");
}
