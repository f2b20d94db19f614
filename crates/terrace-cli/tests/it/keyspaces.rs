//! Keyspaces from the command line.

use std::path::PathBuf;

use crate::support::{Bed, run};

const USERS: [&str; 2] = ["--keyspace", "users"];

fn with<'a>(args: &[&'a str]) -> Vec<&'a str> {
    args.iter().copied().chain(USERS).collect()
}

#[test]
fn records_of_a_keyspace_are_its_own() {
    let bed = Bed::new();
    bed.run("put", &["ada", "default"]).text();
    bed.run("put", &with(&["ada", "1815"])).text();
    bed.run("put", &["\\xff\\x00n", "high"]).text();
    assert_eq!(bed.run("get", &["ada"]).text(), "default\n");
    assert_eq!(bed.run("get", &with(&["ada"])).text(), "1815\n");
    assert!(bed.run("explain", &with(&["ada"])).text().contains("found, 4 bytes"));
    assert_eq!(bed.run("scan", &with(&[])).text(), "ada\t1815\n");
    assert_eq!(bed.run::<&str>("scan", &[]).text(), "ada\tdefault\n\\xff\\x00n\thigh\n");
    assert_eq!(bed.run::<&str>("keyspaces", &[]).text(), "users\n");
    bed.run("get", &with(&["bob"])).fails(1, &["there is no key \"bob\""]);
    bed.run("delete", &with(&["ada"])).text();
    assert_eq!(bed.run("get", &["ada"]).text(), "default\n");
    bed.run::<&str>("check", &[]).text();
}

#[test]
fn keyspaces_that_do_not_exist_are_refused_and_not_made() {
    let bed = Bed::new();
    bed.run("put", &["a", "1"]).text();
    for command in ["get", "delete", "explain"] {
        bed.run(command, &with(&["a"])).fails(2, &["there is no keyspace \"users\"", "terrace keyspaces"]);
    }
    for command in ["scan", "export"] {
        bed.run(command, &with(&[])).fails(2, &["there is no keyspace \"users\""]);
    }
    bed.run("keyspaces", &["--drop", "users"]).fails(2, &["there is no keyspace \"users\""]);
    bed.run("put", &["a", "1", "--keyspace", ""]).fails(2, &["1 to 255 bytes"]);
    assert_eq!(bed.run::<&str>("keyspaces", &[]).text(), "");
}

/// Names are read as they are printed, and as keys are.
#[test]
fn names_of_any_text_come_back() {
    let bed = Bed::new();
    let typed =
        ["a\\tb", "back\\\\slash", "\\x07", "it's \"quoted\"", "Straße", " "].map(|name| name.to_string());
    for (i, name) in typed.iter().enumerate() {
        bed.run("put", &["key", &i.to_string(), "--keyspace", name]).text();
    }
    let listed = bed.run::<&str>("keyspaces", &[]).text();
    let mut sorted = typed.to_vec();
    sorted.sort_by_key(|name| listed.lines().position(|line| line == name));
    assert_eq!(listed.lines().collect::<Vec<_>>(), sorted);
    for (i, name) in typed.iter().enumerate() {
        assert_eq!(bed.run("get", &["key", "--keyspace", name]).text(), format!("{i}\n"));
        bed.run("keyspaces", &["--make", name]).text();
        bed.run("keyspaces", &["--drop", name]).text();
    }
    assert_eq!(bed.run::<&str>("keyspaces", &[]).text(), "");
    bed.run("keyspaces", &["--make", "a\\q"]).fails(2, &["\\q is no escape"]);
    bed.run("keyspaces", &["--make", "\\xff"]).fails(2, &["UTF-8"]);
}

#[test]
fn a_record_that_stays_is_put_among_those_that_expire() {
    let bed = Bed::new();
    bed.run("put", &["a", "1"]).text();
    bed.run("keyspaces", &["--make", "sessions", "--ttl", "0s"]).text();
    let put = |key: &str, more: &[&str]| {
        bed.run("put", &[&[key, "1", "--keyspace", "sessions"], more].concat()).text();
    };
    put("stays", &["--ttl", "forever"]);
    put("goes", &[]);
    assert_eq!(bed.run("scan", &["--keys", "--keyspace", "sessions"]).text(), "stays\n");
    bed.run("put", &["a", "1", "--keyspace", "sessions", "--ttl", "long"]).fails(2, &["or forever"]);
}

