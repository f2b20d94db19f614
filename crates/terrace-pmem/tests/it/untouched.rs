//! Pools that are not written to: by readers, and on other media than they were made on.

use std::sync::Arc;

use terrace_base::ErrorKind;
use terrace_pmem::{Granularity, Media, MemMedia, Pool, PoolOptions};

use crate::stale::{answers, bytes_of, life, medium, small};
use crate::support::{name, other_boot};

/// A pool that is opened to be read, or looked at, is not changed by it: every byte stays, even of a superblock of
/// which one copy is damaged.
#[test]
fn who_only_reads_stores_nothing() {
    let images = life(6);
    for damaged in [None, Some(3), Some(4096 + 20)] {
        let mut image = images.last().unwrap().clone();
        if let Some(at) = damaged {
            image[at] ^= 0x40;
        }
        let right =
            answers(&Pool::open_on(medium(images.last().unwrap()), name(), &small()).unwrap()).unwrap();
        for o in [
            PoolOptions { read_only: true, ..small() },
            PoolOptions { salvage: true, ..small() },
            PoolOptions { read_only: true, ..other_boot() },
        ] {
            let media = medium(&image);
            // From here on a store is a signal that ends the process.
            // SAFETY: the mapping stays where it is; nobody stores to it.
            unsafe {
                let protection = rustix::mm::MprotectFlags::READ;
                rustix::mm::mprotect(media.base().cast(), media.len() as usize, protection).unwrap();
            }
            let o = PoolOptions { max_size: image.len() as u64, ..o };
            let pool = Pool::open_on(media.clone(), name(), &o).unwrap();
            assert_eq!(answers(&pool).unwrap(), right);
            assert_eq!(pool.altered(), []);
            if !o.salvage {
                pool.close().unwrap();
            }
            drop(pool);
            assert!(bytes_of(&media) == image, "{damaged:?}: bytes changed");
        }
    }
}

/// What was made on persistent memory is not written to on an ordinary file, nor the other way round: each kind of
/// media is written in another way. To read it does no harm.
#[test]
fn a_pool_that_was_moved_to_other_media_is_not_written_to() {
    let kinds = [Granularity::Byte, Granularity::CacheLine, Granularity::Page];
    for from in kinds {
        for to in kinds {
            for clean in [true, false] {
                let at = |granularity, image: Option<&[u8]>| {
                    let memory = MemMedia::new(small().size, small().max_size, granularity).unwrap();
                    if let Some(image) = image {
                        // SAFETY: as long as the image, and nobody else knows it yet.
                        unsafe { memory.base().copy_from_nonoverlapping(image.as_ptr(), image.len()) };
                    }
                    Arc::new(memory)
                };
                let first = at(from, None);
                let pool = Pool::create_on(first.clone(), name(), &small()).unwrap();
                pool.set_root("a", 1).unwrap();
                if clean {
                    pool.close().unwrap();
                }
                drop(pool);
                let image = bytes_of(&first);
                let second = at(to, Some(&image));
                let opened = Pool::open_on(second.clone(), name(), &small());
                if (from == Granularity::Page) == (to == Granularity::Page) {
                    assert_eq!(opened.unwrap().root("a").unwrap(), Some(1));
                    continue;
                }
                assert_eq!(opened.unwrap_err().kind(), ErrorKind::InvalidArgument, "{from:?} to {to:?}");
                if clean {
                    let read =
                        Pool::open_on(second.clone(), name(), &PoolOptions { read_only: true, ..small() });
                    assert_eq!(read.unwrap().root("a").unwrap(), Some(1));
                }
                assert!(bytes_of(&second) == image, "{from:?} to {to:?}: bytes changed");
            }
        }
    }
}
