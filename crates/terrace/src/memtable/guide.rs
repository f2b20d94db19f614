//! Where to begin in a list: its nodes, in a B+-tree by the first eight bytes of their keys.
//!
//! One thread at a time adds nodes, while any number search without locks. They need not find the tree at rest: nodes are
//! never removed from the list, so that a walk along it arrives from any node before what is sought. A search that meets
//! a change begins earlier by as much as has moved meanwhile, as a rule a few nodes, or tries again; if that fails every
//! time, which takes a writer that stands still in the middle of a change, it begins with the first node.
//!
//! 1. Every node here is in the list.
//! 2. While nobody adds nodes, each node of the list is in one leaf, all in order. Entry `i` of an inner page is the
//!    first node below child `i`; but for the first entry of a level, below which smaller ones may have been added since.
//! 3. A page is complete before a pointer leads to it. None is removed before the arena is.
//! 4. Whatever was found once can be found at any time after: the upper half of a page is cut off once another page with
//!    it can be reached.

use std::cmp::Ordering as Order;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use terrace_base::prefetch;

use super::arena::Arena;
use super::node::{Node, NodeRef, Sought};

/// Entries of a page, at most.
const FANOUT: usize = 64;

/// Levels of the largest tree: but for the last one of each level, pages are at least half full.
const MAX_LEVELS: usize = 12;

/// Bytes of a node that are loaded ahead: a short key and value with its head.
const LOADED_BYTES: usize = 3 * prefetch::LINE_BYTES;

/// Searches that meet changes before one gives up and begins with the list's first node.
const TRIES: usize = 16;

/// Part of a page that all pages have. Behind the same of an inner page lie its children.
#[repr(C)]
struct Page {
    len: AtomicUsize,
    /// Levels below this page.
    height: usize,
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
struct PageRef<'a> {
    page: NonNull<Page>,
    of: PhantomData<&'a Page>,
}

/// What a page has of a node: the node, and in inner pages the child whose first it is.
#[derive(Debug, Clone, Copy)]
struct Item<'a> {
    prefix: u64,
    node: NodeRef<'a>,
    child: Option<PageRef<'a>>,
}

/// The tree.
#[derive(Debug, Default)]
pub(super) struct Guide {
    root: AtomicPtr<Page>,
}

