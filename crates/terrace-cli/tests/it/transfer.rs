//! import and export.

use std::fmt::Write as _;
use std::os::unix::fs::FileTypeExt;

use crate::support::{Bed, finish, piped, terrace};

/// Canonical lines, in key order, with keys and values of every kind.
fn canonical(records: u32) -> String {
    let mut text = String::from("\tvalue of the empty key\n\\x00\\x01\t\\xff\\xfe\n");
    for i in 0..records {
        let _ = writeln!(text, "key/{i:06}\tvalue {i} é \\\\ \\t \\n \\r {}", "x".repeat((i % 50) as usize));
    }
    let _ = writeln!(text, "long/{}\t", "k".repeat(65_530));
    let _ = writeln!(text, "long/value\t{}", "v".repeat(200_000));
    text.push_str("é\tlast of the valid\n\\xff\t\n");
    text
}

#[test]
fn export_gives_back_a_canonical_import() {
    let bed = Bed::new();
    let text = canonical(5000);
    let said = bed.import(&bed.file("in.tsv", &text)).text();
    assert!(said.contains("imported 5,006 records"), "{said}");
    assert_eq!(String::from_utf8(bed.export()).unwrap(), text);
    // To a file, over one that is there; and again from there into another database.
    let out = bed.file("out.tsv", "old");
    let said = bed.run("export", &[&out]).text();
    assert!(said.contains("exported 5,006 records"), "{said}");
    assert_eq!(std::fs::read_to_string(&out).unwrap(), text);
    let other = Bed::new();
    other.import(&out).text();
    assert_eq!(String::from_utf8(other.export()).unwrap(), text);
    let left: Vec<_> = std::fs::read_dir(bed.root.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

/// Must catch a sorted import that differs from another one, that takes records out of order, or that leaves a part.
#[test]
fn sorted_records_are_ingested() {
    let text = canonical(3000);
    for engine in ["lsm", "wip", "slm"] {
        let bed = Bed::new();
        let import = |input: &str, args: &[&str]| {
            let args = [&["-", "--sorted", "--engine", engine], args].concat();
            bed.run_with("import", &args, input.as_bytes())
        };
        import("a\t1\nb\t2\na\t3\n", &[]).fails(3, &["line 3", "does not come after"]);
        assert!(!bed.db.exists(), "{engine}: nothing was written");
        import("a\tb\nno tab\n", &["--keyspace", "s"]).fails(3, &["line 2"]);
        assert!(!bed.db.exists(), "{engine}: nothing but a keyspace was written");
        assert!(import(&text, &[]).text().contains("imported 3,006 records"));
        assert_eq!(String::from_utf8(bed.export()).unwrap(), text);
        import("k\tv\nbad\n", &[]).fails(3, &["line 2", "--keep-going"]);
        import("k\tv\nbad\nl\tw\n", &["--keep-going", "--keyspace", "s"]).fails(3, &["1 line could not"]);
        assert_eq!(bed.run("scan", &["--keyspace", "s"]).text(), "k\tv\nl\tw\n");
        assert_eq!(bed.run::<&str>("check", &[]).code, 0);
    }
}

/// A pipe was replaced by a file, and so was a device.
#[test]
fn export_writes_into_what_is_no_file() {
    let bed = Bed::new();
    let text = canonical(100);
    bed.import(&bed.file("in.tsv", &text)).text();
    let pipe = bed.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| std::fs::read_to_string(&pipe).unwrap());
        bed.run("export", &[&pipe]).text();
        assert_eq!(reader.join().unwrap(), text);
    });
    assert!(std::fs::metadata(&pipe).unwrap().file_type().is_fifo());
    let (file, link) = (bed.file("out.tsv", "old"), bed.path("link"));
    std::os::unix::fs::symlink(&file, &link).unwrap();
    bed.run("export", &[&link]).text();
    assert!(link.is_symlink());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    bed.run("export", &[bed.root.path()]).fails(2, &["is a directory"]);
}

/// Must catch an export that replaces a file of the database, or lies where it is taken for one.
#[test]
fn no_export_lies_among_the_files_of_a_database() {
    for engine in ["lsm", "slm"] {
        let bed = Bed::new();
        let pool = bed.path("pool");
        let place = format!("emulated:dram@{}", pool.display());
        let args = [&["-", "--engine", engine][..], if engine == "slm" { &["--pool", &place] } else { &[] }];
        bed.run_with("import", &args.concat(), b"a\tb\n").text();
        let names = std::fs::read_dir(&bed.db).unwrap().map(|entry| entry.unwrap().path());
        for path in names.chain([bed.db.join("000099.sst")]) {
            bed.run("export", &[&path]).fails(2, &["name another place"]);
        }
        if engine == "slm" {
            bed.run("export", &[&pool]).fails(2, &["is in use", "name another place"]);
        }
        assert_eq!(bed.export(), b"a\tb\n");
        assert_eq!(bed.run::<&str>("check", &[]).code, 0);
    }
}

