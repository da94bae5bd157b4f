//! `distlock doctor`: checks the store for dangerous settings, and says how to fix them.

use clap::Args;
use distlock::Options;
use distlock::store::{Finding, Level};
use serde::Serialize;

use super::block_on;
use crate::exit::Failure;
use crate::output::{self, Style};
use crate::store::StoreArgs;
use crate::table::escape;

pub(crate) const EXAMPLES: &str = "\
Exit code: 0 without warnings, 1 with warnings, 69 if the store cannot be reached.

Examples:
  distlock doctor
  distlock --store redis://cache.example:6379 doctor
  distlock doctor --json | jq '.findings[] | select(.level == \"warning\")'";

/// The output format.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Print a JSON object instead of lines
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct DoctorReport<'a> {
    store: &'a str,
    findings: Vec<ReportedFinding<'a>>,
}

#[derive(Serialize)]
struct ReportedFinding<'a> {
    level: &'static str,
    what: &'a str,
    advice: Option<&'a str>,
}

impl<'a> ReportedFinding<'a> {
    fn of(finding: &'a Finding) -> Self {
        let level = match finding.level {
            Level::Ok => "good",
            Level::Warning => "warning",
        };
        ReportedFinding { level, what: &finding.what, advice: finding.advice.as_deref() }
    }
}

pub(crate) fn execute(store: &StoreArgs, args: &DoctorArgs) -> Result<(), Failure> {
    let (findings, store) = block_on(async {
        let locks = store.connect(Options::default()).await?;
        Ok((locks.doctor().await?, locks.store().to_owned()))
    })?;
    if args.json {
        let findings = findings.iter().map(ReportedFinding::of).collect();
        output::write_json(&DoctorReport { store: &store, findings })?;
    } else {
        output::write(&lines(&store, &findings))?;
    }
    match findings.iter().map(|finding| finding.level).max() {
        None | Some(Level::Ok) => Ok(()),
        Some(Level::Warning) => Err(Failure::silent(1)),
    }
}

fn lines(store: &str, findings: &[Finding]) -> String {
    let colours = output::colours();
    let mut text = format!("{}\n", output::styled(&escape(store), Style::Bold, colours));
    for finding in findings {
        let mark = match finding.level {
            Level::Ok => output::styled("[ok]", Style::Green, colours),
            Level::Warning => output::styled("[!!]", Style::Yellow, colours),
        };
        text.push_str(&format!("{mark} {}\n", escape(&finding.what)));
        if let Some(advice) = &finding.advice {
            text.push_str(&format!("     {}\n", escape(advice)));
        }
    }
    text
}
