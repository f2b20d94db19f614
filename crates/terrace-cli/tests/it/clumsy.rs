//! What people do when they are new, in a hurry or at the wrong place: each gets an answer, and nothing is left behind.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::engines;
use crate::support::{Bed, ended_with_input_open, finish, piped, run, terrace};

/// Every command that takes a database, with what else it needs.
const ON_A_DATABASE: &[(&str, &[&str])] = &[
    ("export", &[]),
    ("get", &["k"]),
    ("delete", &["k"]),
    ("scan", &[]),
    ("stat", &[]),
    ("check", &[]),
    ("repair", &[]),
];

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_device_that_is_not_there_is_not_made() {
    let bed = Bed::new();
    let device = "/dev/terrace-there-is-no-such-device";
    for pool in [device.to_string(), format!("emulated:dram@{device}")] {
        for engine in engines::names() {
            let args = ["k", "v", "--engine", engine, "--pool", &pool];
            bed.run("put", &args).fails(2, &["there is no device", device]);
        }
    }
    assert!(!Path::new(device).exists() && names(bed.root.path()).is_empty());
    // What is there and no place for a pool stays as it is.
    std::fs::create_dir(bed.path("some")).unwrap();
    for place in [bed.path("some"), "/dev/null".into()] {
        bed.run("put", &["k", "v", "--pool", place.to_str().unwrap()]).fails(2, &[place.to_str().unwrap()]);
    }
    assert_eq!(names(bed.root.path()), ["some"]);
}

#[test]
fn values_that_no_option_can_have_are_refused_before_anything_is_made() {
    let bed = Bed::new();
    for (args, words) in [
        (&["--memory", "1"][..], &["--memory", "1024 to"][..]),
        (&["--memory", "99999TiB"], &["--memory"]),
        (&["--pm", "0"], &["--pm", "65536 to"]),
        (&["--pm", "1EiB"], &["no size"]),
        (&["--set", "slm.block_bytes=99999999999"], &["slm.block_bytes", "64 MiB"]),
        (&["--set", "slm.block_bytes=1GiB"], &["slm.block_bytes", "64 MiB"]),
        (&["--set", "lsm.levels=1"], &["lsm.levels", "2 to 16"]),
        (&["--set", "lsm.log=floppy"], &["auto, pm or ssd"]),
        (&["--set", "lsm.nothing=1"], &["there is no option lsm.nothing", "lsm.memtable_bytes"]),
        (&["--set", "nothing=1"], &["there is no option nothing", "sptree.log_bytes"]),
        (&["--engine", "rocksdb"], &["slm, lsm, turbo, sptree"]),
        (&["--pool", ""], &["a pool is"]),
        (&["--pool", "emulated:floppy"], &["floppy"]),
        (&["--compression", "rar"], &["none, lz4"]),
    ] {
        bed.run("put", &[&["k", "v"][..], args].concat()).fails(2, words);
        assert!(!bed.db.exists(), "{args:?}");
    }
    bed.run("put", &["k", "v", "--engine", "lsm", "--set", "lsm.memtable_bytes=4MiB"]).text();
    bed.run("get", &["k", "--set", "lsm.block_bytes=8KiB", "--set", "background_threads=1"]).text();
}

#[test]
fn sizes_are_sizes_wherever_they_are_given() {
    let bed = Bed::new();
    for (args, words) in [
        (["--value-size", "2GiB"], &["0 to 1073741824"][..]),
        (["--value-size", "many"], &["no size"]),
        (["--key-size", "3"], &["4 to 65534"]),
        (["--num", "0"], &["16M"]),
        (["--threads", "0"], &["1..=1024"]),
    ] {
        bed.run("bench", &args).fails(2, words);
    }
    let small = ["--num", "1k", "--value-size", "1KiB", "--key-size", "20", "--benchmarks", "fillseq"];
    assert!(bed.run("bench", &small).text().contains("1,000 records of 20 + 1024 bytes"));
    bed.run("scan", &["--limit", "few"]).fails(2, &["16M"]);
}

