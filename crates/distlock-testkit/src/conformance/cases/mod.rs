//! The cases, by what they are about. Each is a plain function of a [`Harness`](super::Harness) that panics if the store
//! breaks the contract.

pub mod acquire_all;
pub mod cancellation;
pub mod crash;
pub mod exclusion;
pub mod extension;
pub mod fair;
pub mod faults;
pub mod inspect;
pub mod lifecycle;
pub mod loss;
pub mod lost_replies;
pub mod names;
pub mod protocol;
pub mod rw_lock;
pub mod semaphore;
pub mod stale_guards;
pub mod tokens;
pub mod waiting;

use super::{Case, Fixture};

/// The one list of all cases that every store must pass.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_cases {
    ($then:ident, $fixture:ty) => {
        $crate::$then! { $fixture;
            exclusion {
                processes_never_hold_a_mutex_together
                fair_and_plain_users_of_a_mutex_never_hold_together
                a_writer_never_holds_with_a_reader_or_another_writer
                permits_in_use_never_exceed_the_capacity
                ten_processes_starting_at_once_on_an_empty_store_all_get_their_turn
                tasks_of_one_engine_never_hold_together
                engines_of_one_process_exclude_each_other
                engines_whose_clocks_differ_exclude_each_other
            }
            tokens {
                tokens_rise_whatever_ends_a_hold
                tokens_of_those_who_share_rise_too
                tokens_rise_from_engine_to_engine
            }
            loss {
                a_broken_lock_turns_its_guard_lost
                the_work_under_a_lost_lock_is_cancelled
                a_guard_that_was_lost_before_anybody_asked_says_so_at_once
                a_paused_holder_knows_at_once_that_it_lost
            }
            stale_guards {
                releasing_a_lost_guard_says_so_and_leaves_its_successor_alone
                dropping_a_lost_guard_leaves_its_successor_alone
                a_successor_of_the_same_engine_is_left_alone_too
            }
            crash {
                a_killed_holder_frees_the_lock_for_a_waiter
                killed_holders_of_a_part_free_it
                a_killed_waiter_blocks_nobody
                processes_killed_in_the_middle_of_a_contest_harm_nobody
                a_runtime_that_ends_leaves_no_more_than_a_crash_does
            }
            waiting {
                a_time_limit_of_zero_is_one_attempt
                a_time_limit_ends_the_wait_in_time
                a_waiter_with_time_left_gets_the_lock
                a_release_wakes_the_waiter
                waiters_of_one_process_are_served_in_their_order
            }
            cancellation {
                an_acquire_dropped_at_any_await_leaves_nothing_held
                a_wait_dropped_at_any_await_leaves_nobody_waiting
                a_wait_dropped_while_it_is_being_granted_passes_the_lock_on
                a_release_dropped_half_way_is_finished
                a_dropped_guard_is_released_from_wherever_it_is_dropped
                an_acquire_all_dropped_at_any_await_leaves_nothing_held
            }
            extension {
                a_held_lock_outlives_many_expiries
                a_lease_without_extension_lasts_its_whole_expiry
                hold_at_least_keeps_a_lock_that_is_given_back_early
            }
            lifecycle {
                shutdown_gives_everything_back_and_ends_all_waiting
                a_guard_outlives_the_locks_it_came_from
            }
            names {
                names_that_look_alike_are_different_locks
                any_name_works_and_comes_back_as_it_was
                empty_and_overlong_names_are_refused
                kinds_of_the_same_name_do_not_meet
            }
            semaphore {
                weights_are_counted_across_engines
                impossible_weights_are_refused
                another_capacity_is_a_mismatch
                ten_thousand_permits_are_drained_and_refilled
                a_big_request_is_not_starved_by_small_ones
            }
            rw_lock {
                many_readers_hold_at_once
                a_writer_is_alone
                a_writer_gets_in_among_a_stream_of_readers
                a_waiting_writer_keeps_later_readers_out
            }
            fair {
                fair_waiters_are_served_in_their_order_across_processes
                fair_waiters_are_served_in_their_order_across_engines
                a_fair_holder_excludes_plain_users_and_the_other_way_round
            }
            acquire_all {
                locks_of_every_kind_are_taken_together
                what_was_taken_before_a_busy_one_is_given_back
                opposite_orders_never_deadlock
                naming_a_lock_twice_is_refused
                all_of_them_exclude_each_of_them
                losing_one_of_them_ends_the_work_under_all
            }
            inspect {
                inspect_shows_who_holds_what
                inspect_shows_who_waits
                inspect_finds_by_kind_name_and_prefix
                doctor_finds_a_store_that_works
            }
            protocol {
                a_claim_that_is_asked_again_is_recognised
                a_renewal_never_takes_a_lock
                a_renewal_raises_the_token
                giving_back_what_is_not_ours_changes_nothing
                one_attempt_leaves_no_trace
                a_withdrawn_claim_is_gone
                a_batch_is_many_single_steps
                a_batch_that_names_a_resource_twice_grants_it_once
                a_busy_lock_says_when_to_ask_again
            }
            lost_replies {
                a_grant_whose_reply_was_lost_is_recognised
                a_grant_that_nobody_heard_of_is_taken_back
                a_request_that_comes_back_late_is_undone
                an_answer_that_comes_after_its_retry_takes_nothing_back
                a_release_whose_reply_was_lost_is_finished
                a_failed_renewal_changes_nothing
                a_holder_cut_off_from_its_store_is_lost_in_time
            }
        }
    };
}

/// Gathers the cases.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_list {
    ($fixture:ty; $($group:ident { $($case:ident)* })*) => {
        vec![$($($crate::conformance::Case {
            name: concat!(stringify!($group), "::", stringify!($case)),
            play: |harness| Box::pin($crate::conformance::cases::$group::$case::<$fixture>(harness)),
        },)*)*]
    };
}

/// All cases that every store must pass.
#[must_use]
pub fn all<F: Fixture>() -> Vec<Case<F>> {
    crate::__conformance_cases! { __conformance_list, F }
}
