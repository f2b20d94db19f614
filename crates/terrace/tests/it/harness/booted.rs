//! Real files, as a machine finds them that was booted anew.

use std::path::Path;
use std::sync::Arc;

use terrace::Env;
use terrace::env::RealPm;
use terrace_base::checksum::hash64;
use terrace_base::clock::ManualClock;
use terrace_base::exec::Inline;
use terrace_disk::{Fs, RealFs, forward_fs};

/// The files as a machine finds them that was booted anew, whatever the boot is called.
#[derive(Debug)]
struct Booted(&'static str);

impl Fs for Booted {
    forward_fs! { self, RealFs;
        create create_reserved open_blocks open rename remove sync_file sync_dir list exists create_dir_all
        remove_dir lock lock_to_read free_bytes
    }

    fn epoch(&self, _dir: &Path) -> u64 {
        hash64(self.0.as_bytes()).max(1)
    }
}

/// The environment of a process in that boot.
pub fn booted(boot: &'static str) -> Env {
    Env {
        fs: Arc::new(Booted(boot)),
        pm: Arc::new(RealPm { boot_id: Some(boot.into()) }),
        executor: Arc::new(Inline::default()),
        clock: Arc::new(ManualClock::default()),
        hash_seed: None,
    }
}
