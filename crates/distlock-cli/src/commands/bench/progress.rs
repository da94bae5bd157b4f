//! How far it is: a bar on a terminal, nothing elsewhere.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::Duration;

use distlock_load::Observer;
use indicatif::{ProgressBar, ProgressStyle};

use crate::notes::say;

/// Of how many steps the bar is made.
const STEPS: u64 = 1000;

pub(super) struct Progress {
    bar: Option<ProgressBar>,
    /// Told again when the bar is gone.
    notes: Mutex<Vec<String>>,
}

impl Progress {
    pub(super) fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(STEPS);
            let style = ProgressStyle::with_template("{msg:<40} {bar:30} {percent:>3} %");
            if let Ok(style) = style {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Progress { bar, notes: Mutex::default() }
    }

    /// Takes the bar away.
    pub(super) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let mut notes = self.notes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        notes.drain(..).for_each(|note| say(&note));
    }
}

impl Observer for Progress {
    fn started(&self, title: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(0);
            bar.set_message(title.to_owned());
        }
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share is between zero and one"
    )]
    fn progress(&self, share: f64) {
        if let Some(bar) = &self.bar {
            bar.set_position((share * STEPS as f64) as u64);
        }
    }

    fn note(&self, text: &str) {
        self.notes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(text.to_owned());
    }
}
