//! What every index must do, whatever it is made of: by capability, so that a hash index gets all but the order.

mod crash;
mod create;
mod delays;
mod hard;
mod histories;
mod model;
mod reclaim;
mod seen;
mod subject;
mod threads;
mod values;

pub use crash::{
    Op, StructureChange, crash_again, crash_in_each_event_of, inserts, removes, survives_crashes,
    try_each_event,
};
pub use create::{Creation, finding_no_room_leaves_nothing, finding_no_root_leaves_nothing};
pub use delays::{bears_delays, bears_delays_after_a_crash};
pub use hard::bears_hard_keys;
pub use histories::is_linearizable;
pub use model::agrees_with_a_map;
pub use reclaim::reclaims_beside_writers;
pub use seen::{falls, long, rises, short};
pub use subject::{Case, Sort, Subject};
pub use threads::{
    bears_many_threads, closes_beside_readers, counts_by_compare_exchange, loses_no_insert,
    marks_beside_writers, shows_what_is_always_there,
};
pub use values::{ByteCase, bears_values_of_all_lengths};

/// Seed of the hashes under test, so that every run is the same and keys can be made to collide.
pub const SEED: u64 = 0x7465_7272_6163_6521;

/// Key `i` of those that have one hash with [`SEED`].
pub fn colliding(i: u64) -> Vec<u8> {
    terrace_sim::colliding(SEED, i)
}

/// The suite for the index that a [`Case`] makes.
macro_rules! conformance {
    ($name:ident, $case:ty) => {
        mod $name {
            type Case = $case;

            #[test]
            fn agrees_with_a_map() {
                crate::conformance::agrees_with_a_map::<Case>();
            }

            #[test]
            fn survives_crashes() {
                crate::conformance::survives_crashes::<Case>();
            }

            #[test]
            fn loses_no_insert() {
                crate::conformance::loses_no_insert::<Case>();
            }

            #[test]
            fn shows_what_is_always_there() {
                crate::conformance::shows_what_is_always_there::<Case>();
            }

            #[test]
            fn counts_by_compare_exchange() {
                crate::conformance::counts_by_compare_exchange::<Case>();
            }

            #[test]
            fn is_linearizable() {
                crate::conformance::is_linearizable::<Case>();
            }

            #[test]
            fn marks_beside_writers() {
                crate::conformance::marks_beside_writers::<Case>();
            }

            #[test]
            fn bears_many_threads() {
                crate::conformance::bears_many_threads::<Case>();
            }

            #[test]
            fn closes_beside_readers() {
                crate::conformance::closes_beside_readers::<Case>();
            }

            #[test]
            fn bears_delays() {
                crate::conformance::bears_delays::<Case>();
            }

            #[test]
            fn bears_delays_after_a_crash() {
                crate::conformance::bears_delays_after_a_crash::<Case>();
            }

            #[test]
            fn bears_hard_keys() {
                crate::conformance::bears_hard_keys::<Case>();
            }

            #[test]
            fn reclaims_beside_writers() {
                crate::conformance::reclaims_beside_writers::<Case>(400);
            }
        }
    };
}
pub(crate) use conformance;
