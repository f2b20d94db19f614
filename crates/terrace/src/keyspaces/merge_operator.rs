//! What merging an operand into a value means.

use std::error::Error as StdError;
use std::sync::Arc;

use terrace_base::{Error, Result};

use super::callbacks;

/// Longest name in bytes.
pub(crate) const MOST_NAME_BYTES: usize = 255;

/// Why an operator cannot merge.
type Cause = Box<dyn StdError + Send + Sync>;

/// The name of an operator, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OperatorName {
    pub name: String,
    pub is_built_in: bool,
}

impl std::fmt::Display for OperatorName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.is_built_in { "the built-in operator" } else { "operator" };
        write!(f, "{kind} \"{}\"", self.name)
    }
}

type Merge = dyn Fn(&[u8], Option<&[u8]>, &[u8]) -> Result<Vec<u8>, Cause> + Send + Sync;

/// What merging means in a keyspace: the value that a key gets from the one that it has and an operand.
///
/// A keyspace keeps the operator's name. [`add`](Self::add), [`append`](Self::append) and [`max`](Self::max) are built
/// in; another one must be given to [`KeyspaceOptions::merge`](crate::KeyspaceOptions::merge) once after each opening
/// of the database.
///
/// An operator is called by the thread that writes, or by another one that writes at the same time, and it may be
/// called again for the same merge. Other writers may wait for it. It decides by its arguments alone, keeps no handle
/// of a database and must not use one, which is refused as `InvalidArgument` where it might wait for ever. If it fails or panics, the write fails with
/// [`MergeFailed`](Error::MergeFailed) and nothing has changed.
///
/// ```
/// # fn main() -> terrace::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// use terrace::{Db, KeyspaceOptions, MergeOperator, Options};
///
/// // Tags in order, each once.
/// let insert = MergeOperator::new("insert-tag", |_key, tags, tag| {
///     let tags = std::str::from_utf8(tags.unwrap_or_default())?;
///     let mut all: Vec<&str> = tags.split_terminator(',').chain([std::str::from_utf8(tag)?]).collect();
///     all.sort_unstable();
///     all.dedup();
///     Ok(all.join(",").into_bytes())
/// });
/// let db = Db::open(dir.path(), Options::default())?;
/// let options = KeyspaceOptions { merge: Some(insert), ..KeyspaceOptions::default() };
/// let tags = db.keyspace_with("tags", options)?;
/// tags.merge("photo-17", "sea")?;
/// tags.merge("photo-17", "boat")?;
/// tags.merge("photo-17", "sea")?;
/// assert_eq!(tags.get("photo-17")?.as_deref(), Some(&b"boat,sea"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MergeOperator {
    name: Arc<OperatorName>,
    merge: Arc<Merge>,
    is_deferred: bool,
}

impl MergeOperator {
    /// The operator `name`, of 1 to 255 bytes. `merge` gets the key, its value if it exists, and the operand, and
    /// returns the new value.
    pub fn new(
        name: &str,
        merge: impl Fn(&[u8], Option<&[u8]>, &[u8]) -> Result<Vec<u8>, Cause> + Send + Sync + 'static,
    ) -> MergeOperator {
        let name = OperatorName { name: name.to_owned(), is_built_in: false };
        MergeOperator { name: name.into(), merge: Arc::new(merge), is_deferred: false }
    }

    /// The operator `name`, of 1 to 255 bytes, where operands are values: `combine` makes one of two, the earlier one
    /// first. The first operand of a key is its value.
    pub fn associative(
        name: &str,
        combine: impl Fn(&[u8], &[u8]) -> Result<Vec<u8>, Cause> + Send + Sync + 'static,
    ) -> MergeOperator {
        MergeOperator::new(name, move |_, value, operand| match value {
            Some(value) => combine(value, operand),
            None => Ok(operand.to_vec()),
        })
    }

    /// `add`: the sum of two whole numbers, of eight bytes each as `i64::to_le_bytes` makes them. What does not exist
    /// is zero. A sum that is out of range is refused.
    pub fn add() -> MergeOperator {
        built_in("add", |value, operand| {
            let (a, b) = (value.map_or(Ok(0), whole_number)?, whole_number(operand)?);
            let sum = a.checked_add(b).ok_or_else(|| format!("{a} + {b} is out of range"))?;
            Ok(sum.to_le_bytes().to_vec())
        })
    }

