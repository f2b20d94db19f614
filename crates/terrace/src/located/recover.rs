//! A crash's remains of jobs, and what is reachable in the pool.

use std::collections::BTreeMap;

use terrace_base::Result;
use terrace_index::PointIndex;
use terrace_log::PmLog;
use terrace_pmem::Marks;

use super::job_log::LoggedJob;
use super::jobs::restart_edits;
use super::{Located, Location};

impl Located {
    /// Ends jobs that a crash cut short, with the counts in their logs. What they wrote and had not indexed
    /// is dead; a compaction's inputs become candidates, so that it starts again.
    pub fn end_cut_jobs(&self) -> Result<()> {
        for root in self.roots.all() {
            let Some(head) = self.pool.root(root)? else { continue };
            let mut logged = LoggedJob::new(self);
            let log = PmLog::open_visiting(&self.pool, head, &mut |_, payload| logged.take(payload))?;
            let (id, mut deltas) = logged.finish()?;
            let state = self.manifest.state();
            if state.jobs.contains_key(&id) {
                // The manifest counts a job's output as live from the start.
                for (number, table) in state.tables.iter().filter(|(_, t)| t.job == id) {
                    *deltas.entry(*number).or_default() -= (table.meta.entries - table.meta.deletes) as i64;
                }
                self.commit_job(id, || restart_edits(&state, id), &deltas)?;
            }
            self.pool.clear_root(root)?;
            log.free()?;
        }
        // A job that had started in the manifest always has its log; after a rebuild there is none.
        let state = self.manifest.state();
        for &id in state.jobs.keys() {
            self.commit_job(id, || restart_edits(&state, id), &BTreeMap::new())?;
        }
        Ok(())
    }

    /// Marks the index and its chains.
    pub fn mark(&self, marks: &mut Marks) -> Result<()> {
        self.index.mark(marks)?;
        self.each_word(|_, word| match Location::decode(word) {
            Some(Location::Chain(offset)) => marks.slot(offset),
            _ => Ok(()),
        })
    }

    /// Marks the logs of jobs that have not ended; none begins or ends meanwhile.
    pub fn mark_job_logs(&self, marks: &mut Marks) -> Result<()> {
        let mut heads = self.roots.all().filter_map(|root| self.pool.root(root).transpose());
        heads.try_for_each(|head| PmLog::mark_at(&self.pool, head?, marks))
    }
}
