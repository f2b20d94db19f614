//! What the commands say of a damaged database, held against what was acknowledged.

use std::fmt::Write as _;

use terrace_base::rng::Rng;
use terrace_cli::escape::unescape;

use super::image::{Image, Map, sizes_in};
use crate::support::{Run, finish, piped};

/// What a case came to; several may be said of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Everything is read as if nothing had happened.
    Harmless,
    /// Reading was refused or broken off.
    Told,
    /// Repaired, and everything is there.
    Kept,
    /// Repaired, with losses that are named.
    LossTold,
    /// Repair gave a reason for not doing anything.
    Refused,
    /// The newest writes are gone without a word: a kill could have left the log so.
    EndedEarly,
    /// Wrong contents were shown, or a key was denied, without a word.
    Silent,
    /// Repaired, and still not sound.
    StillDamaged,
    /// The check found everything sound, and it is not.
    FalselySound,
    /// A database was called a mistake on the command line.
    WrongCode,
    /// Repair said that nothing is lost, and something is.
    FalselyWhole,
    /// What could be read before the repair is gone after it.
    Destroyed,
    /// A record was shown that nobody ever wrote.
    Invented,
    /// A command panicked or was ended by a signal.
    Panicked,
    /// A command did not end.
    Hung,
    /// What is somebody else's was changed or removed.
    StrayTouched,
}

impl Verdict {
    /// Whether it must never be.
    pub fn is_fault(self) -> bool {
        self >= Verdict::Silent
    }

    /// The same of a database whose newest log may as well have ended where it ends now.
    pub fn of_an_early_end(self) -> Verdict {
        match self {
            Verdict::Silent | Verdict::FalselySound | Verdict::FalselyWhole => Verdict::EndedEarly,
            other => other,
        }
    }
}

/// A case, judged.
pub struct Judged {
    pub verdicts: Vec<Verdict>,
    /// What was run and said.
    pub story: String,
}

struct Judge<'a> {
    image: &'a Image,
    verdicts: Vec<Verdict>,
    story: String,
}

/// What is said of a sound manifest that does not go with what was asked for.
const OF_ANOTHER: [&str; 2] = ["belongs to engine", "was not created with an emulated pool"];

/// Changes of the directory after which a repair is killed, at most.
const CHANGES: u64 = 20;

/// Reads, checks and repairs a damaged database. Now and then a first repair is killed.
pub fn judge(image: &Image, rng: &mut Rng) -> Judged {
    let mut judge = Judge { image, verdicts: Vec::new(), story: String::new() };
    judge.whole(rng);
    judge.verdicts.sort_unstable();
    judge.verdicts.dedup();
    Judged { verdicts: judge.verdicts, story: judge.story }
}

