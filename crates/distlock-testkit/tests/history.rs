//! Hand-made histories: what the checker must find, and what it must leave alone.

use std::time::Duration;

use distlock_core::memory::MemoryStore;
use distlock_core::store::Backend;
use distlock_core::{Kind, Locks, Options};
use distlock_testkit::history::{Event, History, LockSpec, Outcome, Recorder, Rule, What};

/// Writes histories down in a few words: times are milliseconds.
#[derive(Default)]
struct Script(Vec<Event>);

impl Script {
    fn line(mut self, ms: u64, actor: &str, ask: u64, what: What) -> Self {
        self.0.push(Event { at: ms * 1_000_000, actor: actor.into(), ask, what });
        self
    }

    fn asks_for(self, ms: u64, actor: &str, ask: u64, weight: u32, capacity: u32) -> Self {
        self.line(ms, actor, ask, What::Asked { resource: "mutex \"m\"".into(), weight, capacity })
    }

    fn asks(self, ms: u64, actor: &str, ask: u64) -> Self {
        self.asks_for(ms, actor, ask, 1, 1)
    }

    fn granted(self, ms: u64, actor: &str, ask: u64, token: u64) -> Self {
        self.line(ms, actor, ask, What::Granted { lock_id: format!("{actor}#{ask}"), token, held: true })
    }

    fn kept(self, ms: u64, actor: &str, ask: u64) -> Self {
        self.line(ms, actor, ask, What::Kept)
    }

    fn lost(self, ms: u64, actor: &str, ask: u64) -> Self {
        self.line(ms, actor, ask, What::Lost { reason: "expired".into() })
    }

    fn gives_back(self, ms: u64, actor: &str, ask: u64) -> Self {
        self.line(ms, actor, ask, What::GivingBack { held: true }).line(
            ms + 1,
            actor,
            ask,
            What::GivenBack { outcome: Outcome::Clean },
        )
    }

    /// Asked, granted and given back.
    fn holds(self, from: u64, to: u64, actor: &str, ask: u64, token: u64) -> Self {
        self.asks(from, actor, ask).granted(from + 1, actor, ask, token).gives_back(to, actor, ask)
    }