    /// `append`: the value with the operand behind it.
    pub fn append() -> MergeOperator {
        built_in("append", |value, operand| Ok([value.unwrap_or_default(), operand].concat()))
    }

    /// `max`: the greater of the value and the operand, in the order of keys.
    pub fn max() -> MergeOperator {
        built_in("max", |value, operand| Ok(value.unwrap_or_default().max(operand).to_vec()))
    }

    /// The same; operands are kept as they come, and folded by reads and compactions. So a merge reads nothing that is
    /// not in memory, but nobody tells whoever writes an operand that it cannot be merged: reads of the key fail with
    /// [`MergeFailed`](Error::MergeFailed) then, and nothing is lost. The operator is called by whoever reads or compacts,
    /// and must be known to all of them.
    ///
    /// It is a matter of speed alone where keys come and go faster than memory holds them. The engines `lsm`, `tlsm`
    /// and `wip` keep operands ([`EngineKind::keeps_operands`](crate::EngineKind::keeps_operands)); the others fold
    /// them at once, and so do all where entries expire. A keyspace keeps this, and loses it again if it is opened with
    /// an operator that is not deferred.
    ///
    /// ```
    /// # fn main() -> terrace::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// use terrace::{Db, EngineKind, KeyspaceOptions, MergeOperator, Options};
    ///
    /// let db = Db::open(dir.path(), Options { engine: EngineKind::Lsm, ..Options::default() })?;
    /// let merge = Some(MergeOperator::append().deferred());
    /// let log = db.keyspace_with("log", KeyspaceOptions { merge, ..KeyspaceOptions::default() })?;
    /// log.merge("today", "rain;")?;
    /// log.merge("today", "sun;")?;
    /// assert_eq!(log.get("today")?.as_deref(), Some(&b"rain;sun;"[..]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn deferred(self) -> MergeOperator {
        MergeOperator { is_deferred: true, ..self }
    }

    /// Whether operands are kept as they come.
    pub fn is_deferred(&self) -> bool {
        self.is_deferred
    }

    /// The operator that has this name in every build.
    pub(crate) fn built_in(name: &str) -> Option<MergeOperator> {
        [MergeOperator::add(), MergeOperator::append(), MergeOperator::max()]
            .into_iter()
            .find(|operator| operator.name() == name)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name.name
    }

    /// Its name, and whose it is.
    pub(crate) fn whole_name(&self) -> &OperatorName {
        &self.name
    }

    /// # Errors
    ///
    /// `InvalidArgument` if the name is empty or too long.
    pub(crate) fn check_name(&self) -> Result<()> {
        let len = self.name().len();
        if !(1..=MOST_NAME_BYTES).contains(&len) {
            return Err(Error::invalid(format!(
                "the name of a merge operator has 1 to {MOST_NAME_BYTES} bytes, this one {len}"
            )));
        }
        Ok(())
    }

    /// The new value of `key`.
    ///
    /// # Errors
    ///
    /// `MergeFailed` if the operator says so or panics.
    pub(crate) fn merge(&self, key: &[u8], value: Option<&[u8]>, operand: &[u8]) -> Result<Vec<u8>> {
        // Its error may panic, too, as it is told or dropped.
        let merge = || (self.merge)(key, value, operand).map_err(|cause| cause.to_string());
        let cause = match callbacks::run(merge).flatten() {
            Ok(merged) => return Ok(merged),
            Err(cause) => cause,
        };
        Err(Error::MergeFailed { operator: self.name().to_owned(), key: key.to_vec(), cause })
    }
}

/// Two of one name are one operator, but a built-in one is none that was made.
impl PartialEq for MergeOperator {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for MergeOperator {}

impl std::fmt::Debug for MergeOperator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("MergeOperator").field(&self.name()).finish()
    }
}

fn built_in(
    name: &str,
    merge: impl Fn(Option<&[u8]>, &[u8]) -> Result<Vec<u8>, Cause> + Send + Sync + 'static,
) -> MergeOperator {
    let operator = MergeOperator::new(name, move |_, value, operand| merge(value, operand));
    let name = OperatorName { name: name.to_owned(), is_built_in: true };
    MergeOperator { name: name.into(), ..operator }
}

