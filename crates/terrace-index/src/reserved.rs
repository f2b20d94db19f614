//! The reservations of a structure that is being made.

use terrace_base::Result;
use terrace_pmem::{Kind, Pool, Slot};

/// Slots, active or not, and the roots that name them. Unless [`keep`](Self::keep) is called, the roots are removed and
/// the slots given back.
pub struct Reserved<'p> {
    pool: &'p Pool,
    slots: Vec<Slot>,
    roots: Vec<String>,
}

impl<'p> Reserved<'p> {
    /// Nothing yet.
    pub fn new(pool: &'p Pool) -> Self {
        Reserved { pool, slots: Vec::new(), roots: Vec::new() }
    }

    /// The offset of a slot for `bytes` of `kind`.
    pub fn take(&mut self, kind: Kind, bytes: u64) -> Result<u64> {
        let slot = self.pool.reserve(kind, bytes)?;
        self.slots.push(slot);
        Ok(slot.offset)
    }

    /// Activates all slots; durable, with what was flushed, on return.
    pub fn activate(&self) {
        self.slots.iter().for_each(|slot| self.pool.activate(slot));
        self.pool.drain();
    }

    /// Lets a root lead to `offset`, durably.
    pub fn name(&mut self, root: &str, offset: u64) -> Result<()> {
        self.pool.set_root(root, offset)?;
        self.roots.push(root.to_owned());
        Ok(())
    }

    /// Everything stays.
    pub fn keep(mut self) {
        self.slots.clear();
        self.roots.clear();
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        // While a root leads to them the slots must stay.
        if self.roots.drain(..).rev().all(|root| self.pool.clear_root(&root).is_ok()) {
            self.slots.drain(..).for_each(|slot| self.pool.cancel(slot));
        }
    }
}
