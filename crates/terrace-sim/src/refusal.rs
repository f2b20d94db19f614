//! Operations that are refused once or for a while, and then work again.

use std::io;

/// The system's number for too many open files.
const EMFILE: i32 = 24;

/// A temporary trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// Any operation of the disk fails with an I/O error, reading included, and so does a sync of persistent memory.
    Io,
    /// The disk is full, and persistent memory does not grow.
    NoSpace,
    /// No file can be opened or created.
    TooManyFiles,
    /// A signal cuts operations of the disk short.
    Interrupted,
    /// The pool does not allocate and does not grow.
    PoolFull,
}

impl Trouble {
    /// Every kind.
    pub const ALL: [Trouble; 5] =
        [Trouble::Io, Trouble::NoSpace, Trouble::TooManyFiles, Trouble::Interrupted, Trouble::PoolFull];

    /// Whether it can affect `operation`.
    fn befalls(self, operation: Operation) -> bool {
        use Operation::*;
        match self {
            Trouble::Io => !matches!(operation, Grow | Reserve),
            Trouble::NoSpace => matches!(operation, Create | Write | Sync | Rename | CreateDir | Grow),
            Trouble::TooManyFiles => matches!(operation, Create | Open | List),
            Trouble::Interrupted => !matches!(operation, Grow | Reserve | PmSync),
            Trouble::PoolFull => matches!(operation, Grow | Reserve),
        }
    }

    /// The system's error for it.
    fn error(self) -> io::Error {
        match self {
            Trouble::Io => io::Error::other("injected fault"),
            Trouble::NoSpace | Trouble::PoolFull => io::ErrorKind::StorageFull.into(),
            Trouble::TooManyFiles => io::Error::from_raw_os_error(EMFILE),
            Trouble::Interrupted => io::ErrorKind::Interrupted.into(),
        }
    }
}

/// An operation that can be refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Open,
    List,
    Read,
    Write,
    Sync,
    Rename,
    Remove,
    CreateDir,
    PmSync,
    Grow,
    Reserve,
}

impl Operation {
    /// The disk's operation that errors call `verb`.
    pub(crate) fn of_disk(verb: &str) -> Operation {
        match verb {
            "create" => Operation::Create,
            "open" | "lock" => Operation::Open,
            "list" => Operation::List,
            "write" => Operation::Write,
            "sync" | "sync directory" => Operation::Sync,
            "rename" => Operation::Rename,
            "remove" => Operation::Remove,
            "create directory" => Operation::CreateDir,
            _ => Operation::Read,
        }
    }
}

/// Which of the operations that the trouble can affect are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The trouble.
    pub trouble: Trouble,
    /// Operations that still succeed.
    pub after: u64,
    /// Operations that are refused then.
    pub count: u64,
}

/// The refusals of a world.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    planned: Option<Refusal>,
    /// Operations so far that each trouble can affect.
    seen: [u64; Trouble::ALL.len()],
    /// Operations refused.
    met: u64,
}

impl Refusals {
    pub(crate) fn plan(&mut self, refusal: Option<Refusal>) {
        self.planned = refusal.filter(|refusal| refusal.count > 0);
    }

    /// Counts an operation; returns the trouble if it is to fail.
    pub(crate) fn step(&mut self, operation: Operation) -> Option<io::Error> {
        for (trouble, seen) in Trouble::ALL.into_iter().zip(&mut self.seen) {
            *seen += u64::from(trouble.befalls(operation));
        }
        let refusal = self.planned.as_mut().filter(|refusal| refusal.trouble.befalls(operation))?;
        if refusal.after > 0 {
            refusal.after -= 1;
            return None;
        }
        self.met += 1;
        refusal.count -= 1;
        let error = refusal.trouble.error();
        if refusal.count == 0 {
            self.planned = None;
        }
        Some(error)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.planned.is_none()
    }

    pub(crate) fn met(&self) -> u64 {
        self.met
    }

    pub(crate) fn seen(&self, trouble: Trouble) -> u64 {
        let at = Trouble::ALL.iter().position(|t| *t == trouble);
        at.map_or(0, |at| self.seen[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_of_operations_is_refused_and_those_around_it_are_not() {
        let mut refusals = Refusals::default();
        refusals.plan(Some(Refusal { trouble: Trouble::NoSpace, after: 2, count: 2 }));
        let operations = [
            Operation::Write,
            Operation::Read,
            Operation::Sync,
            Operation::Remove,
            Operation::Write,
            Operation::Reserve,
            Operation::Rename,
            Operation::Write,
        ];
        let refused: Vec<bool> = operations.iter().map(|o| refusals.step(*o).is_some()).collect();
        assert_eq!(refused, [false, false, false, false, true, false, true, false]);
        assert!(refusals.is_over() && refusals.met() == 2);
        assert_eq!((refusals.seen(Trouble::NoSpace), refusals.seen(Trouble::PoolFull)), (5, 1));
    }
}
