//! Captured log events.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Mutex;

/// Message and fields of each event.
static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

pub fn logged(what: &str, about: &str) -> usize {
    LOGGED.lock().unwrap().iter().filter(|line| line.contains(what) && line.contains(about)).count()
}

pub fn capture_logs() {
    // Only the first call sets it; later ones share its events.
    let _ = tracing::subscriber::set_global_default(Capture);
}

struct Capture;

impl tracing::Subscriber for Capture {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("distlock_mongodb") && *metadata.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = String::new();
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            line.push_str(&format!("{field}={value:?} "));
        });
        LOGGED.lock().unwrap().push(line);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