#[test]
fn keyspaces_are_imported_exported_and_dropped() {
    let bed = Bed::new();
    let lines: String = (0..2000).map(|i| format!("key {i:04}\tvalue {i}\n")).collect();
    bed.run_with("import", &with(&["-"]), lines.as_bytes()).text();
    bed.run("put", &["of the default one", "1"]).text();
    assert_eq!(bed.run("export", &with(&[])).text(), lines);
    let run = bed.run::<&str>("export", &[]);
    assert_eq!(run.text(), "of the default one\t1\n");
    assert!(run.err.contains("1 keyspace is left out"), "{}", run.err);
    bed.run("keyspaces", &["--drop", "users"]).text();
    assert_eq!(bed.run::<&str>("keyspaces", &[]).text(), "");
    bed.run("get", &with(&["key 0001"])).fails(2, &["there is no keyspace"]);
    let checked = bed.run::<&str>("check", &[]).text();
    assert!(checked.contains("sound: 3 keys"), "one, the marker and the next number: {checked}");
    assert_eq!(bed.run::<&str>("export", &[]).err, "");
}

#[test]
fn a_key_too_long_for_a_keyspace_is_told_with_its_line() {
    let bed = Bed::new();
    let lines = format!("a\t1\n{}\t2\nb\t3\n", "k".repeat(65_530));
    let run = bed.run_with("import", &with(&["-", "--keep-going"]), lines.as_bytes());
    run.fails(
        3,
        &["line 2 of standard input", "a key of 65530 bytes is over the limit of 65529 in a keyspace"],
    );
    assert_eq!(bed.run("scan", &with(&["--keys"])).text(), "a\nb\n");
}

#[test]
fn there_is_nothing_to_recover_in_a_sound_database() {
    let bed = Bed::new();
    bed.run("put", &with(&["a", "1"])).text();
    assert_eq!(bed.run("keyspaces", &["--recover"]).text(), "");
    assert_eq!(bed.run::<&str>("keyspaces", &[]).text(), "users\n");
    bed.run("keyspaces", &["--recover", "--drop", "users"]).fails(2, &["cannot be used with"]);
}

#[test]
fn operands_are_merged_where_there_is_an_operator() {
    let bed = Bed::new();
    let merge = |operand: &'static str, more: &[&'static str]| {
        [&["page", operand, "--keyspace", "visits"][..], more].concat()
    };
    bed.run("put", &["a", "1"]).text();
    bed.run("merge", &merge("1", &["--number"])).fails(2, &["there is no keyspace \"visits\""]);
    bed.run("keyspaces", &["--make", "visits"]).text();
    bed.run("merge", &merge("1", &["--number"])).fails(2, &["has no merge operator", "--merge add"]);
    bed.run("keyspaces", &["--make", "visits", "--merge", "add"]).text();
    bed.run("merge", &merge("44", &["--number"])).text();
    bed.run("merge", &merge("-2", &["--number"])).text();
    bed.run("merge", &merge("one", &["--number"])).fails(2, &["one is no whole number"]);
    bed.run("merge", &merge("1", &[])).fails(3, &["operator \"add\"", "\"page\"", "here are 1"]);
    let get = ["page", "--keyspace", "visits", "--number"];
    assert_eq!(bed.run("get", &get).text(), "42\n");
    bed.run("get", &["a", "--number"]).fails(3, &["has 1 bytes"]);
    bed.run("merge", &merge("9223372036854775807", &["--number"])).fails(3, &["out of range"]);
    assert_eq!(bed.run("get", &get).text(), "42\n");
    bed.run("keyspaces", &["--make", "visits", "--merge", "max"])
        .fails(2, &["and not by the built-in operator \"max\""]);
    bed.run("keyspaces", &["--merge", "add"]).fails(2, &["--make"]);
    bed.run("keyspaces", &["--make", "log", "--merge", "append", "--ttl", "1h"]).text();
    bed.run("merge", &["k", "a", "--keyspace", "log"]).text();
    bed.run("merge", &["k", "b", "--keyspace", "log"]).text();
    assert_eq!(bed.run("get", &["k", "--keyspace", "log"]).text(), "ab\n");
    let long = bed.run("keyspaces", &["--long"]).text();
    assert_eq!(
        long,
        "log\trecords expire after 1h, if their puts say nothing else; merged by append\n\
         visits\trecords do not expire; merged by add\n"
    );
    bed.run::<&str>("check", &[]).text();
}

