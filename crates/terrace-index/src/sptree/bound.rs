//! The bounds of leaves as they are kept in DRAM: short ones in their node, longer ones as bytes of their own.

use std::cmp::Ordering as Order;

use super::key::{INLINE_BYTES, Probe, cmp_inline, inline_bytes, word_of};

/// The high bound's length where there is none.
pub(super) const UNBOUNDED: u32 = u32::MAX;

/// A bound as it was copied out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Bound {
    None,
    Inline(u64, u8),
    Long(Vec<u8>),
}

impl Bound {
    pub fn new(key: &[u8]) -> Bound {
        if key.len() <= INLINE_BYTES {
            Bound::Inline(word_of(key), key.len() as u8)
        } else {
            Bound::Long(key.to_vec())
        }
    }

    /// The bound's bytes, unless there is none.
    pub fn bytes<'a>(&'a self, inline: &'a mut [u8; 8]) -> Option<&'a [u8]> {
        match self {
            Bound::None => None,
            Bound::Inline(word, len) => {
                *inline = inline_bytes(*word);
                Some(&inline[..usize::from(*len)])
            }
            Bound::Long(bytes) => Some(bytes),
        }
    }

    pub fn to_vec(&self) -> Option<Vec<u8>> {
        self.bytes(&mut [0; 8]).map(<[u8]>::to_vec)
    }

    /// How `probe` compares with it; less than none at all.
    pub fn cmp_key(&self, probe: &Probe<'_>) -> Order {
        match self {
            Bound::None => Order::Less,
            Bound::Inline(word, len) => cmp_inline(probe.word, probe.key.len(), *word, usize::from(*len)),
            Bound::Long(bytes) => probe.key.cmp(bytes.as_slice()),
        }
    }
}

/// Bytes of a bound outside its node.
#[derive(Debug)]
pub(super) struct Bytes(*mut u8, usize);

// SAFETY: plain bytes that the owner of this value owns.
unsafe impl Send for Bytes {}

impl Bytes {
    pub fn of(word: u64, len: u32) -> Option<Bytes> {
        let is_long = len != UNBOUNDED && len as usize > INLINE_BYTES;
        is_long.then_some(Bytes(word as *mut u8, len as usize))
    }

    /// Frees them.
    ///
    /// # Safety
    ///
    /// They are not read any more.
    pub unsafe fn free(self) {
        let bytes = std::ptr::slice_from_raw_parts_mut(self.0, self.1);
        // SAFETY: they were made from a box of this length (`keep`), and by the caller's promise they are not in use.
        drop(unsafe { Box::from_raw(bytes) });
    }
}

/// A bound as a node keeps it: word or address, and length.
pub(super) fn keep(bound: &Bound) -> (u64, u32) {
    match bound {
        Bound::None => (0, UNBOUNDED),
        Bound::Inline(word, len) => (*word, u32::from(*len)),
        Bound::Long(bytes) => {
            let kept: Box<[u8]> = bytes.as_slice().into();
            (Box::into_raw(kept).cast::<u8>() as u64, bytes.len() as u32)
        }
    }
}

/// # Safety
///
/// Word and length belong together, and the caller is present.
pub(super) unsafe fn copy_bound(word: u64, len: u32) -> Bound {
    match len {
        UNBOUNDED => Bound::None,
        len if len as usize <= INLINE_BYTES => Bound::Inline(word, len as u8),
        // SAFETY: by the caller's promise these are the bytes that `keep` has made, not freed yet.
        len => Bound::Long(unsafe { std::slice::from_raw_parts(word as *const u8, len as usize) }.to_vec()),
    }
}

/// How `probe` compares with a bound; less than none at all.
///
/// # Safety
///
/// Word and length belong together, and the caller is present.
#[inline]
pub(super) unsafe fn cmp_bound(probe: &Probe<'_>, word: u64, len: u32) -> Order {
    match len {
        len if len as usize <= INLINE_BYTES => cmp_inline(probe.word, probe.key.len(), word, len as usize),
        UNBOUNDED => Order::Less,
        // SAFETY: by the caller's promise these are the bytes that `keep` has made, not freed yet.
        len => probe.key.cmp(unsafe { std::slice::from_raw_parts(word as *const u8, len as usize) }),
    }
}
