//! Opening a database as the command line asks.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use terrace::manifest::Manifest;
use terrace::{Compression, Db, EngineKind, Error, Event, Options, PoolChoice, Whose};
use terrace_base::{ErrorKind, size};
use terrace_disk::{RealFs, ScratchFs};

use crate::failure::{CommandResult, Failure};

/// The flags that say how to open a database; every command that opens one takes them, behind its own.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Database options")]
pub struct OpenArgs {
    /// The engine, when a database is made
    #[arg(long, hide_short_help = true, value_name = "NAME", value_parser = parse_engine,
        help = engines(), long_help = about_engines())]
    pub engine: Option<EngineKind>,

    /// Where the pool of persistent memory lies: auto, a PATH, or `emulated:PROFILE[@PATH]`
    ///
    /// PATH is a file, best on a DAX file system, or a devdax device. A profile is dram, optane, cxl, slm or
    /// tlsm, or figures such as read=300,drain=100,bw=2G. A database knows its pool: the flag is needed when
    /// it is made, and when the pool has been moved. auto is a file in DIR.
    #[arg(long, hide_short_help = true, value_name = "POOL", value_parser = parse_pool)]
    pub pool: Option<Pool>,

    /// DRAM to use at most, for caches, memtables and filters together [default: 256MiB]
    #[arg(long, hide_short_help = true, value_name = "SIZE", value_parser = parse_memory)]
    pub memory: Option<u64>,

    /// Size to which the pool may grow [default: 16GiB]
    #[arg(long, hide_short_help = true, value_name = "SIZE", value_parser = parse_pm)]
    pub pm: Option<u64>,

    /// Acknowledge a write only when it is safe against a power cut
    #[arg(long, hide_short_help = true)]
    pub sync: bool,

    /// How new SSTables are compressed [default: none]
    #[arg(long, hide_short_help = true, value_name = "KIND")]
    pub compression: Option<CompressionArg>,

    /// Print to standard error what happens: flushes, compactions, stalls and failures
    #[arg(long, hide_short_help = true)]
    pub events: bool,

    /// Take options from a TOML file; flags go before it
    ///
    /// Options of an engine stand in a table with its name. `terrace options --toml` prints a file with all of them.
    #[arg(long, hide_short_help = true, value_name = "FILE", value_parser = parse_config)]
    pub config: Option<Config>,

    /// Set an option, such as slm.block_bytes=4KiB; may be given again
    ///
    /// `terrace options` lists them all, with the values that each may have.
    #[arg(long = "set", hide_short_help = true, value_name = "NAME=VALUE", value_parser = parse_setting)]
    pub settings: Vec<(String, String)>,
}

/// The file of `--config`.
#[derive(Debug, Clone)]
pub struct Config {
    path: PathBuf,
    /// Its contents, which have been tried.
    text: String,
}

fn parse_config(path: &str) -> Result<Config, String> {
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    Options::default().set_toml(&text).map_err(|e| plain(&e))?;
    Ok(Config { path: std::path::absolute(path).map_err(|e| e.to_string())?, text })
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    // Checked at once, before anything is opened.
    Options::default().set(name, value).map_err(|e| plain(&e))?;
    Ok((name.to_string(), value.to_string()))
}

fn parse_memory(text: &str) -> Result<u64, String> {
    sized("memory_budget", text)
}

fn parse_pm(text: &str) -> Result<u64, String> {
    sized("pm_bytes", text)
}

/// A size that the store's option `name` can have.
fn sized(name: &str, text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    Options::default().set(name, &bytes.to_string()).map(|()| bytes).map_err(|e| plain(&e))
}

/// The compressions there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CompressionArg {
    /// Blocks as they are
    None,
    /// LZ4: fast
    Lz4,
}

/// The value of `--pool`, and its text.
#[derive(Debug, Clone)]
pub struct Pool {
    choice: PoolChoice,
    text: String,
}

