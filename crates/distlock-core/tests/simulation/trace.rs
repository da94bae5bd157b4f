//! The trace of a run, for the analysis of a failed seed.

use std::time::Duration;

/// A violated rule.
#[derive(Clone, Debug)]
pub struct Violation {
    pub rule: &'static str,
    pub text: String,
}

#[derive(Debug, Default)]
pub struct Trace {
    keep: bool,
    only: Option<&'static str>,
    pub lines: Vec<String>,
    pub violation: Option<Violation>,
}

impl Trace {
    pub fn new(keep: bool, only: Option<&'static str>) -> Self {
        Trace { keep, only, ..Trace::default() }
    }

    pub fn is_kept(&self) -> bool {
        self.keep
    }

    pub fn line(&mut self, at: Duration, text: &str) {
        self.lines.push(format!("{:>10.3} {text}", at.as_secs_f64()));
    }

    /// The first violation counts. Later ones may be consequences of it.
    pub fn violated(&mut self, at: Duration, rule: &'static str, text: String) {
        if self.violation.is_none() && self.only.is_none_or(|only| only == rule) {
            if self.keep {
                self.line(at, &format!("VIOLATION {rule}: {text}"));
            }
            self.violation = Some(Violation { rule, text });
        }
    }
}
