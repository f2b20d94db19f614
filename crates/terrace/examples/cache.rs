//! A cache: answers that are slow to get are kept for a while, and are there again after a restart.
//!
//! `cargo run --release --example cache [DIR]`: threads ask for pages of a site. Who finds none makes it; the others
//! wait for that one. A page lives for a second, what is an error for a tenth of one, and a change of the site
//! invalidates a whole section at once. Run it again on the same DIR, or kill it in between: what is not due is there.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use terrace::{Bytes, Db, Expiry, Keyspace, KeyspaceOptions, Options, Result};

const THREADS: u64 = 4;
const SECTIONS: u64 = 8;
const PAGES: u64 = 40;

/// Answers by key, each for a time.
struct Cache {
    entries: Keyspace,
    /// Locked by who makes an answer, by the hash of its key.
    making: [Mutex<()>; 16],
    hits: AtomicU64,
    misses: AtomicU64,
}

/// What was made for a key, and how long it is to be kept if not as long as others.
struct Made {
    value: Vec<u8>,
    ttl: Option<Duration>,
}

impl Cache {
    fn open(db: &Db, ttl: Duration) -> Result<Cache> {
        let options = KeyspaceOptions { expiry: Some(Expiry::After(ttl)), ..KeyspaceOptions::default() };
        let (hits, misses) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Cache { entries: db.keyspace_with("cache", options)?, making: Default::default(), hits, misses })
    }

    /// The answer for `key`, made by `make` if there is none. Of several threads that ask for it one makes it.
    fn get_or(&self, key: &str, make: impl FnOnce() -> Made) -> Result<Bytes> {
        if let Some(found) = self.entries.get(key)? {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(found);
        }
        let hash = key.bytes().fold(0usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        let _making = self.making[hash % self.making.len()].lock().expect("nobody panics while making");
        if let Some(found) = self.entries.get(key)? {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(found);
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        let Made { value, ttl } = make();
        match ttl {
            Some(ttl) => self.entries.put_with_ttl(key, &value, ttl)?,
            None => self.entries.put(key, &value)?,
        }
        Ok(value.into())
    }

    /// Forgets every answer whose key begins with `prefix`, at once.
    fn invalidate(&self, prefix: &str) -> Result<()> {
        self.entries.delete_range(prefix..&format!("{prefix}\u{10ffff}"))
    }
}

/// The site, which takes its time.
fn page(key: &str, number: u64) -> Made {
    let work = (0..200_000u64).fold(number, |sum, i| sum.wrapping_mul(31).wrapping_add(i));
    match number % 10 {
        0 => Made { value: b"not found".to_vec(), ttl: Some(Duration::from_millis(100)) },
        _ => Made { value: format!("<h1>{key}, {work:x}</h1>").repeat(20).into_bytes(), ttl: None },
    }
}

fn run(dir: &std::path::Path, requests: u64) -> Result<()> {
    let db = Db::open(dir, Options::default())?;
    let cache = Cache::open(&db, Duration::from_secs(1))?;
    println!("{} pages are still there", cache.entries.iter()?.count());
    let client = |thread: u64| -> Result<()> {
        let mut rng = fastrand::Rng::with_seed(thread);
        for request in 0..requests {
            let (section, number) = (rng.u64(..SECTIONS), rng.u64(..PAGES));
            let key = format!("/{section}/{number:03}");
            cache.get_or(&key, || page(&key, number))?;
            if thread == 0 && request % 500 == 499 {
                cache.invalidate(&format!("/{section}/"))?;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || client(thread))).collect();
        clients.into_iter().try_for_each(|client| client.join().expect("no client panics"))
    })?;
    let (hits, misses) = (cache.hits.load(Ordering::Relaxed), cache.misses.load(Ordering::Relaxed));
    println!("{hits} answers from the cache, {misses} made");
    assert_eq!(hits + misses, THREADS * requests);
    db.close()
}

fn main() -> Result<()> {
    let made = std::env::temp_dir().join("terrace-cache");
    let dir = std::env::args_os().nth(1).map_or(made, Into::into);
    println!("the cache is in {}", dir.display());
    run(&dir, 20_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_ask_and_few_are_made_over_two_lives() {
        let dir = tempfile::tempdir().unwrap();
        (0..2).for_each(|_| run(dir.path(), 600).unwrap());
    }

    #[test]
    fn an_answer_is_made_once_until_it_is_due_or_invalid() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), Options::default()).unwrap();
        let cache = Cache::open(&db, Duration::from_secs(3600)).unwrap();
        let made = AtomicU64::new(0);
        let ask = |key: &str, ttl| {
            let make = || {
                let number = made.fetch_add(1, Ordering::Relaxed);
                Made { value: number.to_string().into_bytes(), ttl }
            };
            String::from_utf8(cache.get_or(key, make).unwrap().to_vec()).unwrap()
        };
        assert_eq!((ask("/1/a", None), ask("/1/a", None)), ("0".into(), "0".into()));
        assert_eq!((ask("/2/a", Some(Duration::ZERO)), ask("/2/a", None)), ("1".into(), "2".into()));
        cache.invalidate("/1/").unwrap();
        assert_eq!((ask("/1/a", None), ask("/2/a", None)), ("3".into(), "2".into()));
    }
}