impl<'a> PageRef<'a> {
    /// An empty page, `height` levels above the leaves.
    fn create(arena: &mut Arena, height: usize) -> PageRef<'a> {
        let bytes = if height > 0 { size_of::<InnerPage>() } else { size_of::<Page>() };
        let page = arena.allocate(bytes).cast::<Page>();
        // SAFETY: the place is new, long enough, and aligned to eight bytes as the fields are. Zeros are a value of each
        // field.
        unsafe {
            page.cast::<u8>().write_bytes(0, bytes);
            (*page.as_ptr()).height = height;
        }
        PageRef { page, of: PhantomData }
    }

    fn at(pointer: &AtomicPtr<Page>) -> Option<PageRef<'a>> {
        NonNull::new(pointer.load(Ordering::Acquire)).map(|page| PageRef { page, of: PhantomData })
    }

    fn page(self) -> &'a Page {
        // SAFETY: made by `create` in the arena of a list that lives for `'a`, and complete before it could be reached.
        // Only atomic fields change.
        unsafe { self.page.as_ref() }
    }

    fn children(self) -> &'a [AtomicPtr<Page>] {
        if self.page().height == 0 {
            return &[];
        }
        // SAFETY: as for `page`; one with a height was made as an inner page.
        unsafe { &self.page.cast::<InnerPage>().as_ref().children }
    }

    fn len(self) -> usize {
        self.page().len.load(Ordering::Acquire).min(FANOUT)
    }

    fn child(self, i: usize) -> Option<PageRef<'a>> {
        self.children().get(i).and_then(Self::at)
    }

    fn node(self, i: usize) -> Option<NodeRef<'a>> {
        let node = NonNull::new(self.page().nodes.get(i)?.load(Ordering::Acquire))?;
        // SAFETY: a node is in the list before it is stored here, and lives as long.
        Some(unsafe { NodeRef::new(node) })
    }

    fn prefix(self, i: usize) -> u64 {
        self.page().prefixes[i].load(Ordering::Acquire)
    }

    /// The number of entries that come before `sought`. The first of an inner page always does: smaller nodes may have
    /// been added below it.
    fn count_before(self, sought: &Sought<'_>) -> usize {
        let (len, prefix) = (self.len(), sought.prefix());
        let first = len.min(usize::from(self.page().height > 0));
        let smaller = partition(first, len, |i| self.prefix(i) < prefix);
        if smaller == len || self.prefix(smaller) > prefix {
            return smaller;
        }
        // What was before may have moved here meanwhile.
        let same = partition(smaller, len, |i| self.prefix(i) <= prefix);
        partition(smaller, same, |i| self.node(i).is_some_and(|node| node.order(sought) == Order::Less))
    }

    /// Starts loading the nodes in `range`, with keys and values as far as these are short.
    fn load_all(self, range: Range<usize>) {
        for node in self.page().nodes[range].iter() {
            prefetch::lines(node.load(Ordering::Relaxed), LOADED_BYTES);
        }
    }

    /// Starts loading the node at `i`.
    fn load(self, i: usize) {
        if let Some(node) = self.page().nodes.get(i) {
            prefetch::line(node.load(Ordering::Relaxed));
        }
    }

    fn item(self, i: usize) -> Option<Item<'a>> {
        Some(Item { prefix: self.prefix(i), node: self.node(i)?, child: self.child(i) })
    }

    fn items(self) -> impl Iterator<Item = Item<'a>> {
        (0..self.len()).filter_map(move |i| self.item(i))
    }

    /// In this order: a search between two of the stores goes to a child too early, and not too late.
    fn set(self, i: usize, item: Item<'a>) {
        let page = self.page();
        if let (Some(at), Some(child)) = (self.children().get(i), item.child) {
            at.store(child.page.as_ptr(), Ordering::Release);
        }
        page.nodes[i].store(item.node.pointer().as_ptr(), Ordering::Release);
        page.prefixes[i].store(item.prefix, Ordering::Release);
    }

    /// Inserts `item` at `at`, where there must be room. Entries move from the last one on, so that none is missing
    /// meanwhile.
    fn insert(self, at: usize, item: Item<'a>) {
        let len = self.len();
        for i in (at..len).rev() {
            self.item(i).into_iter().for_each(|item| self.set(i + 1, item));
            // The last one stays in reach.
            self.page().len.store(len + 1, Ordering::Release);
        }
        self.set(at, item);
        self.page().len.store(len + 1, Ordering::Release);
    }

    /// A new page with the entries of this one from `from` on, which stay here until it is shortened.
    fn copy_from(self, arena: &mut Arena, from: usize) -> PageRef<'a> {
        let right = PageRef::create(arena, self.page().height);
        self.items().skip(from).enumerate().for_each(|(i, item)| right.set(i, item));
        right.page().len.store(FANOUT - from, Ordering::Release);
        right
    }

    fn shorten(self, len: usize) {
        self.page().len.store(len, Ordering::Release);
    }

    /// The entry for this page in the one above.
    fn above(self) -> Option<Item<'a>> {
        self.item(0).map(|first| Item { child: Some(self), ..first })
    }
}

/// Where on a level a new entry belongs.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    page: PageRef<'a>,
    at: usize,
    /// Nothing of the level lies behind it.
    is_end: bool,
}

/// What is left to do to a page whose upper part was copied: it is cut to `len` entries, and gets one more.
#[derive(Debug, Clone, Copy)]
struct Half<'a> {
    len: usize,
    more: Option<Item<'a>>,
}

/// The places of a new node, from the root on.
struct Path<'a> {
    places: [Place<'a>; MAX_LEVELS],
    levels: usize,
}

impl<'a> Place<'a> {
    /// Copies the upper half of the full page here, with `item` if it belongs there. At the end of a level nothing is
    /// copied, so that keys that come in order leave full pages. Elsewhere that would make a page of each key of a gap.
    fn split(self, arena: &mut Arena, item: Item<'a>) -> (PageRef<'a>, Half<'a>) {
        let len = if self.is_end { FANOUT } else { FANOUT / 2 };
        let right = self.page.copy_from(arena, len);
        if self.at > len || self.is_end {
            right.insert(self.at - len, item);
            return (right, Half { len, more: None });
        }
        (right, Half { len, more: Some(item) })
    }
}

