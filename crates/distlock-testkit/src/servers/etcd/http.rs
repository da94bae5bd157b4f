//! GET requests to a member: its health and its metrics.

use std::io::{self, Read, Write};
use std::time::Duration;

use crate::servers::tcp;

/// The body of a page.
pub(super) fn get(port: u16, path: &str, limit: Duration) -> io::Result<String> {
    let mut stream = tcp::connect(port, limit)?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    if head.split(' ').nth(1) == Some("200") {
        Ok(body.to_owned())
    } else {
        Err(io::Error::other(head.lines().next().unwrap_or_default().to_owned()))
    }
}

/// Whether connections are accepted, where we cannot speak to the server.
pub(super) fn accepts(port: u16, limit: Duration) -> Result<(), String> {
    tcp::connect(port, limit).map(drop).map_err(|error| error.to_string())
}
