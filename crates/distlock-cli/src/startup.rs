//! What a watchdog is started with, before the first order: the command's stdin, a copy of the lock's descriptor where
//! the lock is the kernel's, and the command.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// How long a watchdog that was just started may take to read what does not fit into the socket.
const PATIENCE: Duration = Duration::from_secs(10);

/// No argument is as long: the kernel allows two megabytes for all of them.
const LONGEST: usize = 1 << 26;

/// What a watchdog is started with.
#[derive(Debug)]
pub(crate) struct Startup {
    pub(crate) stdin: OwnedFd,
    /// Keeps a kernel lock held until it is closed.
    pub(crate) lock: Option<OwnedFd>,
    pub(crate) command: Vec<OsString>,
}

/// Sends it. Files go over the line because the watchdog's own stdin is the line itself: the one way to hand a child more
/// than three files without leaving the safe part of the language.
pub(crate) fn send(line: &UnixStream, command: &[OsString], lock: Option<OwnedFd>) -> io::Result<()> {
    let stdin = io::stdin();
    let files: Vec<_> = [Some(stdin.as_fd()), lock.as_ref().map(AsFd::as_fd)].into_iter().flatten().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(line, &[IoSlice::new(&[0])], &mut control, SendFlags::empty())?;
    line.set_write_timeout(Some(PATIENCE))?;
    (&mut &*line).write_all(&encoded(command))
}

/// Receives it. `None`: `distlock` is gone already.
pub(crate) fn receive(line: &UnixStream) -> io::Result<Option<Startup>> {
    let Some((stdin, lock)) = receive_files(line)? else { return Ok(None) };
    match decoded(&mut &*line) {
        Ok(command) => Ok(Some(Startup { stdin, lock, command })),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn receive_files(line: &UnixStream) -> io::Result<Option<(OwnedFd, Option<OwnedFd>)>> {
    let mut byte = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(line, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::empty())?;
    if got.bytes == 0 {
        return Ok(None);
    }
    let mut files = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => files.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let (stdin, lock) = (files.next().ok_or(io::ErrorKind::InvalidInput)?, files.next());
    // The command gets stdin as its stdin, and not a second time; the lock it must never get. Not every system can do
    // this while receiving, and no other thread is there that could start a process meanwhile.
    for file in [Some(&stdin), lock.as_ref()].into_iter().flatten() {
        fcntl_setfd(file, FdFlags::CLOEXEC)?;
    }
    Ok(Some((stdin, lock)))
}

/// Each argument with its length before it, and how many there are before all.
fn encoded(command: &[OsString]) -> Vec<u8> {
    let mut bytes = command.len().to_be_bytes().to_vec();
    for word in command {
        bytes.extend(word.len().to_be_bytes());
        bytes.extend(OsStr::as_bytes(word));
    }
    bytes
}

fn decoded(line: &mut impl Read) -> io::Result<Vec<OsString>> {
    let mut command = Vec::new();
    for _ in 0..number(line)? {
        let mut word = vec![0; number(line)?];
        line.read_exact(&mut word)?;
        command.push(OsString::from_vec(word));
    }
    Ok(command)
}

fn number(line: &mut impl Read) -> io::Result<usize> {
    let mut bytes = [0; size_of::<usize>()];
    line.read_exact(&mut bytes)?;
    Some(usize::from_be_bytes(bytes))
        .filter(|number| *number <= LONGEST)
        .ok_or(io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_comes_over_whole() {
        let strange = OsString::from_vec(vec![b'\n', 0xff, b' ', b'%']);
        for command in [vec![], vec!["sh".into()], vec!["a".into(), OsString::new(), strange]] {
            assert_eq!(decoded(&mut encoded(&command).as_slice()).unwrap(), command);
        }
        let cut = encoded(&["sh".into()]);
        let error = decoded(&mut &cut[..cut.len() - 1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(decoded(&mut [0xff; 64].as_slice()).is_err(), "not written by us");
    }
}
