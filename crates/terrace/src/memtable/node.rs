//! A node of the list: head, key, value, all in one piece of the arena.

use std::cmp::Ordering;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{self, AtomicPtr};

use terrace_base::{prefetch, prefix};
use terrace_table::Kind;

use super::arena::Arena;

/// The fixed part of a node; the key follows, and then the value. Immutable once the node is in the list, except for its
/// link.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Node {
    /// The key's first eight bytes as a number, so that most comparisons look no further.
    prefix: u64,
    seq: u64,
    next: AtomicPtr<Node>,
    key_len: u32,
    value_len: u32,
    kind: Kind,
}

/// A node of a list that lives for `'a`. The pointer is the arena's, so that it reaches all of the node's piece.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeRef<'a> {
    node: NonNull<Node>,
    of: PhantomData<&'a Node>,
}

const KEY_AT: usize = size_of::<Node>();

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

    pub fn key(&self) -> &'a [u8] {
        self.key
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

/// A node in `arena` that leads to `next`.
pub(super) fn create(arena: &mut Arena, content: Content<'_>, next: *mut Node) -> NonNull<Node> {
    let Content { key, seq, kind, value } = content;
    let place = arena.allocate(KEY_AT + key.len() + value.len());
    let node = place.cast::<Node>();
    // SAFETY: the place is new, long enough for all parts and aligned for the head; key and value are bytes.
    unsafe {
        node.write(Node {
            prefix: prefix::head(key),
            seq,
            next: AtomicPtr::new(next),
            key_len: key.len() as u32,
            value_len: value.len() as u32,
            kind,
        });
        let key_at = place.add(KEY_AT);
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
        // SAFETY: the promise to `new`; of the head only the link changes, which is atomic.
        unsafe { self.node.as_ref() }
    }

    pub fn seq(self) -> u64 {
        self.head().seq
    }

    /// Its key and sequence number, to be sought.
    pub fn sought(self) -> Sought<'a> {
        Sought { prefix: self.head().prefix, key: self.key(), seq: self.seq() }
    }

    pub fn kind(self) -> Kind {
        self.head().kind
    }

    /// The link to the next node.
    pub fn link(self) -> &'a AtomicPtr<Node> {
        &self.head().next
    }

    /// Starts loading the next node.
    pub fn load_next(self) {
        prefetch::line(self.link().load(atomic::Ordering::Relaxed));
    }

    pub fn key(self) -> &'a [u8] {
        // SAFETY: the key lies there, written before the node was linked and not changed since.
        unsafe { self.bytes(KEY_AT, self.head().key_len) }
    }

    pub fn value(self) -> &'a [u8] {
        let at = KEY_AT + self.head().key_len as usize;
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

    /// # Safety
    /// The node's piece must have `len` initialised bytes at `at`.
    unsafe fn bytes(self, at: usize, len: u32) -> &'a [u8] {
        // SAFETY: the caller's promise; the arena lives for `'a`.
        unsafe { std::slice::from_raw_parts(self.node.cast::<u8>().add(at).as_ptr(), len as usize) }
    }
}
