//! A process is killed while it writes. Its acknowledged writes must be there, and none may be torn.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use terrace::Db;
use terrace_base::clock::Clock;
use terrace_bench::report::grouped;

use super::child::{PARTS, VISITS, visit};
use super::steps::wrong;
use super::{Guide, rate};
use crate::failure::{CommandResult, Failure};
use crate::open::{Intent, OpenArgs};

/// The process is killed after one acknowledged write for so many records of the tour, or after this much time if
/// writes are slow.
const KILL_AFTER_ONE_IN: u64 = 4;
const KILL_AFTER: Duration = Duration::from_secs(3);

/// Starts another process that writes, kills it, opens its database and proves that it is right.
pub(super) fn kill_and_reopen(guide: &mut Guide<'_>, open: &OpenArgs, dir: &Path) -> CommandResult<Db> {
    guide.step("Kill a process while it writes")?;
    let (acknowledged, took) = guide.timed(|| watch_and_kill(guide, open, dir))?;
    guide.tell(format_args!(
        "A second process acknowledged {} writes ({}), then got SIGKILL in the middle of its work.",
        grouped(acknowledged),
        rate(acknowledged, took),
    ))?;
    let (db, took) = guide.timed(|| open.open(dir, Intent::Write))?;
    guide.tell(format_args!("Opened again in {:.1} ms.", took.as_secs_f64() * 1e3))?;
    let found = verify(&db, acknowledged)?;
    guide.tell(format_args!(
        "All {} acknowledged writes are there, whole and right.",
        grouped(acknowledged)
    ))?;
    guide.tell(match found - acknowledged {
        0 => "The write in progress when it died is not there at all, as it should be.",
        _ => "The write in progress when it died is there as a whole; only its acknowledgement was cut off.",
    })?;
    Ok(db)
}

/// How many writes the child acknowledged before it was killed.
fn watch_and_kill(guide: &Guide<'_>, open: &OpenArgs, dir: &Path) -> CommandResult<u64> {
    let mut child = spawn(open, dir)?;
    let Some(stdout) = child.stdout.take() else { return Err(Failure::error("the child has no output")) };
    let result = count(guide, &mut child, stdout);
    // The child never outlives the tour.
    let _ = child.kill();
    let _ = child.wait();
    let acknowledged = result?;
    // Ctrl-C reaches both processes.
    guide.stop_if_interrupted()?;
    if acknowledged > 0 {
        return Ok(acknowledged);
    }
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_string(&mut said);
    }
    Err(Failure::error(format!("the writing process ended by itself: {}", said.trim())))
}

fn spawn(open: &OpenArgs, dir: &Path) -> CommandResult<Child> {
    let program = std::env::current_exe().map_err(|e| Failure::error(format!("cannot find myself: {e}")))?;
    Command::new(&program)
        .arg("__write")
        .arg(dir)
        .args(open.to_args())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| Failure::io(&program, "start", e))
}

/// Counts acknowledgements, kills, and counts those that were still in the pipe.
fn count(guide: &Guide<'_>, child: &mut Child, stdout: ChildStdout) -> CommandResult<u64> {
    let mut lines = BufReader::new(stdout);
    let mut line = String::new();
    let mut acknowledged = 0;
    let mut killed = false;
    let began = guide.clock.now();
    loop {
        line.clear();
        let read = lines.read_line(&mut line);
        // A line that was cut off acknowledges nothing.
        if read.is_err() || !line.ends_with('\n') {
            return Ok(acknowledged);
        }
        if line.trim_end() != acknowledged.to_string() {
            return Err(wrong(format!("the child acknowledged {line:?} after {acknowledged} writes")));
        }
        acknowledged += 1;
        let late =
            acknowledged >= guide.records / KILL_AFTER_ONE_IN || guide.clock.now() > began + KILL_AFTER;
        if !killed && (late || guide.stop_if_interrupted().is_err()) {
            child.kill().map_err(|e| Failure::error(format!("cannot kill the child: {e}")))?;
            killed = true;
        }
    }
}

/// How many writes are there; fails unless those are the acknowledged ones and at most one more.
fn verify(db: &Db, acknowledged: u64) -> CommandResult<u64> {
    let mut found = 0u64;
    for record in db.prefix(VISITS.as_bytes())? {
        let (key, value) = record?;
        let (expected_key, expected_value) = visit(found / PARTS, found % PARTS);
        if &key[..] != expected_key.as_bytes() || &value[..] != expected_value.as_bytes() {
            return Err(wrong(format!("{expected_key} was acknowledged and is lost or changed")));
        }
        found += 1;
    }
    let writes = found / PARTS;
    if !found.is_multiple_of(PARTS) {
        return Err(wrong(format!("write {writes} is torn: only a part of its batch is there")));
    }
    if writes < acknowledged || writes > acknowledged + 1 {
        return Err(wrong(format!("{acknowledged} writes were acknowledged, {writes} are there")));
    }
    Ok(writes)
}
