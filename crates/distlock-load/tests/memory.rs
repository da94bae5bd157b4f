//! Every scenario over the memory store, for a moment: what is reported, what is left out, what is left behind.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Mutex;
use std::time::Duration;

use distlock_core::memory::DRIVER;
use distlock_core::store::StoreUrl;
use distlock_load::{Bench, Observer, Outcome, Plan, Scenario, Silent, Target};

fn target() -> Target {
    Target::new("memory:", |url| {
        Box::pin(async move {
            let url = StoreUrl::parse(url)?;
            DRIVER.connect(url).await
        })
    })
}

fn plan(scenarios: &[Scenario]) -> Plan {
    Plan {
        scenarios: scenarios.to_vec(),
        each: Duration::from_millis(900),
        tasks: vec![3, 7],
        contenders: 4,
        held: 50,
        ..Plan::default()
    }
}

async fn run(scenarios: &[Scenario], observer: &dyn Observer) -> Vec<Outcome> {
    let mut bench = Bench::prepare(target()).await.unwrap();
    let outcomes = bench.run(&plan(scenarios), observer).await.unwrap();
    bench.finish().await.unwrap();
    outcomes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_has_exactly_the_promised_fields_and_null_where_one_does_not_apply() {
    const FIELDS: [&str; 12] = [
        "fairness",
        "ops_per_s",
        "p50_us",
        "p99_us",
        "ratio",
        "raw_ops_per_s",
        "raw_p50_us",
        "requests_per_op",
        "rss_per_lock_bytes",
        "scenario",
        "store",
        "tasks",
    ];
    let outcomes = run(&[Scenario::Uncontended, Scenario::Throughput], &Silent).await;
    assert_eq!(outcomes.iter().map(|outcome| outcome.tasks).collect::<Vec<_>>(), [1, 3, 7]);
    for outcome in &outcomes {
        let line = serde_json::to_value(outcome.line()).unwrap();
        let object = line.as_object().unwrap();
        let mut fields: Vec<_> = object.keys().map(String::as_str).collect();
        fields.sort_unstable();
        assert_eq!(fields, FIELDS);
        assert!(object["ops_per_s"].as_f64().unwrap() > 0.0);
        assert!(object["p50_us"].as_f64().unwrap() <= object["p99_us"].as_f64().unwrap());
        // The memory store has no driver to compare with, and no counter of its own.
        assert!(object["ratio"].is_null() && object["requests_per_op"].is_null());
        assert_eq!(object["fairness"].is_null(), outcome.tasks == 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_get_the_lock_and_nobody_starves() {
    let outcomes = run(&[Scenario::Handover, Scenario::Contended], &Silent).await;
    let [handover, contended] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert!(handover.p50_us.is_some_and(|median| median < 100_000.0), "{handover:?}");
    assert!(handover.ops_per_s.is_none());
    assert!(contended.fairness.is_some_and(|fairness| fairness < 4.0), "{contended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn held_locks_are_all_kept_and_given_back() {
    let outcomes = run(&[Scenario::Held], &Silent).await;
    let [held] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert_eq!(held.tasks, 50);
    assert!(held.notes.iter().all(|note| !note.contains("lost")), "{:?}", held.notes);
    let locks = target_locks().await;
    let left = locks.inspect(&distlock_core::store::Query::prefixed("distlock-bench/")).await.unwrap();
    assert!(left.iter().all(|record| !record.name.as_deref().unwrap_or("").contains("held/")), "{left:?}");
}

async fn target_locks() -> distlock_core::Locks {
    let backend = DRIVER.connect(StoreUrl::parse("memory:").unwrap()).await.unwrap();
    distlock_core::Locks::new(backend).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_needs_other_processes_is_left_out_with_a_word_about_it() {
    #[derive(Default)]
    struct Notes(Mutex<Vec<String>>);
    impl Observer for Notes {
        fn begins(&self, _: &str) {}
        fn progress(&self, share: f64) {
            assert!((0.0..=1.0).contains(&share));
        }
        fn note(&self, text: &str) {
            self.0.lock().unwrap().push(text.to_owned());
        }
    }
    let notes = Notes::default();
    assert!(run(&[Scenario::Takeover], &notes).await.is_empty());
    assert!(notes.0.lock().unwrap().iter().any(|note| note.contains("takeover is left out")));
}

#[tokio::test(flavor = "multi_thread")]
async fn text_and_pictures_are_made_of_any_outcome() {
    let outcomes = run(&[Scenario::Uncontended], &Silent).await;
    let table = distlock_load::render::table(&outcomes, str::to_owned);
    assert_eq!(table.lines().count(), 2);
    assert!(table.contains("uncontended"));
    assert!(distlock_load::render::histogram(&outcomes[0]).contains('█'));
    let picture = distlock_load::render::distributions(&outcomes);
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
}