fn whole_number(bytes: &[u8]) -> Result<i64, Cause> {
    let bytes =
        bytes.try_into().map_err(|_| format!("a number has 8 bytes, and here are {}", bytes.len()))?;
    Ok(i64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(operator: &MergeOperator, value: Option<&[u8]>, operand: &[u8]) -> String {
        match operator.merge(b"k", value, operand).unwrap_err() {
            Error::MergeFailed { operator: name, key, cause } => {
                assert_eq!((&name[..], &key[..]), (operator.name(), &b"k"[..]));
                cause
            }
            other => panic!("{other}"),
        }
    }

    #[test]
    fn sums_are_exact_or_refused() {
        let (add, number) = (MergeOperator::add(), |n: i64| n.to_le_bytes());
        assert_eq!(add.merge(b"k", None, &number(-3)).unwrap(), number(-3));
        assert_eq!(add.merge(b"k", Some(&number(5)), &number(-8)).unwrap(), number(-3));
        assert!(cause(&add, Some(&number(i64::MAX)), &number(1)).contains("out of range"));
        assert!(cause(&add, Some(b"7"), &number(1)).contains("here are 1"));
        assert!(cause(&add, None, b"").contains("here are 0"));
    }

    #[test]
    fn values_grow() {
        let (append, max) = (MergeOperator::append(), MergeOperator::max());
        assert_eq!(append.merge(b"k", None, b"a").unwrap(), b"a");
        assert_eq!(append.merge(b"k", Some(b"a"), b"").unwrap(), b"a");
        assert_eq!(max.merge(b"k", None, b"").unwrap(), b"");
        assert_eq!(max.merge(b"k", Some(b"b"), b"aa").unwrap(), b"b");
        let joined = MergeOperator::associative("join", |a, b| Ok([a, b"+", b].concat()));
        assert_eq!(joined.merge(b"k", None, b"a").unwrap(), b"a");
        assert_eq!(joined.merge(b"k", Some(b"a"), b"b").unwrap(), b"a+b");
    }

    #[test]
    fn panics_are_errors() {
        let operator = MergeOperator::new("bad", |_, _, operand| match operand {
            b"text" => panic!("as a text"),
            b"string" => panic!("as {}", "a string"),
            _ => std::panic::panic_any(7),
        });
        assert!(cause(&operator, None, b"text").contains("as a text"));
        assert!(cause(&operator, None, b"string").contains("as a string"));
        assert!(cause(&operator, None, b"").contains("no message"));
    }

    #[test]
    fn names_are_checked() {
        let named = |name: &str| MergeOperator::append_as(name).check_name();
        assert!(named("").is_err() && named(&"n".repeat(256)).is_err());
        assert!(named(&"n".repeat(255)).is_ok());
        assert!(MergeOperator::max().check_name().is_ok());
        assert_ne!(MergeOperator::append_as("append"), MergeOperator::append());
    }

    struct Hostile(bool);

    impl std::fmt::Debug for Hostile {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("hostile")
        }
    }

    impl std::fmt::Display for Hostile {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            assert!(self.0, "as it is told");
            f.write_str("hostile")
        }
    }

    impl StdError for Hostile {}

    impl Drop for Hostile {
        fn drop(&mut self) {
            assert!(!self.0, "as it is dropped");
        }
    }

    #[test]
    fn an_error_that_panics_is_one() {
        let operator = MergeOperator::new("hostile", |_, _, operand| Err(Hostile(operand == b"drop").into()));
        assert!(cause(&operator, None, b"drop").contains("as it is dropped"));
        assert!(cause(&operator, None, b"tell").contains("as it is told"));
    }

    #[test]
    fn an_operator_is_known_while_it_runs() {
        let operator = MergeOperator::new("curious", |_, _, _| {
            Ok(callbacks::check_none_runs().unwrap_err().to_string().into())
        });
        assert!(operator.merge(b"", None, b"").is_ok() && callbacks::check_none_runs().is_ok());
        assert!(
            cause(&MergeOperator::add(), None, b"").contains("here are 0")
                && callbacks::check_none_runs().is_ok()
        );
    }

    impl MergeOperator {
        fn append_as(name: &str) -> MergeOperator {
            MergeOperator::associative(name, |a, b| Ok([a, b].concat()))
        }
    }
}