impl Judge<'_> {
    fn whole(&mut self, rng: &mut Rng) {
        let mut readable = self.gets();
        let export = self.run("export", &[]);
        let shown = self.records(&export);
        match (export.code, shown.as_ref().is_some_and(|shown| self.is_right(shown))) {
            (0, true) => self.verdicts.push(Verdict::Harmless),
            (0, false) => self.verdicts.push(Verdict::Silent),
            _ => self.verdicts.push(Verdict::Told),
        }
        self.tell_difference(shown.as_ref());
        readable.extend(shown.unwrap_or_default());

        self.describe();
        let check = self.run("check", &[]);
        if check.code == 0 && !self.verdicts.contains(&Verdict::Harmless) {
            self.verdicts.push(Verdict::FalselySound);
        }
        // One that came to its end has said what is lost, and the next finds everything sound.
        let killed = rng.one_in(3).then(|| self.kill_a_repair(rng.below(CHANGES)));
        let was_told = killed.as_ref().is_some_and(|(code, _)| *code == Some(1));
        let repair = self.run("repair", &[]);
        let said = killed.map_or(String::new(), |(_, said)| said) + &String::from_utf8_lossy(&repair.out);
        if repair.code > 1 {
            self.verdicts.push(Verdict::Refused);
            return;
        }
        let check = self.run("check", &[]);
        let export = self.run("export", &[]);
        // Without a manifest pool, tables and logs may be another database's, and nothing tells: that is to be said.
        let list = std::fs::read_to_string(self.image.dir.join("lost/LIST")).unwrap_or_default();
        let left = match (said.clone() + &list).contains("not known: whose the ") {
            true => self.records_of_anyone(&export),
            false => self.records(&export),
        };
        if check.code != 0 || export.code != 0 {
            self.verdicts.push(Verdict::StillDamaged);
        }
        self.tell_difference(left.as_ref());
        let left = left.unwrap_or_default();
        match (repair.code, self.is_right(&left)) {
            (_, true) => self.verdicts.push(Verdict::Kept),
            (0, false) if !was_told && !said.contains("not known: ") => {
                self.verdicts.push(Verdict::FalselyWhole)
            }
            _ => self.verdicts.push(Verdict::LossTold),
        }
        // A value of before that was read must not be gone, whatever else is lost.
        let gone = readable.iter().find(|(key, value)| {
            self.image.contents.get(*key) == Some(*value) && left.get(*key) != Some(*value)
        });
        if let Some((key, _)) = gone {
            let _ = writeln!(self.story, "gone: {key}");
            self.verdicts.push(Verdict::Destroyed);
        }
    }

    /// Asks for some keys; gives what could be read.
    fn gets(&mut self) -> Map {
        let keys = self.image.contents.iter();
        let few: Vec<(String, String)> = keys.step_by(211).map(|(k, v)| (k.clone(), v.clone())).collect();
        let mut readable = Map::new();
        for (key, value) in few {
            let run = self.run("get", &[&key]);
            let denied = run.code == 1 && run.err.contains("there is no key");
            let shown = unescaped(run.out.strip_suffix(b"\n").unwrap_or(&run.out));
            match run.code {
                0 if shown.as_ref() == Some(&value) => drop(readable.insert(key, value)),
                0 => self.verdicts.push(Verdict::Silent),
                _ if denied => self.verdicts.push(Verdict::Silent),
                _ => {}
            }
        }
        readable
    }

    /// Begins a repair and kills it once the directory has changed so many times under it, unless it has ended by then:
    /// the exit code with which it did, and what it said.
    fn kill_a_repair(&mut self, changes: u64) -> (Option<i32>, String) {
        let mut child = piped(&mut self.image.command("repair", &[]));
        let (mut seen, mut left) = (sizes_in(&self.image.dir), changes);
        while left > 0 && child.try_wait().unwrap().is_none() {
            let now = sizes_in(&self.image.dir);
            left -= u64::from(now != seen);
            seen = now;
        }
        child.kill().unwrap();
        let ended = child.wait_with_output().unwrap();
        let _ = writeln!(self.story, "a repair killed after {} changes: {}", changes - left, ended.status);
        (ended.status.code(), String::from_utf8_lossy(&ended.stdout).into_owned())
    }

    /// Whether this is what was acknowledged, with the write that was being made or without.
    fn is_right(&self, found: &Map) -> bool {
        let mut with = self.image.contents.clone();
        with.extend(self.image.in_flight.clone());
        *found == self.image.contents || *found == with
    }

    /// Notes what is not there, or not as it should be.
    fn tell_difference(&mut self, found: Option<&Map>) {
        let Some(found) = found else { return };
        let wrong = |(key, value): &(&String, &String)| found.get(*key) != Some(*value);
        let missing: Vec<&String> = self.image.contents.iter().filter(wrong).map(|(key, _)| key).collect();
        let known =
            |key: &&String| self.image.contents.contains_key(*key) || self.image.in_flight.contains_key(*key);
        let strange = found.keys().filter(|key| !known(key)).count();
        let _ = writeln!(
            self.story,
            "{} of {} records, {} missing or older: {:?}..{:?}; {strange} that should not be there",
            found.len(),
            self.image.contents.len(),
            missing.len(),
            missing.first(),
            missing.last(),
        );
    }

    /// The records that an export has shown, whole lines alone.
    fn records(&mut self, export: &Run) -> Option<Map> {
        let found = self.records_of_anyone(export)?;
        for (key, value) in found.iter().filter(|(key, value)| !self.image.was_written(key, value)) {
            let _ = writeln!(self.story, "invented: {key} = {value}");
            self.verdicts.push(Verdict::Invented);
        }
        Some(found)
    }

    /// Likewise, of any writer.
    fn records_of_anyone(&self, export: &Run) -> Option<Map> {
        let end = export.out.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
        let mut found = Map::new();
        for line in export.out[..end].split(|&b| b == b'\n').filter(|line| !line.is_empty()) {
            let tab = line.iter().position(|&b| b == b'\t')?;
            let (key, value) = (unescaped(&line[..tab])?, unescaped(&line[tab + 1..])?);
            found.insert(key, value);
        }
        Some(found)
    }

    /// A command that looks into a damaged database says something, or why it cannot.
    fn describe(&mut self) {
        self.run("stat", &[]);
        let names: Vec<String> = self.image.files().into_keys().filter(|name| name != "LOCK").collect();
        let some = names.iter().enumerate().filter(|(i, name)| i % 8 == name.len() % 8);
        for name in [None].into_iter().chain(some.map(|(_, name)| Some(&name[..]))) {
            let run = finish(piped(&mut self.image.dump(name)), b"");
            let _ = writeln!(self.story, "$ dump {}: exit code {}", name.unwrap_or_default(), run.code);
            self.ended("dump", &run);
        }
    }

    fn run(&mut self, name: &str, args: &[&str]) -> Run {
        let run = finish(piped(&mut self.image.bounded(name, args)), b"");
        let said = String::from_utf8_lossy(if name == "export" || name == "get" { b"" } else { &run.out });
        let _ =
            writeln!(self.story, "$ {name} {}: exit code {}\n{said}{}", args.join(" "), run.code, run.err);
        self.ended(name, &run);
        run
    }

    /// How the command came to its end.
    fn ended(&mut self, name: &str, run: &Run) {
        match run.code {
            // The exit codes of `timeout`: it had to kill the process, or another signal did.
            137 => self.verdicts.push(Verdict::Hung),
            // That the manifest is one of another engine, or of a database on other media, is said of what was asked
            // for.
            2 if name != "repair" && !OF_ANOTHER.iter().any(|said| run.err.contains(said)) => {
                self.verdicts.push(Verdict::WrongCode)
            }
            101 | 128.. | ..0 => self.verdicts.push(Verdict::Panicked),
            _ => {}
        }
    }
}

fn unescaped(text: &[u8]) -> Option<String> {
    let mut bytes = Vec::new();
    unescape(text, &mut bytes).ok()?;
    String::from_utf8(bytes).ok()
}
