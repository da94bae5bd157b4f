//! The suite finds what is wrong: every defect is caught, by the cases named here and for the reason given.
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

/// Failures that are wanted are not printed: they would look like failures.
fn keep_expected_failures_quiet() {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let of_a_case = matches!(std::thread::current().name(), Some("tokio-rt-worker" | "actor"));
            if !of_a_case && !EXPECTED.get() {
                loud(info);
            }
        }));
    });
}

/// How long a case waits for what must happen. It happens at once here, and what does not happen is not to be waited
/// for; but on a machine with no time for us a case may end its waiting before it comes to what it is to find.
const PATIENCE: [Duration; 3] = [Duration::from_secs(3), Duration::from_secs(10), Duration::from_secs(30)];

/// Plays one case on a store with a defect and returns how it failed, if it did.
fn failure(defect: Defect, case: &Case<BrokenFixture>, wait_limit: Duration) -> Option<String> {
    keep_expected_failures_quiet();
    let timing = Timing { wait_limit, ..Timing::default() };
    EXPECTED.set(true);
    let played = catch_unwind(AssertUnwindSafe(|| {
        run_on("broken_stores::none", async { BrokenFixture::with(defect) }, Some(timing), case.run);
    }));
    EXPECTED.set(false);
    let panic = played.err()?;
    let text = panic.downcast_ref::<String>().cloned();
    Some(text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default())
}

/// Asserts that each of these cases fails on a store with the defect, and that its failure says this.
fn caught(defect: Defect, by: &[(&str, &str)]) {
    let all = cases::all::<BrokenFixture>();
    for (name, reason) in by {
        let case = all.iter().find(|case| case.name == *name);
        let case = case.unwrap_or_else(|| panic!("there is no case {name}"));
        let mut seen = Vec::new();
        let found = PATIENCE.into_iter().any(|wait_limit| {
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
            caught(Defect::$defect, &[$(($case, $reason)),*]);
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
    a_token_that_holders_share: TokenSharedByHolders, [
        ("tokens::tokens_of_concurrent_holders_increase", "tokens of Read"),
        ("rw_lock::many_readers_hold_at_once", "DuplicateToken"),
    ];
    a_release_without_an_owner_check: ReleaseWithoutOwnerCheck, [
        ("protocol::releasing_a_foreign_lock_changes_nothing", "NotYours"),
        ("stale_guards::dropping_a_lost_guard_spares_the_next_holder", "a stale guard took"),
    ];
    an_extension_that_frees: ExtendFrees, [
        ("renewal::a_held_lock_outlives_many_expiries", "was"),
        ("lifecycle::a_guard_outlives_its_locks", "while it was held"),
    ];
    a_failed_extension_that_frees: FailedExtendFrees, [
        ("renewal::a_held_lock_outlives_many_expiries", "was"),
    ];
    an_extension_of_what_is_not_ours: ExtendsWhatIsNotOurs, [
        ("loss::breaking_a_lock_turns_its_guard_lost", "did not happen"),
        ("protocol::a_renewal_never_acquires", "NotYours"),
    ];
    an_extension_that_takes_the_lock_again: ExtendTakesAgain, [
        ("protocol::a_renewal_never_acquires", "NotYours"),
        ("loss::breaking_a_lock_turns_its_guard_lost", "did not happen"),
    ];
    an_expiry_that_comes_early: ExpiresEarly, [
        ("renewal::a_lease_without_renewal_lasts_its_whole_expiry", "CapacityExceeded"),
        ("loss::an_unobserved_loss_is_reported_at_the_first_query", "says of its loss: None"),
    ];
    an_expiry_that_never_comes: NeverExpires, [
        ("crash::a_killed_holder_frees_the_lock_for_a_waiter", "did not happen"),
        ("renewal::a_lease_without_renewal_lasts_its_whole_expiry", "should have been granted"),
    ];
    room_for_two_writers: TwoWriters, [
        ("rw_lock::a_writer_excludes_readers_and_writers", "a writer beside a reader"),
        ("exclusion::a_writer_never_holds_with_a_reader_or_another_writer", "CapacityExceeded"),
        ("exclusion::engines_of_one_process_exclude_each_other", "was given out twice"),
    ];
    room_for_a_reader_beside_a_writer: ReaderBesideWriter, [
        ("rw_lock::a_writer_excludes_readers_and_writers", "a writer beside a reader"),
        ("exclusion::a_writer_never_holds_with_a_reader_or_another_writer", "CapacityExceeded"),
    ];
    a_check_before_the_set: ChecksThenSets, [
        ("exclusion::processes_never_hold_a_mutex_at_once", ""),
        ("exclusion::ten_processes_starting_at_once_on_an_empty_store_all_acquire", ""),
    ];
    a_lock_id_for_many_acquisitions: LockIdPerEngine, [
        ("stale_guards::a_lost_guard_spares_the_next_holder_of_the_same_engine", ""),
        ("exclusion::tasks_of_one_engine_never_hold_at_once", ""),
    ];
    a_grant_that_is_not_recognised: ForgetsWhoAsked, [
        ("protocol::a_retried_claim_is_recognised", "should have been granted"),
        ("lost_replies::a_grant_whose_reply_was_lost_is_recognised", "should have been granted"),
    ];
    a_wake_up_that_promises_a_grant: WakesPromiseAGrant, [
        ("exclusion::processes_never_hold_a_mutex_at_once", ""),
        ("waiting::a_release_wakes_the_waiter", ""),
    ];
    a_store_that_never_wakes: NeverWakes, [
        ("waiting::a_release_wakes_the_waiter", "the quickest of four hand-overs"),
    ];
    a_pool_without_a_queue: NoQueue, [
        ("semaphore::a_big_request_is_not_starved_by_small_ones", "did not come true"),
        ("rw_lock::a_waiting_writer_blocks_later_readers", "did not come true"),
        ("fair::fair_waiters_are_served_in_order_across_engines", "did not come true"),
    ];
    an_attempt_that_waits: OneAttemptWaits, [
        ("protocol::one_attempt_leaves_no_trace", "waiters"),
        ("waiting::a_time_limit_of_zero_is_one_attempt", "left a waiter"),
    ];
    waiters_that_stay_when_they_withdraw: WithdrawnWaitersStay, [
        ("protocol::a_withdrawn_claim_leaves_no_waiter", "waiter that withdrew"),
        ("cancellation::a_wait_dropped_at_any_await_leaves_no_waiter", "no waiter for"),
    ];
    a_capacity_that_is_guessed: CapacityOfWhoeverAsks, [
        ("semaphore::another_capacity_is_a_mismatch", ""),
    ];
    names_that_are_folded: FoldsCase, [
        ("names::names_that_look_alike_are_different_locks", "is taken for another name"),
    ];
    names_that_are_cut: CutsNames, [
        ("names::names_that_look_alike_are_different_locks", "is taken for another name"),
    ];
    kinds_that_share_names: KindsShareNames, [
        ("names::kinds_of_the_same_name_are_independent", ""),
    ];
    a_busy_lock_that_does_not_say_when: DoesNotSayWhen, [
        ("protocol::a_busy_lock_says_when_to_retry", "does not say when"),
    ];
    a_batch_that_fails_as_a_whole: BatchFailsAsAWhole, [
        ("protocol::a_batch_is_answered_item_by_item", ""),
    ];
}
