//! stat, check, completions, help.

use crate::support::{Bed, run};

#[test]
fn statistics_for_people_and_for_programs() {
    let bed = Bed::new();
    bed.run("put", &["a", "1"]).text();
    let text = bed.run::<&str>("stat", &[]).text();
    for word in ["engine", "durability", "DRAM", "POOL", "SSD", "flushes", "compactions"] {
        assert!(text.contains(word), "{word} is missing: {text}");
    }
    assert!(!text.contains("PM"), "an ordinary file is no persistent memory: {text}");
    let value: serde_json::Value = serde_json::from_str(&bed.run("stat", &["--json"]).text()).unwrap();
    assert_eq!(value["engine"], "slm");
    for part in
        ["dram", "pm", "ssd", "scrub", "buckets", "values", "hints", "lists", "slots", "counts", "latencies"]
    {
        assert!(value[part].is_object(), "{part}: {value}");
    }
    assert_eq!(value["pm"]["is_memory"], false);
    assert!(value["dram"]["resident"].as_u64().is_some_and(|bytes| bytes > 1 << 20), "{value}");
}

#[test]
fn emulation_is_never_silent() {
    let bed = Bed::new();
    bed.run("put", &["a", "1", "--pool", "emulated:optane"]).text();
    let text = bed.run("stat", &["--pool", "emulated:optane"]).text();
    assert!(text.contains("EMULATED") && text.contains("optane") && text.contains("PM "), "{text}");
}

#[test]
fn a_sound_database_is_called_sound() {
    let bed = Bed::new();
    bed.run("put", &["a", "1"]).text();
    assert!(bed.run::<&str>("check", &[]).text().starts_with("sound: "));
    bed.path("nothing");
    let missing = Bed::new();
    missing.run::<&str>("check", &[]).fails(3, &["no database"]);
    missing.run::<&str>("repair", &[]).fails(3, &["no database"]);
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]).text();
        assert!(script.contains("terrace") && script.contains("import"), "{shell}");
        assert!(script.len() > 500, "{shell}");
    }
    run(&["completions", "tcsh"]).fails(2, &["bash"]);
}

#[test]
fn a_manual_page_for_every_command() {
    let page = run(&["man"]).text();
    assert!(page.starts_with(".ie") && page.contains("terrace\\-repair"), "{page}");
    let bed = Bed::new();
    let dir = bed.path("man1");
    let dir = dir.to_str().unwrap();
    run(&["man", dir]).fails(3, &[dir]);
    std::fs::create_dir(dir).unwrap();
    run(&["man", dir]).text();
    let page = std::fs::read_to_string(format!("{dir}/terrace-get.1")).unwrap();
    assert!(page.contains("The exit code is 1 if the key is not there"), "{page}");
    assert!(
        std::fs::read_dir(dir).unwrap().all(|file| !file
            .unwrap()
            .file_name()
            .to_string_lossy()
            .contains("__"))
    );
}

#[test]
fn help_says_what_exit_codes_mean() {
    let help = run(&["--help"]).text();
    assert!(help.contains("Exit codes:") && help.contains("130"), "{help}");
    assert!(!help.contains("__write"));
    for command in
        ["tour", "import", "export", "get", "put", "delete", "scan", "stat", "check", "repair", "dump"]
    {
        let help = run(&[command, "--help"]).text();
        assert!(help.contains("Example"), "{command}: {help}");
    }
    run(&[]).fails(2, &["Usage"]);
}

#[test]
fn every_file_can_be_dumped() {
    let bed = Bed::new();
    let db = terrace::Db::open(&bed.db, terrace::Options::default()).unwrap();
    db.put(b"first\tkey", b"value one").unwrap();
    db.delete(b"second").unwrap();
    db.flush().unwrap();
    db.put(b"third", b"in the memtable").unwrap();
    db.close().unwrap();
    drop(db);
    let dump = |path: &std::path::Path, more: &[&str]| {
        run(&[&["dump", path.to_str().unwrap()], more].concat()).text()
    };
    let manifest = dump(&bed.db, &[]);
    assert!(manifest.contains("MANIFEST-") && manifest.contains("slm"), "{manifest}");
    assert_eq!(dump(&bed.db.join("CURRENT"), &[]), manifest);
    let table = with_extension(&bed, "sst").pop().unwrap();
    let text = dump(&table, &["--entries"]);
    assert!(text.contains("first\\tkey\tvalue one"), "{text}");
    let pool = dump(&bed.db.join("pool"), &[]);
    assert!(pool.contains("roots") && pool.contains("slm.index") && pool.contains("Clean"), "{pool}");
    // Looking at a pool leaves it as it was.
    assert_eq!(dump(&bed.db.join("pool"), &[]), pool);
    let text = bed.file("notes.txt", "not a pool");
    run(&["dump", text.to_str().unwrap()]).fails(3, &["notes.txt"]);
    run(&["dump", "/nowhere"]).fails(3, &["/nowhere"]);
}

/// A database with two large items, one of them replaced.
fn with_large_items(bed: &Bed) -> terrace::Options {
    let profile = terrace::Profile::parse("dram").unwrap();
    let pool = terrace::PoolChoice::Emulated { path: None, profile };
    let options = terrace::Options {
        engine: terrace::EngineKind::Split,
        pool,
        pm_bytes: 4 << 20,
        ..terrace::Options::default()
    };
    let db = terrace::Db::open(&bed.db, options.clone()).unwrap();
    db.put(b"first\tkey", &[1; 5000]).unwrap();
    db.put(b"second", &[2; 3 << 20]).unwrap();
    db.put(b"first\tkey", &[3; 6000]).unwrap();
    db.put(b"small", b"not there").unwrap();
    db.close().unwrap();
    options
}

