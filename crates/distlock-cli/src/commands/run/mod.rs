//! `distlock run`: acquires the lock, runs the command, releases, and exits with the command's own code.

mod args;
mod help;

use std::convert::Infallible;
use std::ffi::OsString;
use std::time::Duration;

use distlock::store::Fairness;
use distlock::{BootClock, Clock, ErrorKind, Guard, Kind, Locks, Moment, Options, ReleaseError, Resource};
use nix::sys::signal::Signal;

pub(crate) use self::args::RunArgs;
pub(crate) use self::help::EXAMPLES;
use crate::duration;
use crate::exit::{Failure, LOST, NOT_EXECUTABLE, UNAVAILABLE, of_signal};
use crate::holders::held_by;
use crate::identity::Identity;
use crate::signals::{self, Blocked, Signals};
use crate::stderr::Messages;
use crate::store::StoreArgs;
use crate::supervisor::{self, CommandEnd, Job, RunOutcome};

/// How long a wait lasts before the holder is named.
const EXPLAIN_AFTER: Duration = Duration::from_secs(1);
/// How long to wait for releases in flight before the exit.
const DRAIN: Duration = Duration::from_secs(3);
/// The same after a time limit has passed.
const SHORT_DRAIN: Duration = Duration::from_millis(100);

/// Runs the command and returns its exit code.
pub(crate) fn execute(store: &StoreArgs, args: &RunArgs) -> Result<u8, Failure> {
    let begun = BootClock.now();
    let messages = Messages::new(args.quiet, args.verbose > 0);
    if args.verbose > 1 {
        print_events();
    }
    // Everything that can be checked without the store comes first.
    let resource = Resource::new(args.kind(), args.name.as_str())?;
    let options = args.options()?;
    let command = args.command();
    match command.first() {
        Some(program) => supervisor::check(program)?,
        None => return Err(Failure::usage("there is no command to run; write it after --")),
    }
    let cannot_start = |error: String| Failure::new(UNAVAILABLE, format!("cannot start: {error}"));
    let blocked = signals::block().map_err(|error| cannot_start(error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| cannot_start(error.to_string()))?;
    let run = Run { store, args, command, resource, options, messages, begun };
    let result = runtime.block_on(run.run(blocked));
    // Dropping the runtime would wait for the blocking threads of the store.
    runtime.shutdown_background();
    let exit = result?;
    if exit.interrupted && supervisor::is_in_foreground() {
        signals::die_of(Signal::SIGINT);
    }
    Ok(exit.code)
}

/// How `distlock run` exits.
struct RunExit {
    code: u8,
    /// SIGINT ended the command or the wait. After Ctrl-C on a terminal, a shell must see that SIGINT ended us too: `bash`
    /// takes a child that only exits for one that handled Ctrl-C, and continues its loop.
    interrupted: bool,
}

impl RunExit {
    fn with(code: u8) -> Self {
        RunExit { code, interrupted: false }
    }

    fn by_signal(signal: Signal) -> Self {
        RunExit { code: of_signal(signal as i32), interrupted: signal == Signal::SIGINT }
    }
}

/// Prints the events of the library. They name stores without their secrets.
fn print_events() {
    use tracing_subscriber::filter::LevelFilter;
    let _ = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_max_level(LevelFilter::DEBUG)
        .try_init();
}

struct Run<'a> {
    store: &'a StoreArgs,
    args: &'a RunArgs,
    command: Vec<OsString>,
    resource: Resource,
    options: Options,
    messages: Messages,
    /// The time limit counts from here.
    begun: Moment,
}

