//! From an error of the operating system to an error that says what to do.

use std::io;
use std::path::Path;

use distlock_core::{Error, ErrorKind};
use rustix::io::Errno;

use crate::folder::Refusal;

/// The error for a call on `path` that failed during `action`.
pub(crate) fn io_error(error: io::Error, action: &'static str, path: &Path) -> Error {
    let (kind, advice) = classify(&error);
    let made = match refusal(&error) {
        // It names its own path, which may be a folder above.
        Some(refusal) => Error::new(kind, refusal.to_string()),
        None => Error::new(kind, path.display().to_string()).caused_by(error),
    };
    let made = made.doing(action);
    match advice {
        Some(advice) => made.advise(advice),
        None => made,
    }
}

/// Whether the cause is a file or a folder that does not exist: another program removed it between two steps.
pub(crate) fn is_missing_file(error: &Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::NotFound)
}

/// The refusal inside an error, if that is the cause.
pub(crate) fn refusal(error: &io::Error) -> Option<&Refusal> {
    error.get_ref().and_then(|inner| inner.downcast_ref::<Refusal>())
}

/// The error for a locked file that does not name its holder.
pub(crate) fn unreadable_owner(path: &Path) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{} is locked, but does not name its holder", path.display()))
        .doing("read a lock")
        .advise("find the process that has it open with fuser or lsof")
}

fn classify(error: &io::Error) -> (ErrorKind, Option<&'static str>) {
    if let Some(refusal) = refusal(error) {
        let advice = match refusal {
            Refusal::SymbolicLink(_) => "links are not followed: find out who made it, and remove it",
            Refusal::Owner(..) => {
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
            Some("the path exists and is not a folder or a lock file: choose another folder"),
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
    fn every_system_error_says_where_it_failed_and_what_to_do() {
        for (errno, kind) in [
            (Errno::ACCESS, ErrorKind::Denied),
            (Errno::ROFS, ErrorKind::Denied),
            (Errno::NOSPC, ErrorKind::Exhausted),
            (Errno::DQUOT, ErrorKind::Exhausted),
            (Errno::MFILE, ErrorKind::Exhausted),
            (Errno::NOTDIR, ErrorKind::InvalidInput),
        ] {
            let error = io_error(errno.into(), "open the lock file", Path::new("/var/lock/x"));
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.advice().is_some() && error.to_string().contains("/var/lock/x"), "{error}");
        }
        assert_eq!(io_error(Errno::IO.into(), "read", Path::new("/x")).kind(), ErrorKind::Unavailable);
    }
}
