//! `distlock run`: takes the lock, runs the command, releases, and exits with the command's own code.

mod help;

use std::convert::Infallible;
use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use distlock::store::{Fairness, Query};
use distlock::{
    Acquire, BootClock, Clock, Error, ErrorKind, Guard, Kind, Locks, Moment, Options, ReleaseError, Resource,
    TryAcquire,
};
use nix::sys::signal::Signal;

pub(crate) use self::help::EXAMPLES;
use crate::duration;
use crate::exit::{BUSY, Failure, LOST, NOT_EXECUTABLE, UNAVAILABLE, of_signal};
use crate::notes::Notes;
use crate::signals::{self, Blocked, Signals};
use crate::store::StoreArgs;
use crate::supervise::{self, End, Job, Outcome};
use crate::table::escape;

const WAIT: &str = "Waiting";
const LEASE: &str = "Lease";
const LOCK: &str = "Lock";

/// How long a wait lasts before it is explained.
const EXPLAIN_AFTER: Duration = Duration::from_secs(1);
/// How long to go on telling the store, after everything is over, what it has not yet heard.
const DRAIN: Duration = Duration::from_secs(3);

/// What to run under which lock.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Share a reader-writer lock with other readers
    #[arg(long, conflicts_with_all = ["write", "permits", "of"], help_heading = LOCK)]
    read: bool,
    /// Have a reader-writer lock alone
    #[arg(long, conflicts_with_all = ["permits", "of"], help_heading = LOCK)]
    write: bool,
    /// How many permits of a semaphore to take [default: 1]
    #[arg(long, value_name = "N", requires = "of", help_heading = LOCK)]
    permits: Option<u32>,
    /// How many permits the semaphore has; everybody must say the same number
    #[arg(long, value_name = "MAX", help_heading = LOCK)]
    of: Option<u32>,
    /// Strictly first come, first served, among all who ask for it
    #[arg(long, help_heading = LOCK)]
    fair: bool,

    /// Give up at once if somebody else has the lock
    #[arg(short = 'n', long, conflicts_with = "timeout", help_heading = WAIT)]
    no_wait: bool,
    /// Wait at most this long, such as 500ms, 10s or 2m; without it, for ever
    #[arg(short = 'w', long, value_name = "DUR", value_parser = duration::parse, help_heading = WAIT)]
    timeout: Option<Duration>,
    /// The exit code when the lock was not to be had
    #[arg(short = 'E', long, value_name = "N", default_value_t = BUSY, help_heading = WAIT)]
    conflict_exit_code: u8,

    /// How long the lock outlives us, should this machine die
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "30s", help_heading = LEASE)]
    expiry: Duration,
    /// How often the lock is extended [default: a third of the expiry]
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = LEASE)]
    extend_every: Option<Duration>,
    /// Keep the lock at least this long, also if the command ends earlier
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "0s", help_heading = LEASE)]
    hold_at_least: Duration,
    /// The time between SIGTERM and SIGKILL if the lock cannot be renewed; never past the end of the lease
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "5s", help_heading = LEASE)]
    grace: Duration,

    /// Say nothing that is not an error
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    /// Say more; twice: everything
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,

    /// The name of the lock
    name: String,
    /// The command to run, and its arguments
    #[arg(value_name = "COMMAND", required = true, num_args = 1.., trailing_var_arg = true)]
    command: Vec<OsString>,
}

impl RunArgs {
    fn kind(&self) -> Kind {
        match (self.read || self.write, self.of) {
            (true, _) => Kind::RwLock,
            (false, Some(_)) => Kind::Semaphore,
            (false, None) => Kind::Mutex,
        }
    }

    fn options(&self) -> distlock::Result<Options> {
        let mut options =
            Options::new().expiry(self.expiry)?.hold_at_least(self.hold_at_least)?.notice_break(true);
        if let Some(cadence) = self.extend_every {
            options = options.extension_cadence(cadence)?;
        }
        options.check()?;
        Ok(options)
    }

    /// The command. In `run -- -name- -- command` the first dashes end the options, and the second are there to be read.
    fn command(&self) -> &[OsString] {
        match self.command.split_first() {
            Some((dashes, command)) if dashes == "--" => command,
            _ => &self.command,
        }
    }

    /// One attempt, or a wait.
    fn once(&self) -> bool {
        self.no_wait || self.timeout == Some(Duration::ZERO)
    }

