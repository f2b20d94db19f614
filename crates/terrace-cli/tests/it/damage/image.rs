//! A database with known contents, made by sessions of the command.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use terrace_base::rng::Rng;
use terrace_cli::text;

use crate::engines;
use crate::support::{finish, piped, terrace};

/// Keys that sessions draw from.
const KEYS: u64 = 900;

/// Writes that the last session acknowledges before it is killed.
const ACKNOWLEDGED: u64 = 150;

/// Files by name.
pub type Files = BTreeMap<String, Vec<u8>>;

/// What a database holds.
pub type Map = BTreeMap<String, String>;

/// A database, and what is known of it.
pub struct Image {
    /// Goes with the value.
    _root: TempDir,
    /// The database.
    pub dir: PathBuf,
    /// Its engine.
    pub engine: &'static str,
    /// What its values say beside their key, where it is not the one that is looked at.
    mark: &'static str,
    flags: Vec<String>,
    killed: bool,
    /// What was acknowledged.
    pub contents: Map,
    /// The records of one more write, which may be there: it was being made when the process was killed.
    pub in_flight: Map,
    /// The files as earlier sessions left them.
    pub older: Vec<Files>,
}

impl Image {
    /// Makes a database of `engine`.
    pub fn make(engine: &'static str, rng: &mut Rng) -> Image {
        Image::begin(engine, "", rng).live(rng)
    }

    /// Makes a database whose values are known not to be those of another.
    pub fn make_other(engine: &'static str, rng: &mut Rng) -> Image {
        Image::begin(engine, "another ", rng).live(rng)
    }

    fn begin(engine: &'static str, mark: &'static str, rng: &mut Rng) -> Image {
        let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let dir = root.path().join("db");
        Image {
            _root: root,
            dir,
            engine,
            mark,
            flags: flags(engine, rng),
            killed: rng.one_in(2),
            contents: Map::new(),
            in_flight: Map::new(),
            older: Vec::new(),
        }
    }

    fn live(mut self, rng: &mut Rng) -> Image {
        let image = &mut self;
        for session in 0..2 + rng.below(2) {
            if session > 0 {
                let files = image.files();
                image.older.push(files);
            }
            // Draws of its own: what else is drawn of a seed stays as it was.
            let mut of_deletes = rng.clone();
            image.import(session, rng);
            image.delete(&mut of_deletes);
        }
        if image.killed {
            let files = image.files();
            image.older.push(files);
            image.write_and_be_killed();
        }
        self
    }

    /// The case in words.
    pub fn about(&self) -> String {
        format!("{}, {}", if self.killed { "killed" } else { "closed" }, self.flags.join(" "))
    }

    /// Whether nothing can tell that `damages` were done: a log that was not closed, and of which nothing was synced,
    /// may always have ended where it is cut. The log of `lsm` or `wip` is all there is of the newest writes.
    pub fn may_have_ended_early(&self, damages: &[String]) -> bool {
        self.killed
            && matches!(self.engine, "lsm" | "wip")
            && damages.iter().any(|damage| damage.contains(".log: cut to"))
    }

    /// The command `name` on the database, with `args`.
    pub fn command(&self, name: &str, args: &[&str]) -> Command {
        let mut command = terrace();
        command.arg(name).arg(&self.dir).args(args).args(&self.flags);
        command
    }

    /// Likewise, killed if it takes longer than any command does on a database this small, however busy the machine is.
    pub fn bounded(&self, name: &str, args: &[&str]) -> Command {
        let command = self.command(name, args);
        let mut bounded = Command::new("timeout");
        bounded.args(["-s", "KILL", "120"]).arg(command.get_program()).args(command.get_args());
        bounded
    }

    /// The database's files.
    pub fn files(&self) -> Files {
        files_in(&self.dir)
    }

    fn import(&mut self, session: u64, rng: &mut Rng) {
        let mut lines = String::new();
        for write in 0..300 + rng.below(900) {
            let key = format!("key/{:05}", rng.below(KEYS));
            let value =
                format!("{key} of {}{session}.{write} {}", self.mark, "v".repeat(rng.below(200) as usize));
            let _ = writeln!(lines, "{key}\t{value}");
            self.contents.insert(key, value);
        }
        let run = finish(piped(&mut self.command("import", &["-"])), lines.as_bytes());
        assert_eq!(run.code, 0, "{run:?}");
    }

