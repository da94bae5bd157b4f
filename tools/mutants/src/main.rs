//! Mutation testing of distlock-core with one build for all mutants.
//!
//! cargo-mutants lists the mutants. It would build the tests again for each of them, which takes ten times as long as
//! running them. Here one build contains all mutants, and an environment variable activates one of them.
#![forbid(unsafe_code)]

mod build;
mod combine;
mod list;
mod report;
mod run;

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::build::Build;
use crate::list::Mutant;
use crate::run::{Outcome, Stage};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const PACKAGE: &str = "distlock-core";

/// Files, and the tests that are to catch their mutants.
struct Part {
    name: &'static str,
    files: &'static [&'static str],
    /// The fast tests, and the slow ones for what the fast ones miss.
    stages: [Tests; 2],
}

impl Part {
    fn has(&self, mutant: &Mutant) -> bool {
        let folder = |file: &'static str| file.strip_suffix("*.rs");
        self.files.iter().any(|file| match folder(file) {
            Some(folder) => mutant.file.starts_with(folder),
            None => mutant.file == *file,
        })
    }
}

struct Tests {
    programs: &'static [&'static str],
    /// Tests that are not run, by a part of their name.
    skipped: &'static [&'static str],
}

const PARTS: [Part; 2] = [
    Part {
        name: "engine",
        files: &[
            "crates/distlock-core/src/engine/acquire_lease.rs",
            "crates/distlock-core/src/engine/acquire_session.rs",
            "crates/distlock-core/src/engine/held.rs",
            "crates/distlock-core/src/engine/release.rs",
            "crates/distlock-core/src/engine/renewal.rs",
            "crates/distlock-core/src/engine/wakeups.rs",
            "crates/distlock-core/src/store/session.rs",
        ],
        stages: [
            Tests {
                programs: &["lib", "engine"],
                // They take seconds, or need real threads.
                skipped: &[
                    "threads",
                    "random_cancellation",
                    "contending_processes",
                    "very_many",
                    "ten_thousand",
                ],
            },
            Tests {
                programs: &["engine", "telemetry_tracing", "simulation"],
                skipped: &["threads", "very_many", "planted"],
            },
        ],
    },
    Part {
        name: "quorum",
        files: &["crates/distlock-core/src/quorum/*.rs"],
        stages: [
            Tests { programs: &["lib", "quorum"], skipped: &["contending_processes"] },
            Tests { programs: &["quorum", "quorum_search", "simulation"], skipped: &["planted"] },
        ],
    },
];

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: mutants ROOT [engine|quorum|all] [PART OF A MUTANT'S NAME]";
    let root = PathBuf::from(arguments.next().ok_or(usage)?).canonicalize()?;
    let wanted = arguments.next().unwrap_or("all".into());
    let named = arguments.next().unwrap_or_default();
    let parts: Vec<&Part> = PARTS.iter().filter(|part| wanted == "all" || wanted == part.name).collect();
    if parts.is_empty() {
        return Err(usage.into());
    }
    let out = root.join("target/mutants");
    let mut mutants = Vec::new();
    for part in &parts {
        mutants.extend(list::mutants(&root, PACKAGE, part.files, mutants.len())?);
    }
    mutants.retain(|mutant| mutant.name.contains(&named));
    eprintln!("{} mutants", mutants.len());
    let (build, unviable) = Build::new(&root, &out, PACKAGE, &mutants)?;
    let mut outcomes = BTreeMap::new();
    for (number, part) in (0..2).flat_map(|number| parts.iter().map(move |part| (number, part))) {
        let tests = &part.stages[number];
        let survives = |mutant: &&Mutant| {
            part.has(mutant)
                && !unviable.contains(&mutant.id)
                && outcomes.get(&mutant.id).is_none_or(|outcome| *outcome == Outcome::Missed)
        };
        let left: Vec<&Mutant> = mutants.iter().filter(survives).collect();
        if left.is_empty() {
            continue;
        }
        eprintln!("{}: {} mutants meet {}", part.name, left.len(), tests.programs.join(", "));
        let programs = build.programs(tests.programs)?;
        let logs = out.join(format!("log-{}-{number}", part.name));
        let stage = Stage::new(&build, programs, tests.skipped, logs)?;
        outcomes.extend(stage.run_all(&left)?);
    }
    print!("{}", report::report(&out, &mutants, &outcomes)?);
    Ok(())
}
