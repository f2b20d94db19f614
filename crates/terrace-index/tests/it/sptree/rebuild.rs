//! Rebuilding the layers in DRAM beside writers.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_index::PointIndex;
use terrace_pmem::Pool;
use terrace_sim::{World, WorldOptions};

use super::{Lagging, Sp, all, check, long_key};
use crate::bed::world_options;
use crate::conformance::Case;

/// A thread that rebuilds finds a leaf in the chain as soon as a split has stored the link to it. It must not make a
/// node for it beside the one that the split makes: writers would follow the one, scans the other.
#[test]
fn a_leaf_that_is_being_split_off_has_one_node() {
    let mut reached = 0;
    for moment in 0.. {
        let world = World::new(3, WorldOptions::default());
        let pool = Pool::create_on(world.media(), Path::new("pm"), &world_options(&world)).unwrap();
        drop(Sp::<6, false, 0>::create(&pool).unwrap());
        let tree = Arc::new(Lagging::<6, 0>::open(&pool).unwrap());
        let due = Arc::new(Mutex::new(Some((moment, tree.clone()))));
        let left = due.clone();
        world.on_event(Box::new(move |_, _| {
            let now = match &mut *left.lock() {
                Some((0, tree)) => tree.clone(),
                Some((left, _)) => return *left -= 1,
                None => return,
            };
            *left.lock() = None;
            now.rebuild().unwrap();
        }));
        for i in 0..30 {
            tree.insert(&long_key(i), i + 1).unwrap();
        }
        world.ignore_events();
        assert_eq!(all(&tree).len(), 30, "rebuilt at moment {moment}");
        check(&tree);
        if due.lock().take().is_some() {
            break;
        }
        reached += 1;
    }
    assert!(reached > 40, "{reached} moments within the writes");
}
