//! The suite: what every engine must do, whatever is beneath it.
//!
//! An engine joins by its row in `harness/engines.rs`. Every test gets the engine; the random ones
//! run under every set of options of `harness::setups`.

mod basics;
mod batches;
mod commit;
mod conditional;
mod cursors;
mod deferred;
mod errors;
mod expiry;
mod expiry_model;
mod files;
mod filters;
mod hard;
mod histories;
mod ingests;
mod keyspace_model;
mod keyspaces;
mod leases;
mod merging;
mod model;
mod observed;
mod ops;
mod panics;
mod queues;
mod range_deletes;
mod range_model;
mod reads;
mod refused;
mod reopened;
mod room;
mod scrubs;
mod snapshots;
mod swaps;
mod table_settings;
mod transacting;
mod transaction_model;
mod transactions;

use crate::harness::{Engine, each_engine};

/// Makes a test of each function for each engine.
macro_rules! conformance {
    ([] $($engine:ident: $kind:ident, $drains:expr;)*) => {
        $(mod $engine {
            const ENGINE: super::Engine = super::Engine::of(terrace::EngineKind::$kind);
            super::tests_of_an_engine!(
                basics::{an_empty_database_is_empty, written_keys_are_read, any_bytes_are_keys, values_of_every_size,
                    deleted_keys_are_gone, multi_get_is_of_one_moment, stats_tell_what_happened},
                batches::{a_batch_is_applied_in_order, a_spoilt_batch_does_nothing, batches_are_whole_to_readers,
                    large_batches_cross_memtables},
                commit::{drains_do_not_depend_on_the_size_of_a_group, writers_share_groups,
                    readers_see_their_own_writes_and_never_go_back},
                conditional::{conditions_are_about_existence, conditions_see_through_every_floor,
                    what_refuses_a_synced_write_is_durable, what_refuses_a_keyspaces_write_is_durable,
                    one_thread_wins_each_key},
                cursors::{bounds_and_directions, keys_with_many_versions, seeking_goes_both_ways, both_ends_meet,
                    an_iterator_outlives_everything, prefixes_end_where_they_should},
                errors::{over_long_keys_and_values_are_refused, a_second_handle_is_locked_out, read_only_reads,
                    what_is_yet_to_be_reclaimed_is_no_damage, a_missing_database_is_not_made, a_file_is_no_directory, foreign_files_stay,
                    a_closed_database_refuses, damage_is_told_and_repaired, options_that_cannot_work_are_refused},
                refused::{merges_deadlines_and_filters_outlive_refusals},
                room::{a_refused_batch_takes_nothing, a_full_pool_is_left_by_deleting, what_is_kept_back_is_enough,
                    a_flushed_log_is_in_nobodys_way, a_medium_without_room_for_the_whole_pool_is_enough,
                    writes_go_on_once_the_medium_has_room, a_full_pool_takes_deletions_of_ranges,
                    who_asks_too_much_harms_nobody_else, what_is_kept_back_lasts,
                    a_pool_of_few_extents_takes_puts_when_it_is_opened},
                hard::{keys_chosen_by_an_enemy, the_seed_is_nobodys, values_at_every_size_class,
                    most_is_deleted_and_other_sizes_come, a_pool_full_of_long_keys_is_left_by_deleting,
                    long_keys_fill_a_pool_of_any_extents},
                expiry::{entries_are_gone_when_they_are_due, what_is_put_says_how_long_it_lives,
                    conditions_take_what_is_due_for_absent, what_is_due_goes_from_the_media,
                    transactions_keep_what_they_have_read,
                    what_is_due_makes_room, keys_of_before_there_were_keyspaces_do_not_expire, times_to_live_are_kept},
                expiry_model::{expiring_entries_match_a_map},
                files::{compaction_frees_the_disk, a_full_disk_refuses_and_recovers, failing_operations_are_errors},
                filters::{what_is_let_go_is_deleted, however_much_is_let_go_it_goes,
                    a_filter_is_asked_again_and_may_fail, filtered_entries_match_a_map},
                histories::{one_order_explains_what_threads_are_told},
                ingests::{a_stream_is_there_as_a_whole, nobody_sees_a_stream_before_all_of_it_is_there,
                    a_stream_that_fails_leaves_nothing, streams_meet,
                    a_source_may_do_anything, snapshots_stand_beside_streams,
                    what_is_left_hidden_is_in_nobodys_way, a_refused_stream_gives_its_room_back,
                    what_is_not_a_stream_is_refused, high_keys_are_ingested, entries_that_are_ingested_expire},
                deferred::{deferred_merges_match_a_map, operands_wait_for_a_compaction, what_cannot_be_folded_is_told,
                    a_stack_on_a_tombstone_is_no_garbage, what_a_snapshot_kept_apart_is_folded_after_it,
                    folding_is_nobodys_business},
                merging::{merges_stand_on_what_is_there, a_batch_merges_in_its_order, a_failed_merge_changes_nothing,
                    no_merge_is_lost, a_batch_of_merges_has_its_turn, an_operator_keeps_out_of_the_database,
                    merges_take_what_is_due_for_absent},
                leases::{a_lease_is_had_by_one_at_a_time, a_lease_that_is_over_is_a_conflict, what_a_transaction_saw_go_stays_gone},
                model::{random_operations_match_a_map, random_operations_match_under_threads,
                    the_same_operations_give_the_same_everywhere},
                keyspace_model::{keyspaces_match_maps},
                table_settings::{keyspaces_have_tables_of_their_own_kind, settings_without_use_are_refused},
                keyspaces::{keyspaces_have_keys_of_their_own, a_marker_is_nobodys_key,
                    what_is_dropped_is_gone_at_once, strangers_are_refused,
                    keyspaces_come_and_go_under_threads, failed_steps_are_tried_again},
                observed::{options_from_a_file_open_it, a_read_tells_what_it_has_touched,
                    listeners_hear_everything_and_may_do_anything, failures_are_told,
                    operations_are_timed, spans_enclose_the_work},
                panics::{half_a_batch_is_never_seen, a_panic_anywhere_loses_nothing, a_destructor_may_write},
                queues::{walks_over_what_was_taken_match_a_map, queues_lose_nothing_under_threads},
                range_deletes::{a_deleted_range_is_gone_for_every_reader, a_batch_deletes_ranges_in_its_order,
                    conditions_see_that_a_range_is_gone, many_ranges_are_deleted_at_once,
                    a_range_and_what_replaces_it_are_one, what_is_put_over_a_deleted_range_stays,
                    a_refused_deletion_deletes_nothing, what_is_deleted_stays_gone_in_a_full_pool},
                range_model::{deleted_ranges_match_maps},
                reads::{many_keys_are_read_as_each_alone, a_value_is_shown_where_it_lies,
                    a_failed_read_fails_the_call, many_keys_read_are_checked_at_the_commit},
                reopened::{operands_and_ingests_outlive_other_options},
                scrubs::{damage_that_nobody_reads_is_found, the_background_scrubs_by_the_clock,
                    a_scrub_that_is_not_wanted_does_not_happen, a_scrub_stands_beside_whatever_happens,
                    a_close_ends_a_scrub, a_table_that_cannot_be_read_is_left_out},
                snapshots::{a_snapshot_stands_still, snapshots_at_every_step_stand_still,
                    old_versions_go_with_their_snapshot, snapshots_hold_under_threads,
                    a_deletion_holds_when_the_puts_around_it_are_merged},
                swaps::{swaps_are_by_value, an_update_sees_what_it_replaces, no_increment_is_lost},
                transactions::{own_writes_are_read_and_nobody_elses, what_was_read_is_checked,
                    ranges_are_checked_as_far_as_they_were_read, ranges_have_what_was_written,
                    savepoints_take_back_what_was_written, snapshot_isolation_checks_what_is_written,
                    nothing_written_is_no_conflict},
                transaction_model::{random_transactions_match_a_map},
                transacting::{what_is_not_committed_never_was, conflicts_are_tried_again_within_bounds,
                    transfers_keep_the_sum, a_transaction_is_refused_as_a_write_is,
                    a_transaction_without_room_does_nothing, every_sort_of_write_is_noticed},
            );
        })*
    };
}

/// The tests of one engine, by module.
macro_rules! tests_of_an_engine {
    ($($module:ident::{$($test:ident),* $(,)?}),* $(,)?) => {
        $(mod $module {
            $(#[test]
            fn $test() {
                crate::conformance::$module::$test(&super::ENGINE);
            })*
        })*
    };
}
use tests_of_an_engine;

each_engine!([conformance]);
