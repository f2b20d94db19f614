//! Files of slots: items and stamps, each found by itself.

use std::path::PathBuf;
use std::sync::OnceLock;

use terrace::{InSlots, SlotsFile};
use terrace_base::Error;

use crate::memory::{dir, files, typed};
use crate::patched;

fn path() -> PathBuf {
    dir().join("SLOTS")
}

fn sound() -> &'static [u8] {
    static SOUND: OnceLock<Vec<u8>> = OnceLock::new();
    SOUND.get_or_init(terrace::fuzzing::sound_slots)
}

/// The first bytes of a sector of a file of slots: heads, items, stamps.
pub fn item(data: &[u8]) {
    terrace::fuzzing::slots(&patched(sound(), data));
}

/// A whole file, about which only its bytes are known. Sound items lie within it and do not overlap.
pub fn file(data: &[u8]) {
    let image = patched(sound(), data);
    let fs = files(&[(path(), &image)]);
    let Some(file) = typed(SlotsFile::open(&fs, &path())) else { return };
    let (len, sector) = (image.len() as u64, u64::from(file.sector_bytes()));
    let mut covered = 0;
    let visited = file.visit(&mut |found| -> Result<(), Error> {
        match found {
            InSlots::Stamp { offset, .. } => assert!(offset >= covered && offset < len),
            InSlots::Item { offset, sectors, key, value_bytes, is_sound, .. } => {
                let bytes = 32 + key.len() as u64 + value_bytes;
                assert!(offset >= covered && offset < len && sectors > 0);
                if is_sound {
                    // A mask may take four bytes more.
                    let fits = |more: u64| sectors == (bytes + more).div_ceil(sector);
                    assert!(offset + bytes <= len && (fits(0) || fits(4)));
                    covered = offset + bytes;
                }
            }
            _ => {}
        }
        Ok(())
    });
    typed(visited);
}
