//! Running the binary on a database of its own.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

/// What a run left behind.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub out: Vec<u8>,
    pub err: String,
}

impl Run {
    /// Standard output as text; the run must have succeeded.
    pub fn text(&self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        String::from_utf8(self.out.clone()).unwrap()
    }

    /// Asserts on the exit code and on words of the message.
    pub fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        for word in words {
            assert!(self.err.contains(word), "\"{word}\" is missing: {}", self.err);
        }
    }
}

/// A temporary directory and a database in it.
pub struct Bed {
    pub root: TempDir,
    pub db: PathBuf,
}

impl Bed {
    pub fn new() -> Bed {
        let root = tempfile::tempdir().unwrap();
        let db = root.path().join("db");
        Bed { root, db }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Writes a file beside the database.
    pub fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, contents).unwrap();
        path
    }

    /// `terrace COMMAND DB ARGS...`
    pub fn run<A: AsRef<OsStr>>(&self, command: &str, args: &[A]) -> Run {
        self.run_with(command, args, b"")
    }

    /// Likewise, with standard input.
    pub fn run_with<A: AsRef<OsStr>>(&self, command: &str, args: &[A], input: &[u8]) -> Run {
        finish(self.spawn(command, args), input)
    }

    /// Starts it with all streams piped.
    pub fn spawn<A: AsRef<OsStr>>(&self, command: &str, args: &[A]) -> Child {
        let mut process = terrace();
        process.arg(command).arg(&self.db).args(args);
        piped(&mut process)
    }

    pub fn import(&self, file: &Path) -> Run {
        self.run("import", &[file])
    }

    pub fn export(&self) -> Vec<u8> {
        let run = self.run::<&str>("export", &[]);
        assert_eq!(run.code, 0, "{run:?}");
        run.out
    }
}

/// A copy of the binary in `folder`, for users who may not read where it was built.
///
/// Another process writes it: a descriptor that this one held to write could pass to a child that another test starts
/// at the same moment, and a program that is open to be written cannot be run.
pub fn copy_of_terrace(folder: &Path) -> PathBuf {
    let copy = folder.join("terrace");
    let status = Command::new("cp").arg(env!("CARGO_BIN_EXE_terrace")).arg(&copy).status().unwrap();
    assert!(status.success(), "{status}");
    copy
}

/// The binary. Small limits keep many of them from crowding a machine.
pub fn terrace() -> Command {
    Command::new(env!("CARGO_BIN_EXE_terrace"))
}

pub fn piped(process: &mut Command) -> Child {
    process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Runs the binary with `args` alone.
pub fn run(args: &[&str]) -> Run {
    finish(piped(terrace().args(args)), b"")
}

/// Waits for `child`, which must end of itself: an end of its input would be one more reason to.
pub fn ended_with_input_open(mut child: Child) -> Output {
    let _input = child.stdin.take();
    child.wait_with_output().unwrap()
}

/// Feeds a process and waits for its end.
pub fn finish(mut child: Child, input: &[u8]) -> Run {
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        // It may end before it has read everything.
        scope.spawn(move || stdin.write_all(input));
        child.wait_with_output().unwrap()
    });
    Run {
        code: output.status.code().unwrap_or(-1),
        out: output.stdout,
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