#[test]
fn operands_are_kept_where_they_are_to() {
    ["lsm", "wip"].iter().for_each(|engine| operands_are_kept_in(engine));
}

fn operands_are_kept_in(engine: &str) {
    let bed = Bed::new();
    let merge = |operand: &'static str| ["n", operand, "--keyspace", "counts", "--number"];
    bed.run("put", &["a", "1", "--set", &format!("engine={engine}")]).text();
    bed.run("keyspaces", &["--make", "counts", "--deferred"]).fails(2, &["--merge"]);
    bed.run("keyspaces", &["--make", "counts", "--merge", "add", "--deferred"]).text();
    for operand in ["9223372036854775807", "-3"] {
        bed.run("merge", &merge(operand)).text();
    }
    let get = ["n", "--keyspace", "counts", "--number"];
    assert_eq!(bed.run("get", &get).text(), "9223372036854775804\n");
    let long = bed.run("keyspaces", &["--long"]).text();
    assert_eq!(long, "counts\trecords do not expire; merged by add, deferred\n");
    // Told by whoever reads.
    bed.run("merge", &merge("4")).text();
    bed.run("get", &get).fails(3, &["out of range", "\"n\""]);
    bed.run::<&str>("check", &[]).text();
    bed.run("put", &["n", "x", "--keyspace", "counts"]).text();
    assert_eq!(bed.run("get", &["n", "--keyspace", "counts"]).text(), "x\n");
    bed.run("keyspaces", &["--make", "counts", "--merge", "add"]).text();
    assert_eq!(bed.run("keyspaces", &["--long"]).text(), "counts\trecords do not expire; merged by add\n");
}

#[test]
fn tables_are_written_as_a_keyspace_says() {
    let bed = Bed::new();
    let make = |tables: &'static str| ["--make", "pages", "--tables", tables];
    bed.run("put", &["a", "1"]).text();
    bed.run("keyspaces", &make("compression=gzip")).fails(2, &["none or lz4"]);
    bed.run("keyspaces", &make("blocks=4")).fails(2, &["block_bytes", "filter_bits_per_key"]);
    bed.run("keyspaces", &make("block_bytes")).fails(2, &["block_bytes cannot be", "1 to 67108864"]);
    bed.run("keyspaces", &["--tables", "default"]).fails(2, &["--make"]);
    assert_eq!(bed.run::<&str>("keyspaces", &[]).text(), "");
    bed.run("keyspaces", &make("compression=lz4, block_bytes=16KiB")).text();
    bed.run("put", &["k", "v", "--keyspace", "pages"]).text();
    let long = bed.run("keyspaces", &["--long"]).text();
    assert_eq!(long, "pages\trecords do not expire; tables: compression=lz4,block_bytes=16384\n");
    bed.run("keyspaces", &make("default")).text();
    assert_eq!(bed.run("keyspaces", &["--long"]).text(), "pages\trecords do not expire\n");
    bed.run::<&str>("check", &[]).text();
}

#[test]
fn a_keyspace_is_made_with_its_database() {
    let bed = Bed::new();
    let filtered = ["--make", "pages", "--tables", "filter_bits_per_key=10", "--engine", "slm"];
    bed.run("keyspaces", &filtered).fails(3, &["filters of tables"]);
    bed.run::<&str>("keyspaces", &[]).fails(3, &["no database"]);
    bed.run("keyspaces", &["--drop", "pages"]).fails(3, &["no database"]);
    bed.run("keyspaces", &["--make", "pages", "--engine", "lsm"]).text();
    assert_eq!(bed.run::<&str>("keyspaces", &[]).text(), "pages\n");
    bed.run::<&str>("check", &[]).text();
}

