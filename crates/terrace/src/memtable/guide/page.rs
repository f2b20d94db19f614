//! The pages of the guide; see its head.

use std::cmp::Ordering as Order;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use terrace_base::{prefetch, prefix};

use crate::memtable::arena::Arena;
use crate::memtable::node::{Node, NodeRef, Sought};

/// Entries of a page, at most.
pub(super) const FANOUT: usize = 64;

/// Bytes of a node that are loaded ahead: a short key and value with its head.
const LOADED_BYTES: usize = 3 * prefetch::LINE_BYTES;

/// Common bytes of a page, at most.
const MOST_COMMON_BYTES: usize = 48;

/// Part of a page that all pages have. Behind the same of an inner page lie its children.
#[repr(C)]
pub(super) struct Page {
    len: AtomicUsize,
    /// Levels below this page.
    height: u32,
    common_len: u32,
    common: [u8; MOST_COMMON_BYTES],
    /// The bytes of keys behind the common ones.
    prefixes: [AtomicU64; FANOUT],
    nodes: [AtomicPtr<Node>; FANOUT],
}

#[repr(C)]
struct InnerPage {
    page: Page,
    children: [AtomicPtr<Page>; FANOUT],
}

/// A page of a list that lives for `'a`. The pointer is the arena's, so that it reaches all of the page.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageRef<'a> {
    page: NonNull<Page>,
    of: PhantomData<&'a Page>,
}

const _: () = assert!(std::mem::offset_of!(Page, prefixes) == prefetch::LINE_BYTES);

/// What a page has of a node: the node, and in inner pages the child whose first it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item<'a> {
    pub node: NodeRef<'a>,
    pub child: Option<PageRef<'a>>,
}

/// How many bytes of `a` and `b` are common to a page of keys between them. One less than there are, as other keys may
/// come to lie beside these.
pub(super) fn common_to<'k>(a: &'k [u8], b: &[u8]) -> &'k [u8] {
    &a[..prefix::common(a, b).saturating_sub(1)]
}

fn bytes_at(height: u32) -> usize {
    if height > 0 { size_of::<InnerPage>() } else { size_of::<Page>() }
}