#[test]
fn slots_are_dumped_item_by_item() {
    let bed = Bed::new();
    with_large_items(&bed);
    let path = bed.db.join("SLOTS");
    let dump = |path: &std::path::Path| run(&["dump", path.to_str().unwrap()]);
    let text = dump(&path).text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 6, "{text}");
    assert!(lines[1].contains("stamp") && lines[1].ends_with("which the manifest knows"), "{text}");
    for (line, bytes, key) in
        [(2, "5000 bytes", "first\\tkey"), (3, "3145728 bytes", "second"), (4, "6000 bytes", "first\\tkey")]
    {
        let line = lines[line];
        assert!(line.contains(bytes) && line.ends_with(&format!("sound\t{key}")), "{text}");
    }
    assert!(lines[5].starts_with("3 items, of which 3 are sound"), "{text}");

    // Without its database a copy is told by its stamp.
    let copy = bed.path("SLOTS");
    std::fs::copy(&path, &copy).unwrap();
    let alone = dump(&copy).text();
    assert!(alone.contains("which the manifest does not name") && alone.contains("second"), "{alone}");
    // A byte of a value that is not as it was written.
    let sound = std::fs::read(&path).unwrap();
    let at: usize = lines[3].split_whitespace().next().unwrap().parse().unwrap();
    let mut damaged = sound.clone();
    damaged[at + 2_000_000] ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    let text = dump(&path).text();
    assert!(text.contains("wrong checksum\tsecond") && text.contains("3 items, of which 2"), "{text}");
    // An item that is cut off.
    std::fs::write(&path, &sound[..at + 4096]).unwrap();
    let text = dump(&path).text();
    assert!(text.contains("wrong checksum\tsecond") && text.contains("2 items, of which 1"), "{text}");
}

#[test]
fn what_are_no_slots_of_the_database_is_told() {
    let bed = Bed::new();
    with_large_items(&bed);
    let path = bed.db.join("SLOTS");
    let other = Bed::new();
    with_large_items(&other);
    // What another database has, nothing at all, and a file without its stamp.
    let foreign = std::fs::read(other.db.join("SLOTS")).unwrap();
    let mut unstamped = std::fs::read(&path).unwrap();
    unstamped[..512].fill(7);
    for (contents, items) in [(foreign, 0), (Vec::new(), 0), (unstamped, 3)] {
        std::fs::write(&path, contents).unwrap();
        let told = run(&["dump", path.to_str().unwrap()]);
        told.fails(3, &["SLOTS", "the stamp", "that the manifest knows"]);
        let text = String::from_utf8(told.out).unwrap();
        assert!(text.contains(&format!("{items} items")), "{text}");
    }
    for contents in ["", "neither a stamp nor an item"] {
        let strange = bed.file("SLOTS", contents);
        run(&["dump", strange.to_str().unwrap()]).fails(3, &["SLOTS", "no stamp in it"]);
    }
    // One in which nothing was ever written is as the manifest says.
    let empty = Bed::new();
    let options = with_large_items(&empty);
    std::fs::remove_dir_all(&empty.db).unwrap();
    terrace::Db::open(&empty.db, options).unwrap().close().unwrap();
    let text = run(&["dump", empty.db.join("SLOTS").to_str().unwrap()]).text();
    assert!(text.contains("0 items"), "{text}");
}

#[test]
fn damage_is_found_named_and_repaired() {
    let bed = Bed::new();
    let db = terrace::Db::open(&bed.db, terrace::Options::default()).unwrap();
    for i in 0..2000u32 {
        db.put(format!("key/{i:05}").as_bytes(), &[b'v'; 100]).unwrap();
    }
    db.flush().unwrap();
    db.close().unwrap();
    drop(db);
    let table = with_extension(&bed, "sst").pop().unwrap();
    let mut bytes = std::fs::read(&table).unwrap();
    bytes[10_000] ^= 0x40;
    std::fs::write(&table, bytes).unwrap();
    let check = bed.run::<&str>("check", &[]);
    check.fails(1, &["terrace repair"]);
    let name = table.file_name().unwrap().to_str().unwrap();
    let said = String::from_utf8_lossy(&check.out).into_owned() + &check.err;
    assert!(said.contains(name), "{said}");
    bed.run("get", &["key/00000"]);
    // What one damaged block held is lost, and said to be; everything else is there.
    bed.run::<&str>("repair", &[]).fails(1, &["not everything"]);
    bed.run::<&str>("check", &[]).text();
    let left = bed.run("scan", &["--keys"]).text().lines().count();
    assert!((1900..2000).contains(&left), "{left}");
    let again = bed.run::<&str>("repair", &[]).text();
    assert!(again.contains("not known: what earlier repairs lost: "), "{again}");
    assert!(again.contains("nothing that is known of is lost"), "{again}");
    std::fs::remove_dir_all(bed.db.join("lost")).unwrap();
    let again = bed.run::<&str>("repair", &[]).text();
    assert!(again.contains("nothing is lost"), "{again}");
}

fn with_extension(bed: &Bed, extension: &str) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(&bed.db).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = entries.filter(|path| path.extension().is_some_and(|e| e == extension)).collect();
    found.sort();
    found
}
