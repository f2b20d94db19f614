//! The subcommands, each a file.

pub mod compare;
pub mod index;
pub mod media;
pub mod memtables;
pub mod plot;
pub mod reads_while_writing;
pub mod regions;
pub mod reports;
pub mod restart;
mod stores;

use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use terrace_bench::StoreResult;

/// The result of a subcommand.
pub type Outcome = StoreResult<()>;

/// Writes what was measured, and the command that measured it, to `path`.
fn save_json<R: Serialize>(path: &Path, runs: &R) -> Outcome {
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    let report = serde_json::json!({ "command": command, "runs": runs });
    std::fs::write(path, serde_json::to_string_pretty(&report)?)
        .map_err(|e| format!("{}: {e}", path.display()).into())
}

/// A directory of our own in `parent`, that may be removed with all that is in it.
fn own(parent: &Path, name: &str) -> std::io::Result<PathBuf> {
    let dir = std::path::absolute(parent)?.join(name);
    if dir.exists() && std::fs::read_dir(&dir)?.next().is_some() {
        let message = format!("{} is not empty; remove it first", dir.display());
        return Err(std::io::Error::other(message));
    }
    std::fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// A bar over `total` operations on standard error, if that is a terminal.
fn progress(name: &str, total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{msg:16} {bar:24} {percent:>3}%  {human_pos}  {per_sec}")
    {
        bar.set_style(style);
    }
    bar.set_message(name.to_string());
    bar
}
