//! Failures of commands: an exit code, a sentence, and a hint.

use std::io;
use std::path::Path;

use terrace_base::{Error, ErrorKind};

/// The result of every command.
pub type CommandResult<T = ()> = Result<T, Failure>;

/// The exit codes, as `terrace --help` documents them.
pub mod exit {
    /// Done.
    pub const OK: u8 = 0;
    /// The key is not there, or the database is damaged.
    pub const NOT_FOUND: u8 = 1;
    /// The command line makes no sense.
    pub const USAGE: u8 = 2;
    /// Anything else: the database is in use, the disk is full, a line of input is wrong.
    pub const ERROR: u8 = 3;
}

/// A command that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The process's exit code.
    pub code: u8,
    /// The message; may be empty.
    pub message: String,
    /// A hint at what to do. `DIR` stands for the database's directory.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure with `code`.
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Failure { code, message: message.into(), hint: None }
    }

    /// A failure of code [`exit::ERROR`].
    pub fn error(message: impl Into<String>) -> Self {
        Failure::new(exit::ERROR, message)
    }

    /// A command line that makes no sense.
    pub fn usage(message: impl Into<String>) -> Self {
        Failure::new(exit::USAGE, message)
    }

    /// A failure without a message: it was reported already, or needs none.
    pub fn silent(code: u8) -> Self {
        Failure::new(code, "")
    }

    /// Adds a hint; `DIR` in it becomes the database's directory.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// An error of the system on `path`.
    pub fn io(path: &Path, operation: &'static str, error: io::Error) -> Self {
        Error::io(path, operation, error).into()
    }

    /// The message and the hint as lines for a person, or nothing.
    pub fn render(&self, dir: Option<&Path>) -> String {
        if self.message.is_empty() {
            return String::new();
        }
        let mut text = format!("terrace: {}\n", self.message);
        if let Some(hint) = &self.hint {
            let shown = dir.map_or("DIR".to_string(), |d| d.display().to_string());
            text.push_str(&format!("  {}\n", hint.replace("DIR", &shown)));
        }
        text
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::InvalidArgument | ErrorKind::NoKeyspace => exit::USAGE,
            _ => exit::ERROR,
        };
        let message = match &error {
            Error::InvalidArgument(message) => message.clone(),
            other => other.to_string(),
        };
        let failure = Failure::new(code, message);
        match hint_for(error.kind()) {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

fn hint_for(kind: ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::Corruption => {
            "`terrace check DIR` says what is damaged; `terrace repair DIR` rebuilds what can be rebuilt"
        }
        ErrorKind::InvalidFormat => "it may have been made by another version of Terrace; use that one",
        ErrorKind::Locked => "wait for the other process to end, or stop it, and try again",
        ErrorKind::Poisoned => "mend the cause and open the database again; what was acknowledged is kept",
        ErrorKind::NoSpace => "free some space and try again; what was acknowledged is kept",
        ErrorKind::PoolFull => {
            "give it more with `--pm SIZE`, or with `--set tlsm.list_bytes=SIZE` where that bounds it, and try again; \
             what was acknowledged is kept"
        }
        ErrorKind::NoKeyspace => "`terrace keyspaces DIR` lists those that there are",
        ErrorKind::Unsupported => "another engine can: see `--engine` in `terrace put --help`",
        _ => return None,
    })
}

/// The result of writing to standard output; a reader that has gone away is not a failure.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::silent(exit::OK),
            _ => Failure::error(format!("cannot write the output: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_name_the_directory() {
        let failure = Failure::from(Error::corruption(Path::new("x.sst"), 3, "a", "b"));
        let text = failure.render(Some(Path::new("/data/db")));
        assert!(text.starts_with("terrace: corruption in x.sst at byte 3"), "{text}");
        assert!(text.contains("`terrace check /data/db`"), "{text}");
    }

    #[test]
    fn a_reader_that_left_is_quiet() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!((failure.code, failure.render(None)), (exit::OK, String::new()));
    }

    #[test]
    fn codes_follow_the_kind() {
        assert_eq!(Failure::from(Error::invalid("x")).code, exit::USAGE);
        assert_eq!(Failure::from(Error::NotFound { dir: "x".into() }).code, exit::ERROR);
        assert_eq!(Failure::from(Error::ReadOnly).code, exit::ERROR);
    }
}
