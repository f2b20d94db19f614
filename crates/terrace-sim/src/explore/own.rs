//! The worlds that an explorer makes, and is done with.

use std::ops::Deref;

use crate::world::World;

/// A world that is emptied when its explorer is done with it: a scenario that kills processes forgets what these had, and
/// with it the world.
pub(super) struct OwnWorld(pub(super) World);

impl Deref for OwnWorld {
    type Target = World;

    fn deref(&self) -> &World {
        &self.0
    }
}

impl Drop for OwnWorld {
    fn drop(&mut self) {
        self.0.empty();
    }
}
