//! A walk that leaves an empty range beside a writer that puts a key into it: a walk that sees the key does not skip
//! it.

use std::ops::Bound;
use std::sync::Arc;

use shuttle::thread;

use crate::check;
use crate::core::empty_ranges::{EmptyRanges, Skip};
use crate::core::engine::Direction;
use crate::sync::{AtomicU64, Ordering};

const ALL: Bound<&[u8]> = Bound::Unbounded;

#[derive(Default)]
struct Shared {
    ranges: EmptyRanges,
    visible: AtomicU64,
}

impl Shared {
    /// A walk over a database in which write 1 puts `b`, beside `m` that lives; everything else is deleted.
    fn walk(&self) {
        let at = self.visible.load(Ordering::SeqCst);
        let first: &[u8] = if at >= 1 { b"b" } else { b"m" };
        if let Skip::To(Bound::Included(behind)) = self.ranges.skip(Direction::Forward, ALL, at) {
            assert!(*behind <= *first, "a walk at {at} skips {first:?}");
        }
        self.ranges.note(Direction::Forward, ALL, at, Some(first), 100);
    }
}

#[test]
fn no_walk_skips_what_it_should_see() {
    check(|| {
        let shared = Arc::new(Shared::default());
        let walks = |shared: &Arc<Shared>| {
            let shared = shared.clone();
            thread::spawn(move || (0..3).for_each(|_| shared.walk()))
        };
        let readers = [walks(&shared), walks(&shared)];
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.ranges.write(1, std::iter::once(&b"b"[..]));
                shared.visible.store(1, Ordering::SeqCst);
            })
        };
        readers.into_iter().chain([writer]).for_each(|thread| thread.join().unwrap());
        shared.walk();
    });
}
