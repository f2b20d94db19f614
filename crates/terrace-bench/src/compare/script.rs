//! What every store of a comparison does, as data.

use serde::{Deserialize, Serialize};

use crate::tally;
use crate::workload::Workload;

/// A database and what is done with it, in order, by one process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Script {
    /// Its name, in a word.
    pub name: String,
    /// What it is, for people.
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
    /// Persistent memory for whoever uses it, in bytes.
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
    /// About ten minutes for twelve stores.
    Quick,
    /// Under two hours for as many.
    Full,
}

impl Scale {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Scale::Quick => "quick",
            Scale::Full => "full",
        }
    }

    /// Minutes after which no further round is begun.
    pub fn minutes(self) -> f64 {
        match self {
            Scale::Quick => 12.0,
            Scale::Full => 110.0,
        }
    }

    /// Its scripts.
    pub fn scripts(self) -> Vec<Script> {
        match self {
            Scale::Quick => quick(),
            Scale::Full => full(),
        }
    }
}

const MIB: u64 = 1 << 20;
const KEY_BYTES: usize = 16;
const YCSB: &str = "load,readrandom,a,b,c,f,d,e";

impl Script {
    fn new(name: &str, title: &str, records: u64, value_size: usize, steps: &str) -> Script {
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
        }
    }

    /// Bytes of its records.
    pub fn data_bytes(&self) -> u64 {
        self.records * (self.key_size + self.value_size) as u64
    }

    /// What a session of it should take, in seconds, before anything is known of the store.
    pub fn guess_seconds(&self) -> f64 {
        let fill =
            self.records as f64 * (6e-6 + self.value_size as f64 * 8e-9) * if self.sync { 40.0 } else { 1.0 };
        let step = |name: &String| match Workload::find(name) {
            Some(workload) if workload.fills() => fill,
            _ => self.seconds,
        };
        1.0 + self.steps.iter().map(step).sum::<f64>()
    }

    /// Says what is wrong with it, if anything is.
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

fn quick() -> Vec<Script> {
    vec![
        Script { rounds: 2, ..Script::new("1k", "1 KB values, one thread", 250_000, 1000, YCSB) },
        Script {
            threads: 2,
            rounds: 2,
            ..Script::new(
                "100b-2t",
                "100 B values, two threads",
                300_000,
                100,
                "fillrandom,readrandom,readmissing,a,c,e",
            )
        },
        bounded(
            Script::new("bounded", "memory a quarter of the data", 250_000, 1000, "load,readrandom,a,c"),
            4,
        ),
        synced(2_000),
        Script {
            kill: true,
            ..Script::new("reopen", "killed while it writes, opened again", 100_000, 1000, "load,overwrite")
        },
    ]
}

fn full() -> Vec<Script> {
    let base = |name: &str, title: &str, records, value_size, steps: &str| Script {
        seconds: 2.0,
        memory: 128 * MIB,
        pm_bytes: 8192 * MIB,
        ..Script::new(name, title, records, value_size, steps)
    };
    let fills = "fillrandom,readrandom,readmissing,load,a,b,c,f,d,e";
    let two_threads = |script: Script| Script {
        name: format!("{}-2t", script.name),
        title: script.title.replace("one thread", "two threads"),
        threads: 2,
        ..script
    };
    let twice = |script: Script| Script { rounds: 2, ..script };
    let large = base("1k", "1 KB values, one thread", 600_000, 1000, fills);
    let small = base("100b", "100 B values, one thread", 1_500_000, 100, fills);
    vec![
        twice(large.clone()),
        twice(small.clone()),
        two_threads(large),
        two_threads(small),
        base("16k", "16 KB values, one thread", 40_000, 16_000, "load,readrandom,a"),
        bounded(base("bounded", "memory a quarter of the data", 600_000, 1000, "load,readrandom,a,c,e"), 4),
        Script {
            pm_bytes: 512 * MIB,
            ..base("sustained", "random load of four times the PM", 2_000_000, 1000, "fillrandom,readrandom")
        },
        base("mixed", "values of 256 B and 4 KB", 300_000, 1000, "fillmixed,readrandom,updatemixed"),
        base("mixed-bytes", "as many bytes in 256 B as in 4 KB", 600_000, 1000, "fillmixedbytes,readrandom"),
        base("zipfian", "zipfian updates, then reads", 600_000, 1000, "load,updatezipfian,c"),
        base("burst", "a burst of writes, then reads", 600_000, 1000, "load,overwrite,readrandom"),
        base("series", "a series in time, the oldest deleted", 1_000_000, 200, "timeseries"),
        base("queue", "a queue: append, take the first", 20_000, 200, "queue"),
        twice(synced(5_000)),
        twice(Script {
            kill: true,
            ..base("reopen", "killed while it writes, opened again", 500_000, 1000, "load,overwrite")
        }),
    ]
}

/// `script` with as much memory as a `share`th of its data.
fn bounded(script: Script, share: u64) -> Script {
    let bound = script.data_bytes() / share;
    // A third of it for the store itself: the rest is for the page cache and what the process needs beside.
    Script { bound: Some(bound), memory: bound / 3, ..script }
}

fn synced(records: u64) -> Script {
    Script {
        sync: true,
        ..Script::new(
            "sync",
            "1 KB values, every write safe from a power cut",
            records,
            1000,
            "load,overwrite",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_can_run() {
        for scale in [Scale::Quick, Scale::Full] {
            let scripts = scale.scripts();
            for script in &scripts {
                script.validate().unwrap();
                assert_eq!(scripts.iter().filter(|s| s.name == script.name).count(), 1, "{}", script.name);
                assert!(
                    script
                        .bound
                        .is_none_or(|bound| bound * 4 <= script.data_bytes() && script.memory < bound)
                );
            }
        }
    }

    #[test]
    fn the_suites_keep_to_their_time() {
        let seconds = |scale: Scale| -> f64 {
            let of = |script: &Script| script.guess_seconds() * f64::from(script.rounds);
            12.0 * scale.scripts().iter().map(of).sum::<f64>()
        };
        assert!(seconds(Scale::Quick) < 600.0, "{}", seconds(Scale::Quick));
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
