//! The name of a session in the rows. It tells whose guards are left after the session has ended.
//!
//! `process.run.number`: the process, and the run of the server that the session is of. Every session of a process holds the
//! application lock of its process in shared mode, and a process has two sessions at least. So if no session holds it any more,
//! on a server that was not restarted since, the process has ended and its guards with it. If one holds it, one session alone
//! ended: its process hears of that, and deletes its rows.

use sha2::{Digest, Sha256};

use crate::lock_name::hex;

/// For a server that does not tell.
const UNKNOWN_RUN: &str = "-";

/// One run of one server, from its start to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerRun(String);

impl ServerRun {
    pub(crate) fn new(server: &str, started: &str) -> Self {
        let mut hash = Sha256::new();
        for part in [server, started] {
            hash.update(part);
            hash.update([0]);
        }
        ServerRun(hex(&hash.finalize()[..8]))
    }

    pub(crate) fn unknown() -> Self {
        ServerRun(UNKNOWN_RUN.to_owned())
    }
}

/// A process: one store and its clones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process(String);

impl Process {
    pub(crate) fn new() -> Self {
        Process(format!("{:016x}", fastrand::u64(..)))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name of a session.
pub(crate) fn session_name(process: &Process, run: &ServerRun) -> String {
    format!("{}.{}.{:016x}", process.0, run.0, fastrand::u64(..))
}

/// The process of an ended session, if the locks of that process can tell whether it has ended: our session is of the same run of
/// the server, and the process is not our own.
pub(crate) fn testable_process(ended: &str, ours: &str) -> Option<Process> {
    let (process, run) = parts(ended)?;
    let (our_process, our_run) = parts(ours)?;
    (run == our_run && run != UNKNOWN_RUN && process != our_process).then(|| Process(process.to_owned()))
}

fn parts(session: &str) -> Option<(&str, &str)> {
    let mut parts = session.split('.');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(process), Some(run), Some(_), None) => Some((process, run)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_taken_for_ended_only_on_the_same_run_of_the_same_server() {
        let (one, other) = (Process::new(), Process::new());
        let (before, after) = (ServerRun::new("db1", "2026-01-01"), ServerRun::new("db1", "2026-02-01"));
        assert_ne!(before, ServerRun::new("db2", "2026-01-01"), "a fail-over");
        let name = |process, run| session_name(process, run);
        let ours = name(&one, &before);
        assert_eq!(testable_process(&name(&other, &before), &ours), Some(other.clone()));
        assert_eq!(testable_process(&name(&other, &after), &ours), None, "a restart");
        assert_eq!(testable_process(&name(&one, &before), &ours), None, "our own");
        let unknown = ServerRun::unknown();
        assert_eq!(testable_process(&name(&other, &unknown), &name(&one, &unknown)), None);
        assert_eq!(testable_process("0123456789abcdef", &ours), None);
    }

    #[test]
    fn a_name_fits_into_its_column() {
        assert!(session_name(&Process::new(), &ServerRun::new("s", "t")).len() <= 64);
    }
}
