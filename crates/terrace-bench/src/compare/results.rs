//! Every raw figure of a comparison, as JSON.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::contender::Contender;
use super::entrant::Entrant;
use super::machine::{Counters, Machine};
use super::script::Script;
use crate::outcome::Outcome;
use crate::peers::Settings;
use crate::store::StoreResult;
use crate::tally::Kept;

/// The file in a comparison's directory.
pub const FILE: &str = "results.json";

/// The version of the JSON that this module reads and writes.
pub const VERSION: u32 = 2;

/// A whole comparison.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Results {
    /// [`VERSION`].
    pub version: u32,
    /// The suite's name.
    pub suite: String,
    /// When it began, UTC.
    pub began: String,
    /// Seconds that it took.
    pub seconds: f64,
    /// Where.
    pub machine: Machine,
    /// The emulated medium that engines had for persistent memory.
    pub pm_profile: String,
    /// The stores, in the order of the command line.
    pub entrants: Vec<String>,
    /// The scripts.
    pub scripts: Vec<Script>,
    /// The sessions.
    pub sessions: Vec<Session>,
    /// Remarks for the reader.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// One store doing one script once.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Session {
    /// The store.
    pub entrant: String,
    /// The script.
    pub script: String,
    /// Which round of it, from 0.
    pub round: u32,
    /// The settings that the store was opened with.
    pub settings: Settings,
    /// The benchmarks, in order.
    pub steps: Vec<Step>,
    /// Seconds to open the empty store.
    pub open_seconds: f64,
    /// Seconds to close it.
    pub close_seconds: f64,
    /// The process's counters from its start until the store was closed.
    pub total: Counters,
    /// Key and value bytes written by all steps.
    pub user_bytes: u64,
    /// Most memory of its own that the process had, sampled: neither the page cache nor persistent memory is in it.
    pub dram_peak_bytes: u64,
    /// Whether its memory was bounded as the script asks.
    pub bounded: bool,
    /// After a kill: how it was opened again.
    pub reopening: Option<Reopening>,
    /// Why it ended early, if it did.
    pub error: Option<String>,
}

/// One benchmark of a session.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Step {
    /// Its name; with a number where a script has it more than once.
    pub name: String,
    /// The benchmark's result.
    pub outcome: Outcome,
    /// Counters of the process and the device meanwhile.
    pub counters: Counters,
    /// Bytes of its own memory at the end.
    pub dram_bytes: u64,
    /// Bytes of its files on the SSD at the end.
    pub ssd_bytes: u64,
    /// Bytes of its files on persistent memory at the end.
    pub pm_bytes: u64,
    /// Key and value bytes of the records in it at the end, where they are known.
    pub live_bytes: Option<u64>,
}

/// Opening after SIGKILL.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Reopening {
    /// Seconds until it was open.
    pub open_seconds: f64,
    /// Seconds of the first read after that.
    pub first_read_seconds: f64,
    /// How many of the acknowledged writes it still had.
    pub kept: Kept,
}

impl Step {
    /// SSD bytes written, by the kernel's account, per byte that the benchmark wrote.
    pub fn write_amplification(&self) -> Option<f64> {
        ratio(self.counters.written_bytes, self.outcome.counts.bytes_written)
    }

    /// SSD bytes read, by the kernel's account, per byte that the benchmark read.
    pub fn read_amplification(&self) -> Option<f64> {
        ratio(self.counters.read_bytes, self.outcome.counts.bytes_read)
    }

    /// Bytes of files per byte of records.
    pub fn space_amplification(&self) -> Option<f64> {
        ratio(self.ssd_bytes + self.pm_bytes, self.live_bytes?)
    }

    /// Microseconds of processor time for an operation, background work included.
    pub fn cpu_micros(&self) -> f64 {
        self.counters.cpu_seconds * 1e6 / self.outcome.counts.operations.max(1) as f64
    }
}

fn ratio(a: u64, b: u64) -> Option<f64> {
    (b > 0).then(|| a as f64 / b as f64)
}

impl Results {
    /// Those of the directory `dir`.
    pub fn load(dir: &Path) -> StoreResult<Results> {
        let path = dir.join(FILE);
        let failed = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        let text = std::fs::read_to_string(&path).map_err(|e| failed(&e))?;
        let results: Results = serde_json::from_str(&text).map_err(|e| failed(&e))?;
        if results.version != VERSION {
            return Err(failed(&format!("version {} is not {VERSION}", results.version)).into());
        }
        Ok(results)
    }

    /// Writes them into `dir`.
    pub fn save(&self, dir: &Path) -> StoreResult<()> {
        let path = dir.join(FILE);
        let text = serde_json::to_string(self)?;
        std::fs::write(&path, text + "\n").map_err(|e| format!("{}: {e}", path.display()).into())
    }

    /// Those of the entrants that `keep` names.
    pub fn only(&self, keep: impl Fn(Entrant) -> bool) -> Results {
        let kept = |name: &String| Contender::entrant_of(name).is_ok_and(&keep);
        Results {
            entrants: self.entrants.iter().filter(|name| kept(name)).cloned().collect(),
            sessions: self.sessions.iter().filter(|session| kept(&session.entrant)).cloned().collect(),
            ..self.clone()
        }
    }

    /// The script called `name`.
    pub fn script(&self, name: &str) -> Option<&Script> {
        self.scripts.iter().find(|s| s.name == name)
    }
}
