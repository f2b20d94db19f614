//! Checks that the needed logs exist and are sound.

use terrace_base::Result;
use terrace_disk::Access;
use terrace_log::PmLog;

use super::replay;
use super::{CommitLog, Log, LogMedium, file};
use crate::core::report::problem;
use crate::manifest::Manifest;

impl CommitLog {
    /// Reads back every log that counts; returns what is wrong.
    pub fn check(&self, manifest: &Manifest) -> Result<Vec<String>> {
        // No log is made meanwhile.
        let _ready = self.ready.lock();
        let series = self.series.lock();
        let all = series.older.iter().chain(&series.current);
        let in_pool = all.filter_map(|log| if let Log::Pool(log) = log { Some(&log.log) } else { None });
        let mut problems: Vec<String> = in_pool.flat_map(PmLog::check).collect();
        if matches!(series.place, LogMedium::Files) {
            let _staying = self.removing.lock();
            problems.extend(self.check_files(manifest)?);
        }
        Ok(problems)
    }

    fn check_files(&self, manifest: &Manifest) -> Result<Vec<String>> {
        let files = self.files_of(manifest.listing()?.logs, true);
        let mut problems = Vec::new();
        replay::check(&files, &manifest.state(), &mut |error| {
            problems.push(problem(error)?);
            Ok(())
        })?;
        problems.dedup();
        Ok(problems)
    }

    /// Whether the logs begun last exist, and the log sealed last is as long as it was; looks at lengths
    /// alone.
    pub fn end_is_there(&self, manifest: &Manifest) -> Result<bool> {
        let (state, fs) = (manifest.state(), self.core.fs());
        let path = |number| file::log_path(&self.core.dir, number);
        for begun in state.needed_begun() {
            if !fs.exists(&path(begun.number))? {
                return Ok(false);
            }
        }
        let Some((number, bytes)) = state.needed_end() else { return Ok(true) };
        Ok(fs.exists(&path(number))? && fs.open(&path(number), Access::Sequential)?.len() == bytes)
    }
}
