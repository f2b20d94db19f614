//! Power cuts and process deaths at every change to the disk, and failing operations.

use parking_lot::Mutex;
use terrace_base::rng::Rng;
use terrace_disk::{Fault, FsEvent, Observer};

use super::super::{State, locate};
use super::*;

/// Takes images of the disk at every event and checks what opens from them.
struct Crasher {
    fs: SimFs,
    inner: Mutex<Inner>,
}

struct Inner {
    rng: Rng,
    /// States that an open may return now; `None` means that there may be no store yet.
    allowed: Vec<Option<State>>,
    images: u64,
}

impl std::fmt::Debug for Crasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Crasher")
    }
}

impl Crasher {
    fn watch(fs: &SimFs, seed: u64) -> Arc<Self> {
        let inner = Inner { rng: Rng::new(seed), allowed: vec![None], images: 0 };
        let crasher = Arc::new(Crasher { fs: fs.clone(), inner: Mutex::new(inner) });
        fs.observe(Some(crasher.clone()));
        crasher
    }

    fn allow(&self, states: Vec<Option<State>>) {
        self.inner.lock().allowed = states;
    }

    fn also_allow(&self, state: Option<State>) {
        self.inner.lock().allowed.push(state);
    }

    fn check_images(&self, at: &str) {
        let mut inner = self.inner.lock();
        let mut images = vec![self.fs.crash_losing_all(), self.fs.fork()];
        images.extend((0..4).map(|_| self.fs.crash(&mut inner.rng)));
        for image in images {
            inner.images += 1;
            let found = open_and_go_on(&image);
            assert!(inner.allowed.contains(&found), "before {at}: {found:#?}");
        }
    }
}

impl Observer for Crasher {
    fn before(&self, event: FsEvent<'_>) {
        self.check_images(&format!("{event:?}"));
    }
}

/// The state that opens from `image`; also checks that the store can continue from there.
fn open_and_go_on(image: &SimFs) -> Option<State> {
    let fs: Arc<dyn Fs> = Arc::new(image.clone());
    if locate(&*fs, dir()).expect("never a damaged database").is_none() {
        let manifest = Manifest::create(fs, dir(), identity()).expect("creation can start over");
        assert_eq!(*reopen(image).state(), *manifest.state());
        return None;
    }
    let manifest = reopen(image);
    let state = (*manifest.state()).clone();
    // A dead process may have left it unsynced, but now that it was read it must stay.
    assert_eq!(*reopen(&image.crash_losing_all()).state(), state);
    manifest.apply(&[add(1000)]).expect("a group goes in after a crash");
    let after = image.crash_losing_all();
    assert_eq!(reopen(&after).state(), manifest.state());
    assert!(manifest.listing().unwrap().leftovers.is_empty());
    Some(state)
}

fn with(state: &State, group: &[Edit]) -> State {
    let mut state = state.clone();
    for edit in group {
        state.apply(edit).expect("the script fits");
    }
    state
}

/// Must catch a group of edits of which a crash leaves a part, and an acknowledged one that it takes.
#[test]
fn a_crash_anywhere_leaves_the_last_state_or_the_next() {
    for (seed, limit) in [(1, 0), (2, 200), (3, 1 << 20)] {
        let fs = SimFs::new();
        fs.create_dir_all(dir()).unwrap();
        let crasher = Crasher::watch(&fs, seed);
        crasher.also_allow(Some(State::new(identity())));
        let manifest = Manifest::create(Arc::new(fs.clone()), dir(), identity()).unwrap();
        let mut manifest = manifest.with_rollover_bytes(limit);
        for (i, group) in script().into_iter().enumerate() {
            let before = (*manifest.state()).clone();
            let after = with(&before, &group);
            crasher.allow(vec![Some(before), Some(after.clone())]);
            manifest.apply(&group).unwrap();
            assert_eq!(*manifest.state(), after);
            crasher.allow(vec![Some(after)]);
            crasher.check_images("the next group");
            match i % 3 {
                1 => manifest = reopen(&fs).with_rollover_bytes(limit),
                2 => manifest.seal().unwrap(),
                _ => (),
            }
        }
        assert!(crasher.inner.lock().images > 200);
    }
}

