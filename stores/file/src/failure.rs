//! From an error of the operating system to one that says what to do.

use std::io;
use std::path::Path;

use distlock_core::{Error, ErrorKind};
use rustix::io::Errno;

use crate::folder::Refused;

/// The error for a call on `path` that failed while we wanted to do `action`.
pub(crate) fn failure(error: io::Error, action: &'static str, path: &Path) -> Error {
    let (kind, advice) = sort(&error);
    // What was refused names itself, and may be a folder above.
    let what =
        if refused(&error).is_some() { error.to_string() } else { format!("{}: {error}", path.display()) };
    let made = Error::new(kind, what).doing(action).caused_by(error);
    match advice {
        Some(advice) => made.advise(advice),
        None => made,
    }
}

/// What was not used although it could be opened, if that is the reason.
pub(crate) fn refused(error: &io::Error) -> Option<&Refused> {
    error.get_ref().and_then(|inner| inner.downcast_ref::<Refused>())
}

/// The error for a file that is locked and does not say by whom.
pub(crate) fn garbled(path: &Path) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{}: it is locked, and its note cannot be read", path.display()))
        .doing("look at a lock")
        .advise("find out who has it open with fuser or lsof")
}

fn sort(error: &io::Error) -> (ErrorKind, Option<&'static str>) {
    if let Some(refused) = refused(error) {
        let advice = match refused {
            Refused::Link(_) => "links are not followed: find out who made it, and remove it",
            Refused::Owner(..) => {
                "its owner can remove lock files under their holders: use a folder that no other user can write to, or \
                 share it on purpose with distlock.access=group"
            }
        };
        return (ErrorKind::Denied, Some(advice));
    }
    let Some(errno) = Errno::from_io_error(error) else { return (ErrorKind::Unavailable, None) };
    match errno {
        Errno::ACCESS | Errno::PERM => (
            ErrorKind::Denied,
            Some(
                "give this user the right to write there, or choose another folder with file:///dir; users who \
                 share locks need a folder opened with distlock.access=group",
            ),
        ),
        Errno::ROFS => (
            ErrorKind::Denied,
            Some("the file system is mounted read-only: choose another folder with file:///dir"),
        ),
        Errno::NOSPC | Errno::DQUOT => (
            ErrorKind::Exhausted,
            Some("free space or inodes on that file system (df -h, df -i, quota), or choose another folder"),
        ),
        Errno::MFILE | Errno::NFILE => (
            ErrorKind::Exhausted,
            Some("too many open files: every lock held or waited for needs one; raise ulimit -n"),
        ),
        Errno::NOLCK => (
            ErrorKind::Exhausted,
            Some("the kernel has no more file locks (over NFS: start the lock service on the server)"),
        ),
        Errno::NOTSUP | Errno::NOSYS | Errno::INVAL => (
            ErrorKind::Unsupported,
            Some("this file system has no file locks: choose a folder on a local disk with file:///dir"),
        ),
        Errno::NOTDIR | Errno::EXIST | Errno::ISDIR => (
            ErrorKind::InvalidInput,
            Some("something else stands where a folder or a lock file should be: choose another folder"),
        ),
        Errno::NAMETOOLONG => {
            (ErrorKind::InvalidInput, Some("the path of the folder is too long: choose a shorter one"))
        }
        _ => (ErrorKind::Unavailable, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_of_the_system_says_where_and_what_to_do() {
        for (errno, kind) in [
            (Errno::ACCESS, ErrorKind::Denied),
            (Errno::ROFS, ErrorKind::Denied),
            (Errno::NOSPC, ErrorKind::Exhausted),
            (Errno::DQUOT, ErrorKind::Exhausted),
            (Errno::MFILE, ErrorKind::Exhausted),
            (Errno::NOTDIR, ErrorKind::InvalidInput),
        ] {
            let error = failure(errno.into(), "open the lock file", Path::new("/var/lock/x"));
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.advice().is_some() && error.to_string().contains("/var/lock/x"), "{error}");
        }
        assert_eq!(failure(Errno::IO.into(), "read", Path::new("/x")).kind(), ErrorKind::Unavailable);
    }
}
