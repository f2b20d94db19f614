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
