//! A file that may not be read is no damage: commands say what is wrong, and a repair gives nothing up for it.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::engines;
use crate::support::{Bed, Run, copy_of_terrace, finish, piped};

/// The user whom the database belongs to where the tests are run by root, who may read everything.
const NOBODY: u32 = 65_534;

/// A database, and a command that may not do everything.
struct Everyones {
    bed: Bed,
    program: PathBuf,
}

impl Everyones {
    fn make(engine: &str, pool: &str) -> Everyones {
        let bed = Bed::new();
        let program = copy_of_terrace(bed.root.path());
        std::fs::set_permissions(bed.root.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let it = Everyones { bed, program };
        let lines: Vec<u8> = (0..500).flat_map(|i| format!("key/{i:05}\tvalue {i}\n").into_bytes()).collect();
        let lines = it.bed.file("records.tsv", lines);
        let lines = lines.to_str().unwrap();
        let made = it.run("import", &[lines, "--engine", engine, "--pool", pool, "--pm", "16MiB"]);
        assert_eq!(made.code, 0, "{made:?}");
        it
    }

    fn run(&self, command: &str, args: &[&str]) -> Run {
        let mut process = Command::new(&self.program);
        process.arg(command).arg(&self.bed.db).args(args);
        if rustix::process::geteuid().is_root() {
            process.uid(NOBODY);
        }
        finish(piped(&mut process), b"")
    }
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn nothing_is_given_up_that_may_not_be_read() {
    for (engine, pool) in engines::with_pools() {
        let it = Everyones::make(engine, pool);
        let all = it.run("export", &[]).text();
        assert_eq!(all.lines().count(), 500);
        let files: Vec<PathBuf> =
            std::fs::read_dir(&it.bed.db).unwrap().map(|file| file.unwrap().path()).collect();
        for file in files {
            let what = format!("{engine}, {}", file.display());
            set_mode(&file, 0);
            for (command, args) in
                [("get", &["key/00042"][..]), ("export", &[]), ("check", &[]), ("repair", &[])]
            {
                let run = it.run(command, args);
                // Readers of a database that was closed in order need no log beside the pool.
                let is_log = file.extension().is_some_and(|extension| extension == "log");
                if engine == "slm" && is_log && matches!(command, "get" | "export") {
                    assert_eq!(run.code, 0, "{what}, {command}: {run:?}");
                    assert!(command == "get" || run.text() == all, "{what}");
                    continue;
                }
                assert_eq!(run.code, 3, "{what}, {command}: {run:?}");
                assert!(run.err.contains("ermission denied"), "{what}, {command}: {run:?}");
            }
            set_mode(&file, 0o644);
            assert_eq!(it.run("check", &[]).code, 0, "{what}");
            assert!(it.run("export", &[]).text() == all, "{what}");
        }
    }
}
