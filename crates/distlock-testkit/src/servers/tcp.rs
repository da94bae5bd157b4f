//! Blocking connections to a server, for the small clients that tests use instead of a driver.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// Connects to a loopback port. The connection and every later read and write time out after `limit`.
pub(super) fn connect(port: u16, limit: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), limit)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    Ok(stream)
}
