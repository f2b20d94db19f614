//! Where to begin in a list: its nodes, in a B+-tree by eight bytes of their keys.
//!
//! Which eight bytes these are is each page's matter: those behind bytes that all its keys begin with, 48 at most. Keys of
//! one kind often begin alike, such as numbers with their zeros in front.
//!
//! One thread at a time adds nodes, while any number search without locks. They need not find the tree at rest: nodes are
//! never removed from the list, so that a walk along it arrives from any node before what is sought. A search that meets
//! a change begins earlier by as much as has moved meanwhile, as a rule a few nodes, or tries again; if that fails every
//! time, which takes a writer that stands still in the middle of a change, it begins with the first node.
//!
//! 1. Every node here is in the list.
//! 2. While nobody adds nodes, each node of the list is in one leaf, all in order. Entry `i` of an inner page is the
//!    first node below child `i`; but for the first entry of a level, below which smaller ones may have been added since.
//! 3. A page is complete before a pointer leads to it. None is freed before the arena is.
//! 4. Whatever was found once can be found at any time after, by a search that meets no change: the upper half of a page
//!    is cut off once another page with it can be reached.
//! 5. All keys of a page begin with its common bytes, which never change. A page that gets a key that does not begin so
//!    is replaced by a copy with fewer common bytes first, by two at least: 24 times if an enemy chooses the keys. The
//!    memtable counts the bytes of what was replaced as used.

mod page;

use std::cmp::Ordering as Order;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::arena::Arena;
use super::node::{Node, NodeRef, Sought};
use page::{FANOUT, Item, Page, PageRef, common_to};

/// Levels of the largest tree: but for the last one of each level, pages are at least half full.
const MAX_LEVELS: usize = 12;

/// Searches that meet changes before one gives up and begins with the list's first node.
const TRIES: usize = 16;

/// The tree.
#[derive(Debug, Default)]
pub(super) struct Guide {
    root: AtomicPtr<Page>,
    /// Bytes of pages that were replaced.
    replaced: AtomicU64,
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

/// The places of a new node, from the root on. They are known as long as no other node is added.
pub(super) struct Path<'a> {
    places: [Place<'a>; MAX_LEVELS],
    levels: usize,
}

impl<'a> Place<'a> {
    /// Where the upper half of the page begins, if that is full.
    fn half(self) -> usize {
        if self.is_end { FANOUT } else { FANOUT / 2 }
    }

    /// Whether a new entry here goes to a new page.
    fn splits_before(self) -> bool {
        self.page.len() == FANOUT && (self.is_end || self.at > self.half())
    }

    /// Copies the upper half of the full page here, with `item` if it belongs there. At the end of a level nothing is
    /// copied, so that keys that come in order leave full pages. Elsewhere that would make a page of each key of a gap.
    fn split(self, arena: &mut Arena, item: Item<'a>) -> (PageRef<'a>, Half<'a>) {
        let len = self.half();
        // The next keys at an end are as far apart as those here.
        let first = self.page.key(if self.is_end { 0 } else { len });
        let last = if self.at == FANOUT { item.node.key() } else { self.page.key(FANOUT - 1) };
        let right = self.page.beside(arena, common_to(first, last), self.page.items().skip(len));
        if self.splits_before() {
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

    /// The last node before the new one, if there is one.
    pub fn before(&self) -> Option<NodeRef<'a>> {
        let leaf = self.places().last()?;
        leaf.page.node(leaf.at.checked_sub(1)?)
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

impl Guide {
    /// A node before `sought`, as a rule the last one; `None` if the list is to be walked from its first node.
    pub fn before<'a>(&'a self, sought: &Sought<'_>) -> Option<NodeRef<'a>> {
        for _ in 0..TRIES {
            let (mut page, mut is_first) = (PageRef::at(&self.root)?, true);
            while !page.is_leaf() {
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
        while !page.is_leaf() {
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

    /// The places of a node that is to be added; `None` while there is no tree. For the thread that adds it.
    pub fn path<'a>(&'a self, sought: &Sought<'_>) -> Option<Path<'a>> {
        PageRef::at(&self.root).map(|root| Path::to(root, sought))
    }

    /// Begins with `nodes`, all nodes of the list, which are few.
    pub fn build<'a>(&'a self, arena: &mut Arena, nodes: &[NodeRef<'a>]) {
        let (Some(first), Some(last)) = (nodes.first(), nodes.last()) else { return };
        let root = PageRef::create(arena, 0, common_to(first.key(), last.key()));
        nodes.iter().enumerate().for_each(|(i, &node)| root.insert(i, Item { node, child: None }));
        root.store_in(&self.root);
    }

    /// Adds `node`, which is in the list by now, and whose `path` was asked for before that. One thread at a time does so.
    pub fn add<'a>(&'a self, arena: &mut Arena, node: NodeRef<'a>, mut path: Path<'a>) {
        let mut item = Item { node, child: None };
        let mut halves = [None; MAX_LEVELS];
        for level in (0..path.levels).rev() {
            if !path.places[level].splits_before() {
                self.prepare(arena, &mut path, level, item.node.key());
            }
            let place = path.places[level];
            if place.page.len() < FANOUT {
                place.page.insert(place.at, item);
                return path.finish(&halves);
            }
            let (right, half) = place.split(arena, item);
            halves[level] = Some(half);
            let Some(above) = right.above() else { return };
            item = above;
        }
        self.grow(arena, path.places[0].page, item);
        path.finish(&halves);
    }

    /// Replaces the page of `path` on `level` if it is not for `key`.
    fn prepare<'a>(&'a self, arena: &mut Arena, path: &mut Path<'a>, level: usize, key: &[u8]) {
        let old = path.places[level].page;
        let page = old.for_key(arena, key);
        if page.is(old) {
            return;
        }
        let link = match level.checked_sub(1).map(|above| path.places[above]) {
            Some(above) => above.page.children().get(above.at.saturating_sub(1)),
            None => Some(&self.root),
        };
        link.into_iter().for_each(|link| page.store_in(link));
        self.replaced.fetch_add(page.bytes(), Ordering::Relaxed);
        path.places[level].page = page;
    }

    pub fn replaced_bytes(&self) -> u64 {
        self.replaced.load(Ordering::Relaxed)
    }

    /// Puts a new root above `root` and the page of `item`.
    fn grow<'a>(&'a self, arena: &mut Arena, root: PageRef<'a>, item: Item<'a>) {
        let common = common_to(root.key(0), item.node.key());
        let top = PageRef::create(arena, root.height() + 1, common);
        root.above().into_iter().chain([item]).enumerate().for_each(|(i, item)| top.insert(i, item));
        top.store_in(&self.root);
    }

    /// Compares the tree with `nodes`, all nodes of the list; returns what is wrong.
    pub fn check(&self, nodes: &[NonNull<Node>]) -> Vec<String> {
        let mut problems = Vec::new();
        let mut level: Vec<PageRef<'_>> = PageRef::at(&self.root).into_iter().collect();
        loop {
            if !level.iter().all(|page| page.has_right_prefixes()) {
                problems.push("a page of the guide has other bytes than its keys".into());
            }
            if level.iter().all(|page| page.is_leaf()) {
                break;
            }
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