#[test]
fn an_import_that_fails_at_once_leaves_no_database() {
    let bed = Bed::new();
    let db = bed.path("new/dirs/db");
    let pool = bed.path("elsewhere.pool");
    let import = |args: &[&str], input: &[u8]| {
        let mut process = terrace();
        process.arg("import").arg(&db).arg("-").args(args);
        finish(piped(&mut process), input)
    };
    let pool_flag = format!("{}@{}", engines::EMULATED, pool.display());
    for engine in engines::names() {
        import(&["--pool", &pool_flag, "--engine", engine], b"no tab\n").fails(3, &["nothing is imported"]);
        assert_eq!(names(bed.root.path()), [""; 0], "{engine}");
        // A record that no pool of this size can hold is refused when the database has been made.
        let large = format!("key\t{}\n", "v".repeat(9 << 20));
        let args = ["--pool", &pool_flag, "--engine", engine, "--pm", "4MiB"];
        let refused = import(&args, large.as_bytes());
        if refused.code != 0 {
            refused.fails(3, &["full"]);
            assert_eq!(names(bed.root.path()), [""; 0], "{engine}");
        } else {
            std::fs::remove_dir_all(bed.path("new")).unwrap();
            let _ = std::fs::remove_file(&pool);
        }
    }
    // What others have put there stays, and what was imported, too.
    std::fs::create_dir_all(&db).unwrap();
    import(&[], b"bad\n").fails(3, &["line 1"]);
    assert_eq!(names(&db), [""; 0]);
    import(&[], b"good\t1\nbad\n").fails(3, &["line 2", "the record before it is imported"]);
    assert!(names(&db).contains(&"CURRENT".to_string()));
    import(&[], b"bad\n").fails(3, &["line 1"]);
    assert!(names(&db).contains(&"CURRENT".to_string()));
}

#[test]
fn errors_in_json_name_one_line() {
    let bed = Bed::new();
    let input = b"{\"key\":\"a\",\"value\":\"b\"}\n{\"key\":1}\n";
    let run = bed.run_with("import", &["-", "--format", "json"], input);
    run.fails(3, &["line 2 of standard input", "at column 8"]);
    assert_eq!(
        run.err.matches("line ").count(),
        1 + run.err.matches("mend the line ").count(),
        "{}",
        run.err
    );
}

#[test]
fn every_signal_that_asks_for_an_end_gets_an_orderly_one() {
    let signals = [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)];
    for (signal, code) in signals.into_iter().filter(|(signal, _)| !is_ignored(*signal)) {
        let bed = Bed::new();
        let mut child = bed.spawn("import", &["-"]);
        let lines: String = (0..20_000).map(|i| format!("key{i:06}\tvalue\n")).collect();
        child.stdin.as_mut().unwrap().write_all(lines.as_bytes()).unwrap();
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = ended_with_input_open(child);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert_closed_in_order(&bed);

        let mut writer = bed.spawn::<&str>("__write", &[]);
        let mut acknowledged = String::new();
        let mut out = BufReader::new(writer.stdout.take().unwrap());
        out.read_line(&mut acknowledged).unwrap();
        kill_process(Pid::from_child(&writer), signal).unwrap();
        assert!(out.lines().map_while(Result::ok).all(|line| !line.is_empty()));
        assert_eq!(writer.wait().unwrap().code(), Some(code));
        assert_closed_in_order(&bed);
    }
}

/// Whether whoever runs the tests has signals of this kind ignored (`nohup`), which commands then do, too.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal.as_raw() - 1) & 1 == 1
}

fn assert_closed_in_order(bed: &Bed) {
    let stat = bed.run::<&str>("stat", &[]).text();
    assert!(stat.contains("a clean shutdown"), "{stat}");
}

