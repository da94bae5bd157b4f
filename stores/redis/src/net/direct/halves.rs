//! A stream of the runtime as the two halves of a connection. On Linux these are [quiet ones](super::socket).

use std::io;
#[cfg(not(target_os = "linux"))]
use std::io::Read;

#[cfg(not(target_os = "linux"))]
use socket2::SockRef;
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;

#[cfg(not(target_os = "linux"))]
use super::reader::ReadNow;
use super::{ReadHalf, WriteHalf};

/// A connected stream.
pub(crate) trait IntoHalves {
    fn into_halves(self) -> io::Result<(ReadHalf, WriteHalf)>;
}

macro_rules! into_halves {
    ($stream:ty, $read:ty) => {
        impl IntoHalves for $stream {
            #[cfg(target_os = "linux")]
            fn into_halves(self) -> io::Result<(ReadHalf, WriteHalf)> {
                super::socket::split(self.into_std()?.into())
            }

            #[cfg(not(target_os = "linux"))]
            fn into_halves(self) -> io::Result<(ReadHalf, WriteHalf)> {
                let (read, write) = self.into_split();
                Ok((Box::new(read), Box::new(write)))
            }
        }

        #[cfg(not(target_os = "linux"))]
        impl ReadNow for $read {
            fn read_now(&self, room: &mut [u8]) -> io::Result<usize> {
                (&*SockRef::from(self.as_ref())).read(room)
            }
        }
    };
}

into_halves!(TcpStream, tokio::net::tcp::OwnedReadHalf);
#[cfg(unix)]
into_halves!(UnixStream, tokio::net::unix::OwnedReadHalf);
