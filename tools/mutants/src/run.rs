//! Running the tests of each mutant.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;
use crate::build::Build;
use crate::list::Mutant;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    Caught,
    TimedOut,
    Missed,
}

/// Test programs, and the tests of them that are not run.
pub struct Stage<'a> {
    programs: Vec<PathBuf>,
    skipped: &'a [&'a str],
    folder: PathBuf,
    logs: PathBuf,
    time_limit: Duration,
}

/// The least time limit of a test program.
const LEAST_LIMIT: Duration = Duration::from_secs(30);
const LONGEST_LIMIT: Duration = Duration::from_secs(600);
/// How many times longer than without a mutant a test program may take.
const PATIENCE: u32 = 5;

impl<'a> Stage<'a> {
    /// Runs the programs without a mutant: they must pass, and show how long they take.
    pub fn new(build: &Build, programs: Vec<PathBuf>, skipped: &'a [&'a str], logs: PathBuf) -> Result<Self> {
        fs::create_dir_all(&logs)?;
        let folder = build.package_folder();
        let mut stage = Stage { programs, skipped, folder, logs, time_limit: LONGEST_LIMIT };
        let start = Instant::now();
        let outcome = stage.run(0)?;
        if outcome != Outcome::Missed {
            let log = stage.log(0);
            return Err(
                format!("the tests fail without a mutant ({outcome:?}): see {}", log.display()).into()
            );
        }
        stage.time_limit = LEAST_LIMIT.max(start.elapsed() * PATIENCE).min(LONGEST_LIMIT);
        eprintln!("the tests pass in {:.1?}; time limit {:.0?}", start.elapsed(), stage.time_limit);
        Ok(stage)
    }

    fn log(&self, id: usize) -> PathBuf {
        self.logs.join(format!("{id}.log"))
    }

    fn run(&self, id: usize) -> Result<Outcome> {
        let log = File::create(self.log(id))?;
        for program in &self.programs {
            match self.run_program(program, id, &log)? {
                Outcome::Missed => {}
                outcome => return Ok(outcome),
            }
        }
        Ok(Outcome::Missed)
    }

    fn run_program(&self, program: &Path, id: usize, log: &File) -> Result<Outcome> {
        // `timeout` also ends a test that hangs after this program was killed.
        let mut command = Command::new("timeout");
        command.arg("--kill-after=5").arg(self.time_limit.as_secs().to_string()).arg(program);
        command.current_dir(&self.folder).env("DISTLOCK_MUTANT", id.to_string()).env("RUST_BACKTRACE", "0");
        // The first failed test decides. libtest calls that option unstable; the variable allows it.
        command.env("RUSTC_BOOTSTRAP", "1").args(["-Zunstable-options", "--fail-fast", "--test-threads=4"]);
        for test in self.skipped {
            command.args(["--skip", test]);
        }
        let status =
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?).status()?;
        Ok(match status.code() {
            Some(0) => Outcome::Missed,
            Some(124 | 137) => Outcome::TimedOut,
            _ => Outcome::Caught,
        })
    }

    /// The outcome of each mutant, by its id.
    pub fn run_all(&self, mutants: &[&Mutant]) -> Result<Vec<(usize, Outcome)>> {
        let left: Mutex<VecDeque<&Mutant>> = Mutex::new(mutants.iter().copied().collect());
        let next = || left.lock().map(|mut left| left.pop_front()).ok().flatten();
        let worker = || {
            let mut outcomes = Vec::new();
            while let Some(mutant) = next() {
                let start = Instant::now();
                let outcome = self.run(mutant.id).map_err(|error| error.to_string())?;
                if outcome != Outcome::Caught {
                    eprintln!("{outcome:?} after {:.1?}: {} ({})", start.elapsed(), mutant.name, mutant.id);
                }
                outcomes.push((mutant.id, outcome));
            }
            Ok::<_, String>(outcomes)
        };
        let jobs = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(worker)).collect();
            let mut outcomes = Vec::new();
            for worker in workers {
                outcomes.extend(worker.join().map_err(|_| "a worker panicked")??);
            }
            Ok(outcomes)
        })
    }
}
