//! What arrives, and to which attempt it belongs.

use super::*;

fn id(text: &str) -> LockId {
    LockId::from_stored(text)
}

/// A waiter whose attempts so far were answered at these moments, the last one with another holder's token.
fn waiting(answers: &[i64], seen: i64) -> Known {
    let known = Known::default();
    known.joins(&id("a"), "name");
    for (number, at) in (1..).zip(answers) {
        known.saw_held(&id("a"), seen);
        known.is_busy(&id("a"), Answered { attempt: number, at: Some(*at) });
    }
    known
}

fn told(arrival: Arrival) -> PushedGrant {
    match arrival {
        Arrival::Tell(Wake::Granted { grant, .. }) => grant,
        other => panic!("{other:?}"),
    }
}

fn is_told_to_ask(arrival: &Arrival) -> bool {
    matches!(arrival, Arrival::Tell(Wake::Retry { .. }))
}

#[test]
fn a_grant_is_told_once_and_only_to_somebody_who_waits() {
    assert!(matches!(Known::default().arrived(&id("a"), 5, 2005, 1), Arrival::Old));
    let known = waiting(&[3], 8);
    let grant = told(known.arrived(&id("a"), 5, 2005, 9));
    assert_eq!((grant.token.get(), grant.attempt, grant.after), (9, 1, Duration::from_millis(2)));
    assert!(matches!(known.arrived(&id("a"), 5, 2005, 9), Arrival::Old));
}

#[test]
fn a_grant_belongs_to_the_newest_attempt_that_was_answered_before_it() {
    let known = waiting(&[10, 20, 30], 8);
    let grant = told(known.arrived(&id("a"), 35, 2035, 9));
    assert_eq!((grant.attempt, grant.after), (3, Duration::from_millis(5)));
    // An answer to an earlier attempt that comes last changes nothing.
    let known = waiting(&[10, 20, 30], 8);
    known.is_busy(&id("a"), Answered { attempt: 2, at: Some(34) });
    let grant = told(known.arrived(&id("a"), 35, 2035, 9));
    assert_eq!((grant.attempt, grant.after), (3, Duration::from_millis(5)));
}

#[test]
fn a_grant_older_than_the_newest_answer_is_not_believed() {
    // By the clock.
    assert!(is_told_to_ask(&waiting(&[10], 8).arrived(&id("a"), 5, 2005, 9)));
    // By its token, whatever the clock says: it was set back after the grant.
    for seen in [9, 10] {
        assert!(is_told_to_ask(&waiting(&[10], seen).arrived(&id("a"), 3_600_000, 3_602_000, 9)));
    }
    // No answer is here, or the server does not tell its time.
    assert!(is_told_to_ask(&waiting(&[], 0).arrived(&id("a"), 5, 2005, 9)));
    let known = waiting(&[10], 8);
    known.is_busy(&id("a"), Answered { attempt: 2, at: None });
    assert!(is_told_to_ask(&known.arrived(&id("a"), 15, 2015, 9)));
}

/// The waiter was stalled: its next attempt is in flight when it reads of a grant that is over.
#[test]
fn a_grant_that_comes_while_an_attempt_is_in_flight_has_the_number_of_the_one_before() {
    let known = waiting(&[10], 8);
    assert_eq!(told(known.arrived(&id("a"), 15, 2015, 9)).attempt, 1);
    // The answer: another holds it since. What is handed to us from now on belongs to that answer.
    known.saw_held(&id("a"), 10);
    known.is_busy(&id("a"), Answered { attempt: 2, at: Some(2500) });
    assert!(matches!(known.arrived(&id("a"), 15, 2015, 9), Arrival::Old), "the same event once more");
    assert_eq!(told(known.arrived(&id("a"), 2600, 4600, 11)).attempt, 2);
}

/// The answer to an attempt was sent before the grant, and arrives after it.
#[test]
fn an_answer_that_is_older_than_a_grant_does_not_undo_it() {
    let known = waiting(&[10], 8);
    assert_eq!(told(known.arrived(&id("a"), 15, 2015, 9)).attempt, 1);
    known.saw_held(&id("a"), 8);
    known.is_busy(&id("a"), Answered { attempt: 2, at: Some(14) });
    assert_eq!(known.stand(&id("a")), Some(Stand::Holding));
}

#[test]
fn a_grant_for_somebody_who_left_is_passed_on() {
    let known = Known::default();
    known.joins(&id("a"), "name");
    assert_eq!(known.leaves(&id("a")), Some(Stand::Waiting));
    assert!(matches!(known.arrived(&id("a"), 5, 2005, 9), Arrival::Old));
    assert!(known.left(&id("a")), "it came while we were leaving");
    let arrival = known.arrived(&id("a"), 5, 2005, 9);
    assert!(matches!(arrival, Arrival::PassOn { ref name, .. } if name == "name"), "{arrival:?}");
}

#[test]
fn late_word_of_a_hold_that_is_over_is_not_taken_for_a_new_one() {
    let known = Known::default();
    known.joins(&id("a"), "name");
    known.holds(&id("a"), 9);
    known.leaves(&id("a"));
    assert!(!known.left(&id("a")));
    assert!(matches!(known.arrived(&id("a"), 5, 2005, 9), Arrival::Old));
    assert!(matches!(known.arrived(&id("a"), 7, 2007, 10), Arrival::PassOn { .. }));
}
