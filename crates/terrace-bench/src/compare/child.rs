//! One session in a child process: started, bounded, watched, and killed where the script asks for it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use terrace_base::clock::{Clock, SystemClock};
use terrace_base::exec::{Executor, ThreadPool};

use super::contender::Contender;
use super::entrant::Entrant;
use super::machine::{self, MemoryGroup};
use super::results::Session;
use super::script::Script;
use super::session::{Event, Spec};
use crate::store::StoreResult;
use crate::workload::Workload;

/// The hidden subcommand that makes a process a child.
pub const SUBCOMMAND: &str = "session";

/// Where and how sessions run.
#[derive(Debug, Clone)]
pub struct Place {
    /// The program that is run again for each session.
    pub program: PathBuf,
    /// A directory on the SSD; each session has one of its own in it.
    pub work_dir: PathBuf,
    /// A directory on tmpfs or DAX, for persistent memory.
    pub pm_dir: PathBuf,
    /// The medium that it stands for.
    pub profile: String,
    /// The seed of random numbers.
    pub seed: u64,
    /// The trace that `replay` replays.
    pub trace: Option<PathBuf>,
}

const SIGKILL: i32 = 9;
/// Between two looks at a child.
const LOOK_EVERY: Duration = Duration::from_millis(150);
/// Time that a child writes before it is killed.
const KILL_AFTER: Duration = Duration::from_millis(1500);

/// The steps that a store without an order of keys cannot take, out of `script`.
fn leave_out(entrant: &str, script: &mut Script) -> Vec<String> {
    let ordered = Contender::entrant_of(entrant).is_ok_and(Entrant::is_ordered);
    let possible = |name: &String| ordered || Workload::find(name).is_none_or(|w| !w.needs_order());
    let (kept, left) = std::mem::take(&mut script.steps).into_iter().partition(possible);
    script.steps = kept;
    left
}

/// Runs one session, without steps that the store is not made for. `tick` is called again and again while it runs.
pub fn run(place: &Place, entrant: &str, script: &Script, round: u32, tick: &mut dyn FnMut()) -> Session {
    let mut session =
        Session { entrant: entrant.to_string(), script: script.name.clone(), round, ..Session::default() };
    let mut script = script.clone();
    let left_out = leave_out(entrant, &mut script);
    if script.steps.is_empty() {
        session.error = Some("it keeps no order of keys, which every step needs".to_string());
        return session;
    }
    let name = format!("{}-{}-{round}", script.name, entrant);
    let (dir, pm_dir) = (place.work_dir.join(&name), place.pm_dir.join(&name));
    let clean = || {
        let _ = std::fs::remove_dir_all(&dir);
        let _ = std::fs::remove_dir_all(&pm_dir);
        // Pages that the session leaves to be written would be written during the next one.
        rustix::fs::sync();
    };
    clean();
    let spec = Spec {
        entrant: entrant.to_string(),
        script: script.clone(),
        dir: dir.clone(),
        pm_dir: pm_dir.clone(),
        profile: place.profile.clone(),
        // Every store does the same in the same round.
        seed: place.seed + u64::from(round),
        trace: place.trace.clone(),
        reopen: false,
    };
    let mut done = attend(place, &spec, &mut session, tick);
    if done.is_ok() && script.kill && session.error.is_none() {
        done = attend(place, &Spec { reopen: true, ..spec }, &mut session, tick);
    }
    if let Err(e) = done {
        session.error.get_or_insert(e.to_string());
    }
    if !left_out.is_empty() {
        session.settings.push(("without, having no order of keys".to_string(), left_out.join(", ")));
    }
    clean();
    session
}

/// A child process at work.
struct Attended<'a> {
    child: Child,
    events: Receiver<StoreResult<Event>>,
    clock: SystemClock,
    spec: &'a Spec,
    group: Option<MemoryGroup>,
    kill_at: Option<Duration>,
    /// Bytes on persistent memory at the last look.
    pm_bytes: u64,
    /// Reads what the child says; ends when the child does.
    _reader: ThreadPool,
}

