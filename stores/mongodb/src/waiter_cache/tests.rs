//! Which attempt a handoff belongs to, and what becomes of a handoff to a waiter that left.

use super::*;

fn id(text: &str) -> LockId {
    LockId::from_stored(text)
}

/// A waiter whose attempts were answered at these times, each with another holder's token.
fn waiting(answers: &[i64], seen_token: i64) -> WaiterCache {
    let cache = WaiterCache::default();
    cache.start_waiting(&id("a"), "name");
    for (attempt, at) in (1..).zip(answers) {
        busy(&cache, seen_token, attempt, *at);
    }
    cache
}

fn busy(cache: &WaiterCache, seen_token: i64, attempt: u64, at: i64) {
    cache.set_busy(&id("a"), seen_token);
    cache.set_answered(&id("a"), AnsweredAttempt { attempt, at: Some(at) });
}

fn handed_off(cache: &WaiterCache, acquired_at: i64, token: i64) -> HandoffAction {
    let (acquired_at, expires_at) = (Some(acquired_at), Some(acquired_at + 2000));
    cache.handed_off(&id("a"), HandoffEvent { acquired_at, expires_at, token: Some(token) })
}

fn grant(action: HandoffAction) -> PushedGrant {
    match action {
        HandoffAction::Wake(Wake::Granted { grant, .. }) => grant,
        other => panic!("{other:?}"),
    }
}

fn is_retry(action: &HandoffAction) -> bool {
    matches!(action, HandoffAction::Wake(Wake::Retry { .. }))
}

#[test]
fn a_handoff_is_reported_once_and_only_to_a_waiter() {
    assert!(matches!(handed_off(&WaiterCache::default(), 5, 1), HandoffAction::Ignore));
    let cache = waiting(&[3], 8);
    let first = grant(handed_off(&cache, 5, 9));
    assert_eq!((first.token.get(), first.attempt, first.after), (9, 1, Duration::from_millis(2)));
    assert!(matches!(handed_off(&cache, 5, 9), HandoffAction::Ignore));
}

#[test]
fn a_handoff_belongs_to_the_newest_attempt_that_was_answered_before_it() {
    let cache = waiting(&[10, 20, 30], 8);
    let newest = grant(handed_off(&cache, 35, 9));
    assert_eq!((newest.attempt, newest.after), (3, Duration::from_millis(5)));
    // A late answer to an earlier attempt changes nothing.
    let cache = waiting(&[10, 20, 30], 8);
    cache.set_answered(&id("a"), AnsweredAttempt { attempt: 2, at: Some(34) });
    let newest = grant(handed_off(&cache, 35, 9));
    assert_eq!((newest.attempt, newest.after), (3, Duration::from_millis(5)));
}

#[test]
fn a_handoff_older_than_the_newest_answer_is_not_believed() {
    // By the clock.
    assert!(is_retry(&handed_off(&waiting(&[10], 8), 5, 9)));
    // By its token, whatever the clock says: it was set back after the handoff.
    for seen_token in [9, 10] {
        assert!(is_retry(&handed_off(&waiting(&[10], seen_token), 3_600_000, 9)));
    }
    // No answer has arrived, or the server does not send its clock.
    assert!(is_retry(&handed_off(&waiting(&[], 0), 5, 9)));
    let cache = waiting(&[10], 8);
    cache.set_answered(&id("a"), AnsweredAttempt { attempt: 2, at: None });
    assert!(is_retry(&handed_off(&cache, 15, 9)));
}

/// The waiter was stalled: its next attempt is in flight when it reads of a handoff that is over.
#[test]
fn a_handoff_that_arrives_while_an_attempt_is_in_flight_has_the_number_of_the_one_before() {
    let cache = waiting(&[10], 8);
    assert_eq!(grant(handed_off(&cache, 15, 9)).attempt, 1);
    // The answer: another lock id holds it since. Handoffs from now on belong to that answer.
    busy(&cache, 10, 2, 2500);
    assert!(matches!(handed_off(&cache, 15, 9), HandoffAction::Ignore), "the same event twice");
    assert_eq!(grant(handed_off(&cache, 2600, 11)).attempt, 2);
}

/// The answer to an attempt was sent before the handoff and arrives after it.
#[test]
fn an_answer_older_than_a_handoff_does_not_undo_it() {
    let cache = waiting(&[10], 8);
    assert_eq!(grant(handed_off(&cache, 15, 9)).attempt, 1);
    busy(&cache, 8, 2, 14);
    assert_eq!(cache.state(&id("a")), Some(WaiterState::Holding));
}

#[test]
fn a_handoff_to_a_waiter_that_left_is_passed_on() {
    let cache = waiting(&[], 0);
    assert_eq!(cache.leave(&id("a")), Some(WaiterState::Waiting));
    let action = handed_off(&cache, 5, 9);
    assert!(matches!(action, HandoffAction::PassOn { ref name } if name == "name"), "{action:?}");
}

#[test]
fn a_late_event_of_a_hold_that_is_over_is_not_taken_for_a_new_one() {
    let cache = waiting(&[], 0);
    let lock = LockDocument { lock_id: id("a"), acquired_at: Some(5), expires_at: Some(2005), token: 9 };
    cache.set_granted(&id("a"), &lock);
    cache.leave(&id("a"));
    assert!(matches!(handed_off(&cache, 5, 9), HandoffAction::Ignore));
    assert!(matches!(handed_off(&cache, 5, 10), HandoffAction::Ignore), "a waiter announced itself");
    assert!(matches!(handed_off(&cache, 7, 10), HandoffAction::PassOn { .. }));
}

/// A grant in the millisecond of the release before it: the event shows no time. Its holder releases it meanwhile, and must not find
/// that this process has given the lock away.
#[test]
fn an_event_without_a_time_is_not_taken_for_a_handoff_of_the_lock_that_is_being_released() {
    let shown = |token| HandoffEvent { acquired_at: None, expires_at: Some(30_005), token };
    let cache = waiting(&[], 0);
    let lock = LockDocument { lock_id: id("a"), acquired_at: Some(5), expires_at: Some(30_005), token: 9 };
    cache.set_granted(&id("a"), &lock);
    cache.leave(&id("a"));
    assert!(matches!(cache.handed_off(&id("a"), shown(Some(9))), HandoffAction::Ignore));
    // A later grant, or one of which nothing is shown, may be a handoff to a lock id that has left.
    for token in [Some(10), None] {
        assert!(
            matches!(cache.handed_off(&id("a"), shown(token)), HandoffAction::PassOn { .. }),
            "{token:?}"
        );
    }
    // A waiter asks again.
    assert!(is_retry(&waiting(&[3], 8).handed_off(&id("a"), shown(Some(9)))));
}

#[test]
fn a_release_expects_a_waiter_after_one_that_found_one() {
    let cache = WaiterCache::default();
    assert!(!cache.expects_waiter("a"));
    cache.set_found_waiter("a", true);
    assert!(cache.expects_waiter("a") && !cache.expects_waiter("b"));
    cache.set_found_waiter("a", false);
    assert!(!cache.expects_waiter("a"));
}
