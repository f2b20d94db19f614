//! Which runs lie in persistent memory, and how room is made there: TLSM's tiering.

use std::collections::BTreeSet;

/// Which runs are lists in persistent memory; the others are tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tiering {
    /// All of them.
    None,
    /// Those of level 0 and of this many levels in use below it.
    Leveled(usize),
    /// All new ones, as long as there is room: then those that have lain there longest become tables. The
    /// output of a merge mostly of tables becomes tables, too.
    Lru,
}

/// The medium of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunKind {
    /// A file.
    Table,
    /// Persistent memory.
    List,
}

/// What is known of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListFigures {
    /// Its number; older lists have smaller ones.
    pub number: u64,
    /// Bytes of its records in buffers that are mostly dead.
    pub sparse_bytes: u64,
    /// Bytes of the list itself.
    pub list_bytes: u64,
}

/// Lists' use of persistent memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes in all.
    pub bytes: u64,
    /// Bytes that would remain if only what lists lead to were there.
    pub live: u64,
    /// Bytes that they may take.
    pub limit: u64,
    /// Bytes of difference that are tolerated.
    pub slack: u64,
}

impl Room {
    /// Whether more than a third of it is dead.
    fn is_loose(&self) -> bool {
        self.bytes > self.live + self.live / 2 + self.slack
    }
}

/// A way to make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relief {
    /// This list becomes a table.
    Evict(u64),
    /// This list is rewritten, and moves its records out of buffers that are mostly dead.
    Empty(u64),
}

impl Tiering {
    /// The kind of a merge's outputs for a level that is the `depth`th in use below level 0, or 0 for level 0
    /// itself; the inputs have these bytes of lists and of tables.
    pub fn kind(self, depth: usize, list_bytes: u64, table_bytes: u64) -> RunKind {
        let is_list = match self {
            Tiering::None => true,
            Tiering::Leveled(levels) => depth <= levels,
            Tiering::Lru => list_bytes >= table_bytes,
        };
        if is_list { RunKind::List } else { RunKind::Table }
    }

    /// Whether output without room in persistent memory becomes a table.
    pub fn falls_back(self) -> bool {
        self != Tiering::None
    }

    /// Whether something may have to be done to make room.
    pub fn is_pressed(self, room: &Room) -> bool {
        self.is_full(room) || room.is_loose()
    }

    fn is_full(self, room: &Room) -> bool {
        self == Tiering::Lru && room.bytes > room.limit - room.limit / 8
    }

    /// What to do to make room, if anything. Persistent memory should hold no more than one and a half times
    /// its live bytes, and with `Lru` no more than seven eighths of its limit, so that new output has room.
    pub fn relieve(self, room: Room, lists: &[ListFigures], busy: &BTreeSet<u64>) -> Option<Relief> {
        let (is_full, is_loose) = (self.is_full(&room), room.is_loose());
        let idle = || lists.iter().filter(|list| !busy.contains(&list.number));
        if is_loose {
            let left = room.limit.saturating_sub(room.bytes + room.slack / 2);
            let fits =
                |list: &&ListFigures| list.sparse_bytes > 0 && list.sparse_bytes + list.list_bytes < left;
            let most =
                idle().filter(fits).max_by_key(|list| (list.sparse_bytes, std::cmp::Reverse(list.number)));
            if let Some(list) = most {
                return Some(Relief::Empty(list.number));
            }
        }
        // If only readers hold most of it, evicting live lists makes no room.
        let lives = room.live > room.limit / 2 || room.live + room.slack > room.bytes;
        let oldest = idle().map(|list| list.number).min();
        oldest.filter(|_| is_full && lives).map(Relief::Evict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(number: u64, sparse_bytes: u64) -> ListFigures {
        ListFigures { number, sparse_bytes, list_bytes: 1 }
    }

    #[test]
    fn levels_lie_where_tiering_wants_them() {
        use RunKind::*;
        let kinds = |tiering: Tiering| [0, 1, 3, 4].map(|depth| tiering.kind(depth, 5, 5));
        assert_eq!(kinds(Tiering::None), [List; 4]);
        assert_eq!(kinds(Tiering::Leveled(3)), [List, List, List, Table]);
        assert_eq!(kinds(Tiering::Leveled(1)), [List, List, Table, Table]);
        assert_eq!(kinds(Tiering::Lru), [List; 4]);
        assert_eq!([(4, 5), (0, 1), (0, 0)].map(|(l, t)| Tiering::Lru.kind(2, l, t)), [Table, Table, List]);
    }

    #[test]
    fn what_is_loose_is_emptied_and_what_is_full_evicted() {
        let lists = [list(9, 0), list(4, 10), list(7, 30)];
        let room = |bytes, live| Room { bytes, live, limit: 1000, slack: 4 };
        let none = BTreeSet::new();
        let lru = |bytes, live, busy: &BTreeSet<u64>| Tiering::Lru.relieve(room(bytes, live), &lists, busy);
        assert_eq!(lru(500, 400, &none), None);
        assert_eq!(lru(500, 300, &none), Some(Relief::Empty(7)));
        assert_eq!(lru(500, 300, &[7].into()), Some(Relief::Empty(4)));
        assert_eq!(lru(500, 300, &[4, 7].into()), None);
        assert_eq!(lru(900, 700, &none), Some(Relief::Evict(4)));
        assert_eq!(lru(900, 700, &[4].into()), Some(Relief::Evict(7)));
        assert_eq!(lru(975, 600, &none), Some(Relief::Empty(4)), "7 finds no room");
        assert_eq!(lru(995, 600, &none), Some(Relief::Evict(4)));
        assert_eq!(lru(990, 100, &none), None, "readers hold it");
        assert_eq!(Tiering::None.relieve(room(995, 900), &lists, &none), None);
    }
}
