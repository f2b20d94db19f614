//! Worlds that give back their memory once their maker is done with them.

use std::ops::Deref;

use crate::world::World;

/// A world that is emptied when its maker is done with it: a scenario that kills processes leaks their objects, and
/// these hold the world.
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
