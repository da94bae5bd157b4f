//! Short runs of every scenario on the memory store: what is reported, what is left out, what remains.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Mutex;
use std::time::Duration;

use distlock_core::memory::DRIVER;
use distlock_core::store::StoreUrl;
use distlock_load::{Bench, BenchStore, JsonRecord, NoObserver, Observer, Outcome, Plan, Scenario};

fn store() -> BenchStore {
    BenchStore::new("memory:", |url| {
        Box::pin(async move {
            let url = StoreUrl::parse(url)?;
            DRIVER.open(url).await
        })
    })
}

fn plan(scenarios: &[Scenario]) -> Plan {
    Plan {
        scenarios: scenarios.to_vec(),
        run_time: Duration::from_millis(900),
        tasks: vec![3, 7],
        contenders: 4,
        held: 50,
        ..Plan::default()
    }
}

async fn run(scenarios: &[Scenario], observer: &dyn Observer) -> Vec<Outcome> {
    let mut bench = Bench::connect(store()).await.unwrap();
    let outcomes = bench.run(&plan(scenarios), observer).await.unwrap();
    bench.finish().await.unwrap();
    outcomes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_json_record_has_exactly_the_documented_fields_and_null_where_one_does_not_apply() {
    let outcomes = run(&[Scenario::Uncontended, Scenario::Throughput], &NoObserver).await;
    assert_eq!(outcomes.iter().map(|outcome| outcome.tasks).collect::<Vec<_>>(), [1, 3, 7]);
    for outcome in &outcomes {
        let line = serde_json::to_value(outcome.json_record()).unwrap();
        let object = line.as_object().unwrap();
        let mut fields: Vec<_> = object.keys().map(String::as_str).collect();
        fields.sort_unstable();
        assert_eq!(fields, JsonRecord::FIELDS);
        assert!(object["ops_per_s"].as_f64().unwrap() > 0.0);
        assert!(object["p50_us"].as_f64().unwrap() <= object["p99_us"].as_f64().unwrap());
        // The memory store has neither a baseline nor a request counter.
        assert!(object["ratio"].is_null() && object["requests_per_op"].is_null());
        assert_eq!(object["fairness"].is_null(), outcome.tasks == 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_granted_the_lock_and_none_starves() {
    let outcomes = run(&[Scenario::Handoff, Scenario::Contended], &NoObserver).await;
    let [handoff, contended] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert!(handoff.p50_us.is_some_and(|median| median < 100_000.0), "{handoff:?}");
    assert!(handoff.ops_per_s.is_none());
    assert!(contended.fairness.is_some_and(|fairness| fairness < 4.0), "{contended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn held_locks_are_all_renewed_and_released() {
    let outcomes = run(&[Scenario::Held], &NoObserver).await;
    let [held] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert_eq!(held.tasks, 50);
    assert!(held.notes.iter().all(|note| !note.contains("lost")), "{:?}", held.notes);
    let locks = store_locks().await;
    let left = locks.inspect(&distlock_core::store::Query::prefixed("distlock-bench/")).await.unwrap();
    assert!(left.iter().all(|record| !record.name.as_deref().unwrap_or("").contains("held/")), "{left:?}");
}

async fn store_locks() -> distlock_core::Locks {
    let backend = DRIVER.connect(StoreUrl::parse("memory:distlock-bench").unwrap()).await.unwrap();
    distlock_core::Locks::new(backend).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn scenarios_with_several_processes_are_left_out_with_a_note() {
    #[derive(Default)]
    struct Notes(Mutex<Vec<String>>);
    impl Observer for Notes {
        fn started(&self, _: &str) {}
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
async fn every_outcome_renders_as_text_and_picture() {
    let outcomes = run(&[Scenario::Uncontended], &NoObserver).await;
    let table = distlock_load::render::table(&outcomes, str::to_owned);
    assert_eq!(table.lines().count(), 2);
    assert!(table.contains("uncontended"));
    assert!(distlock_load::render::histogram(&outcomes[0]).contains('█'));
    let picture = distlock_load::render::distributions(&outcomes);
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
}
