//! A version of a key in memory: one piece, immutable once it is linked.
//!
//! ```text
//!   Links, unless it is the key's first version | Head | key | value
//! ```
//!
//! Versions of a key form a chain, the newest first, each with the number of earlier ones. `jump` leads to
//! one further back (E. Myers, "An applicative random-access stack", 1983), so that finding the version that
//! an old snapshot sees takes logarithmic time, however often the key was written since.

use std::marker::PhantomData;
use std::ptr::NonNull;

use terrace_table::Kind;

use super::super::node::Content;
use crate::batch::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use crate::memtable::arena::Arena;

#[derive(Debug)]
#[repr(C)]
pub(super) struct Head {
    seq: u64,
    value_len: u32,
    key_len: u16,
    kind: Kind,
    /// Whether links lie before the head.
    linked: bool,
}

#[derive(Debug)]
#[repr(C)]
struct Links {
    prev: NonNull<Head>,
    jump: NonNull<Head>,
    /// Versions before this one.
    depth: u64,
}

const HEAD_BYTES: usize = size_of::<Head>();
const LINKS_BYTES: usize = size_of::<Links>();
const _: () =
    assert!(HEAD_BYTES == 16 && LINKS_BYTES == 24 && align_of::<Head>() == 8 && align_of::<Links>() == 8);
const _: () = assert!(MAX_KEY_BYTES <= u16::MAX as usize && MAX_VALUE_BYTES <= u32::MAX as usize);

/// A record that can be reached.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemRecord<'a> {
    head: NonNull<Head>,
    of: PhantomData<&'a Head>,
}

/// Bytes of a record's piece.
pub(super) fn bytes_of(content: &Content<'_>, linked: bool) -> usize {
    HEAD_BYTES + if linked { LINKS_BYTES } else { 0 } + content.key.len() + content.value.len()
}

/// A record in `arena`; `prev` is the key's previous version.
pub(super) fn create<'a>(
    arena: &mut Arena,
    content: &Content<'_>,
    prev: Option<MemRecord<'a>>,
) -> NonNull<Head> {
    let Content { key, seq, kind, value } = *content;
    let sound = key.len() <= MAX_KEY_BYTES && value.len() <= MAX_VALUE_BYTES;
    assert!(sound, "a batch has refused keys and values that are too long");
    let piece = arena.allocate(bytes_of(content, prev.is_some()));
    // SAFETY: the piece is new, long enough for all parts and aligned for links and head, whose sizes are multiples
    // of their alignment; key and value are bytes. The head's pointer is derived from the piece's, so it may reach
    // all of the piece, including the part before the head.
    unsafe {
        let head = match prev {
            None => piece,
            Some(prev) => {
                piece.cast::<Links>().write(Links::after(prev));
                piece.add(LINKS_BYTES)
            }
        };
        let (key_len, value_len) = (key.len() as u16, value.len() as u32);
        head.cast::<Head>().write(Head { seq, value_len, key_len, kind, linked: prev.is_some() });
        let key_at = head.add(HEAD_BYTES);
        key_at.copy_from_nonoverlapping(NonNull::from(key).cast(), key.len());
        key_at.add(key.len()).copy_from_nonoverlapping(NonNull::from(value).cast(), value.len());
        head.cast()
    }
}

impl Links {
    /// The links of the version that follows `prev`. The jump spans as far as the two previous jumps together
    /// if those are equally far, and one version otherwise.
    fn after(prev: MemRecord<'_>) -> Links {
        let near = prev.jump();
        let far = near.jump();
        let equal = prev.depth() - near.depth() == near.depth() - far.depth();
        let jump = if equal { far } else { prev };
        Links { prev: prev.head, jump: jump.head, depth: prev.depth() + 1 }
    }
}

impl<'a> MemRecord<'a> {
    /// # Safety
    /// `head` was made by [`create`] in an arena that lives for `'a`, and so were all versions it leads to; their
    /// creation happened before.
    #[inline]
    pub unsafe fn new(head: NonNull<Head>) -> Self {
        MemRecord { head, of: PhantomData }
    }

