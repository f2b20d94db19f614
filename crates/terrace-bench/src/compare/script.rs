//! The work of every store of a comparison, as data.

use serde::{Deserialize, Serialize};

use super::suites;
use crate::tally;
use crate::workload::Workload;

/// A database and the benchmarks that one process runs on it, in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Script {
    /// Its name, in a word.
    pub name: String,
    /// A description for people.
    pub title: String,
    /// Records of the database.
    pub records: u64,
    /// Bytes of a key.
    pub key_size: usize,
    /// Bytes of a value.
    pub value_size: usize,
    /// Threads.
    pub threads: usize,
    /// DRAM for write buffers and caches, in bytes.
    pub memory: u64,
    /// Persistent memory for the stores that use it, in bytes.
    pub pm_bytes: u64,
    /// Memory that the process may use together with the page cache of its files, in bytes; persistent memory is
    /// not counted.
    pub bound: Option<u64>,
    /// Whether every write waits for the medium.
    pub sync: bool,
    /// Benchmarks by name.
    pub steps: Vec<String>,
    /// Writes made at once by benchmarks that only write.
    #[serde(default = "one")]
    pub batch: usize,
    /// Options of Terrace's engines that differ from the default; those that another engine has not are left out.
    #[serde(default)]
    pub options: Vec<(String, String)>,
    /// Seconds of a benchmark that does not fill.
    pub seconds: f64,
    /// Whether the process is killed during the last step, and the store opened again.
    pub kill: bool,
    /// How often each store does it.
    pub rounds: u32,
    /// Bytes of a write buffer, where they are not to follow from `memory`.
    #[serde(default)]
    pub write_buffer: Option<u64>,
    /// The stores that do it; all where none is named.
    #[serde(default)]
    pub stores: Vec<String>,
    /// Where its figures stand in a figure.
    #[serde(default)]
    pub point: Option<Point>,
}

/// A place in a figure (`figures`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The figure's name.
    pub figure: String,
    /// The place along its axis.
    pub at: f64,
}

fn one() -> usize {
    1
}

/// Why a script cannot be killed.
pub const NOT_DRAWN_AGAIN: &str =
    "what was acknowledged before a kill is known of two steps only, a fill and then updates alone";

/// How much a comparison does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// About a quarter of an hour for twelve stores.
    Quick,
    /// Under two hours for as many.
    Full,
    /// The evaluation of TLSM, at the size of a small machine.
    Tlsm,
    /// Skewed updates with less memory than data, for LAB-DB.
    Lab,
}

impl Scale {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Scale::Quick => "quick",
            Scale::Full => "full",
            Scale::Tlsm => "tlsm",
            Scale::Lab => "lab",
        }
    }

    /// All of them.
    pub const ALL: [Scale; 4] = [Scale::Quick, Scale::Full, Scale::Tlsm, Scale::Lab];

    /// The default medium for persistent memory.
    pub fn profile(self) -> &'static str {
        match self {
            Scale::Tlsm => "tlsm",
            Scale::Quick | Scale::Full | Scale::Lab => "optane",
        }
    }

    /// Minutes after which no further round is begun.
    pub fn minutes(self) -> f64 {
        match self {
            Scale::Quick => 12.0,
            Scale::Full | Scale::Tlsm | Scale::Lab => 110.0,
        }
    }

    /// Its scripts.
    pub fn scripts(self) -> Vec<Script> {
        match self {
            Scale::Quick => suites::general::quick(),
            Scale::Full => suites::general::full(),
            Scale::Tlsm => suites::tlsm::scripts(),
            Scale::Lab => suites::lab::scripts(),
        }
    }
}

pub(super) const MIB: u64 = 1 << 20;
const KEY_BYTES: usize = 16;