    /// Has some keys deleted, so that there is something that must not come back.
    fn delete(&mut self, rng: &mut Rng) {
        let one_in = 2 + rng.below(20);
        let keys: Vec<String> = self.contents.keys().filter(|_| rng.one_in(one_in)).cloned().collect();
        let names: Vec<&str> = keys.iter().map(String::as_str).collect();
        if !names.is_empty() {
            let run = finish(piped(&mut self.command("delete", &names)), b"");
            assert_eq!(run.code, 0, "{run:?}");
        }
        keys.iter().for_each(|key| drop(self.contents.remove(key)));
    }

    /// The command `dump` on the database, or on a file of it.
    pub fn dump(&self, file: Option<&str>) -> Command {
        let mut bounded = Command::new("timeout");
        bounded.args(["-s", "KILL", "120"]).arg(terrace().get_program()).arg("dump");
        bounded.arg(file.map_or_else(|| self.dir.clone(), |file| self.dir.join(file)));
        bounded
    }

    fn write_and_be_killed(&mut self) {
        let mut child = piped(&mut self.command("__write", &[]));
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for expected in 0..ACKNOWLEDGED {
            assert_eq!(lines.next().unwrap().unwrap(), expected.to_string());
        }
        child.kill().unwrap();
        // A line that was cut off acknowledges nothing, but it says that the write was made.
        let more = lines.map_while(Result::ok).filter(|line| !line.is_empty()).count() as u64;
        child.wait().unwrap();
        for number in 0..ACKNOWLEDGED + more {
            self.contents.extend(visit(number));
        }
        self.in_flight = visit(ACKNOWLEDGED + more).into();
    }

    /// Every record that was ever written under `key`, as far as its value can tell.
    pub fn was_written(&self, key: &str, value: &str) -> bool {
        let own = value.strip_prefix(&format!("{key} of ")).is_some_and(|rest| !rest.starts_with("another "));
        own || self.contents.get(key).or_else(|| self.in_flight.get(key)).is_some_and(|known| known == value)
    }
}

/// The files of a directory.
pub fn files_in(dir: &Path) -> Files {
    let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|p| p.is_file());
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_string();
    paths.map(|path| (name(&path), std::fs::read(&path).unwrap())).collect()
}

/// The names and sizes of what lies in a directory and in those in it.
pub fn sizes_in(dir: &Path) -> BTreeMap<PathBuf, u64> {
    let mut sizes = BTreeMap::new();
    // It changes meanwhile.
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            sizes.append(&mut sizes_in(&path));
        }
        sizes.insert(path, entry.metadata().map_or(0, |found| found.len()));
    }
    sizes
}

/// The records of write `number` of the command that writes until it is killed.
fn visit(number: u64) -> [(String, String); 2] {
    [0, 1].map(|part| {
        let (_, value) = text::record(number % text::RECORDS, 100 + number + part);
        (format!("visit/{number:010}/{part}"), value)
    })
}

/// Small pools and tables, so that a little data fills many, and where the pool lies.
fn flags(engine: &str, rng: &mut Rng) -> Vec<String> {
    let mut flags = vec!["--engine".to_string(), engine.to_string(), "--pm".into(), "16MiB".into()];
    let settings: &[&str] = match engine {
        "slm" => &["slm.memtable_bytes=32KiB", "slm.table_bytes=16KiB"],
        "lsm" => &["lsm.memtable_bytes=32KiB", "lsm.table_bytes=16KiB", "lsm.base_level_bytes=32KiB"],
        "wip" => &[
            "wip.memtable_bytes=8KiB",
            "wip.most_memtable_bytes=8KiB",
            "wip.bucket_bytes=32KiB",
            "wip.log_bytes=64KiB",
            "wip.sublevels=4",
        ],
        "turbo" => &["turbo.shards=16"],
        "split" => &["split.boundary_bytes=256", "split.records_bytes=64KiB", "split.run_bytes=16KiB"],
        "lab" => &["lab.memtable_bytes=32KiB", "lab.table_bytes=16KiB", "lab.value_tree_bytes=64KiB"],
        "tlsm" => &["tlsm.memtable_bytes=32KiB", "tlsm.table_bytes=16KiB", "tlsm.list_bytes=64KiB"],
        _ => &[],
    };
    for setting in settings {
        flags.extend(["--set".to_string(), setting.to_string()]);
    }
    if engines::pool_of(engine) == engines::EMULATED || rng.one_in(2) {
        flags.extend(["--pool".to_string(), "emulated:dram".to_string()]);
    }
    flags
}
