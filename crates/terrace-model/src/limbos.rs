//! Nothing is freed under a reader, and everything is freed in the end.

use std::sync::Arc;

use shuttle::thread;

use crate::check;
use crate::limbo::Limbo;
use crate::sync::{AtomicUsize, Ordering};

const THINGS: usize = 4;

struct Shared {
    limbo: Limbo<usize>,
    /// The thing that is linked.
    current: AtomicUsize,
    alive: Arc<[AtomicUsize; THINGS]>,
}

fn shared() -> Arc<Shared> {
    let alive: Arc<[AtomicUsize; THINGS]> = Arc::new(std::array::from_fn(|_| AtomicUsize::new(1)));
    let free = alive.clone();
    let limbo = Limbo::new(move |i: usize| {
        assert_eq!(free[i].swap(0, Ordering::SeqCst), 1, "{i} is freed twice");
    });
    Arc::new(Shared { limbo, current: AtomicUsize::new(0), alive })
}

fn read(shared: &Shared) {
    for _ in 0..2 {
        let _here = shared.limbo.enter();
        let i = shared.current.load(Ordering::SeqCst);
        for _ in 0..2 {
            assert_eq!(shared.alive[i].load(Ordering::SeqCst), 1, "{i} was freed under a reader");
        }
    }
}

#[test]
fn nothing_is_freed_under_a_reader() {
    check(|| {
        let shared = shared();
        let mut threads: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || read(&shared))
            })
            .collect();
        threads.push({
            let shared = shared.clone();
            thread::spawn(move || (0..3).for_each(|_| shared.limbo.advance()))
        });
        for i in 1..THINGS {
            shared.current.store(i, Ordering::SeqCst);
            shared.limbo.retire(i - 1);
            shared.limbo.advance();
        }
        threads.into_iter().for_each(|t| t.join().unwrap());
        shared.limbo.drain();
        let left = shared.alive.iter().filter(|a| a.load(Ordering::SeqCst) == 1).count();
        assert_eq!((left, shared.limbo.is_empty()), (1, true));
    });
}

/// A thread that finds limbo empty may take everything that was retired before for freed, also if others free it.
#[test]
fn what_is_empty_has_been_freed() {
    check(|| {
        let shared = shared();
        (1..THINGS).for_each(|i| {
            shared.current.store(i, Ordering::SeqCst);
            shared.limbo.retire(i - 1);
        });
        let other = {
            let shared = shared.clone();
            thread::spawn(move || shared.limbo.drain())
        };
        shared.limbo.drain();
        if shared.limbo.is_empty() {
            let left = shared.alive.iter().filter(|a| a.load(Ordering::SeqCst) == 1).count();
            assert_eq!(left, 1, "freed later");
        }
        other.join().unwrap();
    });
}
