//! Warnings of the library, such as an unreadable record: one line each on stderr.

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::sync::{Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::stderr::print;
use crate::table::escape;

/// Prints the warnings of the library from now on.
pub(crate) fn show() {
    // Fails only if there is a subscriber already.
    let _ = tracing::subscriber::set_global_default(Warnings::default());
}

/// How many different warnings are remembered.
const REMEMBERED: usize = 1_000;

/// Each warning is printed once: `ls --watch` reads the same record again and again.
#[derive(Default)]
struct Warnings(Mutex<BTreeSet<String>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN && metadata.target().starts_with("distlock")
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = WarningText::default();
        event.record(&mut text);
        let text = escape(&text.0);
        let mut printed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if printed.len() < REMEMBERED && printed.insert(text.clone()) {
            print(&format!("warning: {text}"));
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        // No span is enabled, so one id is enough.
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The message first, then the fields.
#[derive(Default)]
struct WarningText(String);

impl Visit for WarningText {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String cannot fail.
        let _ = match field.name() {
            "message" => {
                let fields = std::mem::take(&mut self.0);
                write!(self.0, "{value:?}{fields}")
            }
            name => write!(self.0, "; {name}: {value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}
