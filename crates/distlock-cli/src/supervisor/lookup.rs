//! Checks that the command exists before the lock is acquired.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::exit::{Failure, NOT_EXECUTABLE, NOT_FOUND};
use crate::watchdog::cannot_run;

/// Looks the command up as the kernel and the C library do.
pub(crate) fn check(program: &OsStr) -> Result<(), Failure> {
    let found = if program.as_encoded_bytes().contains(&b'/') {
        executable(Path::new(program))
    } else {
        search(program, &env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into()))
    };
    found.map_err(|kind| {
        let code = if kind == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
        Failure::new(code, cannot_run(program, &io::Error::from(kind)))
    })
}

fn search(program: &OsStr, path: &OsStr) -> Result<(), io::ErrorKind> {
    if program.is_empty() {
        return Err(io::ErrorKind::NotFound);
    }
    let mut worst = io::ErrorKind::NotFound;
    for folder in env::split_paths(path) {
        // An empty entry means the current folder.
        let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
        match executable(&folder.join(program)) {
            Ok(()) => return Ok(()),
            Err(io::ErrorKind::NotFound) => {}
            Err(kind) => worst = kind,
        }
    }
    Err(worst)
}

fn executable(file: &Path) -> Result<(), io::ErrorKind> {
    let kind_of = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => io::ErrorKind::NotFound,
        _ => io::ErrorKind::PermissionDenied,
    };
    let is_file = file.metadata().map_err(kind_of)?.is_file();
    let allowed = access(file, Access::EXEC_OK).map_err(|error| kind_of(error.into()));
    if is_file { allowed } else { Err(io::ErrorKind::PermissionDenied) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_looked_up_as_a_shell_does() {
        assert!(check(OsStr::new("sh")).is_ok());
        assert!(check(OsStr::new("/bin/sh")).is_ok());
        assert_eq!(check(OsStr::new("no-such-command-here")).unwrap_err().code, 127);
        assert_eq!(check(OsStr::new("/no/such/file")).unwrap_err().code, 127);
        assert_eq!(check(OsStr::new("")).unwrap_err().code, 127);
        assert_eq!(check(OsStr::new("/etc")).unwrap_err().code, 126);
        assert_eq!(check(OsStr::new("/etc/passwd")).unwrap_err().code, 126);
    }
}
