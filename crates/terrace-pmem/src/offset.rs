//! Typed offsets into a pool, and the types that may lie there.

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

    /// The offset `offset`. It is checked where it is followed, not here.
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
pub unsafe trait PmSafe: Sized {
    /// Proves the layout where it depends on a length; evaluated when a pool is asked for the type.
    #[doc(hidden)]
    const LAYOUT: () = ();
}

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

/// States a structure's size and where its fields lie, proves both when it is compiled, and makes the structure
/// [`PmSafe`].
///
/// Fields come in order, each with its offset. The compiler refuses a field that lies elsewhere, a field that is
/// missing, padding, and a field whose type is not `PmSafe`. With `proof` in place of `unsafe` the layout is proved
/// alone: that is enough for a structure that is only copied out of a pool and into it.
///
/// # Safety
///
/// The word `unsafe` promises the one thing that the compiler cannot prove: every field that changes while it is
/// shared is an atomic.
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
///
/// A field's offset gets a name, of type `u64`, where code needs one:
///
/// ```
/// #[repr(C)]
/// struct Head {
///     magic: [u8; 8],
///     next: u64,
/// }
///
/// terrace_pmem::pm_layout! { unsafe Head: 16 { magic @ 0, next @ 8 as pub(crate) NEXT_AT } }
/// assert_eq!(NEXT_AT, 8);
/// ```
///
/// A structure whose last field is an array of any length states the size that it has without one. The proof is made
/// for each length that a pool is asked for:
///
/// ```
/// #[repr(C)]
/// struct Row<const N: usize> {
///     len: u64,
///     cells: [u32; N],
/// }
///
/// terrace_pmem::pm_layout! { unsafe Row<const N: usize>: 8 + 4 * N, { len @ 0, cells @ 8 } }
/// ```
#[macro_export]
macro_rules! pm_layout {
    ($(unsafe $type:ident: $bytes:literal { $($field:tt @ $at:literal $(as $vis:vis $name:ident)?),+ $(,)? })+) => {$(
        $($(
            #[doc = concat!("Where `", stringify!($field), "` lies in a `", stringify!($type), "`.")]
            $vis const $name: u64 = $at;
        )?)+
        const _: () = $crate::pm_layout!(@prove $type, $bytes, $($field @ $at),+);
        // SAFETY: the fields, each of which is `PmSafe`, lie one after the other and fill the structure. So there is no
        // padding, no address and no drop glue, and any bytes are valid. Fields that change while they are shared are
        // atomics by the caller's promise.
        unsafe impl $crate::PmSafe for $type {}
    )+};
    (
        unsafe $type:ident<const $n:ident: usize>: $bytes:expr,
        { $($field:tt @ $at:literal $(as $vis:vis $name:ident)?),+ $(,)? }
    ) => {
        $($(
            #[doc = concat!("Where `", stringify!($field), "` lies in a `", stringify!($type), "`.")]
            $vis const $name: u64 = $at;
        )?)+
        // SAFETY: as above; `LAYOUT` proves it for each length that is used.
        unsafe impl<const $n: usize> $crate::PmSafe for $type<$n> {
            const LAYOUT: () = $crate::pm_layout!(@prove $type<$n>, $bytes, $($field @ $at),+);
        }
    };
    ($(proof $type:ident: $bytes:literal { $($field:tt @ $at:literal $(as $vis:vis $name:ident)?),+ $(,)? })+) => {$(
        $($(
            #[doc = concat!("Where `", stringify!($field), "` lies in a `", stringify!($type), "`.")]
            $vis const $name: u64 = $at;
        )?)+
        const _: () = $crate::pm_layout!(@prove $type, $bytes, $($field @ $at),+);
    )+};
    (@prove $type:ty, $bytes:expr, $($field:tt @ $at:literal),+) => {{
        let mut end = 0;
        $(
            assert!(end == $at, concat!("padding or a field before `", stringify!($field), "`"));
            assert!(::std::mem::offset_of!($type, $field) == $at, concat!("`", stringify!($field), "` lies elsewhere"));
            end += $crate::field_bytes(|s: &$type| &s.$field);
        )+
        assert!(end == $bytes && size_of::<$type>() == $bytes, "the fields are not all of it");
    }};
}
