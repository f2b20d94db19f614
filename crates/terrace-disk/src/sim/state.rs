//! The contents of the simulated disk: files by number, and directories that name them.
//!
//! Invariants:
//! 1. The first `synced` bytes of a file's content are durable, the others are not. Room may follow the content; it
//!    reads as zeros.
//! 2. A directory's `now` is its `durable` names with all of `pending` applied, in order.
//! 3. Every number in a directory has its file.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_base::rng::Rng;
use terrace_base::{Error, Result};

use super::blocks::Blocks;
use super::content::Content;

/// Number of a file, as an inode number is.
pub(super) type FileId = u64;

/// One file.
#[derive(Clone, Default)]
pub(super) struct Inode {
    pub(super) content: Content,
    pub(super) synced: u64,
    /// Its content before it was cut, if the cut is not durable.
    pub(super) uncut: Option<Content>,
    /// Parts of the content that a failed sync has dropped and the system still shows. No later sync makes them
    /// durable.
    pub(super) dropped: Vec<Range<u64>>,
    /// Bytes of room behind the content.
    pub(super) room: u64,
    /// Its longest length since a length was durable, that one included.
    pub(super) longest: u64,
    /// Its further state, if it is a file of sectors.
    pub(super) blocks: Option<Blocks>,
}

impl Inode {
    /// A file that holds `content`, durably.
    pub(super) fn durable(content: Content) -> Inode {
        let (synced, longest) = (content.len(), content.len());
        Inode { synced, longest, content, ..Inode::default() }
    }

    /// How long it is.
    pub(super) fn len(&self) -> u64 {
        self.content.len() + self.room
    }

    /// Bytes that it takes of the disk.
    pub(super) fn space(&self) -> u64 {
        self.len() - self.blocks.as_ref().map_or(0, |blocks| blocks.holes.total())
    }

    /// The content that a reader sees.
    pub(super) fn visible(&self) -> Content {
        let mut content = self.content.clone();
        content.append_zeros(self.room);
        content
    }

    /// Appends `data`, first into the room behind the content.
    pub(super) fn append(&mut self, data: &[u8]) {
        // Bytes on the same page are written again, too.
        let first = self.content.len() / PAGE_BYTES * PAGE_BYTES;
        self.dropped.retain(|part| part.end <= first);
        self.content.append(data);
        self.set_room(self.room.saturating_sub(data.len() as u64));
    }

    /// Makes so much room behind the content.
    pub(super) fn set_room(&mut self, room: u64) {
        self.room = room;
        self.longest = self.longest.max(self.len());
    }

    /// All of it has become durable.
    pub(super) fn sync(&mut self) {
        self.synced = self.content.len();
        self.uncut = None;
        self.longest = self.len();
        if let Some(blocks) = &mut self.blocks {
            blocks.before.clear();
        }
    }

    /// Whether a power cut may leave another.
    pub(super) fn is_pending(&self) -> bool {
        self.has_unsynced() || self.uncut.is_some() || self.longest > self.synced || !self.dropped.is_empty()
    }

    /// Whether a failed sync may lose any of it.
    fn has_unsynced(&self) -> bool {
        let is_written = self.blocks.as_ref().is_some_and(|blocks| !blocks.before.is_empty());
        self.synced < self.content.len() || is_written
    }

    /// Its durable content, with zeros in place of dropped parts.
    pub(super) fn without_dropped(&self, mut content: Content) -> Content {
        let len = content.len();
        for part in self.dropped.iter().filter(|part| part.start < len) {
            content.write(part.start, &vec![0; (part.end.min(len) - part.start) as usize]);
        }
        content
    }

    /// Cuts it to `len` bytes.
    pub(super) fn cut(&mut self, len: u64) {
        if len < self.content.len() {
            let content = self.content.prefix(len);
            let before = std::mem::replace(&mut self.content, content);
            self.uncut.get_or_insert(before);
            self.synced = self.synced.min(len);
            self.dropped.retain(|part| part.end <= len);
        }
        self.room = 0;
    }

    /// Loses pages that were not durable, as a failed sync may: some, drawn by `rng`, and at least one. Readers then
    /// see the bytes on the disk, or zeros where there were none; if `shown`, they still see the written bytes.
    pub(super) fn drop_pages(&mut self, rng: &mut Rng, shown: bool) {
        if let Some(blocks) = &mut self.blocks {
            blocks.drop_writes(&mut self.content, rng);
        }
        let pending = self.synced..self.content.len();
        let pages: Vec<u64> = (pending.start / PAGE_BYTES..pending.end.div_ceil(PAGE_BYTES)).collect();
        if pending.is_empty() {
            return;
        }
        let sure = rng.below(pages.len() as u64) as usize;
        let of_page =
            |page: u64| (page * PAGE_BYTES).max(pending.start)..((page + 1) * PAGE_BYTES).min(pending.end);
        let lost = pages.into_iter().enumerate().filter(|(at, _)| *at == sure || rng.one_in(2));
        self.dropped.extend(lost.map(|(_, page)| of_page(page)));
        if !shown {
            self.content = self.without_dropped(self.content.clone());
            self.dropped.clear();
        }
    }
}

