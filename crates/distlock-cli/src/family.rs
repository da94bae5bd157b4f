//! The processes that a command has become: its process group, and what left the group but still descends from us.

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// Everybody who is to end with the command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    group: Pid,
    /// A process that loses its parent becomes a child of this one.
    reaper: i32,
}

impl Family {
    /// The family of a command that leads the process group of its own number and descends from us.
    pub(crate) fn of(command: i32) -> Self {
        Family::below(i32::try_from(std::process::id()).unwrap_or(0), command)
    }

    /// The same, seen from the parent of the watchdog from which the command descends.
    pub(crate) fn below(watchdog: i32, command: i32) -> Self {
        Family { group: Pid::from_raw(command), reaper: watchdog }
    }

    /// Signals the group, as a terminal would.
    pub(crate) fn signal_group(self, signal: Signal) {
        let _ = killpg(self.group, signal);
    }

    /// Signals the group and also those who left it (`setsid`), which is no way to outlive a lost lock.
    pub(crate) fn signal_everybody(self, signal: Signal) {
        self.signal_group(signal);
        for pid in self.strays() {
            let _ = kill(pid, signal);
        }
    }

    /// How many are alive. Zombies are not: they only wait to be counted.
    pub(crate) fn alive(self) -> usize {
        #[cfg(target_os = "linux")]
        {
            let all = processes::running();
            let group = all.iter().filter(|process| process.group == self.group.as_raw()).count();
            group + self.strays().len()
        }
        #[cfg(not(target_os = "linux"))]
        {
            usize::from(killpg(self.group, None).is_ok())
        }
    }

    /// The descendants outside the group.
    fn strays(self) -> Vec<Pid> {
        #[cfg(target_os = "linux")]
        {
            let all = processes::running();
            let descendants = processes::descendants(&all, self.reaper).into_iter();
            let strays = descendants.filter(|process| process.group != self.group.as_raw());
            strays.map(|process| Pid::from_raw(process.pid)).collect()
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
    /// A process as `/proc/PID/stat` shows it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Process {
        pub(super) pid: i32,
        pub(super) parent: i32,
        pub(super) group: i32,
    }

    /// All processes that run, sleep or are stopped.
    pub(super) fn running() -> Vec<Process> {
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter_map(|pid| parse(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?))
            .collect()
    }

    /// `PID (NAME) STATE PPID PGRP …`, where the name may hold anything, parentheses included.
    pub(super) fn parse(pid: i32, stat: &str) -> Option<Process> {
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?;
        let (parent, group) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        (!matches!(state, "Z" | "X" | "x")).then_some(Process { pid, parent, group })
    }

    /// Those that descend from `root`.
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
        fn a_name_with_parentheses_hides_nothing() {
            let process = parse(7, "7 (a) S 1 2 (b)) S 3 4 4 0 -1").unwrap();
            assert_eq!(process, Process { pid: 7, parent: 3, group: 4 });
            assert_eq!(parse(7, "7 (gone) Z 3 4 4"), None);
            assert_eq!(parse(7, ""), None);
        }

        #[test]
        fn descendants_are_found_over_generations_and_loops_end() {
            let of = |pid, parent| Process { pid, parent, group: 1 };
            let all = [of(2, 1), of(3, 2), of(4, 3), of(5, 9), of(9, 5)];
            assert_eq!(descendants(&all, 2).len(), 2);
            assert_eq!(descendants(&all, 5).len(), 2);
        }
    }
}
