//! `terrace-bench media`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use terrace_bench::count;
use terrace_bench::media::{Spec, drive, memory, slots, table};
use terrace_pmem::Profile;

use super::{Outcome, own, save_json};

/// Measures the parts of stores: writes to persistent memory and to a drive, and items in slots.
///
/// The latency of a write by its size, durable when it is done; the gain of submitting several writes together over a
/// call for each, with a sync for all and without; and items that several threads write into slots.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  terrace-bench media --dir . --memory emulated:optane@/dev/shm/pool --json media.json"
)]
pub struct Media {
    /// Where the file lies that is written to
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Persistent memory: a path, or emulated:PROFILE@PATH; none is measured without
    #[arg(long, value_name = "POOL")]
    memory: Option<String>,
    /// Bytes that are written to
    #[arg(long, value_name = "BYTES", default_value = "128M", value_parser = count::parse)]
    bytes: u64,
    /// Milliseconds for each row
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    time: u64,
    /// Write what was measured to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Media {
    /// Runs the command.
    pub fn run(&self) -> Outcome {
        let pool = self.memory.as_deref().map(parse).transpose()?;
        let spec = Spec {
            // Whole pieces of every size.
            bytes: self.bytes.next_multiple_of(1 << 20),
            time: Duration::from_millis(self.time),
            profile: pool.as_ref().and_then(|(profile, _)| *profile),
        };
        let dir = own(&self.dir, "terrace-media")?;
        let mut rows = Vec::new();
        if let Some((_, path)) = &pool {
            rows.extend(memory(&spec, path)?);
        }
        rows.extend(drive(&spec, &dir.join("drive"))?);
        rows.extend(slots(&spec, &dir.join("slots"))?);
        std::fs::remove_dir(&dir)?;
        print!("{}", table(&rows));
        self.json.as_ref().map_or(Ok(()), |path| save_json(path, &rows))
    }
}

/// The medium that a pool emulates, if it emulates one, and its path.
fn parse(text: &str) -> Result<(Option<Profile>, PathBuf), String> {
    let Some(emulated) = text.strip_prefix("emulated:") else { return Ok((None, text.into())) };
    let (profile, path) = emulated.split_once('@').ok_or("emulated:PROFILE@PATH is expected")?;
    Ok((Some(Profile::parse(profile).map_err(|e| e.to_string())?), path.into()))
}