impl<'a> Path<'a> {
    fn to(root: PageRef<'a>, sought: &Sought<'_>) -> Path<'a> {
        let place = |page: PageRef<'a>, was_end: bool| {
            let at = page.count_before(sought);
            Place { page, at, is_end: was_end && at == page.len() }
        };
        let mut last = place(root, true);
        let mut path = Path { places: [last; MAX_LEVELS], levels: 1 };
        while let Some(child) = last.page.child(last.at.saturating_sub(1)) {
            last = place(child, last.is_end);
            path.places[path.levels] = last;
            path.levels += 1;
        }
        path
    }

    fn places(&self) -> &[Place<'a>] {
        &self.places[..self.levels]
    }

    /// Cuts the pages whose upper halves can be reached elsewhere by now, the upper ones first: a page is cut once the one
    /// above leads to its other half.
    fn finish(&self, halves: &[Option<Half<'a>>; MAX_LEVELS]) {
        for (place, half) in self.places().iter().zip(halves) {
            if let Some(Half { len, more }) = half {
                place.page.shorten(*len);
                more.iter().for_each(|item| place.page.insert(place.at, *item));
            }
        }
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

impl Guide {
    /// A node before `sought`, as a rule the last one; `None` if the list is to be walked from its first node.
    pub fn before<'a>(&'a self, sought: &Sought<'_>) -> Option<NodeRef<'a>> {
        for _ in 0..TRIES {
            let (mut page, mut is_first) = (PageRef::at(&self.root)?, true);
            while page.page().height > 0 {
                let at = page.count_before(sought).saturating_sub(1);
                is_first &= at == 0;
                page = page.child(at)?;
            }
            let count = page.count_before(sought);
            page.load(count);
            let mut nodes = (0..count).rev().filter_map(|i| page.node(i));
            let found = nodes.find(|node| node.order(sought) == Order::Less);
            if found.is_some() || is_first {
                return found;
            }
        }
        None
    }

    /// Starts loading nodes behind `sought`: as a rule those in `range`, counted from the first that does not come before
    /// it. Beyond the page behind the one that it comes to there are none.
    pub fn load_behind(&self, sought: &Sought<'_>, range: Range<usize>) {
        let Some(mut page) = PageRef::at(&self.root) else { return };
        let mut behind = None;
        while page.page().height > 0 {
            let at = page.count_before(sought).saturating_sub(1);
            behind = page.child(at + 1).filter(|_| at + 1 < page.len());
            let Some(child) = page.child(at) else { return };
            page = child;
        }
        let (at, len) = (page.count_before(sought), page.len());
        let (from, to) = (at + range.start, at + range.end);
        page.load_all(from.min(len)..to.min(len));
        if let Some(behind) = behind.filter(|_| to > len) {
            let more = behind.len();
            behind.load_all((from.max(len) - len).min(more)..(to - len).min(more));
        }
    }

    /// A node, as a rule the last one.
    pub fn last(&self) -> Option<NodeRef<'_>> {
        let mut page = PageRef::at(&self.root)?;
        while let Some(child) = page.child(page.len().saturating_sub(1)) {
            page = child;
        }
        page.node(page.len().checked_sub(1)?)
    }

    /// Adds `node`, which is in the list by now, and which `sought` describes. One thread at a time does so.
    pub fn add<'a>(&'a self, arena: &mut Arena, node: NodeRef<'a>, sought: &Sought<'_>) {
        let mut item = Item { prefix: sought.prefix(), node, child: None };
        let root = PageRef::at(&self.root).unwrap_or_else(|| {
            let root = PageRef::create(arena, 0);
            self.root.store(root.page.as_ptr(), Ordering::Release);
            root
        });
        let path = Path::to(root, sought);
        let mut halves = [None; MAX_LEVELS];
        for (level, place) in path.places().iter().enumerate().rev() {
            if place.page.len() < FANOUT {
                place.page.insert(place.at, item);
                return path.finish(&halves);
            }
            let (right, half) = place.split(arena, item);
            halves[level] = Some(half);
            let Some(above) = right.above() else { return };
            item = above;
        }
        self.grow(arena, root, item);
        path.finish(&halves);
    }

    /// Puts a new root above `root` and the page of `item`.
    fn grow<'a>(&'a self, arena: &mut Arena, root: PageRef<'a>, item: Item<'a>) {
        let top = PageRef::create(arena, root.page().height + 1);
        root.above().into_iter().chain([item]).enumerate().for_each(|(i, item)| top.set(i, item));
        top.page().len.store(2, Ordering::Release);
        self.root.store(top.page.as_ptr(), Ordering::Release);
    }

    /// Compares the tree with `nodes`, all nodes of the list; returns what is wrong.
    pub fn check(&self, nodes: &[NonNull<Node>]) -> Vec<String> {
        let mut problems = Vec::new();
        let mut level: Vec<PageRef<'_>> = PageRef::at(&self.root).into_iter().collect();
        while level.iter().any(|page| page.page().height > 0) {
            let items: Vec<Item<'_>> = level.iter().flat_map(|page| page.items()).collect();
            let is_first = |item: &Item<'_>| {
                let first = item.child.and_then(|child| child.node(0));
                first.is_some_and(|first| first.pointer() == item.node.pointer())
            };
            // What comes before all that a level has is added to its first child alone.
            if !items.iter().skip(1).all(is_first) || items.first().is_none_or(|item| item.child.is_none()) {
                problems.push("a page of the guide begins elsewhere than the page above says".into());
            }
            level = items.into_iter().filter_map(|item| item.child).collect();
        }
        let found = level.iter().flat_map(|page| page.items());
        if !found.map(|item| item.node.pointer()).eq(nodes.iter().copied()) {
            problems
                .push("the leaves of the guide have other nodes than the list, or in another order".into());
        }
        problems
    }
}
