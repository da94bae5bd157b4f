//! The process tree of a command: its process group, and descendants that left the group.

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// All processes that end with the command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessTree {
    group: Pid,
    /// The subreaper: a process that loses its parent becomes its child.
    reaper: i32,
}

impl ProcessTree {
    /// The tree of a command that is a child of this process and leads its own process group.
    pub(crate) fn of(command: i32) -> Self {
        ProcessTree::below(i32::try_from(std::process::id()).unwrap_or(0), command)
    }

    /// The same for a command that is a child of this watchdog.
    pub(crate) fn below(watchdog: i32, command: i32) -> Self {
        ProcessTree { group: Pid::from_raw(command), reaper: watchdog }
    }

    /// Signals the group, as a terminal does.
    pub(crate) fn signal_group(self, signal: Signal) {
        let _ = killpg(self.group, signal);
    }

    /// Signals the group and the descendants that left it (`setsid`): they must not outlive a lost lock either.
    pub(crate) fn signal_all(self, signal: Signal) {
        self.signal_group(signal);
        for pid in self.outside_group() {
            let _ = kill(pid, signal);
        }
    }

    /// How many are alive, without zombies.
    pub(crate) fn alive(self) -> usize {
        #[cfg(target_os = "linux")]
        {
            let all = processes::running();
            let group = all.iter().filter(|process| process.group == self.group.as_raw()).count();
            group + self.outside_group().len()
        }
        #[cfg(not(target_os = "linux"))]
        {
            usize::from(killpg(self.group, None).is_ok())
        }
    }

    /// The descendants outside the group.
    fn outside_group(self) -> Vec<Pid> {
        #[cfg(target_os = "linux")]
        {
            let all = processes::running();
            let descendants = processes::descendants(&all, self.reaper).into_iter();
            let outside = descendants.filter(|process| process.group != self.group.as_raw());
            outside.map(|process| Pid::from_raw(process.pid)).collect()
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = self.reaper;
            Vec::new()
        }
    }
}

#[cfg(target_os = "linux")]
mod processes {
    /// A process as in `/proc/PID/stat`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Process {
        pub(super) pid: i32,
        pub(super) parent: i32,
        pub(super) group: i32,
    }

    /// All processes but zombies.
    pub(super) fn running() -> Vec<Process> {
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter_map(|pid| parse(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?))
            .collect()
    }

    /// `PID (NAME) STATE PPID PGRP …`, where the name may contain parentheses.
    pub(super) fn parse(pid: i32, stat: &str) -> Option<Process> {
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?;
        let (parent, group) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        (!matches!(state, "Z" | "X" | "x")).then_some(Process { pid, parent, group })
    }

    /// The descendants of `root`.
    pub(super) fn descendants(all: &[Process], root: i32) -> Vec<Process> {
        let mut found: Vec<Process> = Vec::new();
        let mut parents = vec![root];
        while let Some(parent) = parents.pop() {
            for process in all.iter().filter(|process| process.parent == parent) {
                if !found.contains(process) {
                    found.push(*process);
                    parents.push(process.pid);
                }
            }
        }
        found
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_process_name_with_parentheses_is_parsed() {
            let process = parse(7, "7 (a) S 1 2 (b)) S 3 4 4 0 -1").unwrap();
            assert_eq!(process, Process { pid: 7, parent: 3, group: 4 });
            assert_eq!(parse(7, "7 (gone) Z 3 4 4"), None);
            assert_eq!(parse(7, ""), None);
        }

        #[test]
        fn descendants_of_all_generations_are_found_and_cycles_end() {
            let of = |pid, parent| Process { pid, parent, group: 1 };
            let all = [of(2, 1), of(3, 2), of(4, 3), of(5, 9), of(9, 5)];
            assert_eq!(descendants(&all, 2).len(), 2);
            assert_eq!(descendants(&all, 5).len(), 2);
        }
    }
}
