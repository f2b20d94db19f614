//! The first bytes of keys: most comparisons need no more.

/// The first eight bytes of `key`, padded with zeroes: a lesser key never has the greater number.
///
/// ```
/// use terrace_base::prefix;
///
/// assert!(prefix::head(b"apple") < prefix::head(b"apricot"));
/// assert_eq!(prefix::head(b"a"), prefix::head(b"a\0"), "the rest decides");
/// ```
#[inline]
pub fn head(key: &[u8]) -> u64 {
    if let Some(head) = key.first_chunk() {
        return u64::from_be_bytes(*head);
    }
    let mut head = [0; 8];
    head[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(head)
}

/// Bytes that two keys begin with alike. Every key between them begins so, too.
///
/// ```
/// assert_eq!(terrace_base::prefix::common(b"apple", b"apricot"), 2);
/// ```
pub fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}
