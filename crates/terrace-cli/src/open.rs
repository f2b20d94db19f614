//! Opening a database as the command line asks.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use terrace::manifest::Manifest;
use terrace::{Compression, Db, EngineKind, Error, Options, PoolChoice, Profile, Whose};
use terrace_disk::RealFs;

use crate::failure::{CommandResult, Failure};
use crate::size;

/// The flags that say how to open a database; every command takes them.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Opening the database")]
pub struct OpenArgs {
    /// The engine: where data lives and how it moves [default: slm, or the database's own]
    #[arg(long, global = true, value_name = "NAME", value_parser = parse_engine)]
    pub engine: Option<EngineKind>,

    /// Where the pool lies: auto, a PATH (file, DAX file or device), or `emulated:PROFILE[@PATH]`
    ///
    /// Profiles are dram, optane, cxl, slm and tlsm, or figures such as read=300,drain=100,bw=2G.
    /// Without this flag Terrace uses what the machine has, and an ordinary file where it has none.
    #[arg(long, global = true, value_name = "POOL", value_parser = parse_pool, verbatim_doc_comment)]
    pub pool: Option<Pool>,

    /// DRAM to use for caches, memtables and filters together, such as 256MiB
    #[arg(long, global = true, value_name = "SIZE", value_parser = size::parse)]
    pub memory: Option<u64>,

    /// Persistent memory to use, such as 1GiB
    #[arg(long, global = true, value_name = "SIZE", value_parser = size::parse)]
    pub pm: Option<u64>,

    /// Make every write safe against a power cut before it is acknowledged
    #[arg(long, global = true)]
    pub sync: bool,

    /// Compression of SSTable blocks
    #[arg(long, global = true, value_name = "KIND")]
    pub compression: Option<CompressionArg>,

    /// Set an option of the engine, such as slm.block_bytes=4096; may be given again
    #[arg(long = "set", global = true, value_name = "NAME=VALUE", value_parser = parse_setting)]
    pub settings: Vec<(String, String)>,
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    // Told at once, before anything is opened.
    Options::default().set(name, value).map_err(|e| e.to_string())?;
    Ok((name.to_string(), value.to_string()))
}

/// The compressions there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CompressionArg {
    /// Blocks as they are
    None,
    /// LZ4: fast
    Lz4,
}

/// What `--pool` said, and how it said it.
#[derive(Debug, Clone)]
pub struct Pool {
    choice: PoolChoice,
    text: String,
}

fn parse_engine(text: &str) -> Result<EngineKind, String> {
    EngineKind::parse(text).map_err(|e| plain(&e))
}

/// The sentence of an error about an argument, which clap names itself.
fn plain(error: &Error) -> String {
    match error {
        Error::InvalidArgument(message) => message.clone(),
        other => other.to_string(),
    }
}

fn parse_pool(text: &str) -> Result<Pool, String> {
    let choice = match text.strip_prefix("emulated:") {
        Some(emulated) => {
            let (profile, path) = match emulated.split_once('@') {
                Some((profile, path)) => (profile, Some(absolute(path)?)),
                None => (emulated, None),
            };
            let profile = Profile::parse(profile).map_err(|e| plain(&e))?;
            PoolChoice::Emulated { path, profile }
        }
        None if text == "auto" => PoolChoice::Auto,
        None if text.is_empty() => {
            return Err("a pool is auto, a path or `emulated:PROFILE[@PATH]`".to_string());
        }
        None => PoolChoice::Path(absolute(text)?),
    };
    Ok(Pool { choice, text: text.to_string() })
}

/// A database remembers its pool's path: it must mean the same from every directory.
fn absolute(path: &str) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|e| format!("{path} is no path: {e}"))
}

/// What a command wants to do with the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// Read one that exists.
    Read,
    /// Write to one that exists.
    Write,
    /// Write, making it if there is none.
    Create,
}

impl OpenArgs {
    /// The store's options for what the flags say.
    pub fn options(&self) -> Options {
        let mut options = Options::default();
        if let Some(engine) = self.engine {
            options.engine = engine;
        }
        if let Some(pool) = &self.pool {
            options.pool = pool.choice.clone();
        }
        if let Some(memory) = self.memory {
            options.memory_budget = memory;
        }
        if let Some(pm) = self.pm {
            options.pm_bytes = pm;
        }
        if let Some(compression) = self.compression {
            options.compression = match compression {
                CompressionArg::None => Compression::None,
                CompressionArg::Lz4 => Compression::Lz4,
            };
        }
        options.sync = self.sync;
        for (name, value) in &self.settings {
            options.set(name, value).expect("settings are tried when they are parsed");
        }
        options
    }

    /// The store's options for the database in `dir`: where no engine is named, it has its own.
    pub fn options_for(&self, dir: &Path) -> Options {
        let mut options = self.options();
        if let (None, Some(engine)) = (self.engine, engine_of(dir)) {
            options.engine = engine;
        }
        options
    }

    /// Opens the database in `dir`.
    pub fn open(&self, dir: &Path, intent: Intent) -> CommandResult<Db> {
        match intent {
            Intent::Create => refuse_another(dir)?,
            Intent::Read | Intent::Write => require_database(dir)?,
        }
        let mut options = self.options_for(dir);
        options.create_if_missing = intent == Intent::Create;
        Ok(Db::open(dir, options)?)
    }

    /// The flags again, for a child process that is to open the same database.
    pub fn to_args(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = Vec::new();
        let mut pair = |name: &str, value: String| args.extend([OsString::from(name), OsString::from(value)]);
        for (name, value) in &self.settings {
            pair("--set", format!("{name}={value}"));
        }
        if let Some(engine) = self.engine {
            pair("--engine", engine.name().to_string());
        }
        if let Some(pool) = &self.pool {
            pair("--pool", pool.text.clone());
        }
        if let Some(memory) = self.memory {
            pair("--memory", memory.to_string());
        }
        if let Some(pm) = self.pm {
            pair("--pm", pm.to_string());
        }
        if let Some(kind) = self.compression.and_then(|c| c.to_possible_value()) {
            pair("--compression", kind.get_name().to_string());
        }
        if self.sync {
            args.push(OsString::from("--sync"));
        }
        args
    }
}

/// The engine that the database in `dir` belongs to, as far as its manifest can be read.
fn engine_of(dir: &Path) -> Option<EngineKind> {
    if !matches!(Whose::is(&RealFs, dir), Ok(Whose::Terrace)) {
        return None;
    }
    let salvaged = Manifest::salvage(&RealFs, dir).ok()??;
    EngineKind::parse(&salvaged.state.identity.engine).ok()
}

/// Refuses what another store has made.
fn refuse_another(dir: &Path) -> CommandResult {
    let Ok(Whose::Another(name)) = Whose::is(&RealFs, dir) else { return Ok(()) };
    let dir = dir.display();
    Err(Failure::error(format!("{dir} holds a {name} database and not one of Terrace"))
        .hint("nothing in it was changed; use the tools of its own store"))
}

/// Refuses a directory that is not there, is empty or another store's, before anything is made in it.
pub fn require_database(dir: &Path) -> CommandResult {
    refuse_another(dir)?;
    let problem = match std::fs::read_dir(dir) {
        Ok(mut entries) => match entries.next() {
            Some(_) => return Ok(()),
            None => "the directory is empty",
        },
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => "there is no such directory",
        Err(e) => return Err(Failure::io(dir, "open", e)),
    };
    Err(Failure::error(format!("no database in {}: {problem}", dir.display()))
        .hint("`terrace import DIR FILE` or `terrace put DIR KEY VALUE` makes one"))
}