/// An array has no names for what is in it.
#[test]
fn only_objects_are_records_in_json() {
    let bed = Bed::new();
    for line in ["[\"a\",null,\"b\",null]", "\"a\"", "7", "null"] {
        let run = bed.run_with("import", &["-", "--format", "json"], line.as_bytes());
        run.fails(3, &["line 1", "not a record"]);
    }
    bed.run_with("import", &["-", "--format", "json"], b" {\"key\":\"a\",\"value\":\"b\"}").text();
    assert_eq!(bed.export(), b"a\tb\n");
}

#[test]
fn json_carries_the_same_records() {
    let bed = Bed::new();
    let text = canonical(500);
    bed.import(&bed.file("in.tsv", &text)).text();
    let json = bed.run("export", &["--format", "json"]).text();
    assert!(json.lines().all(|line| line.starts_with("{\"key")), "{json}");
    assert!(json.contains("{\"key\":\"\\u0000\\u0001\",\"value_b64\":\"//4=\"}\n"), "{json}");
    let other = Bed::new();
    let run = other.run_with("import", &["-", "--format", "json"], json.as_bytes());
    assert!(run.text().contains("from standard input"));
    assert_eq!(String::from_utf8(other.export()).unwrap(), text);
}

#[test]
fn importing_twice_changes_nothing_and_the_last_line_wins() {
    let bed = Bed::new();
    let file = bed.file("in.tsv", "a\t1\nb\t2\r\na\t3");
    for _ in 0..2 {
        bed.import(&file).text();
        assert_eq!(bed.export(), b"a\t3\nb\t2\n");
    }
}

#[test]
fn a_bad_line_is_named_and_what_came_before_is_kept() {
    let bed = Bed::new();
    for (line, why) in [
        ("no tab", "no tab"),
        ("", "no tab"),
        ("a\tb\tc", "more than one tab"),
        ("a\\z\tb", "no escape"),
        ("a\tb\\x1", "hexadecimal"),
    ] {
        let file = bed.file("in.tsv", format!("good\t1\n{line}\nlater\t2\n"));
        bed.import(&file).fails(3, &["line 2 of ", why, "the record before it is imported", "--keep-going"]);
        assert_eq!(bed.export(), b"good\t1\n");
    }
    let long = format!("good\t1\n{}\tv\n", "k".repeat(65_536));
    bed.import(&bed.file("in.tsv", long)).fails(3, &["line 2", "65536 bytes", "65535"]);
    let run = bed.run_with("import", &["-", "--format", "json"], b"{\"key\":\"k\"}\n");
    run.fails(3, &["line 1 of standard input", "value"]);
}

#[test]
fn bad_lines_can_be_left_out_but_not_silently() {
    let bed = Bed::new();
    let file = bed.file("in.tsv", "a\t1\nbad\nb\t2\nworse\nc\t3\n");
    let run = bed.run("import", &[file.as_os_str(), "--keep-going".as_ref()]);
    run.fails(3, &["line 2 of", "line 4 of", "2 lines could not be read"]);
    assert_eq!(bed.export(), b"a\t1\nb\t2\nc\t3\n");
}

#[test]
fn missing_and_foreign_files_are_explained() {
    let bed = Bed::new();
    bed.import(&bed.path("nowhere.tsv")).fails(3, &["nowhere.tsv"]);
    assert!(!bed.db.exists(), "nothing is made for an import that cannot begin");
    bed.run::<&str>("export", &[]).fails(3, &["no database"]);
    bed.run("put", &["a", "1"]).text();
    let target = bed.path("no/such/dir/out.tsv");
    bed.run("export", &[&target]).fails(3, &["no/such/dir"]);
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let bed = Bed::new();
    bed.import(&bed.file("in.tsv", canonical(20_000))).text();
    for command in ["export", "scan"] {
        let mut child = piped(terrace().arg(command).arg(&bed.db));
        drop(child.stdout.take());
        let run = finish(child, b"");
        assert_eq!((run.code, run.err.as_str()), (0, ""), "{command}");
    }
}

/// The example of a language in the page about the format.
fn documented(language: &str) -> String {
    let page = include_str!("../../../../docs/formats/records.md");
    let (_, from) = page.split_once(&format!("```{language}\n")).unwrap();
    from.split_once("```").unwrap().0.to_string()
}

#[test]
fn the_documented_examples_are_canonical_and_equal() {
    for format in ["tsv", "json"] {
        let bed = Bed::new();
        let run = bed.run_with("import", &["-", "--format", format], documented(format).as_bytes());
        assert_eq!(run.code, 0, "{run:?}");
        for other in ["tsv", "json"] {
            assert_eq!(
                bed.run("export", &["--format", other]).text(),
                documented(other),
                "{format} to {other}"
            );
        }
        assert_eq!(bed.run("get", &["--raw", "é"]).out, b"\x00\xff");
    }
}
