//! What `distlock` and its watchdog say to each other: lines of text over a socket pair.

use distlock::Moment;

use crate::deadlines::Deadlines;

/// From `distlock` to the watchdog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Start the command. Sent once, first.
    Start {
        /// The end of the lease; none where the lock has no time limit of its own.
        deadlines: Option<Deadlines>,
        /// The process group that gets the terminal back when everything is over.
        home: i32,
        /// The signals that were blocked when `distlock` was started, and shall be for the command.
        blocked: Vec<i32>,
    },
    /// The lease was extended.
    Lease(Deadlines),
    /// Pass this signal on.
    Signal(i32),
    /// The lock is lost: SIGTERM now, SIGKILL at this moment.
    End { kill_at: Moment },
}

/// From the watchdog to `distlock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The command runs, under this process id, in a group of its own.
    Started(i32),
    /// The lease had ended before there was anything to start.
    Late,
    /// The command could not be started at all.
    Failed(String),
    /// A signal stopped the command.
    Stopped(i32),
    /// No extension came in time: the command was sent SIGTERM.
    Ending,
    /// The lock file was removed: the command was sent SIGTERM.
    Removed,
    /// So many processes could not be ended.
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

impl Order {
    pub(crate) fn to_line(&self) -> String {
        let pair = |at: &Deadlines| format!("{} {}", at.term_at.as_nanos(), at.kill_at.as_nanos());
        match self {
            Order::Start { deadlines, home, blocked } => {
                let lease = deadlines.as_ref().map_or_else(|| "- -".to_owned(), pair);
                let blocked: String = blocked.iter().map(|signal| format!(" {signal}")).collect();
                format!("start {lease} {home}{blocked}\n")
            }
            Order::Lease(at) => format!("lease {}\n", pair(at)),
            Order::Signal(number) => format!("signal {number}\n"),
            Order::End { kill_at } => format!("end {}\n", kill_at.as_nanos()),
        }
    }

    /// Reads a line. `None` for one that was not written by us.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        match words.next()? {
            "start" => {
                let (term, kill) = (words.next(), words.next());
                let lease = if term == Some("-") { None } else { Some(deadlines(term, kill)?) };
                let home = words.next()?.parse().ok()?;
                let blocked = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
                Some(Order::Start { deadlines: lease, home, blocked })
            }
            "lease" => Some(Order::Lease(deadlines(words.next(), words.next())?)),
            "signal" => Some(Order::Signal(words.next()?.parse().ok()?)),
            "end" => Some(Order::End { kill_at: moment(words.next())? }),
            _ => None,
        }
    }
}

impl News {
    pub(crate) fn to_line(&self) -> String {
        match self {
            News::Started(pid) => format!("started {pid}\n"),
            News::Late => "late\n".to_owned(),
            News::Failed(why) => format!("failed {}\n", why.replace('\n', " ")),
            News::Stopped(signal) => format!("stopped {signal}\n"),
            News::Ending => "ending\n".to_owned(),
            News::Removed => "removed\n".to_owned(),
            News::Left(processes) => format!("left {processes}\n"),
            News::Exited(code) => format!("exited {code}\n"),
            News::Killed(signal) => format!("killed {signal}\n"),
        }
    }

    /// Reads a line. `None` for one that was not written by us.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), ""));
        Some(match word {
            "started" => News::Started(rest.parse().ok()?),
            "late" => News::Late,
            "failed" => News::Failed(rest.to_owned()),
            "stopped" => News::Stopped(rest.parse().ok()?),
            "ending" => News::Ending,
            "removed" => News::Removed,
            "left" => News::Left(rest.parse().ok()?),
            "exited" => News::Exited(rest.parse().ok()?),
            "killed" => News::Killed(rest.parse().ok()?),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let at = Deadlines { term_at: Moment::from_nanos(5), kill_at: Moment::from_nanos(u64::MAX) };
        for order in [
            Order::Start { deadlines: None, home: 7, blocked: vec![] },
            Order::Start { deadlines: Some(at), home: 7, blocked: vec![1, 15] },
            Order::Lease(at),
            Order::Signal(2),
            Order::End { kill_at: Moment::from_nanos(9) },
        ] {
            assert_eq!(Order::parse(&order.to_line()), Some(order));
        }
        for news in [
            News::Started(4),
            News::Late,
            News::Failed("no such thing".to_owned()),
            News::Stopped(20),
            News::Ending,
            News::Removed,
            News::Left(2),
            News::Exited(3),
            News::Killed(9),
        ] {
            assert_eq!(News::parse(&news.to_line()), Some(news));
        }
        assert_eq!(Order::parse("lease 5"), None);
        assert_eq!(News::parse(""), None);
    }
}