impl<'a> PageRef<'a> {
    /// An empty page, `height` levels above the leaves, for keys that begin with `common`.
    pub fn create(arena: &mut Arena, height: u32, common: &[u8]) -> PageRef<'a> {
        let common = &common[..common.len().min(MOST_COMMON_BYTES)];
        let bytes = bytes_at(height);
        let page = arena.allocate(bytes).cast::<Page>();
        // SAFETY: the place is new, long enough, and aligned to eight bytes as the fields are. Zeros are a value of each
        // field.
        unsafe {
            page.cast::<u8>().write_bytes(0, bytes);
            let page = &mut *page.as_ptr();
            (page.height, page.common_len) = (height, common.len() as u32);
            page.common[..common.len()].copy_from_slice(common);
        }
        PageRef { page, of: PhantomData }
    }

    pub fn at(pointer: &AtomicPtr<Page>) -> Option<PageRef<'a>> {
        NonNull::new(pointer.load(Ordering::Acquire)).map(|page| PageRef { page, of: PhantomData })
    }

    /// Lets `pointer` lead here.
    pub fn store_in(self, pointer: &AtomicPtr<Page>) {
        pointer.store(self.page.as_ptr(), Ordering::Release);
    }

    pub fn is(self, other: PageRef<'_>) -> bool {
        self.page == other.page
    }

    fn page(self) -> &'a Page {
        // SAFETY: made by `create` in the arena of a list that lives for `'a`, and complete before it could be reached.
        // Only atomic fields change.
        unsafe { self.page.as_ref() }
    }

    pub fn children(self) -> &'a [AtomicPtr<Page>] {
        if self.is_leaf() {
            return &[];
        }
        // SAFETY: as for `page`; one with a height was made as an inner page.
        unsafe { &self.page.cast::<InnerPage>().as_ref().children }
    }

    /// Levels below this page.
    pub fn height(self) -> u32 {
        self.page().height
    }

    /// Bytes that it takes.
    pub fn bytes(self) -> u64 {
        bytes_at(self.height()) as u64
    }

    pub fn is_leaf(self) -> bool {
        self.height() == 0
    }

    fn common(self) -> &'a [u8] {
        let page = self.page();
        &page.common[..page.common_len as usize]
    }

    /// What the page has of `key`; or, if that does not begin with the common bytes, whether it comes before or behind all
    /// that do.
    #[inline]
    fn prefix_of(self, key: &[u8]) -> Result<u64, Order> {
        let common = self.common();
        match key.split_at_checked(common.len()) {
            Some((begin, rest)) if begin == common => Ok(prefix::head(rest)),
            _ => Err(key.cmp(common)),
        }
    }

    pub fn len(self) -> usize {
        self.page().len.load(Ordering::Acquire).min(FANOUT)
    }

    pub fn child(self, i: usize) -> Option<PageRef<'a>> {
        self.children().get(i).and_then(Self::at)
    }

    pub fn node(self, i: usize) -> Option<NodeRef<'a>> {
        let node = NonNull::new(self.page().nodes.get(i)?.load(Ordering::Acquire))?;
        // SAFETY: a node is in the list before it is stored here, and lives as long.
        Some(unsafe { NodeRef::new(node) })
    }

    fn prefix(self, i: usize) -> u64 {
        self.page().prefixes[i].load(Ordering::Acquire)
    }

    /// The number of entries that come before `sought`. The first of an inner page always does: smaller nodes may have
    /// been added below it.
    pub fn count_before(self, sought: &Sought<'_>) -> usize {
        let len = self.len();
        let first = len.min(usize::from(!self.is_leaf()));
        let prefix = match self.prefix_of(sought.key()) {
            Ok(prefix) => prefix,
            Err(Order::Greater) => return len,
            Err(_) => return first,
        };
        let smaller = partition(first, len, |i| self.prefix(i) < prefix);
        if smaller == len || self.prefix(smaller) > prefix {
            return smaller;
        }
        // What was before may have moved here meanwhile.
        let same = partition(smaller, len, |i| self.prefix(i) <= prefix);
        partition(smaller, same, |i| self.node(i).is_some_and(|node| node.order(sought) == Order::Less))
    }

    /// Starts loading the nodes in `range`, with keys and values as far as these are short.
    pub fn load_all(self, range: Range<usize>) {
        for node in self.page().nodes[range].iter() {
            prefetch::lines(node.load(Ordering::Relaxed), LOADED_BYTES);
        }
    }

    /// Starts loading the node at `i`.
    pub fn load(self, i: usize) {
        if let Some(node) = self.page().nodes.get(i) {
            prefetch::line(node.load(Ordering::Relaxed));
        }
    }

    pub fn item(self, i: usize) -> Option<Item<'a>> {
        Some(Item { node: self.node(i)?, child: self.child(i) })
    }

    pub fn items(self) -> impl Iterator<Item = Item<'a>> {
        (0..self.len()).filter_map(move |i| self.item(i))
    }

    /// In this order: a search between two of the stores goes to a child too early, and not too late.
    fn set(self, i: usize, prefix: u64, item: Item<'a>) {
        let page = self.page();
        if let (Some(at), Some(child)) = (self.children().get(i), item.child) {
            child.store_in(at);
        }
        page.nodes[i].store(item.node.pointer().as_ptr(), Ordering::Release);
        page.prefixes[i].store(prefix, Ordering::Release);
    }

    /// Inserts `item` at `at`, where there must be room. Entries move from the last one on, so that none is missing
    /// meanwhile.
    pub fn insert(self, at: usize, item: Item<'a>) {
        let len = self.len();
        for i in (at..len).rev() {
            self.item(i).into_iter().for_each(|item| self.set(i + 1, self.prefix(i), item));
            // The last one stays in reach.
            self.page().len.store(len + 1, Ordering::Release);
        }
        let prefix = self.prefix_of(item.node.key());
        debug_assert!(prefix.is_ok(), "a page is for the key that it gets");
        self.set(at, prefix.unwrap_or_default(), item);
        self.page().len.store(len + 1, Ordering::Release);
    }

    /// A new page of this one's level with `items`, whose keys begin with `common`.
    pub fn beside(
        self,
        arena: &mut Arena,
        common: &[u8],
        items: impl Iterator<Item = Item<'a>>,
    ) -> PageRef<'a> {
        let page = PageRef::create(arena, self.height(), common);
        items.enumerate().for_each(|(i, item)| page.insert(i, item));
        page
    }

    /// This page, or a copy of it that may get `key`.
    pub fn for_key(self, arena: &mut Arena, key: &[u8]) -> PageRef<'a> {
        match self.prefix_of(key) {
            Ok(_) => self,
            Err(_) => self.beside(arena, common_to(self.common(), key), self.items()),
        }
    }

    pub fn key(self, i: usize) -> &'a [u8] {
        self.node(i).map_or(&[], NodeRef::key)
    }

    pub fn shorten(self, len: usize) {
        self.page().len.store(len, Ordering::Release);
    }

    /// Whether what the page has of its keys is right.
    pub fn has_right_prefixes(self) -> bool {
        self.items().enumerate().all(|(i, item)| self.prefix_of(item.node.key()) == Ok(self.prefix(i)))
    }

    /// The entry for this page in the one above.
    pub fn above(self) -> Option<Item<'a>> {
        self.item(0).map(|first| Item { child: Some(self), ..first })
    }
}

/// The first of `from..to` of which `is_before` does not hold; it holds of those before and of none behind.
fn partition(from: usize, to: usize, is_before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (from, to);
    while low < high {
        let mid = low + (high - low) / 2;
        (low, high) = if is_before(mid) { (mid + 1, high) } else { (low, mid) };
    }
    low
}
