//! Spans and events. One test in a program of its own: `tracing` caches for the whole process whether a call site has a
//! subscriber, and a concurrent test without one would disable the call site.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::{Arc, Mutex};

use common::{SECOND, World};
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// Spans by name, and events as `span: message`.
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

impl<S> tracing_subscriber::Layer<S> for Seen
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, span: &tracing::span::Attributes<'_>, _: &tracing::span::Id, _: Context<'_, S>) {
        self.0.lock().unwrap().push(format!("span {}", span.metadata().name()));
    }

    fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        let span = context.event_span(event).map_or("none", |span| span.metadata().name());
        self.0.lock().unwrap().push(format!("{span}: {}", message.0));
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
        "span distlock.acquire",
        "distlock.acquire: acquired",
        "distlock.acquire: waiting",
        "distlock.acquire: busy",
        "distlock.acquire: timed out",
        "span distlock.renew",
        "distlock.renew: renewed",
        "distlock.renew: a request to the store failed",
        "span distlock.release",
        "distlock.release: released",
    ] {
        assert!(seen.iter().any(|what| what == expected), "{expected} is not among {seen:?}");
    }
    assert!(seen.iter().any(|what| what.ends_with(": lost")), "{seen:?}");
    assert!(
        seen.iter().filter(|what| what.starts_with("span ")).all(|what| what.starts_with("span distlock."))
    );
    let waited = seen.iter().filter(|what| what.ends_with(": waiting")).count();
    assert_eq!(waited, 2, "once for each caller that waited, however often it asked: {seen:?}");
    let outside: Vec<_> =
        seen.iter().filter(|what| what.starts_with("none: ") && !what.ends_with(": lost")).collect();
    assert!(outside.is_empty(), "{outside:?}");
    drop(held);

    warnings_about_own_locks().await;
}

/// In the same program: see the top of the file.
async fn warnings_about_own_locks() {
    let seen = Seen::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(seen.clone()));
    let warnings = || seen.0.lock().unwrap().iter().filter(|what| what.contains("that it holds")).count();
    let world = World::new();
    let locks = world.locks();
    let limit = 10 * SECOND;

    let mutex = locks.mutex("m").acquire().await.unwrap();
    assert!(locks.mutex("m").try_acquire().await.unwrap().is_none());
    assert_eq!(warnings(), 0, "an attempt does not wait");
    assert!(locks.mutex("m").try_acquire().timeout(limit).await.unwrap().is_none());
    assert_eq!(warnings(), 1, "once for each wait");
    let other = tokio::spawn(locks.mutex("m").try_acquire().timeout(limit).into_future());
    assert!(other.await.unwrap().unwrap().is_none());
    assert_eq!(warnings(), 1, "another task may release it");
    drop(mutex);
    let fair = locks.mutex("f").fair().acquire().await.unwrap();
    assert!(locks.mutex("f").fair().try_acquire().timeout(limit).await.unwrap().is_none());
    assert_eq!(warnings(), 2, "a fair mutex is waited for in its queue");
    drop(fair);

    let page = locks.rw_lock("page");
    let reader = page.read().await.unwrap();
    drop(page.read().await.unwrap());
    assert_eq!(warnings(), 2, "readers share");
    assert!(page.try_write().timeout(limit).await.unwrap().is_none());
    assert_eq!(warnings(), 3, "a reader that wants to write waits for itself");
    drop(reader);

    let (gpu, theirs) = (locks.semaphore("gpu", 4), world.locks());
    let two = gpu.acquire_many(2).await.unwrap();
    let their_two = theirs.semaphore("gpu", 4).acquire_many(2).await.unwrap();
    assert!(gpu.try_acquire_many(2).timeout(limit).await.unwrap().is_none());
    assert_eq!(warnings(), 3, "the other client may release enough");
    assert!(gpu.try_acquire_many(3).timeout(limit).await.unwrap().is_none());
    assert_eq!(warnings(), 4, "with what this task holds there are never three");
    drop((two, their_two));

    let released = locks.mutex("r").acquire().await.unwrap();
    let permit = locks.semaphore("r", 1).acquire().await.unwrap();
    drop((released, permit));
    let their_mutex = theirs.mutex("r").acquire().await.unwrap();
    let their_permit = theirs.semaphore("r", 1).acquire().await.unwrap();
    assert!(locks.mutex("r").try_acquire().timeout(limit).await.unwrap().is_none());
    assert!(locks.semaphore("r", 1).try_acquire().timeout(limit).await.unwrap().is_none());
    assert_eq!(warnings(), 4, "what was released is not held");
    drop((their_mutex, their_permit));
}
