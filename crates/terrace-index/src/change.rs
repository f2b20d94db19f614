//! Changes that are made many at once, in the order of their keys.

/// A change of one key, among many that are made at once.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
    /// The key's order before its bytes: the first eight of them, or its hash.
    pub head: u64,
    /// The key.
    pub key: &'a [u8],
    /// Its new word, or none.
    pub word: Option<u64>,
    /// Whether the index is known not to have the key.
    pub is_new: bool,
}
