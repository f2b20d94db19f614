//! Other processes: kills, interrupts, and a database that is in use.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Bed, ended_with_input_open, finish};

fn lines(from: u32, to: u32) -> Vec<u8> {
    (from..to).flat_map(|i| format!("key/{i:08}\tvalue number {i}\n").into_bytes()).collect()
}

/// Starts an import and feeds it `records` lines, far more than a pipe holds, so that it is at work.
fn import_at_work(bed: &Bed, records: u32) -> Child {
    let mut child = bed.spawn("import", &["-"]);
    child.stdin.as_mut().unwrap().write_all(&lines(0, records)).unwrap();
    child
}

#[test]
fn an_import_that_was_killed_is_completed_by_another() {
    let bed = Bed::new();
    let all = lines(0, 40_000);
    for killed_after in [10_000, 25_000] {
        let mut child = import_at_work(&bed, killed_after);
        child.kill().unwrap();
        child.wait().unwrap();
        // Whatever got in is whole, and in order from the first line.
        let export = bed.export();
        assert!(all.starts_with(&export), "after {killed_after}");
    }
    assert_eq!(bed.run_with("import", &["-"], &all).code, 0);
    assert_eq!(bed.export(), all);
    assert_eq!(bed.run::<&str>("check", &[]).code, 0);
}

/// Must catch a part of a sorted import that was killed or interrupted, and files that are left of it for good.
#[test]
fn a_sorted_import_that_was_stopped_is_as_if_it_never_was() {
    let bed = Bed::new();
    let before = lines(0, 500);
    let sorted = ["-", "--sorted", "--engine", "lsm", "--set", "lsm.table_bytes=64KiB"];
    assert_eq!(bed.run_with("import", &sorted, &before).code, 0);
    let left = || {
        let names = std::fs::read_dir(&bed.db).unwrap().map(|entry| entry.unwrap().path());
        names.filter(|path| path.extension().is_some_and(|end| end == "new")).count()
    };
    for signal in [Signal::KILL, Signal::INT, Signal::TERM] {
        let mut child = bed.spawn("import", &sorted);
        child.stdin.as_mut().unwrap().write_all(&lines(200, 30_000)).unwrap();
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = ended_with_input_open(child);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code().is_none(), signal == Signal::KILL, "{said}");
        assert!(signal == Signal::KILL || said.contains("nothing is imported"), "{said}");
        assert!(signal != Signal::KILL || left() > 0, "it was killed before it had a table");
        assert_eq!(bed.export(), before);
        assert_eq!(bed.run("put", &["key", "value"]).code, 0);
        assert_eq!(bed.run("delete", &["key"]).code, 0);
        assert_eq!(left(), 0);
    }
    assert_eq!(bed.run_with("import", &sorted, &lines(0, 30_000)).code, 0);
    assert_eq!(bed.export(), lines(0, 30_000));
    assert_eq!(bed.run::<&str>("check", &[]).code, 0);
}

#[test]
fn ctrl_c_stops_an_import_that_waits_for_input_and_keeps_what_it_had() {
    let bed = Bed::new();
    let child = import_at_work(&bed, 20_000);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = ended_with_input_open(child);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("run the same command again"), "{said}");
    let kept = bed.export();
    assert!(lines(0, 20_000).starts_with(&kept));
    let count = kept.iter().filter(|&&b| b == b'\n').count();
    let digits: String = said
        .split("stopped; ")
        .nth(1)
        .unwrap()
        .chars()
        .take_while(|c| *c != ' ')
        .filter(|c| *c != ',')
        .collect();
    assert_eq!(digits, count.to_string(), "{said}");
}

#[test]
fn ctrl_c_stops_a_benchmark_and_its_figures_are_shown() {
    let bed = Bed::new();
    let mut child = bed.spawn("bench", &["--benchmarks", "fillseq,fillrandom", "--num", "1000000000"]);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    out.read_line(&mut text).unwrap();
    assert!(text.starts_with("1,000,000,000 records"), "{text}");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    out.read_to_string(&mut text).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{text} {}", String::from_utf8_lossy(&ended.stderr));
    assert!(text.contains("interrupted") && !text.contains("\nfillrandom"), "{text}");
}

#[test]
fn a_second_process_is_told_that_the_database_is_in_use() {
    let bed = Bed::new();
    bed.run("put", &["a", "1"]).text();
    let mut writer = bed.spawn::<&str>("__write", &[]);
    let mut acknowledged = String::new();
    BufReader::new(writer.stdout.as_mut().unwrap()).read_line(&mut acknowledged).unwrap();
    assert_eq!(acknowledged, "0\n");
    for (command, args) in [("get", &["a"][..]), ("put", &["b", "2"]), ("check", &[]), ("stat", &[])] {
        bed.run(command, args).fails(3, &["in use by another process", "wait for the other process"]);
    }
    writer.kill().unwrap();
    writer.wait().unwrap();
    assert_eq!(bed.run("get", &["a"]).text(), "1\n");
}

#[test]
fn writes_acknowledged_before_a_kill_are_there() {
    let bed = Bed::new();
    bed.run("put", &["a", "1"]).text();
    let mut writer = bed.spawn::<&str>("__write", &[]);
    let mut acknowledged = BufReader::new(writer.stdout.take().unwrap()).lines();
    for expected in 0..500 {
        assert_eq!(acknowledged.next().unwrap().unwrap(), expected.to_string());
    }
    writer.kill().unwrap();
    let more = acknowledged.map_while(Result::ok).filter(|line| !line.is_empty()).count();
    writer.wait().unwrap();
    let run = bed.run("scan", &["--prefix", "visit/", "--keys"]).text();
    let found = run.lines().count();
    // Two records a write; the last line may have been cut, the last write may not have been told.
    assert!(
        found.is_multiple_of(2) && found / 2 + 1 >= 500 + more && found / 2 <= 501 + more,
        "{found} {more}"
    );
}

#[test]
fn a_tour_goes_through() {
    let bed = Bed::new();
    let run = finish(bed.spawn("tour", &["--records", "3000"]), b"");
    let text = run.text();
    for words in ["SIGKILL", "acknowledged writes are there, whole and right", "Sound", "durability"] {
        assert!(text.contains(words), "\"{words}\" is missing: {text}");
    }
    bed.run::<&str>("tour", &[]).fails(2, &["not empty"]);
    assert!(bed.run("scan", &["--prefix", "user/", "--limit", "1"]).text().contains("@example.net"));
}
