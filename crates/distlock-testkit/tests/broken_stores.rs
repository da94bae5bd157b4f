//! The suite catches every defect, with the cases named here and for the reason given.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::time::Duration;

use distlock_testkit::broken::{BrokenFixture, Defect};
use distlock_testkit::conformance::{Case, Timing, cases, run_on};

thread_local! {
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Does not print expected panics, which would look like failures.
fn silence_expected_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let default_hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let in_case = matches!(std::thread::current().name(), Some("tokio-rt-worker" | "actor"));
            if !in_case && !EXPECTED.get() {
                default_hook(info);
            }
        }));
    });
}

/// The wait limits to try. An expected event happens at once here, so a short limit is enough; on a busy machine a case may
/// hit it before it reaches the defect, so longer ones follow.
const WAIT_LIMITS: [Duration; 3] = [Duration::from_secs(3), Duration::from_secs(10), Duration::from_secs(30)];

/// Runs one case on a store with a defect and returns the failure, if any.
fn failure(defect: Defect, case: &Case<BrokenFixture>, wait_limit: Duration) -> Option<String> {
    silence_expected_panics();
    let timing = Timing { wait_limit, ..Timing::default() };
    EXPECTED.set(true);
    let result = catch_unwind(AssertUnwindSafe(|| {
        run_on("broken_stores::none", async { BrokenFixture::with(defect) }, Some(timing), case.run);
    }));
    EXPECTED.set(false);
    let panic = result.err()?;
    let text = panic.downcast_ref::<String>().cloned();
    Some(text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default())
}

/// Asserts that each of these cases fails on a store with the defect, with this text in its message.
fn assert_caught(defect: Defect, by: &[(&str, &str)]) {
    let all = cases::all::<BrokenFixture>();
    for (name, reason) in by {
        let case = all.iter().find(|case| case.name == *name);
        let case = case.unwrap_or_else(|| panic!("there is no case {name}"));
        let mut seen = Vec::new();
        let found = WAIT_LIMITS.into_iter().any(|wait_limit| {
            let failure = failure(defect, case, wait_limit);
            let caught = failure.as_ref().is_some_and(|failure| failure.contains(reason));
            seen.push(failure);
            caught
        });
        assert!(found, "{name} should have found {reason:?} in {defect:?}, and found {seen:#?}");
        println!("{defect:?} is caught by {name}: {seen:?}");
    }
}

macro_rules! defects {
    ($($test:ident: $defect:ident, [$(($case:literal, $reason:literal)),* $(,)?];)*) => {
        $(#[test]
        fn $test() {
            assert_caught(Defect::$defect, &[$(($case, $reason)),*]);
        })*
    };
}