#[test]
fn records_expire_where_they_are_to() {
    let bed = Bed::new();
    let of = |name: &'static str| ["--keyspace", name];
    let put = |name, ttl| [&["ada", "1815"][..], &of(name), &["--ttl", ttl]].concat();
    bed.run("put", &put("sessions", "0s")).text();
    bed.run("get", &[&["ada"][..], &of("sessions")].concat()).fails(1, &["there is no key"]);
    bed.run("put", &put("sessions", "1h")).text();
    assert_eq!(bed.run("get", &[&["ada"][..], &of("sessions")].concat()).text(), "1815\n");
    bed.run("put", &["ada", "1815", "--ttl", "1h"]).fails(2, &["--keyspace"]);
    bed.run("put", &put("sessions", "soon")).fails(2, &["soon"]);
    bed.run("put", &[&["ada", "1815"][..], &of("plain")].concat()).text();
    bed.run("put", &put("plain", "1h")).fails(2, &["entries of keyspace \"plain\" do not expire"]);

    bed.run("keyspaces", &["--make", "cache", "--ttl", "90m"]).text();
    bed.run("keyspaces", &["--make", "cache"]).text();
    let long = bed.run("keyspaces", &["--long"]).text();
    let lines: Vec<&str> = long.lines().collect();
    assert_eq!(lines[0], "cache\trecords expire after 1h 30m, if their puts say nothing else");
    assert_eq!(lines[1], "plain\trecords do not expire");
    assert_eq!(lines[2], "sessions\trecords expire if their puts say so");
    bed.run("keyspaces", &["--make", "plain", "--ttl", "1h"]).fails(2, &["was made without expiry"]);
    bed.run("keyspaces", &["--make", "cache", "--ttl", "forever"]).text();
    assert!(
        bed.run("keyspaces", &["--long"]).text().starts_with("cache\trecords expire if their puts say so")
    );
    bed.run("keyspaces", &["--ttl", "1h"]).fails(2, &["--make"]);
    bed.run::<&str>("check", &[]).text();
}

/// Must catch a listing that says there are none where it cannot know, and a hint at a repair that mends nothing.
#[test]
fn names_that_cannot_be_read_are_no_empty_list() {
    let bed = Bed::new();
    bed.run("put", &["a", "b", "--engine", "lsm"]).text();
    let merging = ["--make", "s", "--merge", "append", "--deferred"];
    bed.run("keyspaces", &merging).text();
    let records: String = (0..200).map(|i| format!("{i:05}\t{}\n", "v".repeat(100))).collect();
    for _ in 0..2 {
        bed.run("merge", &["k", "o", "--keyspace", "s"]).text();
        let args = ["-", "--set", "lsm.memtable_bytes=4096"];
        bed.run_with("import", &args, records.as_bytes()).text();
    }
    // One entry that is in no table yet, as a compaction may have put all others into one with the names.
    bed.run("merge", &["k", "o", "--keyspace", "s"]).text();
    let tables = std::fs::read_dir(&bed.db).unwrap().map(|entry| entry.unwrap().path());
    let tables: Vec<_> = tables.filter(|path| path.extension().is_some_and(|e| e == "sst")).collect();
    let has_names = |path: &PathBuf| {
        run(&["dump", "--entries", path.to_str().unwrap()]).text().contains("terrace-spaces")
    };
    let named: Vec<_> = tables.into_iter().filter(has_names).collect();
    assert!(!named.is_empty(), "no table has the names");
    named.iter().for_each(|path| std::fs::write(path, b"").unwrap());
    bed.run::<&str>("keyspaces", &[]).fails(3, &["corruption"]);
    bed.run::<&str>("repair", &[]).fails(1, &[]);
    bed.run::<&str>("check", &[]).fails(1, &["`terrace keyspaces ", " --recover` mends that"]);
    bed.run("keyspaces", &["--recover"]).text();
    assert_eq!(bed.run::<&str>("check", &[]).code, 0);
}
