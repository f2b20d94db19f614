//! The disk of a world: its events pass the world's gate, and its survivors follow the world's seeds.

use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};

use terrace_base::rng::Rng;
use terrace_disk::{Fault, FsEvent, Observer, SimFs};

use crate::event::EventKind;
use crate::pm::Survival;
use crate::refusal::Operation;
use crate::seed::mix;
use crate::world::{Inner, World};

/// Passes a disk's changes on to the world it is part of.
#[derive(Debug)]
struct Watch(Weak<Inner>);

impl Observer for Watch {
    fn before(&self, event: FsEvent<'_>) {
        // A disk that outlives its world has no events.
        let Some(world) = World::upgrade(&self.0) else { return };
        if world.pass(kind(event)) {
            world.fs().inject(Some(Fault { after: 0, only_changes: true, sticky: false }));
        }
    }

    fn refuse(&self, _path: &Path, operation: &'static str) -> Option<io::Error> {
        let world = World::upgrade(&self.0)?;
        world.refusal(Operation::of_disk(operation))
    }
}

/// Makes the changes of `fs` pass the gate of the world behind `world`.
pub(crate) fn watch(fs: &SimFs, world: Weak<Inner>) {
    fs.observe(Some(Arc::new(Watch(world))));
}

/// The disk after a power cut.
pub(crate) fn crashed(fs: &SimFs, survival: Survival) -> SimFs {
    match survival {
        Survival::Nothing | Survival::Wiped | Survival::OnlyPm => fs.crash_losing_all(),
        Survival::Everything | Survival::OnlyDisk => fs.crash_keeping_all(),
        Survival::Seeded(seed) => fs.crash(&mut Rng::new(mix(seed, 6))),
    }
}

fn kind(event: FsEvent<'_>) -> EventKind {
    let own = Path::to_path_buf;
    match event {
        FsEvent::Create { path } => EventKind::Create(own(path)),
        FsEvent::Write { path, bytes } => EventKind::Write(own(path), bytes),
        FsEvent::Sync { path } => EventKind::Sync(own(path)),
        FsEvent::Rename { from, to } => EventKind::Rename(own(from), own(to)),
        FsEvent::Remove { path } => EventKind::Remove(own(path)),
        FsEvent::SyncDir { path } => EventKind::SyncDir(own(path)),
        FsEvent::Lock { path } => EventKind::Lock(own(path)),
        FsEvent::CreateDir { path } => EventKind::CreateDir(own(path)),
    }
}
