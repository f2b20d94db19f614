//! get, put and delete.

use crate::support::{Bed, run};

#[test]
fn a_record_is_put_read_and_deleted() {
    let bed = Bed::new();
    bed.run("put", &["greeting", "hello, world"]).text();
    assert_eq!(bed.run("get", &["greeting"]).text(), "hello, world\n");
    bed.run("put", &["greeting", "again"]).text();
    assert_eq!(bed.run("get", &["greeting"]).text(), "again\n");
    bed.run("delete", &["greeting"]).text();
    bed.run("get", &["greeting"]).fails(1, &["there is no key \"greeting\"", "terrace scan"]);
    bed.run("delete", &["greeting"]).fails(1, &["not there to delete", "greeting"]);
}

#[test]
fn a_key_that_is_missing_where_there_is_no_order_is_not_looked_for_by_scans() {
    let bed = Bed::new();
    let pool = format!("emulated:dram@{}", bed.path("pool").display());
    bed.run("put", &["key", "value", "--engine", "turbo", "--pool", &pool]).text();
    bed.run("get", &["other"]).fails(1, &["there is no key \"other\"", "terrace export"]);
}

#[test]
fn a_database_knows_its_engine() {
    let bed = Bed::new();
    bed.run("put", &["key", "value", "--engine", "lsm"]).text();
    assert_eq!(bed.run("get", &["key"]).text(), "value\n");
    bed.run("put", &["key", "another"]).text();
    assert!(bed.run::<&str>("stat", &[]).text().contains("lsm"));
    bed.run::<&str>("check", &[]).text();
    bed.run::<&str>("repair", &[]).text();
    assert_eq!(bed.run("get", &["key", "--engine", "lsm"]).text(), "another\n");
}

#[test]
fn any_bytes_go_in_and_come_out() {
    let bed = Bed::new();
    bed.run("put", &["a\\tb\\x00\\xff", "c\\nd\\\\\\x80é"]).text();
    assert_eq!(bed.run("get", &["a\\tb\\x00\\xff"]).text(), "c\\nd\\\\\\x80é\n");
    assert_eq!(bed.run("get", &["--hex", "61096200ff"]).text(), "630a645c80c3a9\n");
    assert_eq!(bed.run("get", &["--raw", "a\\tb\\x00\\xff"]).out, b"c\nd\\\x80\xc3\xa9");
    bed.run("put", &["--hex", "ff", "00"]).text();
    assert_eq!(bed.run("get", &["\\xff"]).text(), "\\x00\n");
}

#[test]
fn empty_keys_and_values_are_records() {
    let bed = Bed::new();
    bed.run("put", &["", "of the empty key"]).text();
    bed.run("put", &["empty", ""]).text();
    assert_eq!(bed.run("get", &[""]).text(), "of the empty key\n");
    assert_eq!(bed.run("get", &["empty"]).text(), "\n");
    assert_eq!(bed.run("get", &["--raw", "empty"]).out, b"");
}

#[test]
fn arguments_that_look_like_flags_are_reachable() {
    let bed = Bed::new();
    bed.run("put", &["-5", "-7"]).text();
    bed.run("put", &["--", "--hex", "--raw"]).text();
    assert_eq!(bed.run("get", &["-5"]).text(), "-7\n");
    assert_eq!(bed.run("get", &["--", "--hex"]).text(), "--raw\n");
}

#[test]
fn a_value_may_come_from_a_file_or_from_standard_input() {
    let bed = Bed::new();
    let value: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let file = bed.file("value", &value);
    bed.run("put", &["from-file".as_ref(), "--file".as_ref(), file.as_os_str()]).text();
    assert_eq!(bed.run("get", &["--raw", "from-file"]).out, value);
    let run = bed.run_with("put", &["from-stdin", "--file", "-"], &value);
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(bed.run("get", &["--raw", "from-stdin"]).out, value);
}

#[test]
fn deleting_several_removes_those_that_are_there() {
    let bed = Bed::new();
    bed.run("put", &["a", "1"]).text();
    bed.run("put", &["b", "2"]).text();
    bed.run("delete", &["a", "x", "b"]).fails(1, &["\"x\""]);
    assert_eq!(bed.export(), b"");
}

#[test]
fn mistakes_are_explained() {
    let bed = Bed::new();
    let empty = bed.path("empty");
    std::fs::create_dir(&empty).unwrap();
    run(&["dump", empty.to_str().unwrap()]).fails(3, &["there is no database"]);
    bed.run("get", &["key"]).fails(3, &["no database", "terrace import"]);
    assert!(!bed.db.exists());
    std::fs::create_dir(&bed.db).unwrap();
    bed.run("get", &["key"]).fails(3, &["no database", "empty"]);
    bed.run("put", &["a\\q", ""]).fails(2, &["\\q is no escape"]);
    bed.run("put", &["--hex", "abc", ""]).fails(2, &["hexadecimal"]);
    bed.run("put", &["key"]).fails(2, &["VALUE"]);
    bed.run("put", &["key", "value", "--memory", "12 parsecs"]).fails(2, &["64MiB"]);
    bed.run("put", &["key", "value", "--pool", "emulated:abacus"]).fails(2, &["pool"]);
    bed.run("put", &["key", "value", "--engine", "steam"]).fails(2, &["slm"]);
    run(&["frobnicate"]).fails(2, &["frobnicate"]);
    let long = "k".repeat(65_536);
    bed.run("put", &[long.as_str(), "v"]).fails(2, &["65"]);
}

#[test]
fn options_of_the_engine_can_be_set_and_mistakes_are_told() {
    let bed = Bed::new();
    bed.run("put", &["--set", "slm.block_bytes=4096", "--set", "slm.garbage_share=0", "key", "value"]).text();
    assert_eq!(bed.run("get", &["key"]).text(), "value\n");
    bed.run("get", &["--set", "slm.block_bites=1", "key"]).fails(2, &["there is no option slm.block_bites"]);
    bed.run("get", &["--set", "slm.block_bytes=many", "key"]).fails(2, &["slm.block_bytes cannot be many"]);
    bed.run("get", &["--set", "slm.block_bytes", "key"]).fails(2, &["NAME=VALUE"]);
}

#[test]
fn a_read_is_explained_step_by_step() {
    let bed = Bed::new();
    bed.run("put", &["a", "1"]).text();
    let text = bed.run("explain", &["a"]).text();
    assert!(text.starts_with("memtable ") && text.contains("\nfound, 1 bytes: memtables"), "{text}");
    let absent = bed.run("explain", &["b"]);
    absent.fails(1, &["there is no key \"b\""]);
    assert!(String::from_utf8_lossy(&absent.out).contains("not there: memtables"), "{absent:?}");
}
