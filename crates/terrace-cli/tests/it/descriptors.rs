//! Databases of many tables in processes that may have few files open.

use std::fmt::Write as _;
use std::process::Command;

use crate::support::{Bed, Run, finish, piped};

/// Files that a process may have open.
const MOST_FILES: &str = "40";

/// `terrace COMMAND DB ARGS...` in a process that may have so many files open.
fn run(bed: &Bed, command: &str, args: &[&str]) -> Run {
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        "ulimit -n \"$1\" && shift && exec \"$@\"",
        "sh",
        MOST_FILES,
        env!("CARGO_BIN_EXE_terrace"),
    ]);
    finish(piped(shell.arg(command).arg(&bed.db).args(args)), b"")
}

#[test]
fn hundreds_of_tables_in_a_process_with_few_descriptors() {
    let mut text = String::new();
    let mut mixed = String::new();
    for i in 0..8000 {
        let _ = writeln!(text, "key/{i:06}\t{i:090}");
        // So that tables overlap, and are merged.
        let other = i * 4801 % 8000;
        let _ = writeln!(mixed, "key/{other:06}\t{other:090}");
    }
    for engine in ["slm", "lsm"] {
        let bed = Bed::new();
        let file = bed.file("in.tsv", &mixed);
        let sets = [
            format!("{engine}.memtable_bytes=256KiB"),
            format!("{engine}.table_bytes=1KiB"),
            format!("{engine}.block_bytes=256"),
        ];
        let mut import = vec![file.to_str().unwrap(), "--engine", engine, "--set", "lsm.l0_tables=1"];
        sets.iter().for_each(|set| import.extend(["--set", set]));
        run(&bed, "import", &import).text();
        let tables = || {
            let stat: serde_json::Value =
                serde_json::from_str(&run(&bed, "stat", &["--json"]).text()).unwrap();
            stat["ssd"]["tables"].as_u64().unwrap()
        };
        assert!(tables() > 100, "{engine}: {} tables", tables());
        for (reads, told) in
            [("auto", "through mappings"), ("mapped", "as asked"), ("calls", "by calls, as asked")]
        {
            let set = format!("table_reads={reads}");
            let stat = run(&bed, "stat", &["--set", &set]).text();
            assert!(stat.contains("tables read") && stat.contains(told), "{stat}");
            assert_eq!(run(&bed, "export", &["--set", &set]).text(), text, "{engine}");
        }
        // However many the database is told that it may have.
        for more in [&[][..], &["--set", "max_open_tables=1000000"], &["--set", "max_open_tables=1"]] {
            assert_eq!(run(&bed, "export", more).text(), text, "{engine}");
            assert!(run(&bed, "get", &[&["key/004321"], more].concat()).text().contains("4321"), "{engine}");
            run(&bed, "put", &[&["key/000000", "new"], more].concat()).text();
            run(&bed, "put", &[&["key/000000", &format!("{:090}", 0)], more].concat()).text();
            run(&bed, "check", more).text();
        }
    }
}
