//! Moments between two steps of a structure change, made by hand.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use terrace_pmem::{POff, Pool, PoolOptions};
use terrace_sim::{Survival, World, WorldOptions};

use super::build::Fresh;
use super::key::Target;
use super::layout::{FORWARD_AT, MERGE_AT, NOT_DURABLE};
use super::{FastFair, PointIndex};

type Small = FastFair<4>;

fn options(world: &World) -> PoolOptions {
    PoolOptions {
        size: 256 << 10,
        max_size: 8 << 20,
        extent_bytes: 4096,
        prefault: false,
        boot_id: Some(world.boot_id().into()),
        ..PoolOptions::default()
    }
}

fn tree_in(world: &World, keys: u8) -> Small {
    let pool = Pool::create_on(world.media(), Path::new("pm"), &options(world)).unwrap();
    let tree = Small::create(&pool, "tree").unwrap();
    for i in 0..keys {
        tree.insert(&[i * 10], u64::from(i) + 1).unwrap();
    }
    tree
}

#[test]
fn what_lies_behind_a_switch_that_is_not_durable_yet_is_durable_when_acknowledged() {
    let world = World::new(1, WorldOptions::default());
    let tree = tree_in(&world, 4);
    {
        // A writer stops after the store that switches to the new nodes, before it is flushed.
        let leaf = tree.descend(Target::At(&[0]), 0).unwrap().unwrap().node;
        let lock = tree.lock(leaf).unwrap();
        let items = tree.gather(leaf).unwrap().items;
        let mut fresh = Fresh::new(&tree.pool);
        let left = tree.build_two(&mut fresh, leaf, &items, 2, &[99]).unwrap();
        fresh.keep();
        tree.pool.drain();
        let at = POff::new(leaf.off + FORWARD_AT);
        tree.pool.atomic(at).store(left | NOT_DURABLE, Ordering::Release);
        drop(lock);
    }
    tree.insert(&[5], 50).unwrap();
    let survivor = world.capture().power_cut(Survival::Nothing);
    let pool = Pool::open_on(survivor.media(), Path::new("pm"), &options(&survivor)).unwrap();
    let tree = Small::open(&pool, "tree").unwrap();
    assert_eq!(tree.get(&[5]).unwrap(), Some(50));
    (0..4u8).for_each(|i| assert_eq!(tree.get(&[i * 10]).unwrap(), Some(u64::from(i) + 1)));
    assert_eq!(tree.check().unwrap(), Vec::<String>::new());
}

#[test]
fn a_stale_hint_of_a_merge_leads_nobody_astray() {
    let world = World::new(2, WorldOptions::default());
    let tree = tree_in(&world, 6);
    // As a crash leaves it between hint and switch.
    let left = tree.descend(Target::At(&[0]), 0).unwrap().unwrap().node;
    let right = tree.node(left.next()).unwrap();
    tree.pool.publish(POff::new(right.off + MERGE_AT), left.off);
    // The left node is replaced in another way.
    (1..8u8).for_each(|i| drop(tree.insert(&[i], 7)));
    assert_ne!(tree.live(left.off).unwrap().off, left.off);
    (0..6u8).for_each(|i| assert_eq!(tree.get(&[i * 10]).unwrap(), Some(u64::from(i) + 1)));
    assert_eq!(tree.check().unwrap(), Vec::<String>::new());
}

#[test]
fn a_lock_that_another_has_is_left_alone() {
    const ROUNDS: usize = 20_000;
    let world = World::new(3, WorldOptions::default());
    let tree = tree_in(&world, 2);
    let leaf = tree.descend(Target::At(&[0]), 0).unwrap().unwrap().node;
    let holders = AtomicUsize::new(0);
    let hold = |locked| {
        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two hold one lock");
        holders.fetch_sub(1, Ordering::SeqCst);
        drop(locked);
    };
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| (0..ROUNDS).for_each(|_| hold(tree.lock(leaf).unwrap())));
            s.spawn(|| (0..ROUNDS).filter_map(|_| tree.try_lock_sound(leaf)).for_each(hold));
        }
    });
}
