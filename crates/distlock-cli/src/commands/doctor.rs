//! `distlock doctor`: what was found at the store, what is dangerous there, and how to mend it.

use clap::Args;
use distlock::Options;
use distlock::store::{Finding, Level};
use serde::Serialize;

use super::block_on;
use crate::exit::Failure;
use crate::output::{self, Paint};
use crate::store::StoreArgs;
use crate::table::escape;

pub(crate) const EXAMPLES: &str = "\
Exit code: 0 if all is well, 1 with warnings, 69 if the store cannot be reached.

Examples:
  distlock doctor
  distlock --store redis://cache.example:6379 doctor
  distlock doctor --json | jq '.findings[] | select(.level == \"warning\")'";

/// How to tell.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// A JSON object instead of lines
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    store: &'a str,
    findings: Vec<Line<'a>>,
}

#[derive(Serialize)]
struct Line<'a> {
    level: &'static str,
    what: &'a str,
    advice: Option<&'a str>,
}

impl<'a> Line<'a> {
    fn of(finding: &'a Finding) -> Self {
        let level = match finding.level {
            Level::Ok => "good",
            Level::Warning => "warning",
        };
        Line { level, what: &finding.what, advice: finding.advice.as_deref() }
    }
}

pub(crate) fn execute(store: &StoreArgs, args: &DoctorArgs) -> Result<(), Failure> {
    let (findings, place) = block_on(async {
        let locks = store.connect(Options::default()).await?;
        Ok((locks.doctor().await?, locks.store().to_owned()))
    })?;
    if args.json {
        let findings = findings.iter().map(Line::of).collect();
        output::write_json(&Report { store: &place, findings })?;
    } else {
        output::write(&lines(&place, &findings))?;
    }
    match findings.iter().map(|finding| finding.level).max() {
        None | Some(Level::Ok) => Ok(()),
        Some(Level::Warning) => Err(Failure::silent(1)),
    }
}

fn lines(place: &str, findings: &[Finding]) -> String {
    let colours = output::colours();
    let mut text = format!("{}\n", output::painted(&escape(place), Paint::Bold, colours));
    for finding in findings {
        let mark = match finding.level {
            Level::Ok => output::painted("[ok]", Paint::Green, colours),
            Level::Warning => output::painted("[!!]", Paint::Yellow, colours),
        };
        text.push_str(&format!("{mark} {}\n", escape(&finding.what)));
        if let Some(advice) = &finding.advice {
            text.push_str(&format!("     {}\n", escape(advice)));
        }
    }
    text
}