    fn breaks(self) -> Vec<Rule> {
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
fn holds_one_after_the_other_are_fine_in_whatever_order_the_logs_are_read() {
    let mut script = script().holds(0, 10, "a", 1, 5).holds(20, 30, "b", 1, 6).holds(40, 50, "a", 2, 9);
    script.0.reverse();
    assert_eq!(script.breaks(), []);
}

#[test]
fn an_overlap_of_a_moment_is_found() {
    let found =
        script().holds(0, 10, "a", 1, 5).asks(3, "b", 1).granted(10, "b", 1, 6).gives_back(20, "b", 1);
    assert_eq!(found.breaks(), [Rule::HeldBeyondCapacity]);
}

#[test]
fn an_overlap_inside_a_longer_hold_is_found() {
    let found = script().holds(0, 100, "a", 1, 5).holds(10, 20, "b", 1, 6).holds(30, 40, "c", 1, 7);
    assert_eq!(found.breaks(), [Rule::HeldBeyondCapacity]);
}

#[test]
fn a_holder_that_lost_the_lock_in_a_pause_is_no_overlap() {
    let fine = script()
        .asks(0, "a", 1)
        .granted(1, "a", 1, 5)
        .kept(2, "a", 1)
        .line(3, "a", 0, What::Paused)
        .holds(300, 310, "b", 1, 6)
        .line(900, "a", 0, What::Resumed)
        .lost(901, "a", 1);
    assert_eq!(fine.breaks(), []);
}

#[test]
fn a_holder_that_says_held_after_a_pause_in_which_somebody_else_got_it_is_found() {
    let found = script()
        .asks(0, "a", 1)
        .granted(1, "a", 1, 5)
        .line(3, "a", 0, What::Paused)
        .holds(300, 310, "b", 1, 6)
        .line(900, "a", 0, What::Resumed)
        .kept(901, "a", 1)
        .lost(902, "a", 1);
    assert_eq!(found.breaks(), [Rule::HeldBeyondCapacity]);
}

#[test]
fn a_grant_that_is_over_before_it_is_told_counts_for_nothing_but_its_token() {
    let late = What::Granted { lock_id: "a#1".into(), token: 5, held: false };
    let fine = script().asks(0, "a", 1).holds(300, 310, "b", 1, 6).line(305, "a", 1, late).lost(306, "a", 1);
    assert_eq!(fine.breaks(), []);
}

#[test]
fn readers_share_and_a_writer_among_them_is_found() {
    let all = 1 << 30;
    let readers = || {
        script()
            .asks_for(0, "a", 1, 1, all)
            .granted(1, "a", 1, 5)
            .asks_for(0, "b", 1, 1, all)
            .granted(2, "b", 1, 6)
            .gives_back(10, "a", 1)
            .gives_back(12, "b", 1)
    };
    assert_eq!(readers().breaks(), []);
    let writer = readers().asks_for(3, "w", 1, all, all).granted(11, "w", 1, 7).gives_back(20, "w", 1);
    assert_eq!(writer.breaks(), [Rule::HeldBeyondCapacity]);
    let writer = readers().asks_for(3, "w", 1, all, all).granted(14, "w", 1, 7).gives_back(20, "w", 1);
    assert_eq!(writer.breaks(), []);
}

#[test]
fn permits_are_added_up() {
    let holds = |third: u32| {
        let mut script = script();
        for (n, weight) in [(1, 2), (2, 1), (3, third)] {
            script = script.asks_for(n, "a", n, weight, 4).granted(10 + n, "a", n, n).gives_back(50, "a", n);
        }
        script.breaks()
    };
    assert_eq!(holds(1), []);
    assert_eq!(holds(2), [Rule::HeldBeyondCapacity]);
}

#[test]
fn a_token_that_goes_back_is_found_also_between_waiters() {
    let after = script().holds(0, 10, "a", 1, 6).holds(20, 30, "b", 1, 5);
    assert_eq!(after.breaks(), [Rule::TokenNotHigher]);
    let waiter =
        script().asks(0, "b", 1).holds(1, 10, "a", 1, 6).granted(12, "b", 1, 5).gives_back(20, "b", 1);
    assert_eq!(waiter.breaks(), [Rule::TokenNotHigher]);
}

#[test]
fn readers_that_asked_at_the_same_time_may_be_told_in_any_order() {
    let fine = script()
        .asks_for(0, "a", 1, 1, 4)
        .asks_for(0, "b", 1, 1, 4)
        .granted(1, "a", 1, 6)
        .granted(2, "b", 1, 5)
        .gives_back(10, "a", 1)
        .gives_back(10, "b", 1);
    assert_eq!(fine.breaks(), []);
}

#[test]
fn a_token_that_is_given_out_twice_is_found() {
    assert_eq!(script().holds(0, 10, "a", 1, 5).holds(20, 30, "b", 1, 5).breaks(), [Rule::TokenTwice]);
}

#[test]
fn only_sharers_that_asked_at_the_same_time_may_share_a_token_where_that_is_allowed() {
    let both = |second_asks: u64, capacity| {
        let script = script()
            .asks_for(0, "a", 1, 1, capacity)
            .granted(5, "a", 1, 7)
            .asks_for(second_asks, "b", 1, 1, capacity)
            .granted(12, "b", 1, 7)
            .gives_back(10, "a", 1)
            .gives_back(20, "b", 1);
        let history = History::new(script.0).sharers_may_share_a_token(true);
        history.check().into_iter().map(|violation| violation.rule).collect::<Vec<_>>()
    };
    assert_eq!(both(3, 2), []);
    assert_eq!(both(6, 2), [Rule::TokenTwice]);
    assert_eq!(both(3, 1), [Rule::TokenTwice]);
}

#[test]
fn a_lock_id_that_is_granted_again_after_its_release_is_found() {
    let same = |token| What::Granted { lock_id: "object-7".into(), token, held: true };
    let found = script()
        .asks(0, "a", 1)
        .line(1, "a", 1, same(5))
        .gives_back(10, "a", 1)
        .asks(20, "a", 2)
        .line(21, "a", 2, same(6))
        .gives_back(30, "a", 2);
    assert_eq!(found.breaks(), [Rule::LockIdTwice]);
}

#[test]
fn a_guard_that_comes_back_to_life_is_found() {
    let found = script().asks(0, "a", 1).granted(1, "a", 1, 5).lost(5, "a", 1).kept(6, "a", 1);
    assert_eq!(found.breaks(), [Rule::Revived]);
}

#[test]
fn a_holder_that_was_never_told_of_its_loss_is_found_unless_it_died() {
    let silent = || script().asks(0, "a", 1).granted(1, "a", 1, 5).holds(300, 310, "b", 1, 6);
    assert_eq!(silent().breaks(), [Rule::LossNotTold]);
    assert_eq!(silent().line(20, "a", 0, What::Killed).breaks(), []);
    assert_eq!(silent().lost(299, "a", 1).breaks(), []);
    assert_eq!(silent().lost(9_000, "a", 1).breaks(), [Rule::LossNotTold]);
}

#[test]
fn a_lock_that_an_operator_broke_may_have_a_new_holder_before_the_old_one_knows() {
    let resource = || "mutex \"m\"".to_owned();
    let both = |breaks: Option<u64>| {
        let script = script().holds(0, 100, "a", 1, 5).holds(20, 30, "b", 1, 6);
        match breaks {
            Some(ms) => script.line(ms, "operator", 0, What::Broken { resource: resource() }),
            None => script,
        }
    };
    assert_eq!(both(Some(10)).breaks(), []);
    assert_eq!(both(Some(25)).breaks(), [Rule::HeldBeyondCapacity]);
    assert_eq!(both(None).breaks(), [Rule::HeldBeyondCapacity]);
}

#[test]
fn a_request_without_an_answer_is_found_unless_it_was_given_up_or_its_actor_died() {
    assert_eq!(script().asks(0, "a", 1).breaks(), [Rule::NotAnswered]);
    assert_eq!(script().asks(0, "a", 1).line(5, "a", 1, What::Cancelled).breaks(), []);
    assert_eq!(script().asks(0, "a", 1).line(5, "a", 1, What::Refused { why: "busy".into() }).breaks(), []);
    assert_eq!(script().asks(0, "a", 1).line(5, "a", 0, What::Killed).breaks(), []);
}

#[test]
fn a_log_that_makes_no_sense_is_not_taken_for_a_good_one() {
    assert_eq!(script().granted(1, "a", 1, 5).breaks(), [Rule::Log]);
    assert_eq!(script().asks(0, "a", 1).kept(1, "a", 1).breaks(), [Rule::Log]);
}

#[test]
fn a_violation_can_be_read_by_a_human() {
    let history = History::new(script().holds(1000, 1010, "a", 1, 5).holds(1005, 1020, "b", 1, 6).0);
    let shown = history.check()[0].to_string();
    assert_eq!(
        shown,
        "HeldBeyondCapacity: 2 hold 2 of 1 of mutex \"m\" together\n    \
         \u{20}    0.000000 ms  a #1: asks for 1 of 1 of mutex \"m\"\n    \
         \u{20}    1.000000 ms  a #1: granted with token 5 under a#1\n    \
         \u{20}    5.000000 ms  b #1: asks for 1 of 1 of mutex \"m\"\n    \
         \u{20}    6.000000 ms  b #1: granted with token 6 under b#1\n    \
         \u{20}   10.000000 ms  a #1: gives back what it holds\n    \
         \u{20}   20.000000 ms  b #1: gives back what it holds"
    );
}

#[tokio::test]
async fn logs_of_real_guards_are_merged_and_a_torn_last_line_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::new().expiry(Duration::from_secs(2)).unwrap();
    let options = options.extension_cadence(Duration::from_millis(20)).unwrap();
    let locks = Locks::builder(Backend::lease(MemoryStore::new())).options(options).build().unwrap();
    let (a, b) = (Recorder::create(folder.path(), "a"), Recorder::create(folder.path(), "b"));
    let spec = LockSpec::mutex("m");

    let first = a.take(&locks, &spec).await.unwrap();
    assert!(first.look());
    assert!(b.try_take(&locks, &spec).await.unwrap().is_none());
    assert!(b.take_within(&locks, &spec, Duration::from_millis(5)).await.is_err());
    first.release().await.unwrap();
    let second = b.take(&locks, &spec).await.unwrap();
    locks.break_lock(Kind::Mutex, "m").await.unwrap();
    second.wait_for_loss().await;
    assert!(!second.look());
    drop(second);
    drop(a.take(&locks, &spec).await.unwrap());

    let torn = folder.path().join("c.jsonl");
    let asked = Event { at: 1, actor: "c".into(), ask: 1, what: What::Cancelled };
    std::fs::write(&torn, serde_json::to_string(&asked).unwrap()).unwrap();
    let history = History::read(folder.path());
    history.assert_clean();
    assert_eq!(history.grants(), [("a".to_owned(), 2), ("b".to_owned(), 1)].into());
}
