//! The watchdog protocol: lines of text over a socket pair.

use distlock::Moment;

use crate::deadlines::Deadlines;

/// From `distlock` to the watchdog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WatchdogCommand {
    /// Start the command. The first message, sent once.
    Start {
        /// The deadlines of the lease; none where the lock does not expire.
        deadlines: Option<Deadlines>,
        /// The process group that gets the terminal when the command has ended.
        terminal_group: i32,
        /// The signals that were blocked when `distlock` was started; they are blocked for the command too.
        blocked: Vec<i32>,
    },
    /// The lease was renewed.
    Lease(Deadlines),
    /// Forward this signal to the command.
    Signal(i32),
    /// The lock is lost: SIGTERM now, SIGKILL at this moment.
    End { kill_at: Moment },
}

/// From the watchdog to `distlock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WatchdogEvent {
    /// The command runs, with this process id and in a process group of its own.
    Started(i32),
    /// The lease ended before the command could be started.
    Late,
    /// The command could not be started.
    Failed(String),
    /// A signal stopped the command.
    Stopped(i32),
    /// The lease was not renewed in time: the command was sent SIGTERM.
    Ending,
    /// The lock file was removed: the command was sent SIGTERM.
    Removed,
    /// This many processes could not be killed.
    Left(usize),
    /// The command exited with this code.
    Exited(i32),
    /// A signal ended the command.
    Killed(i32),
}

fn moment(word: Option<&str>) -> Option<Moment> {
    word?.parse().ok().map(Moment::from_nanos)
}

fn deadlines(term: Option<&str>, kill: Option<&str>) -> Option<Deadlines> {
    Some(Deadlines { term_at: moment(term)?, kill_at: moment(kill)? })
}

impl WatchdogCommand {
    pub(crate) fn to_line(&self) -> String {
        let pair = |at: &Deadlines| format!("{} {}", at.term_at.as_nanos(), at.kill_at.as_nanos());
        match self {
            WatchdogCommand::Start { deadlines, terminal_group, blocked } => {
                let lease = deadlines.as_ref().map_or_else(|| "- -".to_owned(), pair);
                let blocked: String = blocked.iter().map(|signal| format!(" {signal}")).collect();
                format!("start {lease} {terminal_group}{blocked}\n")
            }
            WatchdogCommand::Lease(at) => format!("lease {}\n", pair(at)),
            WatchdogCommand::Signal(number) => format!("signal {number}\n"),
            WatchdogCommand::End { kill_at } => format!("end {}\n", kill_at.as_nanos()),
        }
    }

    /// Parses a line; `None` if it is malformed.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        match words.next()? {
            "start" => {
                let (term, kill) = (words.next(), words.next());
                let lease = if term == Some("-") { None } else { Some(deadlines(term, kill)?) };
                let terminal_group = words.next()?.parse().ok()?;
                let blocked = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
                Some(WatchdogCommand::Start { deadlines: lease, terminal_group, blocked })
            }
            "lease" => Some(WatchdogCommand::Lease(deadlines(words.next(), words.next())?)),
            "signal" => Some(WatchdogCommand::Signal(words.next()?.parse().ok()?)),
            "end" => Some(WatchdogCommand::End { kill_at: moment(words.next())? }),
            _ => None,
        }
    }
}

impl WatchdogEvent {
    pub(crate) fn to_line(&self) -> String {
        match self {
            WatchdogEvent::Started(pid) => format!("started {pid}\n"),
            WatchdogEvent::Late => "late\n".to_owned(),
            WatchdogEvent::Failed(reason) => format!("failed {}\n", reason.replace('\n', " ")),
            WatchdogEvent::Stopped(signal) => format!("stopped {signal}\n"),
            WatchdogEvent::Ending => "ending\n".to_owned(),
            WatchdogEvent::Removed => "removed\n".to_owned(),
            WatchdogEvent::Left(processes) => format!("left {processes}\n"),
            WatchdogEvent::Exited(code) => format!("exited {code}\n"),
            WatchdogEvent::Killed(signal) => format!("killed {signal}\n"),
        }
    }

    /// Parses a line; `None` if it is malformed.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), ""));
        Some(match word {
            "started" => WatchdogEvent::Started(rest.parse().ok()?),
            "late" => WatchdogEvent::Late,
            "failed" => WatchdogEvent::Failed(rest.to_owned()),
            "stopped" => WatchdogEvent::Stopped(rest.parse().ok()?),
            "ending" => WatchdogEvent::Ending,
            "removed" => WatchdogEvent::Removed,
            "left" => WatchdogEvent::Left(rest.parse().ok()?),
            "exited" => WatchdogEvent::Exited(rest.parse().ok()?),
            "killed" => WatchdogEvent::Killed(rest.parse().ok()?),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_read_back() {
        let at = Deadlines { term_at: Moment::from_nanos(5), kill_at: Moment::from_nanos(u64::MAX) };
        for command in [
            WatchdogCommand::Start { deadlines: None, terminal_group: 7, blocked: vec![] },
            WatchdogCommand::Start { deadlines: Some(at), terminal_group: 7, blocked: vec![1, 15] },
            WatchdogCommand::Lease(at),
            WatchdogCommand::Signal(2),
            WatchdogCommand::End { kill_at: Moment::from_nanos(9) },
        ] {
            assert_eq!(WatchdogCommand::parse(&command.to_line()), Some(command));
        }
        for event in [
            WatchdogEvent::Started(4),
            WatchdogEvent::Late,
            WatchdogEvent::Failed("no such thing".to_owned()),
            WatchdogEvent::Stopped(20),
            WatchdogEvent::Ending,
            WatchdogEvent::Removed,
            WatchdogEvent::Left(2),
            WatchdogEvent::Exited(3),
            WatchdogEvent::Killed(9),
        ] {
            assert_eq!(WatchdogEvent::parse(&event.to_line()), Some(event));
        }
        assert_eq!(WatchdogCommand::parse("lease 5"), None);
        assert_eq!(WatchdogEvent::parse(""), None);
    }
}