/// Runs the script with `fault` planned, continuing after errors.
fn run_with_fault(fault: Fault, seed: u64) -> bool {
    let (fs, manifest) = fresh();
    let crasher = Crasher::watch(&fs, seed);
    fs.inject(Some(fault));
    let mut failed = false;
    for group in script() {
        let acknowledged = (*manifest.state()).clone();
        let after = with(&acknowledged, &group);
        crasher.allow(vec![Some(acknowledged.clone()), Some(after.clone())]);
        if manifest.apply(&group).is_err() {
            failed = true;
            assert_eq!(*manifest.state(), acknowledged, "a failure changes nothing");
            crasher.check_images("the second attempt");
            fs.inject(None);
            manifest.apply(&group).unwrap();
        }
        assert_eq!(*manifest.state(), after);
        crasher.allow(vec![Some(after)]);
        crasher.check_images("the next group");
        // The next group starts a new file; a failed seal has no other cost.
        failed |= manifest.seal().is_err();
    }
    failed
}

/// Must catch an operation of the file system that fails unnoticed, or for good.
#[test]
fn a_failing_operation_is_an_error_and_the_next_attempt_succeeds() {
    // Not every failure shows: an old manifest that cannot be removed merely stays.
    let failures = (0..80)
        .filter(|&after| run_with_fault(Fault { after, only_changes: false, sticky: after % 2 == 0 }, after))
        .count();
    assert!(failures > 25, "only {failures} operations failed");
}

/// The sync of a group failed, its process died, and the system still shows the group: an opening that has
/// decided by what it shows keeps the group for good.
/// Must catch a group that an opening relies on and a power cut then takes.
#[test]
fn what_a_failed_sync_has_dropped_and_the_system_shows_is_decided_before_it_counts() {
    let mut only_shown = 0;
    for (at, first) in script().iter().enumerate().flat_map(|(at, _)| (0..4).map(move |first| (at, first))) {
        let (fs, manifest) = fresh();
        fs.show_dropped(true);
        // The effect of a failed sync depends on the number of changes.
        (0..first).for_each(|n| drop(fs.create(&dir().join(format!("foreign{n}"))).unwrap()));
        script().iter().take(at).for_each(|group| manifest.apply(group).unwrap());
        fs.inject(Some(Fault { after: 1, only_changes: true, sticky: false }));
        assert!(manifest.apply(&script()[at]).is_err());
        let killed = fs.fork();
        let shown = reopen(&killed);
        let state = shown.state();
        only_shown += u32::from(reopen(&killed.crash_losing_all()).state() != state);
        shown.decide().unwrap();
        assert_eq!(reopen(&killed.crash_losing_all()).state(), state, "group {at}, {first}");
    }
    assert!(only_shown > 5, "{only_shown} groups were only shown");
}

/// Must catch a failed attempt that comes back beside a later one.
#[test]
fn failures_in_a_row_leave_one_of_the_attempts() {
    let (fs, manifest) = fresh();
    manifest.apply(&[add(1)]).unwrap();
    let acknowledged = (*manifest.state()).clone();
    let crasher = Crasher::watch(&fs, 5);
    crasher.allow(vec![Some(acknowledged.clone())]);
    for after in 0..12 {
        let group = [add(10 + after)];
        crasher.also_allow(Some(with(&acknowledged, &group)));
        fs.inject(Some(Fault { after, only_changes: true, sticky: true }));
        if manifest.apply(&group).is_ok() {
            crasher.allow(vec![Some((*manifest.state()).clone())]);
            break;
        }
        fs.inject(None);
        crasher.check_images("the next attempt");
    }
    fs.inject(None);
    // An empty group ends the failed one.
    manifest.apply(&[]).unwrap();
    crasher.allow(vec![Some((*manifest.state()).clone())]);
    crasher.check_images("the end");
}

/// Must catch a full disk that is reported as something else, or that a manifest does not recover from.
#[test]
fn a_full_disk_is_no_space_and_goes_on_when_there_is_room() {
    let (fs, manifest) = fresh();
    manifest.apply(&[add(1)]).unwrap();
    fs.set_capacity(Some(fs.used_bytes() + 20));
    let error = manifest.apply(&[add(2)]).unwrap_err();
    assert_eq!(error.kind(), terrace_base::ErrorKind::NoSpace);
    assert_eq!(manifest.apply(&[add(2)]).unwrap_err().kind(), terrace_base::ErrorKind::NoSpace);
    fs.set_capacity(None);
    manifest.apply(&[add(2)]).unwrap();
    assert_eq!(reopen(&fs).state(), manifest.state());
    assert_eq!(manifest.state().tables.size(), 2);
}
