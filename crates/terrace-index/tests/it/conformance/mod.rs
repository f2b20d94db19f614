//! What every ordered index must do, whatever it is made of.

mod crash;
mod model;
mod threads;

use terrace_base::Result;
use terrace_index::{FastFair, OrderedIndex, SkipIndex};
use terrace_pmem::Pool;

pub use crash::survives_crashes;
pub use model::agrees_with_a_map;
pub use threads::{
    counts_by_compare_exchange, loses_no_insert, marks_beside_writers, shows_what_is_always_there,
};

/// How an index is made.
pub trait Constructor: Send + Sync + 'static {
    type Index: OrderedIndex;
    fn create(pool: &Pool) -> Result<Self::Index>;
    fn open(pool: &Pool) -> Result<Self::Index>;
}

pub struct Skip;

impl Constructor for Skip {
    type Index = SkipIndex;
    fn create(pool: &Pool) -> Result<SkipIndex> {
        SkipIndex::create(pool, "index")
    }
    fn open(pool: &Pool) -> Result<SkipIndex> {
        SkipIndex::open(pool, "index")
    }
}

pub struct Fair<const N: usize>;

impl<const N: usize> Constructor for Fair<N> {
    type Index = FastFair<N>;
    fn create(pool: &Pool) -> Result<FastFair<N>> {
        FastFair::create(pool, "index")
    }
    fn open(pool: &Pool) -> Result<FastFair<N>> {
        FastFair::open(pool, "index")
    }
}

macro_rules! conformance {
    ($name:ident, $constructor:ty) => {
        mod $name {
            type Subject = $constructor;

            #[test]
            fn agrees_with_a_map() {
                crate::conformance::agrees_with_a_map::<Subject>();
            }

            #[test]
            fn survives_crashes() {
                crate::conformance::survives_crashes::<Subject>();
            }

            #[test]
            fn loses_no_insert() {
                crate::conformance::loses_no_insert::<Subject>();
            }

            #[test]
            fn shows_what_is_always_there() {
                crate::conformance::shows_what_is_always_there::<Subject>();
            }

            #[test]
            fn counts_by_compare_exchange() {
                crate::conformance::counts_by_compare_exchange::<Subject>();
            }

            #[test]
            fn marks_beside_writers() {
                crate::conformance::marks_beside_writers::<Subject>();
            }
        }
    };
}
pub(crate) use conformance;
