//! Typed offsets into a pool, and what may lie there.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// An offset from the pool's start to a `T`; 0 is null. Never an address: pools map anywhere.
#[repr(transparent)]
pub struct POff<T>(u64, PhantomData<fn() -> T>);

impl<T> POff<T> {
    /// The null offset.
    pub const NULL: Self = Self::new(0);

    /// The offset `offset`, which is not checked here but where it is followed.
    pub const fn new(offset: u64) -> Self {
        POff(offset, PhantomData)
    }

    /// The offset in bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether it points nowhere.
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The same place as another type.
    pub const fn cast<U>(self) -> POff<U> {
        POff::new(self.0)
    }

    /// The place `bytes` into the object.
    pub const fn field<U>(self, bytes: u64) -> POff<U> {
        POff::new(self.0 + bytes)
    }
}

impl<T> Clone for POff<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for POff<T> {}

impl<T> PartialEq for POff<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T> Eq for POff<T> {}

impl<T> PartialOrd for POff<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for POff<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

impl<T> Hash for POff<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl<T> Default for POff<T> {
    fn default() -> Self {
        Self::NULL
    }
}

impl<T> fmt::Debug for POff<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{:#x}", self.0)
    }
}

/// Types that may be looked at in place in a pool.
///
/// # Safety
///
/// Implementors promise that the type has a fixed layout (`repr(C)` or `repr(transparent)`) without padding,
/// that any bytes are a valid value (a crash or damage may leave any), that it holds no address and no drop
/// glue, and that every field which changes while it is shared is an atomic.
pub unsafe trait PmSafe: Sized {}

macro_rules! pm_safe {
    ($($t:ty),*) => {$(
        // SAFETY: a plain or atomic integer: no padding, any bytes valid, no address.
        unsafe impl PmSafe for $t {}
    )*};
}
pm_safe!(u8, u16, u32, u64, i8, i16, i32, i64, AtomicU8, AtomicU16, AtomicU32, AtomicU64);

// SAFETY: an array adds no padding between elements that have none.
unsafe impl<T: PmSafe, const N: usize> PmSafe for [T; N] {}

// SAFETY: one u64; any value is valid, it is checked where it is followed.
unsafe impl<T> PmSafe for POff<T> {}

const _: () = assert!(size_of::<POff<u64>>() == 8 && align_of::<POff<u64>>() == 8);

/// Bytes of a field, which must be [`PmSafe`] itself. For [`pm_layout!`](crate::pm_layout).
#[doc(hidden)]
pub const fn field_bytes<S, T: PmSafe>(_: fn(&S) -> &T) -> usize {
    size_of::<T>()
}

/// States where the fields of a structure lie, and its size, proves it when it is compiled, and makes the structure
/// [`PmSafe`].
///
/// Fields come in order, each with its offset. An error of the compiler tells if one is elsewhere, if one is missing, if
/// there is padding, or if a field's type is not `PmSafe`.
///
/// # Safety
///
/// What the compiler cannot prove the word `unsafe` promises: that every field which changes while it is shared is
/// an atomic.
///
/// ```
/// use std::sync::atomic::AtomicU64;
///
/// #[repr(C)]
/// struct Record {
///     word: AtomicU64,
///     crc: u32,
///     key_len: u16,
///     reserved: u16,
/// }
///
/// terrace_pmem::pm_layout! { unsafe Record: 16 { word @ 0, crc @ 8, key_len @ 12, reserved @ 14 } }
/// ```
///
/// Padding is an error:
///
/// ```compile_fail
/// #[repr(C)]
/// struct Padded {
///     small: u8,
///     large: u64,
/// }
///
/// terrace_pmem::pm_layout! { unsafe Padded: 16 { small @ 0, large @ 8 } }
/// ```
#[macro_export]
macro_rules! pm_layout {
    ($(unsafe $type:ty: $bytes:literal { $($field:tt @ $at:literal),+ $(,)? })+) => {$(
        $crate::pm_layout!(proof $type: $bytes { $($field @ $at),+ });
        // SAFETY: the fields, each of which is `PmSafe`, lie one after the other and fill the structure, so there is no padding,
        // no address, no drop glue, and any bytes are valid. What changes while it is shared is an atomic: the
        // caller's promise.
        unsafe impl $crate::PmSafe for $type {}
    )+};
    (proof $type:ty: $bytes:literal { $($field:tt @ $at:literal),+ }) => {
        const _: () = {
            let mut end = 0;
            $(
                assert!(end == $at, concat!("padding or a field before `", stringify!($field), "`"));
                assert!(::std::mem::offset_of!($type, $field) == $at, concat!("`", stringify!($field), "` lies elsewhere"));
                end += $crate::field_bytes(|s: &$type| &s.$field);
            )+
            assert!(end == $bytes && size_of::<$type>() == $bytes, "the fields are not all of it");
        };
    };
}