/// The unit that a system keeps or drops.
const PAGE_BYTES: u64 = 4096;

/// A change of one directory's names.
#[derive(Clone, Debug)]
pub(super) enum NameChange {
    Link(OsString, FileId),
    Unlink(OsString),
    Rename { from: OsString, to: OsString, id: FileId },
}

impl NameChange {
    pub(super) fn apply(&self, names: &mut BTreeMap<OsString, FileId>) {
        match self {
            NameChange::Link(name, id) => {
                names.insert(name.clone(), *id);
            }
            NameChange::Unlink(name) => {
                names.remove(name);
            }
            NameChange::Rename { from, to, id } => {
                // Its former name may never have become durable, or may be another file's by now.
                if names.get(from) == Some(id) {
                    names.remove(from);
                }
                names.insert(to.clone(), *id);
            }
        }
    }
}

/// One directory.
#[derive(Clone, Default)]
pub(super) struct Dir {
    pub(super) now: BTreeMap<OsString, FileId>,
    pub(super) durable: BTreeMap<OsString, FileId>,
    pub(super) pending: Vec<NameChange>,
}

impl Dir {
    fn change(&mut self, change: NameChange) {
        change.apply(&mut self.now);
        self.pending.push(change);
    }

    /// Every file that some crash could leave a name of, and those named now.
    fn reachable(&self) -> impl Iterator<Item = FileId> + '_ {
        let linked = self.pending.iter().filter_map(|c| match c {
            NameChange::Link(_, id) | NameChange::Rename { id, .. } => Some(*id),
            NameChange::Unlink(_) => None,
        });
        self.now.values().chain(self.durable.values()).copied().chain(linked)
    }
}

/// The whole disk. Cloning shares files and directories until one copy changes them.
#[derive(Clone, Default)]
pub(super) struct State {
    pub(super) files: BTreeMap<FileId, Arc<Inode>>,
    pub(super) dirs: BTreeMap<PathBuf, Arc<Dir>>,
    next_id: FileId,
    /// The contents of the file that was removed last: unwritten blocks may show them.
    pub(super) removed: Content,
    pub(super) capacity: Option<u64>,
    /// The number of the page cache; a power cut changes it.
    pub(super) epoch: u64,
    /// A failed sync has dropped pages, since the machine was booted.
    pub(super) dropped_pages: bool,
    /// The system still shows pages that a failed sync has dropped.
    pub(super) shows_dropped: bool,
    /// No file has room.
    pub(super) without_room: bool,
    /// Parts of files of sectors cannot be given back.
    pub(super) without_holes: bool,
    /// No file can be mapped.
    pub(super) without_maps: bool,
    /// The available memory that the system reports.
    pub(super) available_memory: Option<u64>,
    /// Bytes of a sector and of a block.
    pub(super) sectors: (u32, u32),
}

impl State {
    pub(super) fn new() -> Self {
        let roots = ["", "/"].map(|root| (PathBuf::from(root), Arc::default()));
        State { dirs: roots.into(), epoch: 1, sectors: (512, 4096), ..State::default() }
    }

    /// The directory and the last component of `path`.
    fn split(path: &Path) -> Result<(&Path, &OsStr)> {
        match (path.parent(), path.file_name()) {
            (Some(dir), Some(name)) => Ok((dir, name)),
            _ => Err(Error::invalid(format!("{} does not name a file", path.display()))),
        }
    }

    fn dir_mut(&mut self, dir: &Path, operation: &'static str) -> Result<&mut Dir> {
        let found = self.dirs.get_mut(dir).ok_or_else(|| not_found(dir, operation))?;
        Ok(Arc::make_mut(found))
    }

    /// The number of the file that `path` names.
    pub(super) fn lookup(&self, path: &Path, operation: &'static str) -> Result<FileId> {
        let (dir, name) = State::split(path)?;
        let id = self.dirs.get(dir).and_then(|d| d.now.get(name));
        id.copied().ok_or_else(|| not_found(path, operation))
    }

    pub(super) fn is_file(&self, path: &Path) -> bool {
        self.lookup(path, "stat").is_ok()
    }

