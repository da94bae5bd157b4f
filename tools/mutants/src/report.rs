//! The result: a table for each file, and lists of the mutants.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::Result;
use crate::list::Mutant;
use crate::run::Outcome;

#[derive(Default)]
struct Counts {
    unviable: usize,
    caught: usize,
    timed_out: usize,
    missed: usize,
}

impl Counts {
    fn add(&mut self, outcome: Option<Outcome>) {
        match outcome {
            None => self.unviable += 1,
            Some(Outcome::Caught) => self.caught += 1,
            Some(Outcome::TimedOut) => self.timed_out += 1,
            Some(Outcome::Missed) => self.missed += 1,
        }
    }

    fn row(&self, name: &str) -> String {
        let viable = self.caught + self.timed_out + self.missed;
        let score = 100.0 * (self.caught + self.timed_out) as f64 / viable.max(1) as f64;
        let Counts { unviable, caught, timed_out, missed } = self;
        format!(
            "{name:46} {:8} {unviable:8} {caught:8} {timed_out:8} {missed:8} {score:7.1}%",
            viable + unviable
        )
    }
}

/// Writes `caught.txt`, `timeout.txt`, `missed.txt` and `unviable.txt`, and returns the table. A mutant without an outcome
/// does not compile.
pub fn report(out: &Path, mutants: &[Mutant], outcomes: &BTreeMap<usize, Outcome>) -> Result<String> {
    let (mut files, mut total) = (BTreeMap::<&str, Counts>::new(), Counts::default());
    let mut lists = BTreeMap::from([
        (None, ("unviable.txt", String::new())),
        (Some(Outcome::Caught), ("caught.txt", String::new())),
        (Some(Outcome::TimedOut), ("timeout.txt", String::new())),
        (Some(Outcome::Missed), ("missed.txt", String::new())),
    ]);
    for mutant in mutants {
        let outcome = outcomes.get(&mutant.id).copied();
        files.entry(&mutant.file).or_default().add(outcome);
        total.add(outcome);
        if let Some((_, list)) = lists.get_mut(&outcome) {
            writeln!(list, "{}", mutant.name)?;
        }
    }
    for (name, list) in lists.values() {
        fs::write(out.join(name), list)?;
    }
    let mut table = format!(
        "{:46} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}\n",
        "file", "mutants", "unviable", "caught", "timeout", "missed", "score"
    );
    for (file, counts) in &files {
        writeln!(table, "{}", counts.row(file))?;
    }
    writeln!(table, "{}", total.row("total"))?;
    for missed in lists.get(&Some(Outcome::Missed)).into_iter().flat_map(|(_, list)| list.lines()) {
        writeln!(table, "missed: {missed}")?;
    }
    Ok(table)
}
