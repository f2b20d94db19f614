//! The stores that a subcommand measures, where their databases lie, and where its findings go.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use terrace::Profile;
use terrace_bench::StoreResult;
use terrace_bench::compare::contender::{Contender, Place};
use terrace_bench::count;

use super::{Outcome, own, save_json};

/// Which stores, and where.
#[derive(Debug, Args)]
pub struct Stores {
    /// Engines and peers; STORE+OPTION=VALUE is an engine with an option of its own
    #[arg(long, visible_alias = "engine", value_name = "LIST", default_value = "wip", value_delimiter = ',')]
    stores: Vec<String>,
    /// An option of an engine, such as wip.bucket_bytes=67108864; may be given again
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Bytes for write buffers and caches of a store
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = count::parse)]
    memory: u64,
    /// Where databases are made, and removed when they were measured
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// The medium that engines whose names end in -pm have for persistent memory
    #[arg(long, value_name = "PROFILE", default_value = "optane")]
    profile: String,
    /// Where it is emulated: a directory on tmpfs
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pm_dir: PathBuf,
    /// Bytes to which a pool may grow
    #[arg(long, value_name = "BYTES", default_value = "4G", value_parser = count::parse)]
    pm_bytes: u64,
    /// The seed of random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Write everything measured to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw figures into DIR
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
}

/// Directories that go when they are not needed any more, with all that is in them.
#[derive(Debug)]
pub struct Site {
    /// The directories, and the resources of a store.
    pub place: Place,
}

impl Drop for Site {
    fn drop(&mut self) {
        // The next run names directories that could not be removed.
        let _ = fs::remove_dir_all(&self.place.dir);
        let _ = fs::remove_dir_all(&self.place.pm_dir);
    }
}

impl Stores {
    /// The stores.
    pub fn contenders(&self) -> StoreResult<Vec<Contender>> {
        Ok(Contender::parse_all(&self.stores, &self.set)?)
    }

    /// Where they are measured.
    pub fn site(&self) -> StoreResult<Site> {
        Profile::parse(&self.profile)?;
        let name = format!("terrace-bench-{}", std::process::id());
        let place = Place {
            dir: own(&self.dir, &name)?,
            pm_dir: own(&self.pm_dir, &name)?,
            profile: self.profile.clone(),
            pm_bytes: self.pm_bytes,
            memory: self.memory,
        };
        Ok(Site { place })
    }

    /// Writes the files and draws the figures that were asked for.
    pub fn conclude<R: Serialize>(
        &self,
        runs: &[R],
        draw: impl Fn(&Path) -> StoreResult<Vec<PathBuf>>,
    ) -> Outcome {
        if let Some(path) = &self.json {
            save_json(path, &runs)?;
        }
        let drawn = self.svg.as_deref().map(draw).transpose()?;
        drawn.iter().flatten().for_each(|path| println!("{}", path.display()));
        Ok(())
    }
}
