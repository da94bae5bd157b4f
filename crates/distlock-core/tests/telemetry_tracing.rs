//! Spans and events. One test in a program of its own: `tracing` caches for the whole process whether a call site has a
//! subscriber, and a concurrent test without one would disable the call site.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::{Arc, Mutex};

use common::{SECOND, World};
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, SubscriberExt};

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Seen {
    fn on_new_span(&self, span: &tracing::span::Attributes<'_>, _: &tracing::span::Id, _: Context<'_, S>) {
        self.0.lock().unwrap().push(format!("span {}", span.metadata().name()));
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(message.0);
    }
}

#[tokio::test(start_paused = true)]
async fn every_step_of_a_lock_has_a_span_or_an_event() {
    let seen = Seen::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(seen.clone()));
    let world = World::new();
    let (ours, theirs, faults) = world.contended_cycle().await;
    let held = ours.mutex("a").acquire().await.unwrap();
    assert!(theirs.mutex("a").try_acquire().timeout(5 * SECOND).await.unwrap().is_none());
    faults.set_down(true);
    held.lost().await;
    let seen = seen.0.lock().unwrap().clone();
    for expected in [
        "span acquire",
        "acquired",
        "waiting",
        "timed out",
        "span renew",
        "renewed",
        "span release",
        "released",
        "lost",
    ] {
        assert!(seen.iter().any(|what| what == expected), "{expected} is not among {seen:?}");
    }
    let waited = seen.iter().filter(|what| *what == "waiting").count();
    assert_eq!(waited, 2, "once for each caller that waited, however often it asked: {seen:?}");
}
