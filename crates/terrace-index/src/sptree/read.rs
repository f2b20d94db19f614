//! Finding the node that a key belongs to, and reading.

use crossbeam_utils::Backoff;
use terrace_base::{Error, Result};

use super::Core;
use super::key::Probe;
use super::mnode::{Locked, Mnode, Version};

/// A search that needs more attempts than this means that the tree is damaged.
pub(super) const MAX_RESTARTS: usize = 1_000_000;

/// Attempts that may fail without a change of a node: beside changes the search tree may miss entries.
const MAX_ASTRAY: usize = 100;

impl Core {
    /// The word of `key`. The caller is present.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<u64>> {
        self.get_from(&Probe::new(key), None)
    }

    /// The same, beginning in the node to which the key belonged a moment ago, at the version then.
    #[inline]
    pub(super) fn get_from(
        &self,
        probe: &Probe<'_>,
        mut located: Option<(&Mnode, Version)>,
    ) -> Result<Option<u64>> {
        if let Some(word) = self.pending_word(probe.key)? {
            return Ok((word != 0).then_some(word));
        }
        loop {
            let (node, version) = match located.take() {
                Some(located) => located,
                None => self.locate(probe)?,
            };
            if let Some(buffered) = self.in_buffer(node, probe, version) {
                match buffered {
                    Some(word) => return Ok((word != 0).then_some(word)),
                    None => continue,
                }
            }
            if let Some(found) = self.find(node, probe, version)? {
                return Ok(found.map(|(_, (_, word, _))| word));
            }
        }
    }

    /// The node that `probe` belongs to, and its version. The caller is present.
    #[inline]
    pub(super) fn locate(&self, probe: &Probe<'_>) -> Result<(&Mnode, Version)> {
        if let Some(found) = self.seek(probe, false) {
            return Ok(found);
        }
        self.locate_slowly(probe, false)
    }

    /// The node that the keys just below `probe` belong to, and its version. There are such keys unless `probe`
    /// is empty.
    pub(super) fn locate_below(&self, probe: &Probe<'_>) -> Result<(&Mnode, Version)> {
        if let Some(found) = self.seek(probe, true) {
            return Ok(found);
        }
        self.locate_slowly(probe, true)
    }

    /// The node that `probe` belongs to, locked. The caller is present and has no node locked.
    pub(super) fn lock_leaf_of(&self, probe: &Probe<'_>) -> Result<Locked<'_>> {
        loop {
            let (node, _) = self.locate(probe)?;
            let locked = node.lock();
            let version = node.version();
            if !version.is_dead() && node.covers(probe, version) == Some(true) {
                return Ok(locked);
            }
        }
    }

    /// One attempt.
    #[inline]
    fn seek(&self, probe: &Probe<'_>, below: bool) -> Option<(&Mnode, Version)> {
        Self::fitting(self.leading_to(probe, below)?, probe, below)
    }

    /// The node to which the search tree leads; it is being loaded.
    #[inline]
    pub(super) fn leading_to(&self, probe: &Probe<'_>, below: bool) -> Option<&Mnode> {
        let node = self.node_at(self.art.floor(probe.key, below)?);
        node.prefetch();
        Some(node)
    }

    /// `node` and its version, if `probe` belongs to it.
    #[inline]
    pub(super) fn fitting<'n>(
        node: &'n Mnode,
        probe: &Probe<'_>,
        below: bool,
    ) -> Option<(&'n Mnode, Version)> {
        let version = node.version();
        let fits = if below { node.covers_below(probe, version) } else { node.covers(probe, version) };
        (!version.is_dead() && fits == Some(true)).then_some((node, version))
    }

    #[cold]
    fn locate_slowly(&self, probe: &Probe<'_>, below: bool) -> Result<(&Mnode, Version)> {
        let backoff = Backoff::new();
        let mut astray = 0;
        for _ in 0..MAX_RESTARTS {
            if !self.rebuild.is_whole() {
                self.revive(probe, below)?;
            }
            if let Some(found) = self.seek(probe, below) {
                return Ok(found);
            }
            astray += usize::from(self.leads_astray(probe, below));
            if astray > MAX_ASTRAY {
                break;
            }
            backoff.snooze();
        }
        Err(self.no_leaf())
    }

    #[cold]
    pub(super) fn no_leaf(&self) -> Error {
        self.pool.corruption(self.header_off, "a leaf for every key", "none")
    }

    /// Whether the search tree leads `probe`, whose leaf has a node, to a living node of another range that nobody is
    /// changing: a split or merge has its nodes locked until it leads to the right one.
    fn leads_astray(&self, probe: &Probe<'_>, below: bool) -> bool {
        let Some(node) = self.art.floor(probe.key, below).map(|at| self.node_at(at)) else { return true };
        let Some(_alone) = node.try_lock() else { return false };
        let version = node.version();
        let fits = if below { node.covers_below(probe, version) } else { node.covers(probe, version) };
        !version.is_dead() && fits == Some(false)
    }
}
