//! The checker reports every violation in hand-made histories, and nothing else.

use std::time::Duration;

use distlock_core::memory::MemoryStore;
use distlock_core::store::Backend;
use distlock_core::{Kind, Locks, Options};
use distlock_testkit::history::{Event, EventKind, History, LockSpec, Recorder, ReleaseOutcome, Rule};

/// Builds a history. Times are milliseconds.
#[derive(Default)]
struct Script(Vec<Event>);

impl Script {
    fn event(mut self, ms: u64, actor: &str, request: u64, kind: EventKind) -> Self {
        self.0.push(Event { at: ms * 1_000_000, actor: actor.into(), request, kind });
        self
    }

    fn requests_weight(self, ms: u64, actor: &str, request: u64, weight: u32, capacity: u32) -> Self {
        self.event(
            ms,
            actor,
            request,
            EventKind::Requested { resource: "mutex \"m\"".into(), weight, capacity },
        )
    }

    fn requests(self, ms: u64, actor: &str, request: u64) -> Self {
        self.requests_weight(ms, actor, request, 1, 1)
    }

    fn granted(self, ms: u64, actor: &str, request: u64, token: u64) -> Self {
        self.event(
            ms,
            actor,
            request,
            EventKind::Granted { lock_id: format!("{actor}#{request}"), token, held: true },
        )
    }

    fn held(self, ms: u64, actor: &str, request: u64) -> Self {
        self.event(ms, actor, request, EventKind::Held)
    }

    fn lost(self, ms: u64, actor: &str, request: u64) -> Self {
        self.event(ms, actor, request, EventKind::Lost { reason: "expired".into() })
    }

    fn releases(self, ms: u64, actor: &str, request: u64) -> Self {
        self.event(ms, actor, request, EventKind::Releasing { held: true }).event(
            ms + 1,
            actor,
            request,
            EventKind::Released { outcome: ReleaseOutcome::Clean },
        )
    }

    /// Requested, granted and released.
    fn holds(self, from: u64, to: u64, actor: &str, request: u64, token: u64) -> Self {
        self.requests(from, actor, request)
            .granted(from + 1, actor, request, token)
            .releases(to, actor, request)
    }

    fn violated(self) -> Vec<Rule> {
        let mut rules: Vec<Rule> = History::new(self.0).check().into_iter().map(|v| v.rule).collect();
        rules.sort_unstable();
        rules.dedup();
        rules
    }
}

fn script() -> Script {
    Script::default()
}

#[test]
fn sequential_holds_are_valid_in_any_order_of_the_logs() {
    let mut script = script().holds(0, 10, "a", 1, 5).holds(20, 30, "b", 1, 6).holds(40, 50, "a", 2, 9);
    script.0.reverse();
    assert_eq!(script.violated(), []);
}

#[test]
fn an_overlap_of_one_moment_is_reported() {
    let found =
        script().holds(0, 10, "a", 1, 5).requests(3, "b", 1).granted(10, "b", 1, 6).releases(20, "b", 1);
    assert_eq!(found.violated(), [Rule::CapacityExceeded]);
}

#[test]
fn an_overlap_inside_a_longer_hold_is_reported() {
    let found = script().holds(0, 100, "a", 1, 5).holds(10, 20, "b", 1, 6).holds(30, 40, "c", 1, 7);
    assert_eq!(found.violated(), [Rule::CapacityExceeded]);
}

#[test]
fn a_lock_lost_during_a_pause_is_no_overlap() {
    let fine = script()
        .requests(0, "a", 1)
        .granted(1, "a", 1, 5)
        .held(2, "a", 1)
        .event(3, "a", 0, EventKind::Paused)
        .holds(300, 310, "b", 1, 6)
        .event(900, "a", 0, EventKind::Resumed)
        .lost(901, "a", 1);
    assert_eq!(fine.violated(), []);
}

#[test]
fn a_guard_that_reports_held_after_the_lock_passed_on_during_a_pause_is_reported() {
    let found = script()
        .requests(0, "a", 1)
        .granted(1, "a", 1, 5)
        .event(3, "a", 0, EventKind::Paused)
        .holds(300, 310, "b", 1, 6)
        .event(900, "a", 0, EventKind::Resumed)
        .held(901, "a", 1)
        .lost(902, "a", 1);
    assert_eq!(found.violated(), [Rule::CapacityExceeded]);
}

