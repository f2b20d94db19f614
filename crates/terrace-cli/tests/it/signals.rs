//! Signals sent to commands at work: they end, they leave the database as it was or whole, and nothing else.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, kill_process};

use crate::engines;
use crate::support::{Bed, piped};

const SIGNALS: [Signal; 2] = [Signal::INT, Signal::TERM];

/// More than a pipe holds.
fn lines() -> Vec<u8> {
    (0..20_000).flat_map(|i| format!("key/{i:08}\tvalue number {i}\n").into_bytes()).collect()
}

fn filled(engine: &str, pool: &str) -> Bed {
    let bed = Bed::new();
    let run = bed.run_with("import", &["-", "--engine", engine, "--pool", pool, "--pm", "32MiB"], &lines());
    assert_eq!(run.code, 0, "{run:?}");
    bed
}

/// Starts a command as from a terminal: a shell has what it runs in the background ignore interrupts, and children do
/// as their parents.
fn spawn(bed: &Bed, command: &str, args: &[&str]) -> Child {
    let mut process = Command::new("env");
    process.arg("--default-signal=INT,TERM").arg(env!("CARGO_BIN_EXE_terrace"));
    process.arg(command).arg(&bed.db).args(args);
    piped(&mut process)
}

/// What lies in a directory and under it.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.append(&mut contents(&path)),
            false => drop(found.insert(path.clone(), std::fs::read(&path).unwrap())),
        }
    }
    found
}

/// Waits until a command has opened one of the database's files, or has ended.
fn at_work(child: &mut Child, dir: &Path) {
    let open = PathBuf::from(format!("/proc/{}/fd", child.id()));
    let has_one = || {
        let links = std::fs::read_dir(&open).into_iter().flatten().flatten();
        links.filter_map(|link| std::fs::read_link(link.path()).ok()).any(|file| file.starts_with(dir))
    };
    while !has_one() && child.try_wait().unwrap().is_none() {}
}

/// The code that a shell would give of how a command ended.
fn code(status: std::process::ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
}

#[test]
fn a_scan_that_is_stopped_leaves_all_as_it_was() {
    for (engine, pool) in engines::with_pools().filter(|(engine, _)| engines::is_ordered(engine)) {
        let bed = filled(engine, pool);
        let before = contents(&bed.db);
        for signal in SIGNALS {
            let mut child = spawn(&bed, "scan", &[]);
            let mut out = BufReader::new(child.stdout.take().unwrap());
            let mut first = String::new();
            out.read_line(&mut first).unwrap();
            assert_eq!(first, "key/00000000\tvalue number 0\n");
            // Nobody reads on: it waits in the middle.
            kill_process(Pid::from_child(&child), signal).unwrap();
            let status = child.wait().unwrap();
            assert_eq!(code(status), 128 + signal.as_raw(), "{engine}");
            let mut rest = Vec::new();
            out.read_to_end(&mut rest).unwrap();
            assert!(lines().starts_with(&[first.as_bytes(), &rest].concat()), "{engine}");
            assert!(contents(&bed.db) == before, "{engine}");
        }
        assert_eq!(bed.export(), lines(), "{engine}");
    }
}

/// A repair that is stopped leaves nothing of itself, and the next one does what is to be done.
#[test]
fn a_repair_that_is_stopped_changes_nothing() {
    for (engine, pool) in engines::with_pools() {
        let bed = filled(engine, pool);
        std::fs::remove_file(bed.db.join("CURRENT")).unwrap();
        let before = contents(&bed.db);
        for signal in SIGNALS {
            let mut child = spawn(&bed, "repair", &["--pool", pool]);
            at_work(&mut child, &bed.db);
            kill_process(Pid::from_child(&child), signal).unwrap();
            let ended = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&ended.stderr);
            match code(ended.status) {
                stopped if stopped == 128 + signal.as_raw() => {
                    assert!(contents(&bed.db) == before, "{engine}: {said}")
                }
                // It had come to its end by then.
                done => assert!(done < 2 && bed.db.join("CURRENT").exists(), "{engine}, {done}: {said}"),
            }
        }
        bed.run("repair", &["--pool", pool]).text();
        let export = bed.export();
        let mut found: Vec<&[u8]> = export.split_inclusive(|&b| b == b'\n').collect();
        found.sort_unstable();
        assert!(found.concat() == lines(), "{engine}");
    }
}

#[test]
fn a_check_that_is_stopped_leaves_all_as_it_was() {
    for (engine, pool) in engines::with_pools() {
        let bed = filled(engine, pool);
        let before = contents(&bed.db);
        for signal in SIGNALS {
            let mut child = spawn(&bed, "check", &[]);
            at_work(&mut child, &bed.db);
            kill_process(Pid::from_child(&child), signal).unwrap();
            let status = child.wait().unwrap();
            assert!([0, 128 + signal.as_raw()].contains(&code(status)), "{engine}: {status}");
            assert!(contents(&bed.db) == before, "{engine}");
        }
        assert_eq!(bed.run::<&str>("check", &[]).code, 0, "{engine}");
    }
}