#[test]
fn a_signal_that_is_to_be_ignored_is_ignored() {
    let bed = Bed::new();
    let mut process = std::process::Command::new("sh");
    process.args(["-c", "trap '' HUP; exec \"$0\" import \"$1\" -"]);
    process.arg(env!("CARGO_BIN_EXE_terrace")).arg(&bed.db);
    let mut child = piped(&mut process);
    let lines: String = (0..20_000).map(|i| format!("key{i:06}\tvalue\n")).collect();
    child.stdin.as_mut().unwrap().write_all(lines.as_bytes()).unwrap();
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    let run = finish(child, b"last\t1\n");
    assert!(run.text().contains("20,001 records"));
}

#[test]
fn nobody_has_to_read_what_is_said() {
    let bed = Bed::new();
    bed.run("put", &["k", "v"]).text();
    for (args, code) in [(["get", "k"], 0), (["get", "none"], 1), (["scan", "--keys"], 0)] {
        let mut child = piped(terrace().arg(args[0]).arg(&bed.db).arg(args[1]));
        drop((child.stdout.take(), child.stderr.take()));
        assert_eq!(child.wait().unwrap().code(), Some(code), "{args:?}");
    }
    for closed in ["<&-", ">&-", "2>&-"] {
        let script = format!("\"$0\" get \"$1\" none {closed}");
        let mut sh = std::process::Command::new("sh");
        let status =
            sh.args(["-c", &script, env!("CARGO_BIN_EXE_terrace")]).arg(&bed.db).stderr(Stdio::null());
        assert_eq!(status.status().unwrap().code(), Some(1), "{closed}");
    }
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut process = terrace();
    let process = process.arg("export").arg(&bed.db).stdout(full).stderr(Stdio::piped());
    let ended = process.spawn().unwrap().wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.code() == Some(3) && said.contains("cannot write the output"), "{said}");
}

#[test]
fn what_is_no_database_is_called_so_and_left_alone() {
    let bed = Bed::new();
    let file = bed.file("file.txt", "text");
    let stranger = bed.path("stranger");
    std::fs::create_dir(&stranger).unwrap();
    std::fs::write(stranger.join("notes.txt"), "mine").unwrap();
    for (command, rest) in ON_A_DATABASE {
        let on = |dir: &Path| finish(piped(terrace().arg(command).arg(dir).args(*rest)), b"");
        on(&bed.path("nowhere")).fails(3, &["no database", "no such directory"]);
        on(&file).fails(2, &["file.txt is no directory"]);
        let run = on(&stranger);
        assert!(run.code == 2 || run.code == 3, "{command}: {run:?}");
        assert!(run.err.contains("no database"), "{command}: {run:?}");
        assert_eq!(names(&stranger), ["notes.txt"], "{command}");
    }
    for (command, rest) in [("put", &["k", "v"][..]), ("import", &["-"]), ("tour", &[]), ("bench", &[])] {
        let run = finish(piped(terrace().arg(command).arg(&file).args(rest)), b"");
        assert!(run.code == 2 || run.code == 3, "{command}: {run:?}");
        assert!(run.err.contains("file.txt"), "{command}: {run:?}");
    }
    bed.run("import", &[bed.root.path()]).fails(2, &["is a directory"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "text");
    assert!(!bed.db.exists() && !bed.path("nowhere").exists());
}

#[test]
fn help_tells_of_the_command_first_and_of_the_database_behind() {
    for (command, words) in [
        ("get", "The exit code is 1 if the key is not there"),
        ("put", "making the database"),
        ("import", "A key that is there is overwritten"),
        ("export", "appears whole or not at all"),
        ("check", "The exit code is 1 if something is damaged"),
        ("stat", "Counters are since"),
    ] {
        let (short, long) = (run(&[command, "-h"]).text(), run(&[command, "--help"]).text());
        assert!(long.contains(words), "{command}: {long}");
        assert!(long.contains("--pool") && !short.contains("--pool"), "{command}: {short}");
        assert!(short.lines().count() < 40, "{command}: {short}");
    }
    for command in ["dump", "completions"] {
        assert!(!run(&[command, "--help"]).text().contains("--pool"), "{command}");
    }
    // No help text is wider than a screen of 100 columns, nor are lines broken in the middle.
    let help = run(&["get", "--help"]).text();
    assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
}
