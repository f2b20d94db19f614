//! Operands that lie in the engine as they came: which operators fold them, and folding.
//!
//! Only keyspaces whose operator is deferred have any, and only in engines that keep them. An operand stands on the next
//! older version of its key, which a merge of runs keeps as long as the operand.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::RwLock;
use terrace_base::{Error, Result};

use crate::batch::MAX_VALUE_BYTES;
use crate::keyspaces::{MergeOperator, Prefix};

#[derive(Debug)]
pub(crate) struct Merging {
    /// Whether there may be operands: as long as that is not known, too.
    any: AtomicBool,
    /// By the numbers of keyspaces.
    operators: RwLock<HashMap<u32, MergeOperator>>,
}

impl Default for Merging {
    fn default() -> Merging {
        Merging { any: AtomicBool::new(true), operators: RwLock::default() }
    }
}

impl Merging {
    /// Operands of the keyspace `number` are folded by `operator` from now on, if they are not already by one.
    pub fn set(&self, number: u32, operator: &MergeOperator) {
        self.operators.write().entry(number).or_insert_with(|| operator.clone());
    }

    /// Whether there may be operands from now on.
    pub fn set_any(&self, any: bool) {
        self.any.store(any, Ordering::Release);
    }

    /// Whether there may be operands.
    #[inline]
    pub fn may_have_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// What the key at `place` has after `operands`, the newest first, which stand on `base`.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the operator is not known; `MergeFailed` if it fails, or makes more than a value may have.
    pub fn fold(&self, place: &[u8], base: Option<Bytes>, operands: &[Bytes]) -> Result<Bytes> {
        let number = Prefix::number_at(place);
        let operator = number.and_then(|number| self.operators.read().get(&number).cloned());
        let key =
            number.and_then(|number| place.strip_prefix(Prefix::of(number).as_slice())).unwrap_or(place);
        let Some(operator) = operator else {
            return Err(Error::invalid(format!(
                "the key \"{}\" has operands, and their operator is not known: its keyspace is to be opened with it \
                 in KeyspaceOptions::merge",
                key.escape_ascii()
            )));
        };
        let value = operands.iter().rev().try_fold(base, |value, operand| {
            let merged = operator.merge(key, value.as_deref(), operand)?;
            if merged.len() > MAX_VALUE_BYTES {
                let (operator, key) = (operator.name().to_owned(), key.to_vec());
                let cause =
                    format!("a value of {} bytes is over the limit of {MAX_VALUE_BYTES}", merged.len());
                return Err(Error::MergeFailed { operator, key, cause });
            }
            Ok(Some(Bytes::from(merged)))
        });
        value.map(Option::unwrap_or_default)
    }
}

#[cfg(test)]
mod tests {
    use terrace_base::ErrorKind;

    use super::*;

    #[test]
    fn operands_are_folded_from_the_oldest_on() {
        let merging = Merging::default();
        let place = [Prefix::of(7).as_slice(), b"key"].concat();
        let operands = [Bytes::from("c"), Bytes::from("b")];
        let unknown = merging.fold(&place, None, &operands).unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::InvalidArgument);
        merging.set(7, &MergeOperator::append());
        assert_eq!(merging.fold(&place, Some(Bytes::from("a")), &operands).unwrap(), "abc");
        assert_eq!(merging.fold(&place, None, &operands).unwrap(), "bc");
        let picky = MergeOperator::new("picky", |key, _, _| Err(format!("no {}", key.escape_ascii()).into()));
        merging.set(8, &picky);
        let failed = merging.fold(&[Prefix::of(8).as_slice(), b"key"].concat(), None, &operands).unwrap_err();
        assert!(failed.to_string().contains("no key"), "{failed}");
    }
}