#[test]
fn a_grant_that_expired_before_it_arrived_counts_only_for_its_token() {
    let late = EventKind::Granted { lock_id: "a#1".into(), token: 5, held: false };
    let fine =
        script().requests(0, "a", 1).holds(300, 310, "b", 1, 6).event(305, "a", 1, late).lost(306, "a", 1);
    assert_eq!(fine.violated(), []);
}

#[test]
fn readers_share_and_a_writer_among_them_is_reported() {
    let all = 1 << 30;
    let readers = || {
        script()
            .requests_weight(0, "a", 1, 1, all)
            .granted(1, "a", 1, 5)
            .requests_weight(0, "b", 1, 1, all)
            .granted(2, "b", 1, 6)
            .releases(10, "a", 1)
            .releases(12, "b", 1)
    };
    assert_eq!(readers().violated(), []);
    let writer = readers().requests_weight(3, "w", 1, all, all).granted(11, "w", 1, 7).releases(20, "w", 1);
    assert_eq!(writer.violated(), [Rule::CapacityExceeded]);
    let writer = readers().requests_weight(3, "w", 1, all, all).granted(14, "w", 1, 7).releases(20, "w", 1);
    assert_eq!(writer.violated(), []);
}

#[test]
fn permits_are_summed() {
    let holds = |third: u32| {
        let mut script = script();
        for (n, weight) in [(1, 2), (2, 1), (3, third)] {
            script =
                script.requests_weight(n, "a", n, weight, 4).granted(10 + n, "a", n, n).releases(50, "a", n);
        }
        script.violated()
    };
    assert_eq!(holds(1), []);
    assert_eq!(holds(2), [Rule::CapacityExceeded]);
}

#[test]
fn a_decreasing_token_is_reported_also_between_waiters() {
    let after = script().holds(0, 10, "a", 1, 6).holds(20, 30, "b", 1, 5);
    assert_eq!(after.violated(), [Rule::TokenNotIncreasing]);
    let waiter =
        script().requests(0, "b", 1).holds(1, 10, "a", 1, 6).granted(12, "b", 1, 5).releases(20, "b", 1);
    assert_eq!(waiter.violated(), [Rule::TokenNotIncreasing]);
}

#[test]
fn concurrent_readers_may_be_granted_in_any_order() {
    let fine = script()
        .requests_weight(0, "a", 1, 1, 4)
        .requests_weight(0, "b", 1, 1, 4)
        .granted(1, "a", 1, 6)
        .granted(2, "b", 1, 5)
        .releases(10, "a", 1)
        .releases(10, "b", 1);
    assert_eq!(fine.violated(), []);
}

#[test]
fn a_duplicate_token_is_reported() {
    assert_eq!(script().holds(0, 10, "a", 1, 5).holds(20, 30, "b", 1, 5).violated(), [Rule::DuplicateToken]);
}

#[test]
fn only_concurrent_readers_may_share_a_token_where_that_is_allowed() {
    let both = |second_request: u64, capacity| {
        let script = script()
            .requests_weight(0, "a", 1, 1, capacity)
            .granted(5, "a", 1, 7)
            .requests_weight(second_request, "b", 1, 1, capacity)
            .granted(12, "b", 1, 7)
            .releases(10, "a", 1)
            .releases(20, "b", 1);
        let history = History::new(script.0).allow_shared_tokens(true);
        history.check().into_iter().map(|violation| violation.rule).collect::<Vec<_>>()
    };
    assert_eq!(both(3, 2), []);
    assert_eq!(both(6, 2), [Rule::DuplicateToken]);
    assert_eq!(both(3, 1), [Rule::DuplicateToken]);
}

#[test]
fn a_lock_id_granted_again_after_its_release_is_reported() {
    let same = |token| EventKind::Granted { lock_id: "object-7".into(), token, held: true };
    let found = script()
        .requests(0, "a", 1)
        .event(1, "a", 1, same(5))
        .releases(10, "a", 1)
        .requests(20, "a", 2)
        .event(21, "a", 2, same(6))
        .releases(30, "a", 2);
    assert_eq!(found.violated(), [Rule::DuplicateLockId]);
}

#[test]
fn a_guard_that_reports_held_after_its_loss_is_reported() {
    let found = script().requests(0, "a", 1).granted(1, "a", 1, 5).lost(5, "a", 1).held(6, "a", 1);
    assert_eq!(found.violated(), [Rule::HeldAfterLoss]);
}

