//! Reading where nothing can be written: on a full file system, on one mounted to be read, and without permission. The
//! file systems are mounted in a namespace of their own; where that is not permitted, only permissions are tested, and
//! the store's own tests refuse every write by simulation.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::engines;
use crate::support::{Bed, copy_of_terrace, finish, piped};

/// The user whom nothing belongs to.
const NOBODY: u32 = 65_534;

#[test]
fn full_and_read_only_file_systems() {
    let may = Command::new("unshare").args(["-rm", "true"]).status().is_ok_and(|s| s.success());
    if !may {
        println!("no namespaces here: not tested");
        return;
    }
    let work = tempfile::tempdir().unwrap();
    let mut script = Command::new("unshare");
    script.args(["-rm", "sh", "-c", include_str!("unwritable.sh"), "sh", env!("CARGO_BIN_EXE_terrace")]);
    script.arg(work.path()).args(engines::with_pools().map(|(engine, pool)| format!("{engine} {pool}")));
    let run = finish(piped(&mut script), b"");
    assert!(
        run.code == 0 && run.out.ends_with(b"done\n"),
        "{}{}",
        String::from_utf8_lossy(&run.out),
        run.err
    );
}

fn set_modes(dir: &Path, of_dir: u32, of_files: u32) {
    for entry in std::fs::read_dir(dir).unwrap() {
        std::fs::set_permissions(entry.unwrap().path(), PermissionsExt::from_mode(of_files)).unwrap();
    }
    std::fs::set_permissions(dir, PermissionsExt::from_mode(of_dir)).unwrap();
}

#[test]
fn without_permission_to_write() {
    // A copy that anybody may run.
    let everyones = tempfile::tempdir().unwrap();
    std::fs::set_permissions(everyones.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = copy_of_terrace(everyones.path());
    for (engine, pool) in engines::with_pools() {
        let bed = Bed::new();
        std::fs::set_permissions(bed.root.path(), PermissionsExt::from_mode(0o755)).unwrap();
        bed.run("put", &["k", "v", "--engine", engine, "--pool", pool]).text();
        set_modes(&bed.db, 0o555, 0o444);
        let run = |command: &str, args: &[&str]| {
            let mut process = Command::new(&program);
            process.arg(command).arg(&bed.db).args(args);
            if rustix::process::geteuid().is_root() {
                process.uid(NOBODY);
            }
            finish(piped(&mut process), b"")
        };
        for _ in 0..2 {
            assert_eq!(run("get", &["k"]).text(), "v\n", "{engine}");
            assert_eq!(run("export", &[]).text(), "k\tv\n", "{engine}");
            assert!(run("check", &[]).text().starts_with("sound"), "{engine}");
            assert!(run("stat", &[]).text().contains("to read only"), "{engine}");
            run("put", &["k", "w"]).fails(3, &["ermission denied"]);
        }
        // Without the file of the lock nobody can tell whether somebody writes, and here it cannot be made.
        set_modes(&bed.db, 0o755, 0o644);
        std::fs::remove_file(bed.db.join("LOCK")).unwrap();
        set_modes(&bed.db, 0o555, 0o444);
        run("get", &["k"]).fails(3, &["make the file of the lock", "LOCK"]);
        set_modes(&bed.db, 0o755, 0o644);
        assert_eq!(bed.run("get", &["k"]).text(), "v\n");
    }
}
