//! Ranges of records deleted from the command line.

use crate::support::Bed;

#[test]
fn ranges_are_deleted_by_bounds_prefix_and_whole() {
    let bed = Bed::new();
    let lines: String = (0..300).map(|i| format!("log/{i:03}\tvalue {i}\n")).collect();
    bed.run_with("import", &["-"], lines.as_bytes()).text();
    bed.run("put", &["other", "1"]).text();
    bed.run("delete", &["--from", "log/100", "--to", "log/290"]).text();
    assert_eq!(
        bed.run("scan", &["--keys", "--from", "log/099", "--limit", "2"]).text(),
        "log/099\nlog/290\n"
    );
    bed.run("get", &["log/100"]).fails(1, &["there is no key"]);
    bed.run("delete", &["--prefix", "log/"]).text();
    assert_eq!(bed.run::<&str>("scan", &[]).text(), "other\t1\n");
    bed.run("put", &["--keyspace", "users", "ada", "1815"]).text();
    bed.run("delete", &["--keyspace", "users", "--all"]).text();
    assert_eq!(bed.run("scan", &["--keyspace", "users"]).text(), "");
    assert_eq!(bed.run::<&str>("keyspaces", &[]).text(), "users\n");
    bed.run("delete", &["--all"]).text();
    assert_eq!(bed.run::<&str>("export", &[]).text(), "");
    bed.run::<&str>("check", &[]).text();
}

#[test]
fn a_range_that_makes_no_sense_is_refused() {
    let bed = Bed::new();
    bed.run("put", &["a", "1"]).text();
    bed.run("delete", &["--from", "b", "--to", "a"]).fails(2, &["no key lies in that range"]);
    bed.run("delete", &["a", "--all"]).fails(2, &["cannot be used with"]);
    bed.run::<&str>("delete", &[]).fails(2, &["nothing says which records", "--prefix", "--all"]);
    assert_eq!(bed.run("get", &["a"]).text(), "1\n");
}
