//! All sessions of a comparison, round after round, with the time that is left.

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use terrace_base::clock::{Clock, SystemClock};

use super::child::{self, Place};
use super::contender::Contender;
use super::machine::{self, Machine};
use super::results::{Results, Session, VERSION};
use super::script::Script;
use crate::store::StoreResult;

/// The plan of a comparison.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// The suite's name.
    pub suite: String,
    /// The stores.
    pub entrants: Vec<Contender>,
    /// The scripts.
    pub scripts: Vec<Script>,
    /// Minutes after which no further round is begun.
    pub minutes: f64,
    /// Where.
    pub place: Place,
    /// A file that is locked during each session. Others who lock it do not measure at the same time.
    pub lock: Option<PathBuf>,
}

impl Comparison {
    /// Runs it. `finished` is shown the results after each session, so that nothing is lost when it is stopped.
    pub fn run(&self, finished: &mut dyn FnMut(&Results) -> StoreResult<()>) -> StoreResult<Results> {
        std::fs::create_dir_all(&self.place.work_dir)?;
        std::fs::create_dir_all(&self.place.pm_dir)?;
        let mut results = self.empty();
        let mut pace = Pace::new(self);
        for round in 0..self.scripts.iter().map(|s| s.rounds).max().unwrap_or(0) {
            if round > 0 && pace.elapsed() + self.round_seconds(&pace, round) > self.minutes * 60.0 {
                results.notes.push(format!(
                    "Stopped after round {round}: another one would have taken longer than {} minutes.",
                    self.minutes
                ));
                break;
            }
            for (script, entrant) in self.sessions(round) {
                let left = self.left(&pace, round, (script, entrant));
                let _turn = self.turn()?;
                let session = pace.follow(entrant, script, left, &mut |tick| {
                    child::run(&self.place, &entrant.name, script, round, tick)
                });
                results.sessions.push(session);
                results.seconds = pace.elapsed();
                finished(&results)?;
            }
        }
        pace.bar.finish_and_clear();
        results.machine.load_after = machine::load();
        finished(&results)?;
        Ok(results)
    }

    /// Waits until nobody else measures. The turn ends when the returned guard is dropped.
    fn turn(&self) -> StoreResult<Option<File>> {
        let Some(path) = &self.lock else { return Ok(None) };
        let file = File::options().create(true).append(true).open(path)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
        Ok(Some(file))
    }

    fn empty(&self) -> Results {
        Results {
            version: VERSION,
            suite: self.suite.clone(),
            began: utc_now(),
            machine: Machine::here(&self.place.work_dir, &self.place.pm_dir),
            pm_profile: self.place.profile.clone(),
            entrants: self.entrants.iter().map(|e| e.name.clone()).collect(),
            scripts: self.scripts.clone(),
            ..Results::default()
        }
    }

    /// The sessions of a round in order: all stores do a script before any does the next.
    fn sessions(&self, round: u32) -> impl Iterator<Item = (&Script, &Contender)> {
        let scripts = self.scripts.iter().filter(move |s| s.rounds > round);
        scripts.flat_map(|script| {
            let does =
                |entrant: &&Contender| script.stores.is_empty() || script.stores.contains(&entrant.name);
            self.entrants.iter().filter(does).map(move |entrant| (script, entrant))
        })
    }

    fn round_seconds(&self, pace: &Pace, round: u32) -> f64 {
        self.sessions(round).map(|(script, entrant)| pace.expect(entrant, script)).sum()
    }

    /// Seconds of the sessions that come after `now`.
    fn left(&self, pace: &Pace, round: u32, now: (&Script, &Contender)) -> f64 {
        let after =
            |(script, entrant): &(&Script, &Contender)| script.name != now.0.name || **entrant != *now.1;
        let here: f64 = self.sessions(round).skip_while(after).skip(1).map(|(s, e)| pace.expect(e, s)).sum();
        let rounds = self.scripts.iter().map(|s| s.rounds).max().unwrap_or(0);
        here + (round + 1..rounds).map(|r| self.round_seconds(pace, r)).sum::<f64>()
    }
}

/// How long sessions took, and thus how long the rest will.
struct Pace {
    clock: SystemClock,
    took: HashMap<(String, String), f64>,
    /// By store: seconds taken and seconds guessed.
    against_guess: HashMap<String, (f64, f64)>,
    bar: ProgressBar,
}

impl Pace {
    fn new(comparison: &Comparison) -> Pace {
        let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{bar:28} {percent:>3}%  {msg}") {
            bar.set_style(style);
        }
        let names = comparison.entrants.iter().map(|e| (e.name.clone(), (0.0, 0.0)));
        Pace { clock: SystemClock::new(), took: HashMap::new(), against_guess: names.collect(), bar }
    }

    fn elapsed(&self) -> f64 {
        self.clock.now().as_secs_f64()
    }

    /// Seconds that a session should take: as the last time, or as the guess has proved to be for this store.
    fn expect(&self, entrant: &Contender, script: &Script) -> f64 {
        if let Some(took) = self.took.get(&(entrant.name.clone(), script.name.clone())) {
            return *took;
        }
        let (took, guessed) = self.against_guess.get(&entrant.name).copied().unwrap_or_default();
        let factor = if guessed > 0.0 { took / guessed } else { 1.0 };
        script.guess_seconds() * factor
    }

    /// Runs a session with the bar before which `left` seconds are to come.
    fn follow(
        &mut self,
        entrant: &Contender,
        script: &Script,
        left: f64,
        session: &mut dyn FnMut(&mut dyn FnMut()) -> Session,
    ) -> Session {
        let began = self.elapsed();
        let expected = self.expect(entrant, script);
        let result = session(&mut || {
            let gone = self.elapsed() - began;
            let remaining = left + (expected - gone).max(0.0);
            let whole = self.elapsed() + remaining;
            self.bar.set_position((1000.0 * self.elapsed() / whole.max(1.0)) as u64);
            let (script, entrant) = (&script.name, entrant.name.clone());
            self.bar.set_message(format!("{} left  {script} {entrant}", minutes(remaining)));
        });
        let took = self.elapsed() - began;
        self.took.insert((entrant.name.clone(), script.name.clone()), took);
        if let Some((all, guessed)) = self.against_guess.get_mut(&entrant.name) {
            *all += took;
            *guessed += script.guess_seconds();
        }
        if self.bar.is_hidden() {
            let how = result.error.as_deref().map_or(String::new(), |e| format!(": {e}"));
            eprintln!(
                "{:>6.0} s  {} {} took {took:.1} s{how}",
                self.elapsed(),
                script.name,
                entrant.name.clone()
            );
        }
        result
    }
}

/// `4:05`.
fn minutes(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round() as u64;
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

/// The date and time, as `2026-03-01 12:30 UTC`.
#[expect(clippy::disallowed_methods, reason = "a report tells when it was made")]
fn utc_now() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seconds = since.map_or(0, |d| d.as_secs());
    let (year, month, day) = civil(seconds / 86_400);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", seconds / 3600 % 24, seconds / 60 % 60)
}

/// The date that is `days` after the first of January 1970, by counting years from March in eras of 400.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + carry, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(19_782), (2024, 2, 29));
        assert_eq!(civil(19_783), (2024, 3, 1));
        assert_eq!(civil(20_454), (2026, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
    }

    #[test]
    fn time_left_reads_well() {
        assert_eq!([minutes(-1.0), minutes(5.4), minutes(245.0)], ["0:00", "0:05", "4:05"]);
    }
}
