//! A node of the list: head, links, key, value, all in one piece of the arena.
//!
//! ```text
//!   Node | next[0] .. next[height - 1] | key | value
//! ```

use std::cmp::Ordering;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::AtomicPtr;

use terrace_base::prefix;
use terrace_table::Kind;

use super::arena::Arena;

/// Most links of a node; with a quarter of the nodes on each level in the next, enough for 4^14.
pub(super) const MAX_HEIGHT: usize = 14;

/// The fixed part of a node. Immutable once the node is linked, except for its links.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Node {
    /// The key's first eight bytes as a number, so that most comparisons look no further.
    prefix: u64,
    seq: u64,
    key_len: u32,
    value_len: u32,
    height: u8,
    kind: Kind,
}

/// A node of a list that lives for `'a`. The pointer is the arena's, so that it reaches all of the node's piece.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeRef<'a> {
    node: NonNull<Node>,
    of: PhantomData<&'a Node>,
}

const LINKS_AT: usize = size_of::<Node>();
const _: () = assert!(LINKS_AT.is_multiple_of(align_of::<AtomicPtr<Node>>()));

/// A key with its first bytes as a number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sought<'a> {
    prefix: u64,
    key: &'a [u8],
    seq: u64,
}

impl<'a> Sought<'a> {
    pub fn new(key: &'a [u8], seq: u64) -> Self {
        Sought { prefix: prefix::head(key), key, seq }
    }
}

/// The content of a new node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Content<'a> {
    pub key: &'a [u8],
    pub seq: u64,
    pub kind: Kind,
    pub value: &'a [u8],
}

/// A node in `arena`, with links that lead nowhere.
pub(super) fn create(arena: &mut Arena, content: Content<'_>, height: usize) -> NonNull<Node> {
    let Content { key, seq, kind, value } = content;
    let links = height * size_of::<AtomicPtr<Node>>();
    let place = arena.allocate(LINKS_AT + links + key.len() + value.len());
    let node = place.cast::<Node>();
    // SAFETY: the place is new, long enough for all parts and aligned for the head, and thereby for the links
    // after it; key and value are bytes.
    unsafe {
        node.write(Node {
            prefix: prefix::head(key),
            seq,
            key_len: key.len() as u32,
            value_len: value.len() as u32,
            height: height as u8,
            kind,
        });
        for level in 0..height {
            place.add(LINKS_AT).cast::<AtomicPtr<Node>>().add(level).write(AtomicPtr::default());
        }
        let key_at = place.add(LINKS_AT + links);
        key_at.copy_from_nonoverlapping(NonNull::from(key).cast(), key.len());
        key_at.add(key.len()).copy_from_nonoverlapping(NonNull::from(value).cast(), value.len());
    }
    node
}

impl<'a> NodeRef<'a> {
    /// # Safety
    /// `node` was created by [`create`] in an arena that lives for `'a`, and its creation happened before.
    pub unsafe fn new(node: NonNull<Node>) -> Self {
        NodeRef { node, of: PhantomData }
    }

    pub fn pointer(self) -> NonNull<Node> {
        self.node
    }

    fn head(self) -> &'a Node {
        // SAFETY: the promise to `new`; the head does not change.
        unsafe { self.node.as_ref() }
    }

    pub fn height(self) -> usize {
        usize::from(self.head().height)
    }

    pub fn seq(self) -> u64 {
        self.head().seq
    }

    pub fn kind(self) -> Kind {
        self.head().kind
    }

    /// The link on `level`, which must be below the node's height.
    pub fn link(self, level: usize) -> &'a AtomicPtr<Node> {
        assert!(level < self.height(), "a link that the node does not have");
        // SAFETY: the head is followed by as many links as the height says; the arena lives for `'a`.
        unsafe { self.node.cast::<u8>().add(LINKS_AT).cast::<AtomicPtr<Node>>().add(level).as_ref() }
    }

    pub fn key(self) -> &'a [u8] {
        // SAFETY: the key lies there, written before the node was linked and not changed since.
        unsafe { self.bytes(self.key_at(), self.head().key_len) }
    }

    pub fn value(self) -> &'a [u8] {
        let at = self.key_at() + self.head().key_len as usize;
        // SAFETY: as for the key.
        unsafe { self.bytes(at, self.head().value_len) }
    }

    /// The node's order relative to `sought`: by key, then the newest first.
    #[inline]
    pub fn order(self, sought: &Sought<'_>) -> Ordering {
        let head = self.head();
        let by_key = match head.prefix.cmp(&sought.prefix) {
            Ordering::Equal if head.key_len >= 8 && sought.key.len() >= 8 => {
                self.key()[8..].cmp(&sought.key[8..])
            }
            Ordering::Equal => self.key().cmp(sought.key),
            decided => return decided,
        };
        by_key.then(sought.seq.cmp(&head.seq))
    }

    fn key_at(self) -> usize {
        LINKS_AT + self.height() * size_of::<AtomicPtr<Node>>()
    }

    /// # Safety
    /// The node's piece must have `len` initialised bytes at `at`.
    unsafe fn bytes(self, at: usize, len: u32) -> &'a [u8] {
        // SAFETY: the caller's promise; the arena lives for `'a`.
        unsafe { std::slice::from_raw_parts(self.node.cast::<u8>().add(at).as_ptr(), len as usize) }
    }
}
