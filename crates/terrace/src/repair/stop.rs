//! The request that a repair end before its last step.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace_base::{Error, Result};

/// Whether the repair is to end before its last step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stop(pub Option<&'static AtomicBool>);

impl Stop {
    /// An error once it is requested.
    pub fn look(self, path: &Path) -> Result<()> {
        match self.0 {
            Some(stop) if stop.load(Ordering::Relaxed) => {
                let stopped = std::io::Error::new(std::io::ErrorKind::Interrupted, "the repair was stopped");
                Err(Error::io(path, "repair", stopped))
            }
            _ => Ok(()),
        }
    }
}