impl Run<'_> {
    async fn run(&self, blocked: Blocked) -> Result<RunExit, Failure> {
        let original_mask = blocked.original();
        let mut signals =
            blocked.listen().map_err(|error| Failure::new(UNAVAILABLE, format!("cannot start: {error}")))?;
        let identity = self.command.first().map(|program| Identity::running(program));
        let label = self.args.label.as_deref();
        let connecting =
            self.store.connect_as(label, identity.as_ref(), self.options.clone(), self.time_left());
        let locks = match signals.during(connecting).await {
            Ok(locks) => locks?,
            Err(signal) => return Ok(RunExit::by_signal(signal)),
        };
        let guard = match signals.during(self.acquire(&locks)).await {
            Ok(Ok(guard)) => guard,
            Ok(Err(failure)) => {
                drain(&locks, self.time_left().map_or(DRAIN, |left| left.max(SHORT_DRAIN).min(DRAIN))).await;
                return Err(failure);
            }
            Err(signal) => {
                drain(&locks, DRAIN).await;
                self.messages.detail(&format!("{signal} ended the wait for {}", self.resource));
                return Ok(RunExit::by_signal(signal));
            }
        };
        let (token, since) = (guard.token(), BootClock.now());
        self.messages.detail(&format!("acquired {} on {}, token {token}", self.resource, locks.store()));
        let job = Job {
            command: &self.command,
            variables: vec![("DISTLOCK_NAME", self.args.name.clone()), ("DISTLOCK_TOKEN", token.to_string())],
            grace: self.args.grace,
            cadence: self.options.get_extension_cadence(),
            blocked: original_mask,
        };
        let outcome = supervisor::run(&guard, &job, &mut signals, &self.messages).await;
        let exit = match &outcome {
            Ok(outcome) if outcome.lost => {
                if outcome.end == CommandEnd::NotStarted {
                    self.messages.error(&format!("lost {} before the command was started", self.resource));
                }
                Ok(RunExit::with(LOST))
            }
            Ok(RunOutcome { end, .. }) => {
                let interrupted = *end == CommandEnd::Killed(Signal::SIGINT as i32);
                Ok(RunExit { code: end.code(), interrupted })
            }
            Err(error) => Err(Failure::new(
                NOT_EXECUTABLE,
                format!(
                    "cannot start the command: {error}; check the limits on processes and open files (ulimit -a)"
                ),
            )),
        };
        let released = match &outcome {
            Ok(RunOutcome { lost: false, .. }) => self.release(guard, since, &mut signals).await,
            // The shutdown in `drain` releases it.
            _ => {
                drop(guard);
                ReleaseOutcome::Done
            }
        };
        drain(&locks, DRAIN).await;
        match (exit, released) {
            (Ok(_), ReleaseOutcome::WasLost) => Ok(RunExit::with(LOST)),
            (exit, _) => exit,
        }
    }

    /// What is left of the time limit; `None` without one.
    fn time_left(&self) -> Option<Duration> {
        let limit = self.args.time_limit()?;
        Some(limit.saturating_sub(BootClock.now().since(self.begun)))
    }

    async fn acquire(&self, locks: &Locks) -> Result<Guard, Failure> {
        let args = self.args;
        // A pool is served in order anyway, if the store has an order at all.
        if args.fair && args.kind() != Kind::Mutex && locks.capabilities().fairness == Fairness::None {
            let refused = locks.capabilities().unsupported("fair locks");
            return Err(refused.doing("acquire").about(&self.resource).on(locks.store().to_owned()).into());
        }
        if args.is_single_attempt() {
            return match args.try_acquire(locks).await? {
                Some(guard) => Ok(guard),
                None => {
                    if self.messages.shows_info() {
                        let holder = held_by(locks, &self.resource).await;
                        self.messages.info(&self.busy(holder.as_deref(), locks.store()));
                    }
                    Err(Failure::silent(args.conflict_exit_code))
                }
            };
        }
        // Zero would be a single attempt.
        let left = self.time_left().map(|left| left.max(Duration::from_millis(1)));
        let mut waiting = std::pin::pin!(args.acquire(locks, left).into_future());
        let explain = async {
            if self.messages.shows_hints() {
                tokio::time::sleep(EXPLAIN_AFTER).await;
                let holder = held_by(locks, &self.resource).await.map(|by| format!(", {by}"));
                self.messages.hint(&format!("waiting for {}{}", self.resource, holder.unwrap_or_default()));
            }
            std::future::pending::<Infallible>().await
        };
        let acquired = tokio::select! {
            biased;
            acquired = &mut waiting => acquired,
            never = explain => match never {},
        };
        acquired.map_err(|error| match error.kind() {
            ErrorKind::Timeout => {
                self.messages.info(&format!("{error:#}"));
                Failure::silent(args.conflict_exit_code)
            }
            _ => error.into(),
        })
    }

    /// The message for a lock that a single attempt found busy.
    fn busy(&self, held_by: Option<&str>, store: &str) -> String {
        let held_by = held_by.unwrap_or("held by another client");
        format!("{} is {held_by} ({store}); wait for it with --timeout", self.resource)
    }

    /// Releases the lock once `--hold-at-least` has passed.
    async fn release(&self, guard: Guard, since: Moment, signals: &mut Signals) -> ReleaseOutcome {
        let least = self.args.hold_at_least;
        let held_longer = BootClock.now().since(since) < least;
        if held_longer {
            let least = duration::show(least);
            self.messages.detail(&format!("holding {} until it was held for {least}", self.resource));
        }
        let Ok(released) = signals.during(guard.release()).await else {
            // A signal ends the wait for --hold-at-least. The shutdown that follows leaves a lease in the store for that
            // time, and releases a lock that lives with this process.
            return ReleaseOutcome::Done;
        };
        match released {
            Ok(()) => ReleaseOutcome::Done,
            Err(ReleaseError::Lost { error, .. }) => {
                let text = format!("{error:#}; the command may have run at the same time as another holder");
                self.messages.error(&text);
                // A loss after the end of the command does not concern the command.
                if held_longer { ReleaseOutcome::Done } else { ReleaseOutcome::WasLost }
            }
            Err(ReleaseError::Unknown { until, error }) => {
                let until = duration::show(until);
                self.messages.error(&format!("{error:#}; the lock expires within {until}"));
                ReleaseOutcome::Done
            }
            Err(error) => {
                self.messages.error(&format!("{error:#}"));
                ReleaseOutcome::Done
            }
        }
    }
}

enum ReleaseOutcome {
    Done,
    /// The lock was lost before it was released.
    WasLost,
}

/// Waits for work in the background: releases, withdrawn claims, queue entries.
async fn drain(locks: &Locks, limit: Duration) {
    let _ = tokio::time::timeout(limit, locks.shutdown()).await;
}
