//! The start message of a watchdog, before the first line of the protocol: the command's stdin, a copy of the lock's
//! descriptor where the lock is a kernel lock, and the command.

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

/// How long a new watchdog may take to read what does not fit into the socket's buffer.
const SEND_LIMIT: Duration = Duration::from_secs(10);

/// Longer than any argument: the kernel allows two megabytes for all of them.
const LONGEST: usize = 1 << 26;

/// What a watchdog needs to start.
#[derive(Debug)]
pub(crate) struct StartMessage {
    pub(crate) stdin: OwnedFd,
    /// Keeps a kernel lock held until it is closed.
    pub(crate) lock: Option<OwnedFd>,
    pub(crate) command: Vec<OsString>,
}

/// Sends it. Files are sent over the socket, which is the watchdog's stdin: that is the only way in safe Rust to pass a child
/// more than three files.
pub(crate) fn send(socket: &UnixStream, command: &[OsString], lock: Option<OwnedFd>) -> io::Result<()> {
    let stdin = io::stdin();
    let files: Vec<_> = [Some(stdin.as_fd()), lock.as_ref().map(AsFd::as_fd)].into_iter().flatten().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::empty())?;
    socket.set_write_timeout(Some(SEND_LIMIT))?;
    (&mut &*socket).write_all(&encode(command))
}

/// Receives it. `None`: `distlock` has ended already.
pub(crate) fn receive(socket: &UnixStream) -> io::Result<Option<StartMessage>> {
    let Some((stdin, lock)) = receive_files(socket)? else { return Ok(None) };
    match decode(&mut &*socket) {
        Ok(command) => Ok(Some(StartMessage { stdin, lock, command })),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn receive_files(socket: &UnixStream) -> io::Result<Option<(OwnedFd, Option<OwnedFd>)>> {
    let mut byte = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::empty())?;
    if got.bytes == 0 {
        return Ok(None);
    }
    let mut files = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => files.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let (stdin, lock) = (files.next().ok_or(io::ErrorKind::InvalidInput)?, files.next());
    // The command must inherit neither the lock nor a second copy of stdin. Not every system can set the flag while
    // receiving; no other thread could start a process in between.
    for file in [Some(&stdin), lock.as_ref()].into_iter().flatten() {
        fcntl_setfd(file, FdFlags::CLOEXEC)?;
    }
    Ok(Some((stdin, lock)))
}

/// The number of arguments, then each with its length before it.
fn encode(command: &[OsString]) -> Vec<u8> {
    let mut bytes = command.len().to_be_bytes().to_vec();
    for word in command {
        bytes.extend(word.len().to_be_bytes());
        bytes.extend(OsStr::as_bytes(word));
    }
    bytes
}

fn decode(socket: &mut impl Read) -> io::Result<Vec<OsString>> {
    let mut command = Vec::new();
    for _ in 0..number(socket)? {
        let mut word = vec![0; number(socket)?];
        socket.read_exact(&mut word)?;
        command.push(OsString::from_vec(word));
    }
    Ok(command)
}

fn number(socket: &mut impl Read) -> io::Result<usize> {
    let mut bytes = [0; size_of::<usize>()];
    socket.read_exact(&mut bytes)?;
    Some(usize::from_be_bytes(bytes))
        .filter(|number| *number <= LONGEST)
        .ok_or(io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_received_unchanged() {
        let strange = OsString::from_vec(vec![b'\n', 0xff, b' ', b'%']);
        for command in [vec![], vec!["sh".into()], vec!["a".into(), OsString::new(), strange]] {
            assert_eq!(decode(&mut encode(&command).as_slice()).unwrap(), command);
        }
        let cut = encode(&["sh".into()]);
        let error = decode(&mut &cut[..cut.len() - 1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(decode(&mut [0xff; 64].as_slice()).is_err(), "malformed");
    }
}
