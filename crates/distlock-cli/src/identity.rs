//! Who holds a lock, for `show`: the user and the program, stored in the lock id behind the label.
//!
//! Of the command only the name of its program is stored, never an argument, a path or a variable: arguments often hold
//! passwords, and every client of the store can read a lock id.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use distlock::LockId;
use nix::unistd::{User, geteuid};

/// The time limit of the user's name: the directory service behind it may not reply.
const NAME_LIMIT: Duration = Duration::from_millis(200);
/// The longest name of a program that is stored.
const LONGEST_PROGRAM: usize = 40;
/// The longest name of a user that is stored.
const LONGEST_USER: usize = 20;

/// The user and the program of a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) user: String,
    pub(crate) command: String,
}

impl Identity {
    /// This user, running this program.
    pub(crate) fn running(program: &OsStr) -> Self {
        let name = Path::new(program).file_name().unwrap_or(program);
        Identity { user: user_name(), command: name.to_string_lossy().into_owned() }
    }

    /// The identity in a lock id, if its holder wrote one.
    pub(crate) fn of(lock_id: &LockId) -> Option<Self> {
        let (user, command) = lock_id.description()?.split_once(':')?;
        Some(Identity { user: user.to_owned(), command: command.to_owned() })
    }

    /// The text for the lock id: `alice:backup.sh`.
    pub(crate) fn description(&self) -> String {
        // The first colon ends the user.
        let user = plain(&self.user, LONGEST_USER).replace(':', "-");
        format!("{user}:{}", plain(&self.command, LONGEST_PROGRAM))
    }
}

/// What a lock id may hold of a text.
fn plain(text: &str, longest: usize) -> String {
    let chars = text.chars().map(|c| if c.is_ascii_graphic() && c != '#' { c } else { '-' });
    chars.take(longest).collect()
}

/// The name of the effective user, or its number if no name is found in time.
fn user_name() -> String {
    let uid = geteuid();
    let (sender, receiver) = mpsc::channel();
    let _ = thread::Builder::new().spawn(move || sender.send(User::from_uid(uid)));
    match receiver.recv_timeout(NAME_LIMIT) {
        Ok(Ok(Some(user))) => user.name,
        _ => uid.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(user: &str, command: &str) -> Identity {
        Identity { user: user.to_owned(), command: command.to_owned() }
    }

    fn read_back(description: &str) -> Option<Identity> {
        Identity::of(&LockId::from_stored(format!("web-3:812#{description}#0123456789abcdef-1")))
    }

    #[test]
    fn only_the_name_of_the_program_is_stored() {
        assert_eq!(Identity::running(OsStr::new("/opt/s3cret/bin/mysqldump")).command, "mysqldump");
        assert_eq!(Identity::running(OsStr::new("make")).command, "make");
    }

    #[test]
    fn no_name_breaks_the_lock_id() {
        for (user, command) in [("alice", "backup.sh"), ("a b:c#d", "x#y z\n:ü"), ("u", "-"), ("1000", "a:b")]
        {
            let text = identity(user, command).description();
            assert!(text.chars().all(|c| c.is_ascii_graphic() && c != '#'), "{text}");
            let read = read_back(&text).unwrap();
            assert!(read.user.len() == user.chars().count() && !read.user.contains(':'), "{read:?}");
        }
        assert_eq!(read_back("alice:a:b"), Some(identity("alice", "a:b")));
    }

    #[test]
    fn long_names_are_cut() {
        let text = identity(&"u".repeat(300), &"p".repeat(300)).description();
        assert!(text.len() <= 64, "{text}");
    }

    #[test]
    fn an_id_of_another_program_has_no_identity() {
        for foreign in ["", "a:b", "a#b:c", "a#b:c#d"] {
            assert_eq!(Identity::of(&LockId::from_stored(foreign)), None, "{foreign:?}");
        }
    }
}