    fn wait(&self, locks: &Locks) -> Acquire {
        let name = self.name.as_str();
        let acquire = match (self.read, self.write, self.of) {
            (true, ..) => locks.rw_lock(name).read(),
            (_, true, _) => locks.rw_lock(name).write(),
            (_, _, Some(max)) => locks.semaphore(name, max).acquire_many(self.permits.unwrap_or(1)),
            _ if self.fair => locks.mutex(name).fair().acquire(),
            _ => locks.mutex(name).acquire(),
        };
        match self.timeout {
            Some(limit) => acquire.timeout(limit),
            None => acquire,
        }
    }

    fn attempt(&self, locks: &Locks) -> TryAcquire {
        let name = self.name.as_str();
        match (self.read, self.write, self.of) {
            (true, ..) => locks.rw_lock(name).try_read(),
            (_, true, _) => locks.rw_lock(name).try_write(),
            (_, _, Some(max)) => locks.semaphore(name, max).try_acquire_many(self.permits.unwrap_or(1)),
            _ if self.fair => locks.mutex(name).fair().try_acquire(),
            _ => locks.mutex(name).try_acquire(),
        }
    }
}

/// Runs the command; the answer is its exit code.
pub(crate) fn execute(store: &StoreArgs, args: &RunArgs) -> Result<u8, Failure> {
    let notes = Notes::new(args.quiet, args.verbose > 0);
    if args.verbose > 1 {
        show_events();
    }
    // Everything that can be wrong without the store, before the store is asked.
    let resource = Resource::new(args.kind(), args.name.as_str())?;
    let options = args.options()?;
    match args.command().first() {
        Some(program) => supervise::check(program)?,
        None => return Err(Failure::usage("there is no command to run; write it behind --")),
    }
    let cannot_start = |error: String| Failure::new(UNAVAILABLE, format!("cannot start: {error}"));
    let blocked = signals::block().map_err(|error| cannot_start(error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| cannot_start(error.to_string()))?;
    let run = Run { store, args, resource, options, notes };
    let done = runtime.block_on(run.run(blocked));
    // Not a drop, which would wait for whatever a store still does on threads of its own.
    runtime.shutdown_background();
    let exit = done?;
    if exit.interrupted && supervise::has_terminal() {
        signals::die_of(Signal::SIGINT);
    }
    Ok(exit.code)
}

/// How we end.
struct Exit {
    code: u8,
    /// SIGINT ended the command or the wait. If it was Ctrl-C on our terminal, a shell must see us die of it: `bash`
    /// takes a child that merely exits for one that has dealt with Ctrl-C, and goes on with its loop.
    interrupted: bool,
}

impl Exit {
    fn with(code: u8) -> Self {
        Exit { code, interrupted: false }
    }

    fn by_signal(signal: Signal) -> Self {
        Exit { code: of_signal(signal as i32), interrupted: signal == Signal::SIGINT }
    }
}

/// Shows what the library tells about itself. It names stores without their secrets.
fn show_events() {
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
    resource: Resource,
    options: Options,
    notes: Notes,
}

impl Run<'_> {
    async fn run(&self, blocked: Blocked) -> Result<Exit, Failure> {
        let original_mask = blocked.original();
        let mut signals =
            blocked.listen().map_err(|error| Failure::new(UNAVAILABLE, format!("cannot start: {error}")))?;
        let locks = match signals.during(self.store.connect(self.options.clone())).await {
            Ok(locks) => locks?,
            Err(signal) => return Ok(Exit::by_signal(signal)),
        };
        let guard = match signals.during(self.acquire(&locks)).await {
            Ok(Ok(guard)) => guard,
            Ok(Err(failure)) => {
                drain(&locks).await;
                return Err(failure);
            }
            Err(signal) => {
                drain(&locks).await;
                self.notes.detail(&format!("{signal} ended the wait for {}", self.resource));
                return Ok(Exit::by_signal(signal));
            }
        };
        let (token, since) = (guard.token(), BootClock.now());
        self.notes.detail(&format!("acquired {} on {}, token {token}", self.resource, locks.store()));
        let job = Job {
            command: self.args.command(),
            variables: vec![("DISTLOCK_NAME", self.args.name.clone()), ("DISTLOCK_TOKEN", token.to_string())],
            grace: self.args.grace,
            cadence: self.options.get_extension_cadence(),
            blocked: original_mask,
        };
        let outcome = supervise::run(&guard, &job, &mut signals, &self.notes).await;
        let exit = match &outcome {
            Ok(outcome) if outcome.lost => {
                if outcome.end == End::NotStarted {
                    self.notes.say(&format!("lost {} before the command could be started", self.resource));
                }
                Ok(Exit::with(LOST))
            }
            Ok(Outcome { end, .. }) => {
                let interrupted = *end == End::Killed(Signal::SIGINT as i32);
                Ok(Exit { code: end.code(), interrupted })
            }
            Err(error) => Err(Failure::new(
                NOT_EXECUTABLE,
                format!(
                    "cannot start the command: {error}; check the limits on processes and open files (ulimit -a)"
                ),
            )),
        };
        let released = match &outcome {
            Ok(Outcome { lost: false, .. }) => self.release(guard, since, &mut signals).await,
            // Nothing to keep it for: given back below, without waiting for the least time.
            _ => {
                drop(guard);
                Released::Done
            }
        };
        drain(&locks).await;
        match (exit, released) {
            (Ok(_), Released::WasLost) => Ok(Exit::with(LOST)),
            (exit, _) => exit,
        }
    }

    async fn acquire(&self, locks: &Locks) -> Result<Guard, Failure> {
        let args = self.args;
        // Pools are served in order anyway, where the store has an order at all.
        if args.fair && args.kind() != Kind::Mutex && locks.capabilities().fairness == Fairness::None {
            let refused = locks.capabilities().unsupported("fair locks");
            return Err(refused.doing("acquire").about(&self.resource).on(locks.store().to_owned()).into());
        }
        if args.once() {
            return match args.attempt(locks).await? {
                Some(guard) => Ok(guard),
                None => Err(self.not_acquired(
                    &Error::new(ErrorKind::Timeout, "somebody else has it")
                        .doing("acquire")
                        .about(&self.resource)
                        .on(locks.store().to_owned())
                        .advise("wait for it with --timeout, or find the holder with `distlock show`"),
                )),
            };
        }
        let mut waiting = std::pin::pin!(args.wait(locks).into_future());
        let explain = async {
            if self.notes.hints() {
                tokio::time::sleep(EXPLAIN_AFTER).await;
                self.explain_wait(locks).await;
            }
            std::future::pending::<Infallible>().await
        };
        let acquired = tokio::select! {
            biased;
            acquired = &mut waiting => acquired,
            never = explain => match never {},
        };
        acquired.map_err(|error| match error.kind() {
            ErrorKind::Timeout => self.not_acquired(&error),
            _ => error.into(),
        })
    }

    fn not_acquired(&self, why: &Error) -> Failure {
        self.notes.tell(&format!("{why:#}"));
        Failure::silent(self.args.conflict_exit_code)
    }

    /// Says for whom we wait.
    async fn explain_wait(&self, locks: &Locks) {
        let query = Query::named(self.resource.name()).with_kind(self.resource.kind());
        let records = locks.inspect(&query).await.unwrap_or_default();
        let holders = records.iter().flat_map(|record| &record.holders);
        let mut holders: Vec<String> = holders.map(|holder| escape(holder.lock_id.label())).collect();
        let more = holders.len().saturating_sub(3);
        holders.truncate(3);
        let mut by = holders.join(", ");
        if more > 0 {
            by.push_str(&format!(" and {more} more"));
        }
        let by = if by.is_empty() { String::new() } else { format!(", held by {by}") };
        self.notes.hint(&format!("waiting for {}{by}", self.resource));
    }

    /// Gives the lock back, after the least time it is to be held.
    async fn release(&self, guard: Guard, since: Moment, signals: &mut Signals) -> Released {
        let wanted = self.args.hold_at_least;
        let held_on = BootClock.now().since(since) < wanted;
        if held_on {
            let wanted = duration::show(wanted);
            self.notes.detail(&format!("keeping {} until it was held for {wanted}", self.resource));
        }
        let Ok(released) = signals.during(guard.release()).await else {
            // Told to end while only the least time is waited for: the shutdown that follows gives it back now.
            return Released::Done;
        };
        match released {
            Ok(()) => Released::Done,
            Err(ReleaseError::Lost { error, .. }) => {
                self.notes
                    .say(&format!("{error:#}; what the command did may have met the work of another holder"));
                // Lost after the command had ended is none of the command's business.
                if held_on { Released::Done } else { Released::WasLost }
            }
            Err(ReleaseError::Unknown { until, error }) => {
                let until = duration::show(until);
                self.notes.say(&format!("{error:#}; the lock ends by itself within {until}"));
                Released::Done
            }
            Err(error) => {
                self.notes.say(&format!("{error:#}"));
                Released::Done
            }
        }
    }
}

enum Released {
    Done,
    /// It was lost before it was given back.
    WasLost,
}

/// Lets what goes on in the background come to its end: a withdrawn claim, the place in a queue.
async fn drain(locks: &Locks) {
    let _ = tokio::time::timeout(DRAIN, locks.shutdown()).await;
}