#[test]
fn an_unreported_loss_is_reported_unless_the_holder_was_killed() {
    let silent = || script().requests(0, "a", 1).granted(1, "a", 1, 5).holds(300, 310, "b", 1, 6);
    assert_eq!(silent().violated(), [Rule::LossNotReported]);
    assert_eq!(silent().event(20, "a", 0, EventKind::Killed).violated(), []);
    assert_eq!(silent().lost(299, "a", 1).violated(), []);
    assert_eq!(silent().lost(9_000, "a", 1).violated(), [Rule::LossNotReported]);
}

#[test]
fn a_broken_lock_may_have_a_new_holder_before_the_old_one_knows() {
    let resource = || "mutex \"m\"".to_owned();
    let both = |breaks: Option<u64>| {
        let script = script().holds(0, 100, "a", 1, 5).holds(20, 30, "b", 1, 6);
        match breaks {
            Some(ms) => script.event(ms, "operator", 0, EventKind::Broken { resource: resource() }),
            None => script,
        }
    };
    assert_eq!(both(Some(10)).violated(), []);
    assert_eq!(both(Some(25)).violated(), [Rule::CapacityExceeded]);
    assert_eq!(both(None).violated(), [Rule::CapacityExceeded]);
}

#[test]
fn an_unanswered_request_is_reported_unless_it_was_cancelled_or_its_actor_killed() {
    assert_eq!(script().requests(0, "a", 1).violated(), [Rule::Unanswered]);
    assert_eq!(script().requests(0, "a", 1).event(5, "a", 1, EventKind::Cancelled).violated(), []);
    assert_eq!(
        script()
            .requests(0, "a", 1)
            .event(5, "a", 1, EventKind::Refused { reason: "busy".into() })
            .violated(),
        []
    );
    assert_eq!(script().requests(0, "a", 1).event(5, "a", 0, EventKind::Killed).violated(), []);
}

#[test]
fn a_malformed_log_is_reported() {
    assert_eq!(script().granted(1, "a", 1, 5).violated(), [Rule::MalformedLog]);
    assert_eq!(script().requests(0, "a", 1).held(1, "a", 1).violated(), [Rule::MalformedLog]);
}

#[test]
fn a_violation_is_readable() {
    let history = History::new(script().holds(1000, 1010, "a", 1, 5).holds(1005, 1020, "b", 1, 6).0);
    let shown = history.check()[0].to_string();
    assert_eq!(
        shown,
        "CapacityExceeded: 2 holders hold 2 of 1 of mutex \"m\"\n    \
         \u{20}    0.000000 ms  a #1: requests 1 of 1 of mutex \"m\"\n    \
         \u{20}    1.000000 ms  a #1: granted with token 5 as a#1\n    \
         \u{20}    5.000000 ms  b #1: requests 1 of 1 of mutex \"m\"\n    \
         \u{20}    6.000000 ms  b #1: granted with token 6 as b#1\n    \
         \u{20}   10.000000 ms  a #1: releases, still held\n    \
         \u{20}   20.000000 ms  b #1: releases, still held"
    );
}

#[tokio::test]
async fn logs_of_real_guards_are_merged_and_an_incomplete_last_line_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::new().expiry(Duration::from_secs(2)).unwrap();
    let options = options.extension_cadence(Duration::from_millis(20)).unwrap();
    let locks = Locks::builder(Backend::lease(MemoryStore::new())).options(options).build().unwrap();
    let (a, b) = (Recorder::create(folder.path(), "a"), Recorder::create(folder.path(), "b"));
    let spec = LockSpec::mutex("m");

    let first = a.acquire(&locks, &spec).await.unwrap();
    assert!(first.check_held());
    assert!(b.try_acquire(&locks, &spec).await.unwrap().is_none());
    assert!(b.acquire_within(&locks, &spec, Duration::from_millis(5)).await.is_err());
    first.release().await.unwrap();
    let second = b.acquire(&locks, &spec).await.unwrap();
    locks.break_lock(Kind::Mutex, "m").await.unwrap();
    second.wait_for_loss().await;
    assert!(!second.check_held());
    drop(second);
    drop(a.acquire(&locks, &spec).await.unwrap());

    let torn = folder.path().join("c.jsonl");
    let event = Event { at: 1, actor: "c".into(), request: 1, kind: EventKind::Cancelled };
    std::fs::write(&torn, serde_json::to_string(&event).unwrap()).unwrap();
    let history = History::read(folder.path());
    history.assert_clean();
    assert_eq!(history.grants(), [("a".to_owned(), 2), ("b".to_owned(), 1)].into());
}