defects! {
    a_token_that_restarts_at_release: TokenRestartsAtRelease, [
        ("tokens::tokens_increase_across_engines", "after a release the token"),
        ("tokens::tokens_increase_however_a_hold_ends", "after a release the token"),
        ("exclusion::processes_never_hold_a_mutex_at_once", "DuplicateToken"),
    ];
    a_token_that_restarts_at_a_forced_release: TokenRestartsAtBreak, [
        ("tokens::tokens_increase_however_a_hold_ends", "after a forced release the token"),
    ];
    a_token_shared_by_holders: TokenSharedByHolders, [
        ("tokens::tokens_of_concurrent_holders_increase", "tokens of Read"),
        ("rw_lock::many_readers_hold_at_once", "DuplicateToken"),
    ];
    a_release_without_an_owner_check: ReleaseWithoutOwnerCheck, [
        ("protocol::releasing_a_foreign_lock_changes_nothing", "NotYours"),
        ("stale_guards::dropping_a_lost_guard_spares_the_next_holder", "a stale guard released"),
    ];
    a_renewal_that_frees: RenewalFrees, [
        ("renewal::a_held_lock_outlives_many_expiries", "was"),
        ("lifecycle::a_guard_outlives_its_locks", "while it was held"),
    ];
    a_failed_renewal_that_frees: FailedRenewalFrees, [
        ("renewal::a_held_lock_outlives_many_expiries", "was"),
    ];
    a_renewal_of_a_foreign_lock: RenewsForeignLock, [
        ("loss::breaking_a_lock_turns_its_guard_lost", "did not happen"),
        ("protocol::a_renewal_never_acquires", "NotYours"),
    ];
    a_renewal_that_acquires_again: RenewalAcquires, [
        ("protocol::a_renewal_never_acquires", "NotYours"),
        ("loss::breaking_a_lock_turns_its_guard_lost", "did not happen"),
    ];
    an_early_expiry: ExpiresEarly, [
        ("renewal::a_lease_without_renewal_lasts_its_whole_expiry", "CapacityExceeded"),
        ("loss::an_unobserved_loss_is_reported_at_the_first_query", "reports its loss as: None"),
    ];
    a_missing_expiry: NeverExpires, [
        ("crash::a_killed_holder_frees_the_lock_for_a_waiter", "did not happen"),
        ("renewal::a_lease_without_renewal_lasts_its_whole_expiry", "should have been granted"),
    ];
    room_for_two_writers: TwoWriters, [
        ("rw_lock::a_writer_excludes_readers_and_writers", "a writer beside a reader"),
        ("exclusion::a_writer_never_holds_with_a_reader_or_another_writer", "CapacityExceeded"),
        ("exclusion::engines_of_one_process_exclude_each_other", "was granted twice"),
    ];
    room_for_a_reader_beside_a_writer: ReaderBesideWriter, [
        ("rw_lock::a_writer_excludes_readers_and_writers", "a writer beside a reader"),
        ("exclusion::a_writer_never_holds_with_a_reader_or_another_writer", "CapacityExceeded"),
    ];
    a_check_before_the_write: ChecksThenSets, [
        ("exclusion::processes_never_hold_a_mutex_at_once", ""),
        ("exclusion::ten_processes_starting_at_once_on_an_empty_store_all_acquire", ""),
    ];
    one_lock_id_for_many_acquisitions: LockIdPerEngine, [
        ("stale_guards::a_lost_guard_spares_the_next_holder_of_the_same_engine", ""),
        ("exclusion::tasks_of_one_engine_never_hold_at_once", ""),
    ];
    a_retry_that_is_not_recognised: ForgetsLockIds, [
        ("protocol::a_retried_claim_is_recognised", "should have been granted"),
        ("lost_replies::a_grant_whose_reply_was_lost_is_recognised", "should have been granted"),
    ];
    a_wake_up_that_claims_a_grant: WakesClaimAGrant, [
        ("exclusion::processes_never_hold_a_mutex_at_once", ""),
        ("waiting::a_release_wakes_the_waiter", ""),
    ];
    a_store_that_never_wakes: NeverWakes, [
        ("waiting::a_release_wakes_the_waiter", "the fastest of four handoffs"),
    ];
    a_pool_without_a_queue: NoQueue, [
        ("semaphore::a_large_request_is_not_starved_by_small_ones", "did not come true"),
        ("rw_lock::a_waiting_writer_blocks_later_readers", "did not come true"),
        ("fair::fair_waiters_are_served_in_order_across_engines", "did not come true"),
    ];
    a_single_attempt_that_queues: SingleAttemptQueues, [
        ("protocol::one_attempt_leaves_no_trace", "waiters"),
        ("waiting::a_time_limit_of_zero_is_one_attempt", "left a waiter"),
    ];
    withdrawn_waiters_that_stay: WithdrawnWaitersStay, [
        ("protocol::a_withdrawn_claim_leaves_no_waiter", "withdrawal of a waiter"),
        ("cancellation::a_wait_dropped_at_any_await_leaves_no_waiter", "no waiter for"),
    ];
    a_capacity_taken_from_each_request: CapacityPerRequest, [
        ("semaphore::another_capacity_is_a_mismatch", ""),
    ];
    names_that_ignore_case: FoldsCase, [
        ("names::names_that_look_alike_are_different_locks", "is confused with another name"),
    ];
    names_that_are_truncated: TruncatesNames, [
        ("names::names_that_look_alike_are_different_locks", "is confused with another name"),
    ];
    kinds_that_share_names: KindsShareNames, [
        ("names::kinds_of_the_same_name_are_independent", ""),
    ];
    a_busy_lock_without_retry_after: NoRetryAfter, [
        ("protocol::a_busy_lock_says_when_to_retry", "does not say when"),
    ];
    a_batch_that_fails_as_a_whole: BatchFailsAsAWhole, [
        ("protocol::a_batch_is_answered_item_by_item", ""),
    ];
}
