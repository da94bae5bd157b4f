//! The options of `distlock run`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use distlock::{Acquire, Kind, Locks, Options, TryAcquire};

use crate::duration;
use crate::exit::BUSY;

const WAIT: &str = "Waiting";
const LEASE: &str = "Lease";
const LOCK: &str = "Lock";

/// The lock, and the command to run under it.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Acquire a reader-writer lock as one of many readers
    #[arg(long, conflicts_with_all = ["write", "permits", "of"], help_heading = LOCK)]
    read: bool,
    /// Acquire a reader-writer lock as the only writer
    #[arg(long, conflicts_with_all = ["permits", "of"], help_heading = LOCK)]
    write: bool,
    /// How many permits of a semaphore to acquire [default: 1]
    #[arg(long, value_name = "N", requires = "of", help_heading = LOCK)]
    permits: Option<u32>,
    /// How many permits the semaphore has; all users must give the same number
    #[arg(long, value_name = "MAX", help_heading = LOCK)]
    of: Option<u32>,
    /// Strictly first come, first served, across all machines
    #[arg(long, help_heading = LOCK)]
    pub(super) fair: bool,
    /// Who we are, for `ls`, `show` and messages [default: host:pid]
    #[arg(long, value_name = "TEXT", help_heading = LOCK)]
    pub(super) label: Option<String>,

    /// Fail at once if the lock is held
    #[arg(short = 'n', long, conflicts_with = "timeout", help_heading = WAIT)]
    no_wait: bool,
    /// Wait at most this long, such as 500ms, 10s or 2m, connecting included [default: no limit]
    #[arg(short = 'w', long, value_name = "DUR", value_parser = duration::parse, help_heading = WAIT)]
    timeout: Option<Duration>,
    /// The exit code if the lock was not acquired
    #[arg(short = 'E', long, value_name = "N", default_value_t = BUSY, help_heading = WAIT)]
    pub(super) conflict_exit_code: u8,

    /// When the lock expires if this machine crashes
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "30s", help_heading = LEASE)]
    expiry: Duration,
    /// How often the lock is renewed [default: a third of the expiry]
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = LEASE)]
    extend_every: Option<Duration>,
    /// Hold the lock at least this long, even if the command ends earlier; see below
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "0s", help_heading = LEASE)]
    pub(super) hold_at_least: Duration,
    /// Stop renewing after this long: the lock is then lost like any other [default: no limit]
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = LEASE)]
    max_hold: Option<Duration>,
    /// The time between SIGTERM and SIGKILL if the lock cannot be renewed; never past the end of the lease
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "5s", help_heading = LEASE)]
    pub(super) grace: Duration,

    /// Print errors only
    #[arg(short, long, conflicts_with = "verbose")]
    pub(super) quiet: bool,
    /// Print more; twice: print everything
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(super) verbose: u8,

    /// The name of the lock
    pub(super) name: String,
    /// Run this line with `sh -c` instead of a command
    #[arg(short = 'c', value_name = "LINE")]
    line: Option<OsString>,
    /// The command to run, and its arguments
    #[arg(
        value_name = "COMMAND",
        required_unless_present = "line",
        conflicts_with = "line",
        num_args = 1..,
        trailing_var_arg = true
    )]
    command: Vec<OsString>,
}

impl RunArgs {
    pub(super) fn kind(&self) -> Kind {
        match (self.read || self.write, self.of) {
            (true, _) => Kind::RwLock,
            (false, Some(_)) => Kind::Semaphore,
            (false, None) => Kind::Mutex,
        }
    }

    pub(super) fn options(&self) -> distlock::Result<Options> {
        let mut options =
            Options::new().expiry(self.expiry)?.hold_at_least(self.hold_at_least)?.notice_break(true);
        if let Some(cadence) = self.extend_every {
            options = options.extension_cadence(cadence)?;
        }
        if let Some(longest) = self.max_hold {
            options = options.max_hold(longest)?;
        }
        options.check()?;
        Ok(options)
    }

    /// The command. In `run -- -name- -- command` the first dashes end the options, and the second remain in the arguments.
    pub(super) fn command(&self) -> Vec<OsString> {
        if let Some(line) = &self.line {
            return vec!["sh".into(), "-c".into(), line.clone()];
        }
        match self.command.split_first() {
            Some((dashes, command)) if dashes == "--" => command.to_vec(),
            _ => self.command.clone(),
        }
    }

    /// The time limit, if there is one that passes.
    pub(super) fn time_limit(&self) -> Option<Duration> {
        self.timeout.filter(|limit| !limit.is_zero())
    }

    /// Whether to make a single attempt instead of waiting.
    pub(super) fn is_single_attempt(&self) -> bool {
        self.no_wait || self.timeout == Some(Duration::ZERO)
    }

    /// Waits for the lock, at most for `left` of the time limit.
    pub(super) fn acquire(&self, locks: &Locks, left: Option<Duration>) -> Acquire {
        let name = self.name.as_str();
        let acquire = match (self.read, self.write, self.of) {
            (true, ..) => locks.rw_lock(name).read(),
            (_, true, _) => locks.rw_lock(name).write(),
            (_, _, Some(max)) => locks.semaphore(name, max).acquire_many(self.permits.unwrap_or(1)),
            _ if self.fair => locks.mutex(name).fair().acquire(),
            _ => locks.mutex(name).acquire(),
        };
        match left {
            Some(left) => acquire.timeout(left),
            None => acquire,
        }
    }

    pub(super) fn try_acquire(&self, locks: &Locks) -> TryAcquire {
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
