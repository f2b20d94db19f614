//! scan.

use crate::support::Bed;

fn bed() -> Bed {
    let bed = Bed::new();
    let file =
        bed.file("records.tsv", "a\t1\nb/1\t2\nb/2\t3\nb0\t4\nc\t5\n\\xff\\xff\t6\n\\xff\\xff\\x01\t7\n");
    assert_eq!(bed.import(&file).code, 0);
    bed
}

#[test]
fn ranges_prefixes_limits_and_directions() {
    let bed = bed();
    let keys = |args: &[&str]| {
        let mut all = vec!["--keys"];
        all.extend(args);
        bed.run("scan", &all).text().lines().map(String::from).collect::<Vec<_>>()
    };
    let everything = ["a", "b/1", "b/2", "b0", "c", "\\xff\\xff", "\\xff\\xff\\x01"];
    assert_eq!(keys(&[]), everything);
    assert_eq!(keys(&["--reverse"]), everything.iter().rev().copied().collect::<Vec<_>>());
    assert_eq!(keys(&["--from", "b/2", "--to", "c"]), ["b/2", "b0"]);
    assert_eq!(keys(&["--prefix", "b/"]), ["b/1", "b/2"]);
    assert_eq!(keys(&["--prefix", "b", "--from", "b/2"]), ["b/2", "b0"]);
    assert_eq!(keys(&["--prefix", "\\xff\\xff"]), ["\\xff\\xff", "\\xff\\xff\\x01"]);
    assert_eq!(keys(&["--limit", "2"]), ["a", "b/1"]);
    assert_eq!(keys(&["--limit", "2", "--reverse", "--to", "c"]), ["b0", "b/2"]);
    assert_eq!(keys(&["--limit", "0"]), [""; 0]);
    assert_eq!(keys(&["--from", "z", "--to", "a"]), [""; 0]);
    assert_eq!(keys(&["--hex", "--prefix", "ffff"]), ["ffff", "ffff01"]);
}

#[test]
fn lines_are_those_of_an_export() {
    let bed = bed();
    assert_eq!(bed.run::<&str>("scan", &[]).out, bed.export());
    assert_eq!(bed.run("scan", &["--hex", "--limit", "1"]).text(), "61\t31\n");
}
