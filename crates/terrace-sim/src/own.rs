//! Worlds that take no memory any more once whoever made them is done with them.

use std::ops::Deref;

use crate::world::World;

/// A world that is emptied when its maker is done with it: a scenario that kills processes forgets what these had, and
/// with it the world.
#[derive(Debug)]
pub struct OwnWorld(pub World);

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
