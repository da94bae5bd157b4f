//! The cases, grouped by promise. Each is a function of a [`Harness`](super::Harness) that panics if the store violates
//! the contract.

pub mod acquire_all;
pub mod cancellation;
pub mod crash;
pub mod exclusion;
pub mod fair;
pub mod faults;
pub mod inspect;
pub mod lifecycle;
pub mod loss;
pub mod lost_replies;
pub mod names;
pub mod protocol;
pub mod renewal;
pub mod rw_lock;
pub mod semaphore;
pub mod stale_guards;
pub mod tokens;
pub mod waiting;

use super::{Case, Fixture};

/// The list of all cases that every store must pass.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_cases {
    ($then:ident, $fixture:ty) => {
        $crate::$then! { $fixture;
            exclusion {
                processes_never_hold_a_mutex_at_once
                fair_and_plain_users_of_a_mutex_never_hold_at_once
                a_writer_never_holds_with_a_reader_or_another_writer
                permits_in_use_never_exceed_the_capacity
                ten_processes_starting_at_once_on_an_empty_store_all_acquire
                tasks_of_one_engine_never_hold_at_once
                engines_of_one_process_exclude_each_other
                engines_whose_clocks_differ_exclude_each_other
            }
            tokens {
                tokens_increase_however_a_hold_ends
                tokens_of_concurrent_holders_increase
                tokens_increase_across_engines
            }
            loss {
                breaking_a_lock_turns_its_guard_lost
                the_work_under_a_lost_lock_is_cancelled
                an_unobserved_loss_is_reported_at_the_first_query
                a_paused_holder_reports_loss_as_soon_as_it_resumes
            }
            stale_guards {
                releasing_a_lost_guard_reports_loss_and_spares_the_next_holder
                dropping_a_lost_guard_spares_the_next_holder
                a_lost_guard_spares_the_next_holder_of_the_same_engine
            }
            crash {
                a_killed_holder_frees_the_lock_for_a_waiter
                killed_readers_and_permit_holders_free_their_share
                a_killed_waiter_does_not_block_the_queue
                processes_killed_while_contending_do_no_harm
                a_runtime_that_ends_is_no_worse_than_a_crash
            }
            waiting {
                a_time_limit_of_zero_is_one_attempt
                a_time_limit_ends_the_wait_in_time
                a_waiter_with_time_left_gets_the_lock
                a_release_wakes_the_waiter
                waiters_of_one_process_are_served_in_order
            }
            cancellation {
                an_acquire_dropped_at_any_await_leaves_nothing_held
                a_wait_dropped_at_any_await_leaves_no_waiter
                a_wait_dropped_while_being_granted_releases_the_lock
                a_release_dropped_at_any_await_completes
                a_guard_dropped_on_any_thread_is_released
                an_acquire_all_dropped_at_any_await_leaves_nothing_held
            }
            renewal {
                a_held_lock_outlives_many_expiries
                a_lease_without_renewal_lasts_its_whole_expiry
                hold_at_least_keeps_a_lock_released_early
                a_renewal_on_request_is_answered
            }
            lifecycle {
                shutdown_releases_everything_and_ends_all_waits
                a_guard_outlives_its_locks
            }
            names {
                names_that_look_alike_are_different_locks
                any_name_works_and_is_shown_unchanged
                empty_and_overlong_names_are_refused
                kinds_of_the_same_name_are_independent
            }
            semaphore {
                weights_are_counted_across_engines
                impossible_weights_are_refused
                another_capacity_is_a_mismatch
                a_resizable_semaphore_in_use_grows_and_shrinks
                a_rolling_change_of_the_capacity_never_admits_more_than_the_larger_one
                ten_thousand_permits_are_drained_and_refilled
                a_large_request_is_not_starved_by_small_ones
            }
            rw_lock {
                many_readers_hold_at_once
                a_writer_excludes_readers_and_writers
                a_writer_is_not_starved_by_a_stream_of_readers
                a_waiting_writer_blocks_later_readers
            }
            fair {
                fair_waiters_are_served_in_order_across_processes
                fair_waiters_are_served_in_order_across_engines
                fair_and_plain_holders_exclude_each_other
            }
            acquire_all {
                locks_of_every_kind_are_acquired_together
                locks_acquired_before_a_busy_one_are_released
                opposite_orders_never_deadlock
                naming_a_lock_twice_is_refused
                acquire_all_excludes_single_holders
                losing_one_lock_ends_the_work_under_all
            }
            inspect {
                inspect_shows_holders
                inspect_shows_waiters
                inspect_finds_by_kind_name_and_prefix
                doctor_reaches_a_working_store
                a_ping_is_answered_and_holders_and_free_permits_are_told
            }
            protocol {
                a_retried_claim_is_recognised
                a_renewal_never_acquires
                a_renewal_raises_the_token
                releasing_a_foreign_lock_changes_nothing
                one_attempt_leaves_no_trace
                a_withdrawn_claim_leaves_no_waiter
                a_batch_is_answered_item_by_item
                a_batch_that_names_a_resource_twice_grants_it_once
                a_busy_lock_says_when_to_retry
            }
            lost_replies {
                a_grant_whose_reply_was_lost_is_recognised
                a_grant_whose_replies_were_all_lost_is_released
                a_late_grant_of_a_cancelled_request_is_undone
                a_late_reply_after_a_retry_releases_nothing
                a_release_whose_reply_was_lost_completes
                a_failed_renewal_changes_nothing
                a_holder_cut_off_from_its_store_reports_loss_in_time
            }
        }
    };
}

/// Collects the cases as values.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_list {
    ($fixture:ty; $($group:ident { $($case:ident)* })*) => {
        vec![$($($crate::conformance::Case {
            name: concat!(stringify!($group), "::", stringify!($case)),
            run: |harness| Box::pin($crate::conformance::cases::$group::$case::<$fixture>(harness)),
        },)*)*]
    };
}

/// All cases that every store must pass.
#[must_use]
pub fn all<F: Fixture>() -> Vec<Case<F>> {
    crate::__conformance_cases! { __conformance_list, F }
}