/// The help text about the engines.
fn engines() -> String {
    let names: Vec<&str> = EngineKind::ALL.iter().map(|engine| engine.name()).collect();
    let names = match names.split_last() {
        Some((last, [])) => last.to_string(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    };
    format!("The engine, when a database is made: {names} [default: {}]", EngineKind::default().name())
}

fn about_engines() -> String {
    format!("{}\n\nA database that is there has its own, and this flag is not needed for it.", engines())
}

fn parse_engine(text: &str) -> Result<EngineKind, String> {
    EngineKind::parse(text).map_err(|e| plain(&e))
}

/// The sentence of an error about an argument, which clap names itself.
pub fn plain(error: &Error) -> String {
    match error {
        Error::InvalidArgument(message) => message.clone(),
        other => other.to_string(),
    }
}

fn parse_pool(text: &str) -> Result<Pool, String> {
    let choice = PoolChoice::parse(text).map_err(|e| plain(&e))?;
    Ok(Pool { choice, text: text.to_string() })
}

/// The use that a command makes of the database.
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
    /// The store's options that follow from the flags and the file.
    pub fn options(&self) -> Options {
        self.onto(Options::default())
    }

    /// The engine that the flags or the file name.
    pub fn engine_asked(&self) -> Option<EngineKind> {
        let over = |engine| self.onto(Options { engine, ..Options::default() }).engine;
        let (one, other) = (over(EngineKind::Slm), over(EngineKind::Lsm));
        (one == other).then_some(one)
    }

    fn onto(&self, mut options: Options) -> Options {
        if let Some(config) = &self.config {
            options.set_toml(&config.text).expect("the file is tried when it is parsed");
        }
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
        options.sync |= self.sync;
        if self.events {
            // Whoever closes standard error wants none.
            options.listeners.add(|event: &Event| drop(writeln!(std::io::stderr(), "{event:?}")));
        }
        for (name, value) in &self.settings {
            options.set(name, value).expect("settings are tried when they are parsed");
        }
        options
    }

    /// The store's options for the database in `dir`: it keeps its own engine if none is named.
    pub fn options_for(&self, dir: &Path) -> Options {
        self.onto(Options { engine: engine_of(dir).unwrap_or_default(), ..Options::default() })
    }

    /// Opens the database in `dir`.
    pub fn open(&self, dir: &Path, intent: Intent) -> CommandResult<Db> {
        match intent {
            Intent::Create => {
                refuse_another(dir)?;
                require_directory(dir)?;
            }
            Intent::Read | Intent::Write => require_database(dir)?,
        }
        if intent == Intent::Read {
            return self.open_to_read(dir, Failure::from);
        }
        let mut options = self.options_for(dir);
        options.create_if_missing &= intent == Intent::Create;
        match Db::open(dir, options.clone()) {
            // A pool that was moved to other media must not be written to; its contents can be read there.
            Err(Error::InvalidArgument(_)) if intent == Intent::Read && !options.read_only => {
                let reading = Options { read_only: true, ..options.clone() };
                Ok(Db::open(dir, reading).or_else(|_| Db::open(dir, options))?)
            }
            opened => Ok(opened?),
        }
    }

    /// Opens the database in `dir` without writing there. If an unclean end requires opening it for writing, that is
    /// done first. `explain` explains an error.
    pub fn open_to_read(&self, dir: &Path, explain: fn(Error) -> Failure) -> CommandResult<Db> {
        let writing = Options { create_if_missing: false, ..self.options_for(dir) };
        let reading = Options { read_only: true, ..writing.clone() };
        let unclosed = match Db::open(dir, reading.clone()) {
            Err(e) if e.kind() == ErrorKind::NotClosed => e,
            opened => return opened.map_err(explain),
        };
        let recovered = Db::open(dir, writing).and_then(|db| db.close());
        recovered.map_err(|e| {
            let mut failure = explain(e);
            failure.message = format!("{unclosed}, and that failed: {}", failure.message);
            failure
        })?;
        Db::open(dir, reading).map_err(explain)
    }

    /// The flags again, for a child process that is to open the same database.
    pub fn to_args(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = Vec::new();
        let mut pair = |name: &str, value: String| args.extend([OsString::from(name), OsString::from(value)]);
        if let Some(config) = &self.config {
            pair("--config", config.path.display().to_string());
        }
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
        let flags = [("--sync", self.sync), ("--events", self.events)];
        args.extend(flags.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| OsString::from(name)));
        args
    }
}

/// The engine that the database in `dir` belongs to, as far as its manifest can be read.
fn engine_of(dir: &Path) -> Option<EngineKind> {
    if !matches!(Whose::is(&RealFs, dir), Ok(Whose::Terrace)) {
        return None;
    }
    // Looking at it changes nothing.
    let salvaged = Manifest::salvage(&ScratchFs::new(Arc::new(RealFs)), dir).ok()??;
    EngineKind::parse(&salvaged.state.identity.engine).ok()
}

/// Refuses a path that names something other than a directory.
fn require_directory(dir: &Path) -> CommandResult {
    match std::fs::metadata(dir) {
        Ok(found) if !found.is_dir() => {
            let dir = dir.display();
            Err(Failure::usage(format!("{dir} is no directory, and a database is one")))
        }
        _ => Ok(()),
    }
}

/// Refuses another store's database.
fn refuse_another(dir: &Path) -> CommandResult {
    let Ok(Whose::Another(name)) = Whose::is(&RealFs, dir) else { return Ok(()) };
    let dir = dir.display();
    Err(Failure::error(format!("{dir} holds a {name} database and not one of Terrace"))
        .hint("nothing in it was changed; use the tools of its own store"))
}

/// Refuses a directory that is not there, is empty or another store's, before anything is made in it.
pub fn require_database(dir: &Path) -> CommandResult {
    refuse_another(dir)?;
    require_directory(dir)?;
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