    pub fn pointer(self) -> NonNull<Head> {
        self.head
    }

    #[inline]
    fn head(self) -> &'a Head {
        // SAFETY: the promise to `new`; the head does not change.
        unsafe { self.head.as_ref() }
    }

    pub fn seq(self) -> u64 {
        self.head().seq
    }

    pub fn kind(self) -> Kind {
        self.head().kind
    }

    #[inline]
    pub fn key(self) -> &'a [u8] {
        // SAFETY: the key lies there, written before the record was linked and not changed since.
        unsafe { self.bytes(HEAD_BYTES, usize::from(self.head().key_len)) }
    }

    pub fn value(self) -> &'a [u8] {
        let at = HEAD_BYTES + usize::from(self.head().key_len);
        // SAFETY: as for the key.
        unsafe { self.bytes(at, self.head().value_len as usize) }
    }

    fn links(self) -> Option<&'a Links> {
        // SAFETY: a record with this flag has links before its head, in the same piece.
        self.head().linked.then(|| unsafe { self.head.byte_sub(LINKS_BYTES).cast::<Links>().as_ref() })
    }

    /// The version before this one.
    pub fn prev(self) -> Option<MemRecord<'a>> {
        // SAFETY: links lead to earlier versions in the same arena.
        self.links().map(|links| unsafe { MemRecord::new(links.prev) })
    }

    /// A version further back; for the first one itself.
    fn jump(self) -> MemRecord<'a> {
        // SAFETY: as above.
        self.links().map_or(self, |links| unsafe { MemRecord::new(links.jump) })
    }

    /// Versions before this one.
    pub fn depth(self) -> u64 {
        self.links().map_or(0, |links| links.depth)
    }

    /// The newest version up to `max_seq`, among this one and earlier ones.
    #[inline]
    pub fn up_to(self, max_seq: u64) -> Option<MemRecord<'a>> {
        let mut here = self;
        while here.seq() > max_seq {
            let jump = here.jump();
            here = if jump.seq() > max_seq && here.depth() > 0 { jump } else { here.prev()? };
        }
        Some(here)
    }

    /// This version and earlier ones, the newest first.
    pub fn versions(self) -> impl Iterator<Item = MemRecord<'a>> {
        std::iter::successors(Some(self), |record| record.prev())
    }

    /// # Safety
    /// The record's piece must have `len` initialised bytes at `at` after its head.
    #[inline]
    unsafe fn bytes(self, at: usize, len: usize) -> &'a [u8] {
        // SAFETY: the caller's promise; the piece lives for `'a`.
        unsafe { std::slice::from_raw_parts(self.head.cast::<u8>().add(at).as_ptr(), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memtable::chunks::Chunks;

    #[test]
    fn any_version_is_found_in_few_steps() {
        let mut arena = Arena::new(Chunks::new());
        let mut newest: Option<MemRecord<'_>> = None;
        for seq in 1..=3000u64 {
            let content = Content { key: b"k", seq: 2 * seq, kind: Kind::Put, value: &seq.to_le_bytes() };
            let head = create(&mut arena, &content, newest);
            // SAFETY: just created, and the arena lives longer.
            newest = Some(unsafe { MemRecord::new(head) });
        }
        let newest = newest.unwrap();
        assert_eq!((newest.depth(), newest.versions().count()), (2999, 3000));
        for max_seq in 0..6005 {
            let found = newest.up_to(max_seq).map(|record| (record.seq(), record.value().to_vec()));
            let seq = max_seq.min(6000) / 2;
            assert_eq!(found, (seq > 0).then(|| (2 * seq, seq.to_le_bytes().to_vec())));
        }
        let mut steps = 0;
        let mut here = newest;
        while here.depth() > 0 {
            here = here.jump();
            steps += 1;
        }
        assert!(steps <= 24, "{steps} jumps from the newest of 3000 to the first");
    }
}