    /// Names a new file `path`.
    pub(super) fn create(&mut self, path: &Path, inode: Inode) -> Result<FileId> {
        if self.is_file(path) || self.dirs.contains_key(path) {
            return Err(Error::io(path, "create", io::ErrorKind::AlreadyExists.into()));
        }
        let (dir, name) = State::split(path)?;
        let id = self.next_id;
        self.dir_mut(dir, "create")?.change(NameChange::Link(name.to_owned(), id));
        self.next_id += 1;
        self.files.insert(id, Arc::new(inode));
        Ok(id)
    }

    pub(super) fn remove(&mut self, path: &Path) -> Result<()> {
        let id = self.lookup(path, "remove")?;
        let (dir, name) = State::split(path)?;
        self.dir_mut(dir, "remove")?.change(NameChange::Unlink(name.to_owned()));
        if let Some(inode) = self.files.get(&id) {
            self.removed = inode.visible();
        }
        Ok(())
    }

    /// Within one directory a rename is one change; between two it is a change of each.
    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> Result<()> {
        let id = self.lookup(from, "rename")?;
        if self.dirs.contains_key(to) {
            return Err(Error::io(to, "rename", io::ErrorKind::IsADirectory.into()));
        }
        let (from_dir, from_name) = State::split(from)?;
        let (to_dir, to_name) = State::split(to)?;
        let (from_name, to_name) = (from_name.to_owned(), to_name.to_owned());
        if from_dir == to_dir {
            let change = NameChange::Rename { from: from_name, to: to_name, id };
            self.dir_mut(from_dir, "rename")?.change(change);
        } else {
            self.dir_mut(to_dir, "rename")?.change(NameChange::Link(to_name, id));
            self.dir_mut(from_dir, "rename")?.change(NameChange::Unlink(from_name));
        }
        Ok(())
    }

    /// Names a file `to`, beside the name `from` that it has.
    pub(super) fn link(&mut self, from: &Path, to: &Path) -> Result<()> {
        let id = self.lookup(from, "link")?;
        if self.is_file(to) || self.dirs.contains_key(to) {
            return Err(Error::io(to, "link", io::ErrorKind::AlreadyExists.into()));
        }
        let (dir, name) = State::split(to)?;
        self.dir_mut(dir, "link")?.change(NameChange::Link(name.to_owned(), id));
        Ok(())
    }

    pub(super) fn sync_file(&mut self, id: FileId) {
        if let Some(inode) = self.inode_mut(id) {
            inode.sync();
        }
    }

    /// The sync of a file fails.
    pub(super) fn fail_sync(&mut self, id: FileId, seed: u64) {
        let (pending, shown) =
            (self.files.get(&id).is_some_and(|inode| inode.has_unsynced()), self.shows_dropped);
        if let Some(inode) = self.inode_mut(id).filter(|_| pending) {
            inode.drop_pages(&mut Rng::new(seed), shown);
            self.dropped_pages = true;
        }
    }

    pub(super) fn sync_dir(&mut self, path: &Path) -> Result<()> {
        let dir = self.dir_mut(path, "sync directory")?;
        for change in std::mem::take(&mut dir.pending) {
            change.apply(&mut dir.durable);
        }
        Ok(())
    }

    pub(super) fn create_dir_all(&mut self, path: &Path) -> Result<()> {
        for dir in path.ancestors() {
            if self.is_file(dir) {
                return Err(Error::io(dir, "create directory", io::ErrorKind::AlreadyExists.into()));
            }
            self.dirs.entry(dir.to_path_buf()).or_default();
        }
        Ok(())
    }

    pub(super) fn list(&self, path: &Path) -> Result<Vec<PathBuf>> {
        let dir = self.dirs.get(path).ok_or_else(|| not_found(path, "list"))?;
        Ok(dir.now.keys().map(|name| path.join(name)).collect())
    }

    pub(super) fn inode_mut(&mut self, id: FileId) -> Option<&mut Inode> {
        self.files.get_mut(&id).map(Arc::make_mut)
    }

    /// Bytes of the files that have a name or are in `open`.
    pub(super) fn used(&self, open: &BTreeMap<FileId, usize>) -> u64 {
        let mut counted: BTreeSet<FileId> = open.keys().copied().collect();
        counted.extend(self.dirs.values().flat_map(|d| d.now.values().copied()));
        counted.iter().filter_map(|id| self.files.get(id)).map(|inode| inode.space()).sum()
    }

    /// Forgets files that nothing can name any more and that are not in `open`.
    pub(super) fn forget_unreachable(&mut self, open: &BTreeMap<FileId, usize>) {
        let mut live: BTreeSet<FileId> = open.keys().copied().collect();
        live.extend(self.dirs.values().flat_map(|d| d.reachable()));
        self.files.retain(|id, _| live.contains(id));
    }
}

fn not_found(path: &Path, operation: &'static str) -> Error {
    Error::io(path, operation, io::ErrorKind::NotFound.into())
}
