//! `terrace tour`: a demonstration on a database made for it.

mod child;
mod crash;
mod steps;

use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use tempfile::TempDir;
use terrace_base::clock::{Clock, SystemClock};
use terrace_bench::report::grouped;

use crate::failure::{CommandResult, Failure};
use crate::interrupt;
use crate::open::OpenArgs;
use crate::text::RECORDS;

pub use child::WriteForever;

/// Shows what Terrace does on a database made for it: imports, overwrites, reads and scans, kills a
/// process that writes, and proves that nothing it acknowledged was lost.
///
/// Takes well under a minute. Without DIR the database is temporary.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  terrace tour\n  terrace tour ./tour --pool emulated:optane")]
pub struct Tour {
    /// Where to make the database and keep it; must be empty or not be there
    pub dir: Option<PathBuf>,
    /// Records to import
    #[arg(long, hide = true, default_value_t = RECORDS, value_parser = clap::value_parser!(u64).range(1000..=RECORDS))]
    pub records: u64,
    /// How to open the database.
    #[command(flatten)]
    pub open: OpenArgs,
}

impl Tour {
    /// Runs the command.
    pub fn run(&self, out: &mut dyn Write) -> CommandResult {
        interrupt::install()?;
        let place = Place::prepare(self.dir.as_deref())?;
        let mut guide = Guide { out, clock: SystemClock::new(), step: 0, records: self.records };
        guide.say(format_args!("A tour of Terrace, on a database in {}", place.path().display()))?;
        steps::walk(&mut guide, &self.open, place.path())?;
        guide.end(&place)
    }
}

/// Characters in a line of the tour's.
const WIDTH: usize = 100;

/// Where the tour's database lies; a temporary one is gone afterwards.
enum Place {
    Kept(PathBuf),
    Temporary(TempDir),
}

impl Place {
    fn prepare(dir: Option<&Path>) -> CommandResult<Place> {
        let Some(dir) = dir else {
            let made = tempfile::Builder::new().prefix("terrace-tour-").tempdir();
            return made.map(Place::Temporary).map_err(|e| Failure::io(&std::env::temp_dir(), "create", e));
        };
        let used = std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
        if used {
            return Err(Failure::usage(format!("{} is not empty", dir.display()))
                .hint("name a directory that is not there yet, or none for a temporary one"));
        }
        Ok(Place::Kept(dir.to_path_buf()))
    }

    fn path(&self) -> &Path {
        match self {
            Place::Kept(path) => path,
            Place::Temporary(dir) => dir.path(),
        }
    }
}

/// Tells what happens, as it happens.
struct Guide<'a> {
    out: &'a mut dyn Write,
    clock: SystemClock,
    step: u32,
    /// Records of the tour.
    records: u64,
}

impl Guide<'_> {
    /// Begins a step; Ctrl-C ends the tour between two.
    fn step(&mut self, title: &str) -> CommandResult {
        self.stop_if_interrupted()?;
        self.step += 1;
        let number = self.step;
        self.say(format_args!("\n{number}. {title}"))
    }

    /// Prints a text about the step; long text is broken between words.
    fn tell(&mut self, text: impl Display) -> CommandResult {
        for line in wrapped(&text.to_string(), WIDTH) {
            self.say(format_args!("   {line}"))?;
        }
        Ok(())
    }

    fn say(&mut self, text: impl Display) -> CommandResult {
        writeln!(self.out, "{text}")?;
        Ok(self.out.flush()?)
    }

    fn stop_if_interrupted(&self) -> CommandResult {
        if interrupt::requested() { Err(interrupt::stopped("the tour was stopped")) } else { Ok(()) }
    }

    /// The result of `work`, and how long it took.
    fn timed<T>(&self, work: impl FnOnce() -> CommandResult<T>) -> CommandResult<(T, Duration)> {
        let began = self.clock.now();
        let result = work()?;
        Ok((result, self.clock.now().saturating_sub(began)))
    }

    fn end(&mut self, place: &Place) -> CommandResult {
        let seconds = self.clock.now().as_secs_f64();
        self.say(format_args!("\nThat was the tour, in {seconds:.1} s."))?;
        match place {
            Place::Kept(dir) => {
                let dir = dir.display();
                self.say(format_args!(
                    "The database is yours to look at: `terrace scan {dir} --limit 5`, `terrace stat {dir}`."
                ))
            }
            Place::Temporary(_) => self.say(
                "Its database is removed. `terrace tour DIR` keeps one; `terrace --help` lists the other commands.",
            ),
        }
    }
}

/// `text` in lines of `width` characters where words allow; those after the first are indented.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() < width || line.trim().is_empty() => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) => lines.push(format!("  {word}")),
            None => lines.push(word.to_string()),
        }
    }
    lines
}

/// `count` things in `took`, a second.
fn rate(count: u64, took: Duration) -> String {
    format!(
        "{:.2} s, {} a second",
        took.as_secs_f64(),
        grouped((count as f64 / took.as_secs_f64().max(1e-6)) as u64)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_broken_between_words() {
        assert_eq!(wrapped("one two three four", 9), ["one two", "  three", "  four"]);
        assert_eq!(wrapped("short", 100), ["short"]);
        assert_eq!(wrapped("", 10), [""]);
        assert_eq!(wrapped("  indented", 20), ["  indented"]);
        assert_eq!(wrapped("incomprehensibilities", 5), ["incomprehensibilities"]);
    }
}