impl Script {
    pub(super) fn new(name: &str, title: &str, records: u64, value_size: usize, steps: &str) -> Script {
        Script {
            name: name.to_string(),
            title: title.to_string(),
            records,
            key_size: KEY_BYTES,
            value_size,
            threads: 1,
            memory: 64 * MIB,
            pm_bytes: 2048 * MIB,
            bound: None,
            sync: false,
            steps: steps.split(',').map(str::to_string).collect(),
            batch: 1,
            options: Vec::new(),
            seconds: 0.8,
            kill: false,
            rounds: 1,
            write_buffer: None,
            stores: Vec::new(),
            point: None,
        }
    }

    /// The same with as much memory as a `share`th of its data.
    pub(super) fn bounded(self, share: u64) -> Script {
        let bound = self.data_bytes() / share;
        // A third of it is for the store itself; the rest is for the page cache and for the process's other needs.
        Script { bound: Some(bound), memory: bound / 3, ..self }
    }

    /// The same done by `stores` alone.
    pub(super) fn of(self, stores: &[&str]) -> Script {
        Script { stores: stores.iter().map(|name| name.to_string()).collect(), ..self }
    }

    /// The same as a point of a figure.
    pub(super) fn at(self, figure: &str, at: f64) -> Script {
        Script { point: Some(Point { figure: figure.to_string(), at }), ..self }
    }

    /// Bytes of its records.
    pub fn data_bytes(&self) -> u64 {
        self.records * (self.key_size + self.value_size) as u64
    }

    /// An estimate of a session's length in seconds, before anything is known of the store.
    pub fn guess_seconds(&self) -> f64 {
        let fill =
            self.records as f64 * (6e-6 + self.value_size as f64 * 8e-9) * if self.sync { 40.0 } else { 1.0 };
        let step = |name: &String| match Workload::find(name) {
            Some(workload) if workload.fills() => fill,
            _ => self.seconds,
        };
        1.0 + self.steps.iter().map(step).sum::<f64>()
    }

    /// An error if something is wrong with it.
    pub fn validate(&self) -> Result<(), String> {
        for name in &self.steps {
            Workload::find(name).ok_or_else(|| format!("{}: there is no benchmark {name:?}", self.name))?;
        }
        let workloads: Vec<_> = self.steps.iter().filter_map(|name| Workload::find(name)).collect();
        if self.kill && !tally::can_be_drawn_again(&workloads) {
            return Err(format!("{}: {NOT_DRAWN_AGAIN}", self.name));
        }
        let first = self.steps.first().and_then(|name| Workload::find(name));
        match first {
            Some(workload) if workload.fills() => Ok(()),
            _ => Err(format!("{}: the first step does not fill the database", self.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::contender::Contender;
    use super::*;

    #[test]
    fn every_script_can_run() {
        for scale in Scale::ALL {
            let scripts = scale.scripts();
            for script in &scripts {
                script.validate().unwrap();
                assert_eq!(scripts.iter().filter(|s| s.name == script.name).count(), 1, "{}", script.name);
                assert!(
                    script
                        .bound
                        .is_none_or(|bound| bound * 4 <= script.data_bytes() && script.memory < bound)
                );
                for name in &script.stores {
                    Contender::entrant_of(name).unwrap();
                }
            }
        }
    }

    #[test]
    fn the_suites_keep_to_their_time() {
        let seconds = |scale: Scale| -> f64 {
            let of = |script: &Script| script.guess_seconds() * f64::from(script.rounds);
            12.0 * scale.scripts().iter().map(of).sum::<f64>()
        };
        assert!(seconds(Scale::Quick) < 900.0, "{}", seconds(Scale::Quick));
        assert!(seconds(Scale::Full) < 6600.0, "{}", seconds(Scale::Full));
    }

    #[test]
    fn a_script_that_cannot_run_says_why() {
        let script = |steps| Script::new("x", "x", 1, 1, steps).validate().unwrap_err();
        assert!(script("load,dance").contains("dance"));
        assert!(script("readrandom").contains("does not fill"));
        let killed = |steps| Script { kill: true, ..Script::new("x", "x", 1, 1, steps) }.validate();
        assert!(killed("load,a").unwrap_err().contains("updates alone"));
        assert!(killed("load,overwrite,overwrite").is_err() && killed("fillrandom,updatezipfian").is_ok());
    }
}