fn attend(place: &Place, spec: &Spec, session: &mut Session, tick: &mut dyn FnMut()) -> StoreResult<()> {
    std::fs::create_dir_all(&spec.dir)?;
    std::fs::create_dir_all(&spec.pm_dir)?;
    let complaints = spec.dir.join("stderr");
    let mut child = Command::new(&place.program)
        .arg(SUBCOMMAND)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&complaints)?)
        .spawn()?;
    let group = spec.script.bound.filter(|_| !spec.reopen).and_then(|bound| bounded(child.id(), bound));
    session.bounded |= group.is_some();
    let started = start(&mut child, spec);
    let (sender, events) = channel();
    let reader = ThreadPool::new("compare", 1);
    if let Some(output) = child.stdout.take() {
        reader.spawn(Box::new(move || {
            for line in BufReader::new(output).lines() {
                let event = line.map_err(Into::into).and_then(|line| Ok(serde_json::from_str(&line)?));
                if sender.send(event).is_err() {
                    break;
                }
            }
        }));
    }
    let clock = SystemClock::new();
    let mut attended =
        Attended { child, events, clock, spec, group, kill_at: None, pm_bytes: 0, _reader: reader };
    let done = started.and_then(|()| attended.watch(session, tick));
    let ended = attended.end();
    match (done, ended) {
        (Err(e), _) => Err(e),
        (Ok(()), Some(how)) => Err(format!("{how}{}", last_words(&complaints)).into()),
        (Ok(()), None) => Ok(()),
    }
}

/// The group with bounded memory that process `pid` was put into, where that is allowed.
fn bounded(pid: u32, bound: u64) -> Option<MemoryGroup> {
    let group = MemoryGroup::new(&format!("terrace-bench-{pid}"), bound).ok()?;
    group.add(pid).ok()?;
    Some(group)
}

fn start(child: &mut Child, spec: &Spec) -> StoreResult<()> {
    let mut input = child.stdin.take().ok_or("the child has no input")?;
    writeln!(input, "{}", serde_json::to_string(spec)?)?;
    Ok(())
}

/// The end of what a child wrote to its standard error.
fn last_words(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let last: Vec<&str> = text.lines().rev().take(3).collect();
    last.into_iter().rev().map(|line| format!("; {line}")).collect()
}

impl Attended<'_> {
    /// Notes what the child says until it says no more.
    fn watch(&mut self, session: &mut Session, tick: &mut dyn FnMut()) -> StoreResult<()> {
        let allowed = Duration::from_secs_f64(120.0 + 20.0 * self.spec.script.guess_seconds());
        loop {
            match self.events.recv_timeout(LOOK_EVERY) {
                Ok(event) => self.note(event?, session),
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.look(session);
            tick();
            let now = self.clock.now();
            if self.kill_at.is_some_and(|at| now >= at) {
                self.child.kill()?;
                self.child.wait()?;
                return Ok(());
            }
            if now > allowed {
                self.child.kill()?;
                return Err(format!("not done after {} s", allowed.as_secs()).into());
            }
        }
    }

    fn note(&mut self, event: Event, session: &mut Session) {
        match event {
            Event::Opened { settings, seconds } => {
                session.settings = settings;
                session.open_seconds = seconds;
            }
            Event::Begin { index } => {
                if self.spec.script.kill && index + 1 == self.spec.script.steps.len() {
                    self.kill_at = Some(self.clock.now() + KILL_AFTER);
                }
            }
            Event::Step(step) => session.steps.push(*step),
            Event::Reopened(reopening) => session.reopening = Some(reopening),
            Event::Closed { seconds, total, user_bytes } => {
                session.close_seconds = seconds;
                session.total = total;
                session.user_bytes = user_bytes;
            }
            Event::Failed(message) => session.error = Some(message),
        }
    }

    fn look(&mut self, session: &mut Session) {
        let own = machine::own_memory(self.child.id());
        session.dram_peak_bytes = session.dram_peak_bytes.max(own);
        if let (Some(group), Some(bound)) = (&self.group, self.spec.script.bound) {
            // Emulated persistent memory is shared memory of this process and would count. Before the next look it may
            // grow by up to twice the bytes that it has grown by since the last one.
            let used = machine::disk_usage(&self.spec.pm_dir);
            let _ = group.bound(bound + used + 2 * used.saturating_sub(self.pm_bytes));
            self.pm_bytes = used;
        }
    }

    /// Waits for the child. Tells how it ended, unless that was in order or asked for.
    fn end(&mut self) -> Option<String> {
        if self.kill_at.is_some() {
            return None;
        }
        match self.child.wait() {
            Ok(status) if status.success() => None,
            // Nobody else kills it: the parent has not.
            Ok(status) if self.group.is_some() && status.signal() == Some(SIGKILL) => {
                Some("killed by the kernel: it needs more memory than the bound".to_string())
            }
            Ok(status) => Some(status.to_string()),
            Err(e) => Some(e.to_string()),
        }
    }
}

impl Drop for Attended<'_> {
    fn drop(&mut self) {
        // A child that has ended is not affected.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
